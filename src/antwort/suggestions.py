"""Suggestions for names that do not exist: the nearest ones, and how messages offer them.

Clients choose these names, and backends some of the names that they are compared with: of a name, its first characters
are compared, with a few dozen others at most.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import islice

COMPARED_CHARS = 64
COMPARED_NAMES = 32
"""Names that a name of a client is compared with."""
_SEARCHED_NAMES = 1000
_LISTED_NAMES = 8
_LISTED_CHARS = 80
_CLOSE, _VERY_CLOSE = 0.6, 0.8


def nearest(name: str, names: Iterable[str], count: int = 1, cutoff: float = _CLOSE) -> list[str]:
    """Return the names that are most like `name`, the nearest first."""
    from difflib import get_close_matches  # which errors alone need

    by_start = {each[:COMPARED_CHARS]: each for each in names}
    return [by_start[start] for start in get_close_matches(name[:COMPARED_CHARS], by_start, count, cutoff)]


def did_you_mean(names: Collection[str], most: int = 3) -> str:
    """Return the question for these names, or an empty text if there are none."""
    return f"did you mean {' or '.join(islice(names, most))}?" if names else ""


def among(name: str, names: Iterable[str]) -> str:
    """Return, as sentences, which of the `names` is nearest and, where they are few, all of them."""
    known = [*islice(names, _SEARCHED_NAMES)]
    if name in known:
        return ""
    letters, compared = frozenset(name[:COMPARED_CHARS]), known
    if len(known) > COMPARED_NAMES:
        compared = sorted(known, key=lambda each: len(letters ^ frozenset(each[:COMPARED_CHARS])))[:COMPARED_NAMES]
    said = []
    if near := nearest(name, compared):
        said.append(f"Did you mean {_quoted(near[0])}?")
    if 0 < len(known) <= _LISTED_NAMES and known != near:
        said.append(f"Available: {', '.join(map(_quoted, known))}.")
    return " ".join(said)


def _quoted(name: str) -> str:
    return repr(name) if len(name) <= _LISTED_CHARS else f"{name[:_LISTED_CHARS]!r}..."


# ---- fields of requests ----

MAX_WARNINGS = 8
_ELSEWHERE = {
    "messages": "input",
    "message": "input",
    "system": "instructions",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "functions": "tools",
    "function_call": "tool_choice",
    "response_format": "text.format",
    "verbosity": "text.verbosity",
    "reasoning_effort": "reasoning.effort",
    "conversation_id": "conversation",
}
"""What Chat Completions and others call a field."""
WITHOUT_EFFECT = frozenset(
    {
        "access_programs",
        "client_metadata",
        "image",
        "moderation",
        "prompt_cache_options",
        "prompt_cache_retention",
    }
)
"""Fields of OpenAI's API, and of its clients, that have no effect here."""


def meant(field: str, known: Collection[str]) -> str:
    """Return the field that is most likely meant by one that is not known; an empty text where none is near."""
    if field in WITHOUT_EFFECT:
        return ""
    return _ELSEWHERE.get(field) or next(iter(nearest(field, known, cutoff=_VERY_CLOSE)), "")


def field_warnings(fields: Sequence[str], known: Collection[str]) -> str:
    """Return a warning for each of the first fields that are not known, as printable ASCII: it goes into a header."""
    said = []
    for field in fields[:MAX_WARNINGS]:
        what = "field without effect" if field in WITHOUT_EFFECT else "unknown field"
        shown = ascii(field) if len(field) <= COMPARED_CHARS else f"{field[:COMPARED_CHARS]!a}..."
        near = meant(field, known)
        said.append(f"{what} {shown}{f', did you mean {near!r}?' if near else ''}")
    return "; ".join(said)


def missing(field: str, fields: Sequence[str], known: Collection[str]) -> str:
    """Return a sentence on the first of these unknown fields that most likely stands for a missing one."""
    for given in fields[:COMPARED_NAMES]:
        if given == "messages" and field == "input":
            return "(Chat Completions 'messages' are not accepted here.)"
        if meant(given, known) == field:
            return f"Unknown field {_quoted(given)}: did you mean {field!r}?"
    return ""


# ---- addresses ----


def addresses(path: str, paths: Collection[str]) -> str:
    """Return, as sentences, what there is instead of a path that does not exist."""
    if path.rstrip("/").endswith("/completions"):
        return "Chat Completions are not served; send 'input' in place of 'messages' to POST /v1/responses. See /docs."
    near = nearest(path.rstrip("/"), paths, cutoff=_VERY_CLOSE)
    said = f"Did you mean {near[0]!r}? " if near else ""
    return f"{said}Requests go to POST /v1/responses; /docs describes all there is."
