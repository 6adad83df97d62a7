"""Tell from a backend's error message whether it lacks a feature, or the request is wrong. Pure."""

from __future__ import annotations

import re

from antwort.errors import AntwortError, RequestError

_TOOLS = re.compile(r"\btools?\b|tool[-_ ](?:choice|call|use|parser)|function[-_ ]?call", re.IGNORECASE)
_SCHEMAS = re.compile(r"response[-_ ]?format|json[-_ ]?(?:schema|mode)|structured|guided|grammar", re.IGNORECASE)
_NOT_OFFERED = re.compile(
    r"not (?:\w+ )?(?:support|enabled|configured|available|permitted|allowed|implemented|recogni)|n't support"
    r"|unsupported|unavailable|\bno (?:\w+ ){1,5}support|requires --"
    r"|(?:unrecogni[sz]ed|unknown|unexpected|extra) (?:\w+ )?(?:input|field|param|arg|key)",
    re.IGNORECASE,
)
_ONE_TOOL = re.compile(
    r"""
    \b(?:tools|functions)(?:\[|\.|/|",?\s*)\d            # by its index: tools[0], tools.0, ["tools", 0]
    | \b(?:tool|function)(?:\ ['"`]|:)                 # by its name
    | \b(?:tool|function)(?:'s)?\ (?:named?|param|arg|schema|descri|defin)
    | \bkeyword | (?<![-_\w])schemas?\b
    | \b(?:one|any|all)Of\b | \$(?:ref|defs)\b
    | ['"`](?:not|if|pattern|format|const|enum|additionalProperties|patternProperties|strict)['"`]
    """,
    re.IGNORECASE | re.VERBOSE,
)
_ONE_SCHEMA = re.compile(
    r"\bkeyword|\b(?:one|any|all)Of\b|\$(?:ref|defs)\b|['\"`](?:not|if|pattern|format|const|enum)['\"`]", re.IGNORECASE
)
_ECHO = '"input":'
"""Behind it pydantic repeats the input, which may contain any words."""


def says_no_tools(message: str) -> bool:
    """Whether it has no tool calls, or not this kind of choice: not that one tool, its name or its schema is wrong."""
    message = message.partition(_ECHO)[0]
    return all(word.search(message) for word in (_TOOLS, _NOT_OFFERED)) and not _ONE_TOOL.search(message)


def refuses_tools(error: AntwortError) -> bool:
    """Whether a backend answers that it has no tool calls, or not this kind of choice."""
    return isinstance(error, RequestError) and says_no_tools(error.message)


def refuses_schemas(error: AntwortError) -> bool:
    """Whether a backend answers that it enforces no schemas at all: not that this one is wrong."""
    if not isinstance(error, RequestError):
        return False
    message = error.message.partition(_ECHO)[0]
    return all(word.search(message) for word in (_SCHEMAS, _NOT_OFFERED)) and not _ONE_SCHEMA.search(message)
