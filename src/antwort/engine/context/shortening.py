"""Messages with less in them, and visible words where something is missing. Pure."""

from __future__ import annotations

import re
from typing import Any

from antwort.api.wire import UNSET, replace
from antwort.providers.base import ChatMessage

_GAP = "[… {:,} characters left out …]"
_MARK = re.compile(r"\n?\[… (\d{1,3}(?:,\d{3}){0,5}) characters left out …\]\n?")
_LEAST_GAP = 2 * len(_GAP)
"""Less than this is not worth a mark."""


class Pictures(ChatMessage):
    """What results have shown: a tool message holds text only, so it stands behind them, and goes where they go."""


def shortened(message: ChatMessage, share: float) -> ChatMessage:
    """A result with about this share of its text: its head and its tail."""
    content = message.content
    if isinstance(content, str):
        return replace(message, content=short_text(content, int(len(content) * share)))
    if isinstance(content, list):
        return replace(message, content=[_short_part(part, share) for part in content])
    return message


def short_text(text: str, most: int) -> str:
    """At most so many characters of the text, and a mark in the middle that says how many are missing. What earlier
    marks say is missing, where they are cut out themselves, counts with it.
    """
    missing = len(text) - max(most, 0)
    if missing < _LEAST_GAP:
        return text
    kept = len(text) - missing
    end = len(text) - kept // 2
    start = end - missing
    marks = [mark for mark in _MARK.finditer(text) if mark.start() < end and mark.end() > start]
    if marks:
        start, end = min(start, marks[0].start()), max(end, marks[-1].end())
    earlier = sum(int(mark[1].replace(",", "")) - len(mark[0]) for mark in marks)
    return f"{text[:start]}\n{_GAP.format(end - start + earlier)}\n{text[end:]}"


def _short_part(part: dict[str, Any], share: float) -> dict[str, Any]:
    text = part.get("text")
    return part if not isinstance(text, str) else {**part, "text": short_text(text, int(len(text) * share))}


def missing_words(messages: int) -> str:
    """What stands where so many messages are missing."""
    what = "1 earlier message" if messages == 1 else f"{messages:,} earlier messages"
    return f"[Left out here, to fit into the model's context: {what}]"


TURNS_LEFT_OUT = "[Left out here, as there is too much of it: the oldest turns of the conversation]"


def bare(message: ChatMessage) -> ChatMessage:
    """Without what the model thought on the way to what it said or called, and without pictures."""
    if isinstance(message, Pictures) and isinstance(message.content, list):
        return replace(message, content=f"[{len(message.content)} of the results' pictures or files left out]")
    if message.role == "assistant" and (message.content or message.tool_calls):
        return replace(message, reasoning_content=UNSET, reasoning=UNSET)
    return message


def preceded(message: ChatMessage, words: str) -> ChatMessage:
    """The same message, with `words` before all that it says."""
    content = message.content
    if isinstance(content, list):
        return replace(message, content=[{"type": "text", "text": words}, *content])
    return replace(message, content=f"{words}\n\n{content}" if content else words)


def joined(first: ChatMessage, second: ChatMessage) -> ChatMessage:
    """What both say, as one message."""
    if not isinstance(second.content, list):
        return followed(first, second.content or "")
    if isinstance(first.content, list):
        return replace(first, content=[*first.content, *second.content])
    return preceded(second, first.content or "")


def followed(message: ChatMessage, words: str) -> ChatMessage:
    """The same message, with `words` after all that it says."""
    content = message.content
    if isinstance(content, list):
        return replace(message, content=[*content, {"type": "text", "text": words}])
    return replace(message, content=f"{content}\n\n{words}" if content else words)


def noted(messages: list[ChatMessage], words: str) -> list[ChatMessage]:
    """The messages, with a word from the server at their end. It stands with what was said last: there are templates
    that take no system message there, and no second one of the user. What the model has said itself stays its own.
    """
    words = f"[Note of the server: {words}]"
    if not messages or messages[-1].role not in ("tool", "user"):
        return [*messages, ChatMessage(role="user", content=words)]
    return [*messages[:-1], followed(messages[-1], words)]
