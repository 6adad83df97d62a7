"""Whether a backend says that it cannot do what it was asked, or that the request is wrong. Pure."""

from __future__ import annotations

import re

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
    \b(?:tools|functions)(?:\[|\.|/|",?\s*)\d            # by its place: tools[0], tools.0, ["tools", 0]
    | \b(?:tool|function)(?:\ ['"`]|:)                 # by its name
    | \b(?:tool|function)(?:'s)?\ (?:named?|param|arg|schema|descri|defin)
    | \bkeyword | (?<![-_\w])schemas?\b
    | \b(?:one|any|all)Of\b | \$(?:ref|defs)\b
    | ['"`](?:not|if|pattern|format|const|enum|additionalProperties|patternProperties|strict)['"`]
    """,
    re.IGNORECASE | re.VERBOSE,
)
_ECHO = '"input":'
"""Behind it pydantic repeats what it was given, in which there may be any words."""


def says_no_tools(said: str) -> bool:
    """Whether it has no tool calls, or not this kind: not that one tool, its name or its schema is wrong."""
    said = said.partition(_ECHO)[0]
    return all(word.search(said) for word in (_TOOLS, _NOT_OFFERED)) and not _ONE_TOOL.search(said)


def says_no_schemas(said: str) -> bool:
    """Whether it does not hold an answer to any schema: not that this one is wrong."""
    said = said.partition(_ECHO)[0]
    return all(word.search(said) for word in (_SCHEMAS, _NOT_OFFERED)) and not _OF_A_SCHEMA.search(said)


_OF_A_SCHEMA = re.compile(
    r"\bkeyword|\b(?:one|any|all)Of\b|\$(?:ref|defs)\b|['\"`](?:not|if|pattern|format|const|enum)['\"`]", re.IGNORECASE
)
