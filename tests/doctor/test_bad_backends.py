"""Backends that are not as they should be: each costs a line, and none costs more time than was allowed."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import pytest
import uvicorn

from antwort.config.secrets import Secret
from antwort.config.settings import BackendSettings, CapabilitySettings
from antwort.doctor.client import Access
from antwort.doctor.examiner import Examiner, OutOfReach, Subject
from antwort.testing.backend import DemoBackend
from antwort.version import __version__
from doctor_kit import PATIENCE, by_probe, examined, verdicts
from live_server import launched
from replay import LLAMA_CPP, NOT_THERE, VLLM, answering, kind_of, playing, refusing_tools
from replay_backend import CASES, Answer, Seen, serve, sse, whole

HTML = Answer((b"<html><body>Bad Gateway</body></html>",), 502, {"content-type": "text/html"}, "length")
KEY = "sk-doctor-0123456789"


def _error(status: int, message: str) -> Answer:
    return whole(json.dumps({"error": {"message": message}}).encode(), status)


@asynccontextmanager
async def running(app: DemoBackend) -> AsyncGenerator[str, None]:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        server = uvicorn.Server(uvicorn.Config(app, lifespan="off", log_config=None))
        task = asyncio.create_task(server._serve([sock]))
        try:
            yield f"http://127.0.0.1:{sock.getsockname()[1]}"
        finally:
            server.should_exit = True
            await task


async def test_nobody_there_is_said_in_one_line() -> None:
    async with serve(HTML) as backend:
        url = backend.url
    with pytest.raises(OutOfReach, match="cannot be reached: nothing listens there"):
        await examined(url)


async def test_a_name_that_is_not_known_is_said_to_be() -> None:
    with pytest.raises(OutOfReach, match="its name is not known"):
        await examined("http://backend.invalid:8000/v1")


async def test_a_backend_that_never_answers_is_given_up_in_time() -> None:
    async with serve(Answer(ending="silence")) as backend:
        with pytest.raises(OutOfReach, match="does not answer"):
            await examined(backend.url, patience=0.1)


@pytest.mark.parametrize("status", [401, 403])
async def test_a_backend_that_asks_for_a_key_says_where_to_put_it(status: int) -> None:
    async with serve(_error(status, "no key")) as backend:
        with pytest.raises(OutOfReach, match="asks for a key: say --backend-key-file"):
            await examined(backend.url)


async def test_what_speaks_no_http_is_out_of_reach() -> None:
    async with serve(b"SSH-2.0-OpenSSH_9.6\r\n\r\n") as backend:
        with pytest.raises(OutOfReach, match="does not speak HTTP"):
            await examined(backend.url)


async def test_an_address_with_a_web_page_is_no_backend() -> None:
    async with serve(Answer((b"<html>",), 404, {"content-type": "text/html"}, "length")) as backend:
        with pytest.raises(OutOfReach, match="there is no /chat/completions"):
            await examined(backend.url)


async def test_errors_in_html_are_told_and_made_up_for() -> None:
    async with playing(LLAMA_CPP, malformed=HTML) as engine:
        found = await examined(engine.url)
    errors = by_probe(found)["errors"]
    assert (errors.verdict, errors.seen) == ("fails", "status 502 with text/html, no error object")
    assert found.outcome == "fine"


async def test_an_inference_that_fails_ends_the_questions() -> None:
    async with playing(VLLM, text=HTML) as engine:
        found = await examined(engine.url)
        assert engine.kinds[-1] == "text"
    told = by_probe(found)
    assert (told["streaming"].verdict, told["streaming"].blocks) == ("fails", True)
    assert told["streaming"].seen == "it answers with status 502: text/html"
    assert told["tools.auto"].seen == "not asked, as earlier questions went unanswered"
    assert set(list(verdicts(found).values())[3:]) <= {"unknown", "works"}
    assert found.outcome == "broken"


async def test_a_model_that_is_not_there_is_named_by_the_backend() -> None:
    refusal = Answer((CASES["vllm/err_model"].body,), 404, {"content-type": "application/json"}, "length")
    async with playing(VLLM, text=refusal) as engine:
        told = by_probe(await examined(engine.url, model="nope"))
    assert told["models"].seen == "1: smollm2; nope is not among them"
    assert "The model `nope` does not exist" in told["streaming"].seen


async def test_two_answers_that_do_not_come_are_enough() -> None:
    hung = dict.fromkeys(("schema", "auto", "required", "named", "parallel", "image"), Answer(ending="silence"))
    async with playing({**VLLM, **hung}) as engine:
        found = await examined(engine.url, patience=0.3)
        assert engine.kinds.count("required") == 0
    assert by_probe(found)["tools.auto"].seen.startswith("no answer within 3")  # and some milliseconds
    assert by_probe(found)["tools.required"].verdict == "unknown"


async def test_a_stream_that_never_ends_is_left_and_blocks() -> None:
    endless = sse(b'data: {"choices":[{"index":0,"delta":{"content":"one, "}}]}\n\n' * 3, ending="hold")
    async with playing(VLLM, text=endless) as engine:
        found = await examined(engine.url, patience=0.3)
        await engine.left.wait()
    streaming = by_probe(found)["streaming"]
    assert (streaming.seen, streaming.blocks) == ("it did not end, in spite of a length limit", True)


async def test_more_than_a_mebibyte_of_an_answer_is_not_read() -> None:
    flood = sse(*[b'data: {"choices":[{"index":0,"delta":{"content":"' + b"x" * 65_000 + b'"}}]}\n\n'] * 40)
    async with playing(VLLM, text=flood) as engine:
        found = await examined(engine.url)
    assert by_probe(found)["streaming"].seen == "it did not end, in spite of a length limit"


async def test_a_stream_that_breaks_off_blocks() -> None:
    cut = sse(b'data: {"choices":[{"index":0,"delta":{"content":"one"}}]}\n\n', ending="cut")
    async with playing(VLLM, text=cut) as engine:
        found = await examined(engine.url)
    assert by_probe(found)["streaming"].seen == "The backend's answer broke off"
    assert found.settings == {}
    assert found.outcome == "broken"


async def test_a_stream_that_stays_open_after_its_last_word_is_done() -> None:
    """The connection is never closed; `[DONE]` is what counts."""
    body = CASES["vllm/text_stream_usage"].body
    async with playing(VLLM, text=sse(body, ending="hold")) as engine:
        async with asyncio.timeout(10):
            found = await examined(engine.url, patience=60)
    assert by_probe(found)["streaming"].verdict == "works"


async def test_an_answer_that_comes_whole_is_made_up_for() -> None:
    answer = Answer((CASES["vllm/text_nonstream"].body,), headers={"content-type": "application/json"})
    async with playing(VLLM, text=answer) as engine:
        found = await examined(engine.url)
    streaming = by_probe(found)["streaming"]
    assert (streaming.verdict, streaming.blocks) == ("fails", False)
    assert found.outcome == "fine"


async def test_a_stream_without_usage_is_told_as_one() -> None:
    body = CASES["vllm/text_stream_nousage"].body
    async with playing(VLLM, text=sse(body)) as engine:
        usage = by_probe(await examined(engine.url))["stream_usage"]
    assert (usage.verdict, usage.seen, usage.settings) == ("fails", "none came, though it was asked for", {})


# ---- manners ----


REFUSALS = {
    "stream_options": "Extra inputs are not permitted: stream_options",
    "max_tokens": "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.",
    "temperature": "Unsupported value: 'temperature' does not support 0 with this model.",
}


def _picky(bodies: list[dict[str, object]]) -> Callable[[Seen], Answer]:
    """Refuses what it does not know, one thing at a time, and keeps what it was asked."""

    def answer(request: Seen) -> Answer:
        if request.method == "GET" or kind_of(request) == "malformed":
            return VLLM.get(kind_of(request), NOT_THERE)
        bodies.append(json.loads(request.body))
        refused = [words for field, words in REFUSALS.items() if field in bodies[-1]]
        return _error(400, refused[0]) if refused else sse(CASES["vllm/text_stream_nousage"].body)

    return answer


async def test_a_backend_that_refuses_fields_is_asked_without_them() -> None:
    async with answering(_picky([])) as engine:
        found = await examined(engine.url)
    told = by_probe(found)
    assert told["streaming"].verdict == "works"
    assert told["length_limit"].settings == {"capabilities.max_tokens_field": "max_completion_tokens"}
    assert told["stream_usage"].settings == {"capabilities.stream_usage": False}
    assert found.outcome == "broken"  # as long as these are not set


async def test_what_is_set_about_a_backend_is_heeded_from_the_start() -> None:
    bodies: list[dict[str, object]] = []
    capabilities = CapabilitySettings(max_tokens_field="max_completion_tokens", stream_usage=False)
    async with answering(_picky(bodies)) as engine:
        settings = BackendSettings(name="b", url=f"{engine.url}/v1", capabilities=capabilities)
        told = by_probe(await examined(settings.url, settings=settings))
    assert not any("max_tokens" in body or "stream_options" in body for body in bodies)
    assert (told["length_limit"].verdict, told["length_limit"].blocks) == ("works", False)
    assert told["stream_usage"].seen == "not asked for, as `stream_usage` is off"
    assert not told["stream_usage"].blocks


# ---- tools ----


async def test_calls_that_come_as_text_are_told_and_constrained() -> None:
    text = b'data: {"choices":[{"index":0,"delta":{"content":"<tool_call>{}"},"finish_reason":"stop"}]}\n\n'
    answer = sse(text + b"data: [DONE]\n\n")
    async with playing({**VLLM, **dict.fromkeys(("auto", "required", "named", "parallel"), answer)}) as engine:
        found = await examined(engine.url)
    auto = by_probe(found)["tools.auto"]
    assert auto.seen == "the call came as text: '<tool_call>{}'"
    assert (auto.blocks, auto.settings) == (True, {"tool_calling": "constrained"})


async def test_without_schemas_nothing_makes_up_for_missing_tools() -> None:
    script = refusing_tools({**VLLM, "schema": VLLM["text"]}, "tools are not supported")
    async with playing(script) as engine:
        found = await examined(engine.url)
    told = by_probe(found)
    assert told["json_schema"].seen == "the schema is ignored: 'The capital of France is Paris.'"
    assert told["tools.auto"].remedy.startswith("antwort cannot make up for it without JSON schemas")
    assert found.outcome == "broken"
    assert "tool_calling" not in found.settings


async def test_calls_that_come_only_whole_are_told_so() -> None:
    script = {**VLLM, **dict.fromkeys(("auto", "required", "named", "parallel"), VLLM["text"])}
    case = CASES["vllm/tool_required_nonstream"]
    whole_call = Answer((case.body,), headers={"content-type": "application/json"}, framing="length")
    async with playing({**script, "required whole": whole_call}) as engine:
        streamed = by_probe(await examined(engine.url))["tools.streamed"]
    assert (streamed.verdict, streamed.seen) == ("fails", "calls come only where the answer is not streamed")


# ---- addresses, keys and other speech ----


@pytest.mark.parametrize("written", ["{}", "{}/", "{}/v1", "{}/v1/", "{}/v1/chat/completions", "{}/v1/models"])
async def test_an_address_is_taken_as_somebody_may_write_it(written: str) -> None:
    async with playing(VLLM) as engine:
        found = await examined(written.format(engine.url))
        assert found.url == f"{engine.url}/v1"
        assert (await examined(written.format(engine.url.removeprefix("http://")))).url == f"{engine.url}/v1"


async def test_a_configured_address_that_is_not_the_base_is_to_be_set() -> None:
    async with playing(VLLM) as engine:
        settings = BackendSettings(name="b", url=engine.url)
        found = await examined(settings.url, settings=settings)
    assert found.settings["url"] == f"{engine.url}/v1"
    assert (by_probe(found)["reachable"].verdict, found.outcome) == ("fails", "broken")


async def test_a_backend_that_lists_no_models_is_asked_for_the_one_that_is_named() -> None:
    script = {kind: answer for kind, answer in VLLM.items() if not kind.endswith("/models")}
    async with playing(script) as engine:
        found = await examined(engine.url, model="smollm2")
        assert by_probe(found)["models"].verdict == "fails"
        assert found.outcome == "fine"
        unnamed = await examined(engine.url)
    assert [finding.probe for finding in unnamed.findings] == ["reachable", "models"]
    assert "--model NAME" in unnamed.findings[-1].remedy
    assert unnamed.outcome == "broken"


async def test_a_key_is_sent_and_never_repeated() -> None:
    refusal = _error(400, f"The key {KEY} may not use tools; Authorization: Bearer {KEY}")
    async with playing(VLLM, auto=refusal, text=VLLM["text"]) as engine:
        examiner = Examiner(Subject(name="b", url=engine.url, access=Access(key=Secret(KEY))), timeout=PATIENCE)
        findings = [finding async for finding in examiner.findings()]
        assert {request.headers["authorization"] for request in engine.requests} == {f"Bearer {KEY}"}
    assert KEY not in repr((findings, examiner.examination()))
    assert "[removed]" in by_probe(examiner.examination())["tools.auto"].seen


HOSTILE = f"bad \x1b]0;pwned\x07\x1b[31m key is {KEY}"


@pytest.mark.parametrize("kind", ["text", "schema", "auto", "required", "named", "image"])
async def test_an_error_inside_a_stream_is_told_without_the_key_and_fit_for_a_terminal(kind: str) -> None:
    error = {"error": {"message": HOSTILE, "type": "invalid_request_error", "code": 400}}
    words = {"choices": [{"index": 0, "delta": {"content": HOSTILE}}]}
    body = b"".join(b"data: " + json.dumps(each).encode() + b"\n\n" for each in (words, error))
    async with playing({**VLLM, kind: sse(body)}) as engine:
        examiner = Examiner(Subject(name="b", url=engine.url, access=Access(key=Secret(KEY))), timeout=PATIENCE)
        told = [finding.seen async for finding in examiner.findings()]
    assert any("pwned" in seen for seen in told)
    assert all(seen.isprintable() and KEY not in seen for seen in told)


async def test_words_of_a_model_are_told_without_the_key() -> None:
    words = {"choices": [{"index": 0, "delta": {"content": f"The key is {KEY}"}, "finish_reason": "stop"}]}
    said = sse(b"data: " + json.dumps(words).encode() + b"\n\ndata: [DONE]\n\n")
    async with playing({**VLLM, **dict.fromkeys(("schema", "auto", "required", "named"), said)}) as engine:
        examiner = Examiner(Subject(name="b", url=engine.url, access=Access(key=Secret(KEY))), timeout=PATIENCE)
        told = [finding.seen async for finding in examiner.findings()]
    assert sum("The key is [removed]" in seen for seen in told) == 4
    assert KEY not in repr(told)


async def test_a_key_in_the_query_of_the_address_is_not_repeated() -> None:
    refusal = _error(400, f"the key {KEY}0 may not do that")
    script = {**VLLM, "GET /v1/models?key=" + f"{KEY}0": VLLM["GET /v1/models"]}
    async with playing(script, auto=refusal) as engine:
        found = await examined(f"{engine.url}/v1?key={KEY}0")
    assert "the key [removed] may not do that" in by_probe(found)["tools.auto"].seen


async def test_a_key_that_is_a_common_word_is_not_taken_out_of_our_own() -> None:
    async with playing({**VLLM, "text": HTML}) as engine:
        examiner = Examiner(Subject(name="b", url=engine.url, access=Access(key=Secret("model"))), timeout=PATIENCE)
        told = [finding.seen async for finding in examiner.findings()]
    assert "the model did not think aloud" in told


async def test_a_backend_that_speaks_responses_is_asked_in_its_own_way() -> None:
    stream = Answer((CASES["vllm/responses_native_stream"].body,))
    script = {"GET /v1/models": VLLM["GET /v1/models"]}

    def answer(request: Seen) -> Answer:
        return script.get(f"{request.method} {request.path}", stream if request.method == "POST" else NOT_THERE)

    async with answering(answer) as engine:
        settings = BackendSettings(name="b", url=f"{engine.url}/v1", kind="responses")
        told = by_probe(await examined(settings.url, settings=settings))
        asked = {request.path for request in engine.requests if request.method == "POST"}
        assert asked == {"/v1/responses", "/v1/responses/input_tokens"}
    assert told["streaming"].verdict == "works"
    assert told["stream_usage"].verdict == "works"
    assert told["tools.required"].settings == {}


async def test_antwort_itself_is_recognised_and_is_to_be_configured_as_responses() -> None:
    async with launched("--scripted", "--memory") as server:
        found = await examined(server.url)
        settings = BackendSettings(name="b", url=server.url)
        configured = await examined(server.url, settings=settings)
    assert (found.engine.title, found.outcome) == (f"antwort {__version__}", "fine")
    assert by_probe(found)["kind"].seen == "speaks the Responses API"
    assert by_probe(found)["kind"].remedy == "configure the backend with `kind: responses`: --write records it"
    assert found.settings["kind"] == "responses"
    assert (configured.outcome, by_probe(configured)["kind"].verdict) == ("broken", "fails")
    assert verdicts(configured)["streaming"] == "works"


async def test_a_backend_of_another_kind_than_configured_is_told_its_own() -> None:
    async with running(DemoBackend(["m"])) as url:
        found = await examined(url, settings=BackendSettings(name="b", url=f"{url}/v1", kind="responses"))
    assert by_probe(found)["kind"].seen == "speaks Chat Completions only"
    assert (found.outcome, found.settings["kind"]) == ("broken", "chat")


async def test_the_stand_in_of_the_testing_kit_is_fine_but_knows_no_schemas() -> None:
    async with running(DemoBackend(["m"])) as url:
        found = await examined(url)
    told = verdicts(found)
    assert found.outcome == "fine"
    assert {told[f"tools.{choice}"] for choice in ("auto", "required", "named", "streamed")} == {"works"}
    assert told["json_schema"] == "fails"
    assert found.settings == {"tool_calling": "native"}
