"""What a conversation asks of the scripted model. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from clients.strict import Json, texts

_CASE = re.compile(r"\bcase:([\w-]+)")
_CALL = re.compile(r"\bcall:([\w.-]+)")


class Cue(NamedTuple):
    case: str
    text: str
    """The whole message."""
    since: Sequence[Json]
    """The messages after it."""

    @property
    def said(self) -> str:
        """The message without the words that are for the script."""
        return " ".join(_CASE.sub("", self.text).split())

    @property
    def calls(self) -> list[tuple[str, Json | None]]:
        return [(found[1], _object_at(self.text, found.end())) for found in _CALL.finditer(self.text)]

    @property
    def json(self) -> Json:
        at = self.text.find("{")
        return (_object_at(self.text, at) if at >= 0 else None) or {}


def _object_at(text: str, at: int) -> Json | None:
    if text[at : at + 1] != "{":
        return None
    found, _ = json.JSONDecoder().raw_decode(text, at)
    assert isinstance(found, dict)
    return found


def cue_of(messages: Sequence[Json]) -> Cue:
    """What this conversation asks of the script; case:plain where nothing does."""
    by_role = [[i for i, message in enumerate(messages) if message["role"] == role] for role in ("user", "system")]
    users = by_role[0]
    for index in [i for indexes in by_role for i in reversed(indexes)]:
        text = "\n".join(texts(messages[index]))
        if found := _CASE.search(text):
            start = index if messages[index]["role"] == "user" else (users or [index])[-1]
            return Cue(found[1], text, messages[start + 1 :])
    text = "\n".join(texts(messages[users[-1]])) if users else ""
    return Cue("plain", text, messages[users[-1] + 1 :] if users else ())


def described(request: Any) -> str:
    """The case of a request, for the record."""
    try:
        return cue_of(request["messages"]).case
    except (TypeError, KeyError, ValueError):
        return ""
