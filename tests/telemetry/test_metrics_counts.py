"""What is counted: a scripted scenario through a real server, and every number as it must be."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
import uvloop
from prometheus_client.metrics import MetricWrapperBase

from antwort.engine.engine import Engine
from antwort.engine.runs.live import RunSummary
from antwort.errors import BackendTimeout, NotAuthenticated, RateLimited, StoreFault
from antwort.identity import Identity
from antwort.server.exchange import Scope
from antwort.server.quotas import KeyLimits, Quotas
from antwort.storage.base import NewResponse
from antwort.storage.memory import MemoryStore
from antwort.telemetry.families import FAMILIES
from antwort.telemetry.labels import MAX_NAMES
from antwort.telemetry.metrics import Metrics, Snapshot
from antwort.testing import Answer, ScriptedProvider, answer, call, say, tokens
from antwort.version import __version__
from engine_kit import WEATHER, stream, weather_tool
from engine_kit import ask as asked
from raw_http import connected
from serving import HELLO, RESPONSES, STREAMED, serving, until
from telemetry_kit import Wired, of, samples_in, samples_of, value

CHAT = {"gen_ai_operation_name": "chat"}
AT_B0 = {**CHAT, "gen_ai_provider_name": "b0", "gen_ai_request_model": "scripted"}


async def test_a_conversation_is_counted_exactly() -> None:
    """A streamed answer; a loop of two turns with a tool; a backend that fails; three requests that are wrong."""
    provider = ScriptedProvider(
        answer(say("Hello there."), usage=tokens(5, 7)),
        answer(call("weather", city="Paris"), usage=tokens(10, 3)),
        answer(say("Sunny."), usage=tokens(20, 2)),
        answer(BackendTimeout("The backend took too long.")),
    )
    wired = Wired(provider, weather_tool())
    async with serving(wired.engine, wired.app) as server:
        assert (await server.ask("POST", RESPONSES, STREAMED)).status == 200
        response = (await server.ask("POST", RESPONSES, {**HELLO, "tools": [WEATHER]})).json()
        assert (await server.ask("POST", RESPONSES, HELLO)).status == 504
        assert (await server.ask("GET", f"{RESPONSES}/{response['id']}")).status == 200
        assert (await server.ask("GET", f"{RESPONSES}/resp_none")).status == 404
        assert (await server.ask("POST", RESPONSES, b"{")).status == 400
        assert (await server.ask("BREW", "/v1/coffee")).status == 400  # never becomes a request
        assert (await server.ask("PATCH", RESPONSES, HELLO)).status == 405
        reply = await server.ask("GET", "/metrics")
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    found = samples_of(reply.body.decode())

    assert of(found, "http_server_request_duration_seconds_count") == {
        ("POST", "200", "/v1/responses"): 2,
        ("POST", "504", "/v1/responses"): 1,
        ("POST", "400", "/v1/responses"): 1,
        ("other", "405", "/v1/responses"): 1,
        ("other", "400", "other"): 1,
        ("GET", "200", "/v1/responses/{id}"): 1,
        ("GET", "404", "/v1/responses/{id}"): 1,
    }
    assert of(found, "antwort_request_errors_total") == {
        ("backend_timeout",): 1,
        ("response_not_found",): 1,
        ("invalid_json",): 1,
        ("invalid_http",): 1,
        ("method_not_allowed",): 1,
    }
    assert value(found, "http_server_active_requests") == 1  # the one that reads the metrics
    assert value(found, "antwort_streams_open") == 0
    assert value(found, "antwort_runs_live") == 0

    assert of(found, "antwort_responses_total") == {
        ("", "completed"): 2,
        ("", "failed"): 1,
        ("", "incomplete"): 0,
        ("", "cancelled"): 0,
        ("", "requires_action"): 0,
    }
    assert of(found, "gen_ai_server_request_duration_seconds_count") == {
        ("", "chat", "scripted"): 2,
        ("backend_timeout", "chat", "scripted"): 1,
    }
    assert of(found, "gen_ai_server_time_to_first_token_seconds_count") == {("chat", "scripted"): 1}
    assert value(found, "antwort_response_turns_count") == 3
    assert value(found, "antwort_response_turns_sum") == 1 + 2 + 0

    assert of(found, "antwort_inferences_total") == {("b0", "ok"): 3, ("b0", "backend_timeout"): 1}
    assert value(found, "gen_ai_client_operation_duration_seconds_count", **AT_B0, error_type="") == 3
    assert value(found, "gen_ai_client_operation_duration_seconds_count", **AT_B0, error_type="backend_timeout") == 1
    assert value(found, "gen_ai_client_operation_time_to_first_chunk_seconds_count", **AT_B0) == 1
    assert value(found, "gen_ai_client_token_usage_sum", **AT_B0, gen_ai_token_type="input") == 35
    assert value(found, "gen_ai_client_token_usage_sum", **AT_B0, gen_ai_token_type="output") == 12
    assert value(found, "gen_ai_client_token_usage_count", **AT_B0, gen_ai_token_type="output") == 3
    assert value(found, "gen_ai_client_token_usage_bucket", **AT_B0, gen_ai_token_type="output", le="4.0") == 2

    assert of(found, "antwort_tool_calls_total") == {("ok", "", "weather"): 1}
    assert of(found, "gen_ai_execute_tool_duration_seconds_count") == {("", "weather", ""): 1}
    stored = of(found, "antwort_store_operation_duration_seconds_count")
    assert stored["begin", "ok"] == stored["finish", "ok"] == 3
    assert stored["get", "ok"] == 2
    assert of(found, "antwort_build_info") == {(__version__,): 1}
    assert any(name.startswith("process_") for name, _ in found)
    assert any(name.startswith("python_gc_") for name, _ in found)


def test_a_response_is_timed_by_a_clock_that_does_not_stand_still_within_a_turn_of_the_loop() -> None:
    ends: list[RunSummary] = []

    async def respond() -> None:
        async with Engine(ScriptedProvider(answer(say("Hi."))), on_end=[ends.append]) as engine:
            await stream(engine, asked())

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(respond())
    [ended] = ends
    assert ended.first is not None
    assert 0 < ended.first < ended.seconds


async def test_openmetrics_is_written_for_those_who_accept_it() -> None:
    wired = Wired(ScriptedProvider(answer(say("Hi."))))
    async with serving(wired.engine, wired.app) as server:
        await server.ask("POST", RESPONSES, HELLO)
        accept = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
        reply = await server.ask("GET", "/metrics", headers={"accept": accept})
        odd = await server.ask("GET", "/metrics", headers={"accept": "application/openmetrics-text;version=x y\t"})
    assert reply.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert b"# TYPE antwort_responses counter\n" in reply.body
    assert reply.body.endswith(b"# EOF\n")
    assert odd.headers["content-type"] == reply.headers["content-type"]


async def test_an_open_stream_and_its_run_show_as_long_as_they_last() -> None:
    hold = asyncio.Event()
    wired = Wired(ScriptedProvider(answer(say("One"), hold, say("two"))))
    async with serving(wired.engine, wired.app) as server, connected(server.port) as wire:
        wire.send("POST", RESPONSES, STREAMED)
        await wire.head()
        await wire.chunk()
        found = wired.samples()
        assert (value(found, "antwort_streams_open"), value(found, "antwort_runs_live")) == (1, 1)
        hold.set()
        while await wire.chunk():
            pass
        await until(lambda: not wired.app.requests)
        found = wired.samples()
    assert (value(found, "antwort_streams_open"), value(found, "antwort_runs_live")) == (0, 0)


async def test_a_client_that_leaves_makes_a_cancelled_inference_and_response() -> None:
    wired = Wired(ScriptedProvider(answer(say("One"), asyncio.Event())))
    async with serving(wired.engine, wired.app) as server:
        async with connected(server.port) as wire:
            wire.send("POST", RESPONSES, STREAMED)
            await wire.head()
            await wire.chunk()
        await until(lambda: not wired.engine.live and not wired.app.requests)
        found = wired.samples()
    assert value(found, "antwort_responses_total", status="cancelled", reason="") == 1
    assert of(found, "antwort_inferences_total") == {("b0", "cancelled"): 1}
    route = {"http_request_method": "POST", "http_route": "/v1/responses", "http_response_status_code": "499"}
    assert value(found, "http_server_request_duration_seconds_count", **route) == 1


_LOOK = answer(call("weather", city="Paris"), usage=tokens(10, 10))


@pytest.mark.parametrize(
    ("script", "settings", "reason"),
    [
        ([answer(say("Too lo"), finish="length")], {}, "max_output_tokens"),
        ([answer(say("Uh"), finish="content_filter")], {}, "content_filter"),
        ([answer(say("Too la"), asyncio.Event())], {"deadline": 0.01}, "deadline"),
        ([_LOOK], {"max_turns": 1}, "max_turns"),
        ([_LOOK] * 3, {"max_tool_calls": 1}, "max_tool_calls"),
        ([_LOOK], {"token_budget": 20}, "token_budget"),
        ([_LOOK] * 3, {"stuck_limit": 3}, "stuck"),
    ],
)
async def test_the_reason_of_an_incomplete_response_is_counted(
    script: list[Answer], settings: dict[str, float], reason: str
) -> None:
    wired = Wired(ScriptedProvider(*script), weather_tool(), settings=settings)
    async with serving(wired.engine, wired.app) as server:
        await server.ask("POST", RESPONSES, {**HELLO, "tools": [WEATHER]})
    assert value(wired.samples(), "antwort_responses_total", status="incomplete", reason=reason) == 1


async def test_a_store_that_fails_is_counted_as_such() -> None:
    class FullDisk(MemoryStore):
        async def begin(self, new: NewResponse) -> None:
            raise StoreFault("There is no space left.")

    wired = Wired(ScriptedProvider(answer(say("Hi."))), store=FullDisk())
    async with serving(wired.engine, wired.app) as server:
        assert (await server.ask("POST", RESPONSES, HELLO)).status == 500
    found = wired.samples()
    assert of(found, "antwort_store_operation_duration_seconds_count")["begin", "error"] == 1
    assert value(found, "antwort_request_errors_total", code="storage_error") == 1


async def test_a_key_that_is_over_its_limit_is_counted_by_its_name() -> None:
    def limited(_: Scope) -> Identity:
        return Identity(key="ann")

    provider = ScriptedProvider(answer(RateLimited("The backend is busy.")))
    quotas = Quotas({"ann": KeyLimits(requests_per_minute=1)})
    wired = Wired(provider, metrics=Metrics(keys=["ann"]), identify=limited, quotas=quotas)
    async with serving(wired.engine, wired.app) as server:
        assert (await server.ask("POST", RESPONSES, HELLO)).status == 429  # the backend's: no key is to blame
        assert of(wired.samples(), "antwort_key_limits_total") == {}
        assert (await server.ask("POST", RESPONSES, HELLO)).status == 429
    assert of(wired.samples(), "antwort_key_limits_total") == {("ann",): 1}


class Status(msgspec.Struct):
    name: str
    state: str


def test_backends_show_whether_they_answer_and_whether_they_are_left_alone() -> None:
    metrics = Metrics()
    metrics.gauges.backends = lambda: [Status("a", "ok"), Status("b", "open"), Status("c", "unreachable")]
    found = samples_in(metrics)
    assert of(found, "antwort_backend_up") == {("a",): 1, ("b",): 0, ("c",): 0}
    assert of(found, "antwort_backend_circuit_open") == {("a",): 0, ("b",): 1, ("c",): 0}


def test_a_model_that_a_backend_lists_becomes_a_label_when_it_is_first_met() -> None:
    metrics = Metrics()
    metrics.is_listed = {"qwen3", *(f"r{at}" for at in range(2 * MAX_NAMES))}.__contains__
    assert [metrics.model(name) for name in ("qwen3", "made-up", "r399")] == ["qwen3", "other", "r399"]
    labels = {metrics.model(f"r{at}") for at in range(2 * MAX_NAMES)}
    assert len(labels) == MAX_NAMES  # r399 and others, but for the place of qwen3, and `other`
    assert metrics.model("qwen3") == "qwen3"


async def test_two_servers_in_one_process_share_nothing() -> None:
    one, other = Wired(ScriptedProvider(answer(say("Hi.")))), Wired(ScriptedProvider())
    async with serving(one.engine, one.app) as server:
        await server.ask("POST", RESPONSES, HELLO)
    assert value(one.samples(), "antwort_responses_total", status="completed", reason="") == 1
    assert value(other.samples(), "antwort_responses_total", status="completed", reason="") == 0
    await other.engine.close()


async def test_every_metric_there_is_can_be_read_and_no_other(caplog: pytest.LogCaptureFixture) -> None:
    wired = Wired(ScriptedProvider())
    snapshot = Snapshot(wired.metrics.registry, wired.metrics.gauges.read())
    ours = [metric for metric in snapshot.collect() if not metric.name.startswith(("process_", "python_"))]
    assert {(metric.name, metric.type, metric.documentation) for metric in ours} == {
        (family.name.removesuffix("_total"), family.kind, family.help) for family in FAMILIES
    }
    assert len(ours) == len(FAMILIES)
    await wired.engine.close()
    assert not caplog.records


async def test_labels_are_looked_up_once_and_not_for_each_request(monkeypatch: pytest.MonkeyPatch) -> None:
    lookups: list[object] = []
    look_up = MetricWrapperBase.labels

    def counted(metric: MetricWrapperBase, *values: object) -> MetricWrapperBase:
        lookups.append(values)
        return look_up(metric, *values)

    provider = ScriptedProvider(*[answer(say("one two three"), usage=tokens(3, 2)) for _ in range(3)])
    wired = Wired(provider)
    async with serving(wired.engine, wired.app) as server:
        await server.ask("POST", RESPONSES, STREAMED)
        monkeypatch.setattr(MetricWrapperBase, "labels", counted)
        for _ in range(2):
            await server.ask("POST", RESPONSES, STREAMED)
    assert lookups == []
    assert value(wired.samples(), "antwort_responses_total", status="completed", reason="") == 3


async def test_a_stranger_learns_nothing_of_the_numbers_but_is_counted() -> None:
    def nobody(_: Scope) -> Identity:
        raise NotAuthenticated("No valid key was given.")

    wired = Wired(ScriptedProvider(), identify=nobody)
    async with serving(wired.engine, wired.app) as server:
        assert (await server.ask("POST", RESPONSES, HELLO)).status == 401
    assert of(wired.samples(), "antwort_request_errors_total") == {("invalid_api_key",): 1}
