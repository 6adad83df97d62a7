"""The way that users get: antwort's own provider for models without tool calls, in front of the engine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import aclosing

from toolcalling.engine import NAME, Engine
from toolcalling.forms import TOKENS, call_of
from toolcalling.judge import Call
from toolcalling.modes import Reply

from antwort.local.demo import TEMPLATE
from antwort.providers.base import CallDelta, ChatMessage, ChatRequest, ChatTool, Delta, Finished
from antwort.providers.chat import ChatProvider
from antwort.providers.tool_emulation.emulation import Constrained


class ThroughAntwort:
    template = TEMPLATE

    def ask(self, engine: Engine, tools: Sequence[ChatTool], question: str) -> Reply:
        request = ChatRequest(
            model=NAME,
            messages=[ChatMessage(role="user", content=question)],
            tools=list(tools),
            stream=True,
            temperature=0.0,
            max_tokens=TOKENS,
        )
        deltas = asyncio.run(_infer(engine, request))
        return Reply(calls_in(deltas), [repr(delta) for delta in deltas])


async def _infer(engine: Engine, request: ChatRequest) -> list[Delta]:
    provider = Constrained(ChatProvider(engine.base, api_key=engine.key), "constrained")
    try:
        async with aclosing(provider.infer(request)) as batches:
            return [delta async for batch in batches for delta in batch]
    finally:
        await provider.close()


def calls_in(deltas: Sequence[Delta]) -> tuple[Call, ...]:
    names: dict[int, str] = {}
    arguments: dict[int, str] = {}
    for delta in deltas:
        if isinstance(delta, CallDelta):
            names[delta.index] = names.get(delta.index, "") + delta.name
            arguments[delta.index] = arguments.get(delta.index, "") + delta.arguments
    made = tuple(_call(name, arguments[index]) for index, name in names.items())
    is_cut = any(isinstance(delta, Finished) and delta.finish == "length" for delta in deltas)
    return _cut(made) if made and is_cut else made


def _call(name: str, arguments: str) -> Call:
    try:
        return call_of(name, json.loads(arguments))
    except ValueError:
        return Call(name, None)


def _cut(calls: tuple[Call, ...]) -> tuple[Call, ...]:
    """Calls after which the answer went on until it was cut off: at the latest of the next one."""
    whole = calls if calls[-1].arguments is not None else calls[:-1]
    return (*whole, Call("", None, is_cut=True))
