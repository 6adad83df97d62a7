"""Whether a backend counts tokens: it is asked as a server asks it."""

from __future__ import annotations

from antwort.doctor.answers import Speech
from antwort.doctor.asking import Line, below, beside
from antwort.net.exchange import BadAnswer
from antwort.providers.base import ChatMessage, ChatRequest
from antwort.providers.chat import ChatProvider
from antwort.providers.counting import Counter, Told
from antwort.providers.native import ResponsesProvider

_WORDS = "How many tokens are these?"


async def count(line: Line, base: str, model: str, speech: Speech) -> int | None:
    """How many tokens a few words have there; None where nobody counts."""

    async def ask(path: str, body: bytes, *, is_beside: bool = False) -> Told:
        answer = await line.post(beside(base, path) if is_beside else below(base, path), body)
        if answer.fault:
            raise BadAnswer(answer.fault)
        return Told(answer.status, answer.body)

    ways = (ChatProvider if speech == "chat" else ResponsesProvider).ways
    request = ChatRequest(model=model, messages=[ChatMessage(role="user", content=_WORDS)])
    return await Counter(ask, ways).count(request)
