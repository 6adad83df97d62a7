"""What is measured keeps the contract of what it wraps."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from contextlib import aclosing
from pathlib import Path

import pytest

from antwort.api.wire import replace
from antwort.engine.settings import EngineSettings
from antwort.errors import BackendCut, ResponseNotFound, StoreFault
from antwort.providers.base import ChatMessage, ChatRequest, Delta, Finished, TextDelta
from antwort.providers.fleet import Fleet, Member
from antwort.storage.base import Page
from antwort.storage.memory import MemoryStore
from antwort.telemetry.families import (
    CALL_TIME,
    FAMILIES,
    FIRST_CHUNK,
    FIRST_TOKEN,
    INFERENCE_TIME,
    REQUESTS,
    RESPONSE_TIME,
    Family,
)
from antwort.telemetry.hooks import timed_store
from antwort.telemetry.metrics import Metrics
from antwort.testing import Answer, ScriptedProvider, answer, say, tokens
from storage_cases import ME, asked, ended, entries, message, open_conversation, said_in
from telemetry_kit import of, samples_in

ASKED = ChatRequest(model="scripted", messages=[ChatMessage(role="user", content="Hello")], stream=True)


def measured(*answers: Answer) -> tuple[Fleet, ScriptedProvider, Metrics]:
    metrics = Metrics(models=["scripted"])
    inner = ScriptedProvider(*answers)
    return Fleet([Member("b0", inner)], on_inference=metrics.inference), inner, metrics


def outcomes(metrics: Metrics) -> dict[tuple[str, ...], float]:
    return of(samples_in(metrics), "antwort_inferences_total")


def first_chunks(metrics: Metrics) -> float:
    return sum(of(samples_in(metrics), "gen_ai_client_operation_time_to_first_chunk_seconds_count").values())


def tokens_in(metrics: Metrics) -> dict[str, float]:
    return {key[-1]: number for key, number in of(samples_in(metrics), "gen_ai_client_token_usage_sum").items()}


def stored(metrics: Metrics) -> dict[tuple[str, ...], float]:
    return of(samples_in(metrics), "antwort_store_operation_duration_seconds_count")


async def test_the_batches_of_an_inference_pass_through_as_they_are() -> None:
    batch: list[Delta] = [TextDelta("a"), TextDelta("b")]
    provider, _, metrics = measured([batch, Finished("stop", tokens(1, 2))])
    got = [each async for each in provider.infer(ASKED)]
    assert got == [[], batch, [Finished("stop", tokens(1, 2))]]
    assert got[1] is batch
    assert outcomes(metrics) == {("b0", "ok"): 1}


async def test_the_time_to_the_first_chunk_is_that_of_the_first_batch_with_something_in_it() -> None:
    hold = asyncio.Event()
    provider, _, metrics = measured(answer(hold, say("x")))
    async with aclosing(provider.infer(ASKED)) as batches:
        assert await anext(batches) == []
        assert first_chunks(metrics) == 0
        hold.set()
        async for _ in batches:
            pass
    assert first_chunks(metrics) == 1


async def test_closing_early_closes_what_is_inside_and_counts_as_cancelled() -> None:
    provider, inner, metrics = measured(answer(say("one two three")))
    async with aclosing(provider.infer(ASKED)) as batches:
        await anext(batches)
        await anext(batches)
    assert inner.under_way == 0
    assert outcomes(metrics) == {("b0", "cancelled"): 1}


async def test_an_inference_that_had_ended_when_it_was_closed_is_not_cancelled() -> None:
    provider, _, metrics = measured(answer(say("one")))
    async with aclosing(provider.infer(ASKED)) as batches:
        async for batch in batches:
            if batch and isinstance(batch[-1], Finished):
                break
    assert outcomes(metrics) == {("b0", "ok"): 1}


async def test_an_error_passes_through_and_is_counted_by_its_code() -> None:
    provider, _, metrics = measured(answer(say("one"), BackendCut("It broke off.")))
    with pytest.raises(BackendCut):
        async for _ in provider.infer(ASKED):
            pass
    assert outcomes(metrics) == {("b0", "backend_stream_cut"): 1}


async def test_every_inference_and_all_its_tokens_are_counted() -> None:
    provider, _, metrics = measured(*[[Finished("stop", tokens(3, 2))] for _ in range(100)])
    for _ in range(100):
        async for _ in provider.infer(ASKED):
            pass
    assert outcomes(metrics) == {("b0", "ok"): 100}
    assert tokens_in(metrics) == {"input": 300, "output": 200}


async def test_tokens_that_nobody_tells_of_are_not_none() -> None:
    provider, _, metrics = measured([Finished("stop", None)])
    async for _ in provider.infer(ASKED):
        pass
    assert outcomes(metrics) == {("b0", "ok"): 1}
    assert tokens_in(metrics) == {}


# ---- the store ----


async def test_a_measured_store_does_what_it_wraps_does_and_times_it() -> None:
    metrics = Metrics()
    store = timed_store(MemoryStore(), metrics)
    new = asked("Hello")
    await store.begin(new)
    await store.finish(ME, ended(new, message("Hi")), ())
    kept = await store.get(ME, new.response.id)
    assert kept is not None
    assert kept.status == "completed"
    assert len(await store.chain(ME, new.response.id)) == 1
    with pytest.raises(ResponseNotFound):
        await store.finish(ME, ended(asked("Nobody"), message("Hi")), ())
    assert stored(metrics) == {("begin", "ok"): 1, ("finish", "ok"): 2, ("get", "ok"): 1, ("chain", "ok"): 1}


async def test_a_measured_store_keeps_conversations_and_times_that_too() -> None:
    metrics = Metrics()
    store = timed_store(MemoryStore(), metrics)
    conversation = await open_conversation(store, {"role": "user", "content": "Hello", "id": "msg_1"})
    assert await store.conversation(ME, conversation.id) == conversation
    assert await store.describe_conversation(ME, conversation.id, {}) == replace(conversation, metadata={})
    assert len(await store.add_entries(ME, conversation.id, entries("Bye")) or ()) == 1
    assert await said_in(store, conversation.id) == ["Hello", "Bye"]
    page = await store.conversation_items(ME, conversation.id, Page(limit=1))
    assert page is not None
    assert page.has_more
    assert await store.conversation_item(ME, conversation.id, "msg_1") is not None
    assert await store.delete_entry(ME, conversation.id, "msg_1")
    assert await store.delete_conversation(ME, conversation.id)
    assert {operation for operation, _ in stored(metrics)} == {
        "begin_conversation",
        "conversation",
        "describe_conversation",
        "add_entries",
        "said",
        "conversation_items",
        "conversation_item",
        "delete_entry",
        "delete_conversation",
    }


async def test_a_store_that_fails_passes_its_error_on() -> None:
    class Failing(MemoryStore):
        async def check(self) -> None:
            raise StoreFault("The disk is gone.")

    metrics = Metrics()
    with pytest.raises(StoreFault):
        await timed_store(Failing(), metrics).check()
    assert stored(metrics) == {("check", "error"): 1}


# ---- what it costs at the start, and how it is described ----


WITHOUT = """
import asyncio, sys
from antwort.app import build
from antwort.config.settings import MetricsSettings, Settings
app = asyncio.run(build(Settings(scripted=True, memory=True, metrics=MetricsSettings(enabled={}))))
print("prometheus_client" in sys.modules)
"""


@pytest.mark.parametrize("enabled", [False, True])
def test_the_library_that_counts_is_loaded_only_where_there_are_metrics(*, enabled: bool) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", WITHOUT.format(enabled)], capture_output=True, text=True, check=True, timeout=60
    )
    assert ran.stdout == f"{enabled}\n"


def test_the_reference_has_a_row_for_every_metric_and_is_a_table() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
    for family in FAMILIES:
        assert f"| `{family.name}` | {family.kind} |" in page
        for label in family.labels:
            assert f"`{label}`" in page
    rows = [line for line in page.splitlines() if line.startswith("|")]
    assert {row.count("|") for row in rows if "upper" not in row} >= {5}
    assert all(row.endswith("|") for row in rows)


def test_metrics_are_named_as_prometheus_wants_them() -> None:
    assert len({family.name for family in FAMILIES}) == len(FAMILIES)
    for family in FAMILIES:
        assert family.name.startswith(("antwort_", "gen_ai_", "http_server_"))
        assert family.name.endswith("_total") is (family.kind == "counter")
        assert (family.kind == "histogram") is bool(family.bounds)
        assert list(family.bounds) == sorted(family.bounds)
        assert family.help.endswith(".")


@pytest.mark.parametrize(
    "family",
    [REQUESTS, RESPONSE_TIME, FIRST_TOKEN, INFERENCE_TIME, FIRST_CHUNK, CALL_TIME],
    ids=lambda family: family.name,
)
def test_a_response_that_takes_its_whole_deadline_is_not_in_the_last_bucket(family: Family) -> None:
    beyond = [bound for bound in family.bounds if bound > EngineSettings().deadline]
    assert len(beyond) >= 2  # one that may take twice as long is told from it
