"""What a response costs, also where the backend does not tell, or has not come to it."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import pytest

from antwort.api.events import OutputTextDelta
from antwort.engine.engine import Engine
from antwort.engine.runs.live import RunSummary
from antwort.errors import BackendUnavailable
from antwort.identity import ANONYMOUS
from antwort.server.quotas import tokens_of
from antwort.testing import Answer, ScriptedProvider, answer, call, say, tokens
from antwort.tools.local import LocalExecutor
from serving import until

QUESTION = "word " * 400  # 2000 bytes: about 500 tokens
ANSWER = "word " * 200
NAP: dict[str, Any] = {"type": "function", "name": "nap", "parameters": {"type": "object", "properties": {}}}


async def test_what_the_backend_tells_is_what_counts() -> None:
    [ended] = await played(answer(say(ANSWER), usage=tokens(5, 7)))
    assert (ended.untold, tokens_of(ended)) == (0, 12)


async def test_where_the_backend_does_not_tell_it_is_estimated() -> None:
    [ended] = await played(answer(say(ANSWER)))
    assert ended.untold == 1
    assert tokens_of(ended) == pytest.approx(750, rel=0.05)


async def test_each_inference_reads_the_input_anew() -> None:
    script = answer(call("nap"), usage=tokens(500, 10)), answer(call("nap")), answer(say(ANSWER))
    [ended] = await played(*script, tools=[NAP])
    assert (ended.turns, ended.untold) == (3, 2)
    assert tokens_of(ended) == pytest.approx(510 + 2 * 500 + 250, rel=0.15)


async def test_a_picture_does_not_count_by_its_size() -> None:
    picture = {"type": "input_image", "image_url": "data:image/png;base64," + "A" * 1_000_000}
    [ended] = await played(answer(say("A cat.")), input=[{"role": "user", "content": [picture]}])
    assert 1000 < tokens_of(ended) < 1100


async def test_whoever_leaves_before_the_usage_comes_has_used_it_all_the_same() -> None:
    told: list[RunSummary] = []
    script = answer(say(ANSWER), asyncio.Event(), usage=tokens(500, 250))
    async with Engine(ScriptedProvider(script), on_end=[told.append]) as engine:
        async with aclosing(engine.respond(input=QUESTION)) as events:
            seen = 0
            async for event in events:
                seen += isinstance(event, OutputTextDelta)
                if seen == 200:
                    break
        await until(lambda: bool(told))
    assert (told[0].response.usage, told[0].response.status) == (None, "cancelled")
    assert tokens_of(told[0]) == pytest.approx(750, rel=0.05)


async def test_whoever_cancels_before_the_first_word_has_had_the_input_read() -> None:
    told: list[RunSummary] = []
    provider = ScriptedProvider(answer(asyncio.Event()))
    async with Engine(provider, on_end=[told.append]) as engine:
        making = asyncio.create_task(engine.create(input=QUESTION))
        await until(lambda: bool(provider.under_way))
        [run] = engine.live_runs.values()
        await engine.cancel(ANONYMOUS, run.response_id)
        await making
    assert tokens_of(told[0]) == pytest.approx(500, rel=0.05)


async def test_an_answer_that_broke_off_counts_as_far_as_it_came() -> None:
    [ended] = await played(answer(say(ANSWER), BackendUnavailable("gone")))
    assert ended.response.status == "failed"
    assert tokens_of(ended) == pytest.approx(750, rel=0.05)


async def test_an_inference_that_the_backend_never_took_up_costs_nothing() -> None:
    [ended] = await played([BackendUnavailable("not there")])
    assert (ended.untold, tokens_of(ended)) == (0, 0)


async def test_a_run_that_is_stopped_while_its_tools_run_costs_what_was_told() -> None:
    told: list[RunSummary] = []
    started = asyncio.Event()

    async def nap() -> str:
        """Sleep until told to stop."""
        started.set()
        await asyncio.Event().wait()
        return "slept"

    script = ScriptedProvider(answer(call("nap"), usage=tokens(5, 7)))
    async with Engine(script, executors=[LocalExecutor(nap)], on_end=[told.append]) as engine:
        making = asyncio.create_task(engine.create(input=QUESTION, tools=[NAP]))
        await started.wait()
        [run] = engine.live_runs.values()
        await engine.cancel(ANONYMOUS, run.response_id)
        await making
    assert (told[0].untold, tokens_of(told[0])) == (0, 12)


async def played(*script: Answer, **fields: Any) -> list[RunSummary]:
    """The accounts of one response."""
    told: list[RunSummary] = []

    async def nap() -> str:
        """Sleep."""
        return "slept"

    async with Engine(ScriptedProvider(*script), executors=[LocalExecutor(nap)], on_end=[told.append]) as engine:
        run = await engine.start(engine._read({"input": QUESTION, **fields}, {}, stream=False))
        await run.wait()
        await until(lambda: bool(told))
    return told
