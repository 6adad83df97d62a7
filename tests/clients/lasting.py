"""Long histories, which fill a context or are worth compacting."""

from __future__ import annotations

from typing import Any

from clients.strict import Json
from clients.trying import Trial

SAND = "sand"
"""What fills a context: the scripted model says a word that is said over and over only once."""
THRESHOLD = 1000
"""Tokens from which on a server that was told so compacts."""
PAST_THRESHOLD = 2500
"""Words; far beyond it, however they are counted."""
TURNS = 10
NOT_STREAMED = "a WebSocket always streams"
ONLY_HTTP = "the client speaks to the Responses API over HTTP alone"
NO_COUNT = "the client counts tokens by itself, or not at all"


def sand(words: int) -> str:
    return " ".join([SAND] * words)


def told(at: Trial) -> str:
    """What is to be remembered."""
    return f"My word is walrus. {at.mark}"


def past_threshold(at: Trial) -> list[Any]:
    """A turn that is worth compacting, and a question about it."""
    return [
        {"role": "user", "content": f"case:plain {told(at)} {sand(PAST_THRESHOLD)}"},
        {"role": "assistant", "content": f"You said: {told(at)}"},
        {"role": "user", "content": "case:remember"},
    ]


def too_long(at: Trial) -> list[Any]:
    """More than the small model's context, a system's message first and a question last."""
    history: list[Any] = [{"role": "system", "content": "Be kind."}]
    for number in range(TURNS):
        history.append({"role": "user", "content": f"Number {number} is the first. {at.mark} {sand(50)}"})
        history.append({"role": "assistant", "content": f"Number {number} it is. {sand(50)}"})
    return [*history, {"role": "user", "content": "case:remember"}]


def check_cut(text: str) -> None:
    """The system's message and the newest turns are there; the oldest are not."""
    assert "Be kind." in text
    assert f"Number {TURNS - 1} it is." in text
    assert "Number 0 is the first." not in text


def check_compacted(at: Trial, text: str) -> None:
    """What was said is still known, and what is sent for it is short."""
    assert "walrus" in text
    assert _words(at.reached()[-1]) < PAST_THRESHOLD


def _words(body: Json) -> int:
    return sum(str(message.get("content")).count(SAND) for message in body["messages"])
