"""The ASGI application: starting, stopping, mounting, and what it says when it cannot."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest

from antwort import Engine, Settings
from antwort.api.responses import Model
from antwort.asgi import Application, create_app
from antwort.config import CannotStart
from antwort.config.settings import Secret, ServerSettings
from antwort.errors import NotAuthenticated
from antwort.identity import Identity
from antwort.server.exchange import Message, Scope
from antwort.testing import DemoProvider, ScriptedProvider, answer, check_frames, say
from jumping_time import jumping_time
from mounted import in_fastapi, in_starlette, run_by_uvicorn
from raw_http import ask
from serving import HELLO, STREAMED, until

SCRIPTED = Settings(scripted=True, memory=True)


def engine(*texts: str) -> Engine:
    return Engine(ScriptedProvider(*(answer(say(text)) for text in texts or ("Hello there",))))


class Client:
    """Calls an ASGI application in this event loop, without a server."""

    def __init__(self, app: Any, headers: Sequence[tuple[bytes, bytes]] = ()) -> None:
        self._app, self._headers = app, headers

    async def __call__(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        sent: list[Message] = []
        come: list[Message] = [{"type": "http.request", "body": b"" if body is None else json.dumps(body).encode()}]
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "query_string": b"",
            "headers": [(b"content-type", b"application/json"), *self._headers],
        }
        await self._app(scope, lambda: _next(come), lambda message: _keep(message, sent))
        content = b"".join(message.get("body", b"") for message in sent[1:])
        return sent[0]["status"], json.loads(content)


async def _next(come: list[Message]) -> Message:
    if not come:
        await asyncio.Event().wait()
    return come.pop(0)


async def _keep(message: Message, sent: list[Message]) -> None:
    sent.append(message)


class Lifespan:
    """A server's side of the lifespan protocol."""

    def __init__(self, app: Application) -> None:
        self._to_app: asyncio.Queue[Message] = asyncio.Queue()
        self._from_app: asyncio.Queue[Message] = asyncio.Queue()
        self._task = asyncio.ensure_future(app({"type": "lifespan"}, self._to_app.get, self._from_app.put))

    async def tell(self, what: Literal["startup", "shutdown"]) -> Message:
        await self._to_app.put({"type": f"lifespan.{what}"})
        async with asyncio.timeout(5):
            said = await self._from_app.get()
            if what == "shutdown" or said["type"].endswith("failed"):
                await asyncio.wait([self._task])
        return said

    @property
    def error(self) -> BaseException | None:
        return self._task.exception()


# ---- starting and stopping ----


async def test_it_starts_and_stops_with_the_server_that_runs_it() -> None:
    app = create_app(SCRIPTED)
    lifespan = Lifespan(app)
    assert await lifespan.tell("startup") == {"type": "lifespan.startup.complete"}
    assert (await Client(app)("POST", "/v1/responses", HELLO))[1]["status"] == "completed"
    assert await lifespan.tell("shutdown") == {"type": "lifespan.shutdown.complete"}
    status, body = await Client(app)("GET", "/v1/models")
    assert (status, body["error"]["code"]) == (503, "server_shutting_down")


async def test_a_start_that_fails_is_told_to_the_server_in_one_sentence(tmp_path: Path) -> None:
    lifespan = Lifespan(create_app(unusable(tmp_path)))
    said = await lifespan.tell("startup")
    assert said["type"] == "lifespan.startup.failed"
    assert "cannot be used" in said["message"]
    assert isinstance(lifespan.error, CannotStart)


async def test_a_stop_that_fails_is_told_to_the_server_and_the_log(caplog: pytest.LogCaptureFixture) -> None:
    class Stuck(Engine):
        async def close(self) -> None:
            raise OSError("the disk is gone")

    lifespan = Lifespan(create_app(Stuck(ScriptedProvider())))
    await lifespan.tell("startup")
    assert await lifespan.tell("shutdown") == {"type": "lifespan.shutdown.failed", "message": "the disk is gone"}
    assert isinstance(lifespan.error, OSError)
    assert "OSError: the disk is gone" in caplog.text


def unusable(folder: Path) -> Settings:
    """Settings whose data folder is a file."""
    (folder / "taken").write_text("a file")
    return Settings(scripted=True, data=str(folder / "taken"))


async def test_without_a_lifespan_it_starts_at_the_first_request() -> None:
    app = create_app(SCRIPTED)
    with pytest.raises(RuntimeError, match="not been started"):
        _ = app.engine
    assert (await Client(app)("POST", "/v1/responses", HELLO))[0] == 200
    assert app.engine.is_open
    await app.stop()


async def test_however_many_requests_come_first_it_starts_once() -> None:
    started = 0

    class Counted(Engine):
        async def open(self) -> None:
            nonlocal started
            started += 1
            await asyncio.sleep(0)
            await super().open()

    client = Client(create_app(Counted(ScriptedProvider())))
    replies = await asyncio.gather(*(client("GET", "/healthz") for _ in range(20)))
    assert [status for status, _ in replies] == [200] * 20
    assert started == 1


async def test_a_first_request_that_is_broken_off_does_not_break_off_the_start() -> None:
    opening, go = asyncio.Event(), asyncio.Event()

    class Slow(Engine):
        async def open(self) -> None:
            opening.set()
            await go.wait()
            await super().open()

    client = Client(create_app(Slow(ScriptedProvider())))
    first = asyncio.create_task(client("GET", "/healthz"))
    second = asyncio.create_task(client("GET", "/healthz"))
    await opening.wait()
    first.cancel()
    await asyncio.wait([first])
    go.set()
    assert (await second)[0] == 200


async def test_a_late_start_that_fails_is_a_500_without_the_reason_and_is_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    app = create_app(unusable(tmp_path))
    with caplog.at_level(logging.ERROR, "antwort.asgi"):
        status, body = await Client(app)("GET", "/v1/models")
    assert (status, body["error"]["code"]) == (500, "server_not_started")
    assert str(tmp_path) not in body["error"]["message"]
    assert str(tmp_path) in caplog.text
    assert "Traceback" not in caplog.text
    (tmp_path / "taken").unlink()
    assert (await Client(app)("GET", "/v1/models"))[0] == 200
    await app.stop()


async def test_what_nobody_expected_at_the_start_leaves_its_traceback_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken(Engine):
        async def open(self) -> None:
            raise ZeroDivisionError("a defect")

    status, body = await Client(create_app(Broken(ScriptedProvider())))("GET", "/healthz")
    assert (status, body["error"]["code"]) == (500, "server_not_started")
    assert "ZeroDivisionError: a defect" in caplog.text


async def test_stopping_drains_what_is_under_way_and_refuses_what_comes_later() -> None:
    go = asyncio.Event()
    app = create_app(Engine(ScriptedProvider(answer(say("It"), go, say("is done.")))))
    async with app.lifespan():
        under_way = asyncio.create_task(Client(app)("POST", "/v1/responses", HELLO))
        await until(lambda: app.engine.live == 1)
        stopping = asyncio.create_task(app.stop())
        await asyncio.sleep(0)
        assert (await Client(app)("POST", "/v1/responses", HELLO))[0] == 503
        go.set()
        assert (await under_way)[1]["status"] == "completed"
        await stopping


async def test_a_stop_waits_for_a_start_that_is_under_way() -> None:
    go = asyncio.Event()

    class Slow(Engine):
        async def open(self) -> None:
            await go.wait()
            await super().open()

    slow = Slow(provider := ScriptedProvider())
    app = create_app(slow)
    starting = asyncio.create_task(app.start())
    await asyncio.sleep(0)
    stopping = asyncio.create_task(app.stop())
    go.set()
    await asyncio.gather(starting, stopping)
    assert provider.is_closed


async def test_an_application_of_settings_can_be_started_again() -> None:
    app = create_app(SCRIPTED)
    for _ in range(2):
        async with app.lifespan():
            assert (await Client(app)("POST", "/v1/responses", HELLO))[0] == 200
    await app.stop()


# ---- what it is made from ----


async def test_an_engine_that_nobody_has_opened_is_opened_and_closed_with_the_application() -> None:
    provider = ScriptedProvider(answer(say("Hello")))
    app = create_app(Engine(provider))
    async with app.lifespan():
        assert (await Client(app)("POST", "/v1/responses", HELLO))[0] == 200
    assert provider.is_closed
    with pytest.raises(RuntimeError, match="make a new one"):
        await app.start()


async def test_an_engine_that_is_open_is_left_to_whoever_opened_it() -> None:
    provider = ScriptedProvider(answer(say("Hello")), answer(say("Still here")))
    async with Engine(provider) as mine:
        app = create_app(mine)
        async with app.lifespan():
            assert app.engine is mine
            assert (await Client(app)("POST", "/v1/responses", HELLO))[0] == 200
        assert not provider.is_closed
        assert (await mine.create(HELLO)).status == "completed"
    assert provider.is_closed


async def test_applications_that_share_an_engine_close_it_when_the_last_of_them_stops() -> None:
    provider = ScriptedProvider(answer(say("Hello")))
    shared = Engine(provider)
    one, two = create_app(shared), create_app(shared)
    await asyncio.gather(one.start(), two.start())
    await one.stop()
    await one.stop()
    assert (await Client(two)("POST", "/v1/responses", HELLO))[0] == 200
    assert not provider.is_closed
    await two.stop()
    assert provider.is_closed


async def test_the_program_can_say_for_whom_a_request_is_made() -> None:
    def by_user(scope: Scope) -> Identity:
        user = dict(scope["headers"]).get(b"x-user", b"").decode()
        if not user:
            raise NotAuthenticated("Say who you are.")
        return Identity(owner=user)

    async with Engine(ScriptedProvider(answer(say("Hello")))) as mine:
        app = create_app(mine, identify=by_user)
        ada = Client(app, headers=[(b"x-user", b"ada")])
        made = (await ada("POST", "/v1/responses", HELLO))[1]
        assert (await ada("GET", f"/v1/responses/{made['id']}"))[0] == 200
        assert (await Client(app, headers=[(b"x-user", b"bob")])("GET", f"/v1/responses/{made['id']}"))[0] == 404
        assert (await Client(app)("GET", f"/v1/responses/{made['id']}"))[0] == 401


@pytest.mark.parametrize("given", [{"scripted": True}, 5, Engine, DemoProvider()], ids=lambda each: type(each).__name__)
def test_what_no_application_can_be_made_of_is_told_at_once(given: Any) -> None:
    with pytest.raises(TypeError, match=r"^An application is made of Settings, an Engine, or the path of a file, not"):
        create_app(given)


def test_settings_say_themselves_who_may_come_in() -> None:
    with pytest.raises(TypeError, match=r"auth\.keys"):
        create_app(SCRIPTED, identify=lambda _: Identity())


async def test_an_identify_that_would_have_to_be_awaited_is_refused_at_once() -> None:
    async def by_lookup(_: Scope) -> Identity:
        return Identity()

    class Lookup:
        async def __call__(self, _: Scope) -> Identity:
            return Identity()

    unfit: list[Any] = [by_lookup, Lookup(), partial(by_lookup)]
    for identify in unfit:
        with pytest.raises(TypeError, match="`identify` must not be `async`"):
            create_app(engine(), identify=identify)


async def test_settings_that_a_program_got_wrong_are_told_before_the_application_starts() -> None:
    with pytest.raises(CannotStart, match=r"server\.host must be an address alone"):
        create_app(Settings(memory=True, server=ServerSettings(host="http://here")))


async def test_a_mounted_application_that_is_told_where_its_peers_are_says_that_it_has_none(
    migrated_database: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for server in (ServerSettings(), ServerSettings(peer_host="127.0.0.2", peer_port=9000)):
        settings = Settings(scripted=True, database=Secret(migrated_database), data=str(tmp_path), server=server)
        async with create_app(settings).lifespan():
            pass
    told = [record.getMessage() for record in caplog.records if record.name == "antwort.asgi"]
    assert told == [
        f"server.{name} means nothing here: an application that others run cannot be asked by its peers"
        for name in ("peer_host", "peer_port")
    ]


async def test_settings_can_be_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "antwort.yaml"
    path.write_text("scripted: true\nmemory: true\ndefault_model: parrot\n", encoding="utf-8")
    for given in (path, str(path)):
        app = create_app(given)
        async with app.lifespan():
            assert app.engine.settings.default_model == "parrot"


async def test_without_anything_the_settings_are_those_that_the_server_would_find(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "antwort.yaml").write_text("scripted: true\nmemory: true\n", encoding="utf-8")
    monkeypatch.setenv("ANTWORT_DEFAULT_MODEL", "parrot")
    app = create_app()
    async with app.lifespan():
        assert app.engine.settings.default_model == "parrot"


def test_a_file_that_is_not_there_is_an_error_at_once(tmp_path: Path) -> None:
    with pytest.raises(CannotStart):
        create_app(tmp_path / "nothing.yaml")


# ---- mounting ----


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("mount", [in_fastapi, in_starlette])
@pytest.mark.parametrize("prefix", ["/ai", "/deep/er", "", "/v1", "/für alle"])
async def test_it_answers_under_any_prefix_on_either_event_loop(mount: Any, prefix: str, loop: Any) -> None:
    provider = ScriptedProvider(answer(say("Hello there")), answer(say("Hello there")))
    ai = create_app(Engine(provider))
    written = prefix.replace("ü", "%C3%BC").replace(" ", "%20")
    async with run_by_uvicorn(mount(ai, prefix), loop=loop) as port:
        made = (await ask(port, "POST", f"{written}/v1/responses", HELLO)).json()
        found = (await ask(port, "GET", f"{written}/v1/responses/{made['id']}")).json()
        streamed = await ask(port, "POST", f"{written}/v1/responses", STREAMED)
        missing = await ask(port, "GET", f"{written}/v2/responses")
    assert found == made
    assert check_frames(streamed.body).status == "completed"
    assert missing.error["code"] == "unknown_url"
    assert provider.is_closed


async def test_the_programs_own_lifespan_can_hold_it() -> None:
    from fastapi import FastAPI

    ai = create_app(engine())
    seen: list[bool] = []

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with ai.lifespan():
            seen.append(ai.engine.is_open)
            yield

    app = FastAPI(lifespan=lifespan)
    app.mount("/ai", ai)
    async with run_by_uvicorn(app) as port:
        assert (await ask(port, "POST", "/ai/v1/responses", HELLO)).status == 200
    assert seen == [True]


async def test_mounted_in_a_program_that_has_no_lifespan_it_answers_all_the_same() -> None:
    from starlette.applications import Starlette

    app = Starlette()
    app.mount("/ai", create_app(engine()))
    async with run_by_uvicorn(app) as port:
        assert (await ask(port, "POST", "/ai/v1/responses", HELLO)).json()["status"] == "completed"


async def test_a_response_under_way_when_its_client_leaves_a_mount_is_ended() -> None:
    from raw_http import connected

    ai = create_app(Engine(provider := ScriptedProvider(answer(say("It"), asyncio.Event()))))
    async with run_by_uvicorn(in_starlette(ai)) as port:
        async with connected(port) as wire:
            wire.send("POST", "/ai/v1/responses", STREAMED)
            await wire.head()
            await wire.chunk()
        await until(lambda: provider.under_way == 0)


async def test_a_client_that_leaves_before_there_is_an_answer_upsets_no_middleware(
    caplog: pytest.LogCaptureFixture,
) -> None:
    from fastapi import FastAPI, Request, Response

    from raw_http import connected

    ai = create_app(Engine(provider := ScriptedProvider(answer(say("It"), asyncio.Event()))))
    app = FastAPI(lifespan=ai.lifespan)

    @app.middleware("http")
    async def passes(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        return await call_next(request)

    app.mount("/ai", ai)
    async with run_by_uvicorn(app) as port:
        async with connected(port) as wire:
            wire.send("POST", "/ai/v1/responses", HELLO)
            await until(lambda: provider.under_way == 1)
        await until(lambda: provider.under_way == 0)
    assert "No response returned" not in caplog.text
    assert "Traceback" not in caplog.text


async def test_a_request_that_is_broken_off_while_it_is_prepared_is_a_503() -> None:
    preparing = asyncio.Event()

    class Slow(ScriptedProvider):
        """It is asked for its models, because the request names none."""

        async def models(self) -> list[Model]:
            preparing.set()
            await asyncio.Event().wait()
            return []

    asking = asyncio.create_task(Client(create_app(Engine(Slow())))("POST", "/v1/responses", {"input": "Hello"}))
    await preparing.wait()
    asking.cancel()
    status, body = await asking
    assert (status, body["error"]["code"]) == (503, "request_cancelled")


async def test_a_request_that_a_middleware_has_no_time_for_is_not_told_that_the_server_stops() -> None:
    async with Engine(ScriptedProvider(answer(say("It"), asyncio.Event()))) as mine:
        app = create_app(mine)

        async def impatient(scope: Scope, receive: Any, send: Any) -> None:
            async with asyncio.timeout(None) as limit:
                running = asyncio.ensure_future(until(lambda: mine.live == 1))
                running.add_done_callback(lambda _: limit.reschedule(0))
                await app(scope, receive, send)

        status, body = await Client(impatient)("POST", "/v1/responses", HELLO)
        assert (status, body["error"]["code"]) == (503, "request_cancelled")
        assert "shutting down" not in body["error"]["message"]


async def test_a_request_that_is_broken_off_while_the_engine_drains_is_told_that_the_server_stops() -> None:
    async with Engine(ScriptedProvider(answer(say("It"), asyncio.Event()))) as mine:
        asking = asyncio.create_task(Client(create_app(mine))("POST", "/v1/responses", HELLO))
        await until(lambda: mine.live == 1)
        draining = asyncio.create_task(mine.drain(60))
        await until(lambda: mine.is_draining)
        asking.cancel()
        status, body = await asking
        assert (status, body["error"]["code"]) == (503, "server_shutting_down")
        await draining


@jumping_time
async def test_a_stream_that_cannot_be_ended_in_a_moment_is_cut() -> None:
    """Here the server takes nothing more of it."""
    stuck = asyncio.Event()
    app = create_app(Engine(provider := ScriptedProvider(answer(say("It"), asyncio.Event()))))

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            stuck.set()
            await asyncio.Event().wait()

    come: list[Message] = [{"type": "http.request", "body": json.dumps(STREAMED).encode()}]
    headers = [(b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": "/v1/responses", "query_string": b"", "headers": headers}
    answering = asyncio.ensure_future(app(scope, lambda: _next(come), send))
    await stuck.wait()
    answering.cancel()
    began = asyncio.get_running_loop().time()
    with pytest.raises(asyncio.CancelledError):
        await answering
    assert asyncio.get_running_loop().time() - began < 3
    await until(lambda: provider.under_way == 0)
    await app.stop()


def test_the_test_client_of_the_frameworks_can_be_used_with_a_lifespan_and_without() -> None:
    """Without one, each request has an event loop of its own."""
    from starlette.testclient import TestClient

    ai = create_app(Engine(DemoProvider()))
    with TestClient(in_fastapi(ai)) as client:
        assert client.post("/ai/v1/responses", json=HELLO).json()["status"] == "completed"
    bare = TestClient(create_app(Engine(DemoProvider())))
    first = bare.post("/v1/responses", json=HELLO).json()
    follow_up = bare.post("/v1/responses", json={**HELLO, "previous_response_id": first["id"]})
    assert follow_up.json()["status"] == "completed"


def test_a_start_that_fails_is_an_error_in_the_test_client(tmp_path: Path) -> None:
    from starlette.testclient import TestClient

    with pytest.raises(CannotStart), TestClient(create_app(unusable(tmp_path))):
        pass


# ---- what is not HTTP ----


@pytest.mark.parametrize("can_speak", [False, True])
async def test_a_websocket_is_refused_in_words_where_they_can_be_carried(can_speak: bool) -> None:
    sent: list[Message] = []
    extensions: dict[str, dict[str, str]] = {"websocket.http.response": {}} if can_speak else {}
    scope = {"type": "websocket", "path": "/", "query_string": b"", "headers": [], "extensions": extensions}
    await create_app(engine())(scope, lambda: _next([{"type": "websocket.connect"}]), lambda each: _keep(each, sent))
    if can_speak:
        assert (sent[0]["type"], sent[0]["status"]) == ("websocket.http.response.start", 404)
        assert json.loads(sent[1]["body"])["error"]["code"] == "unknown_url"
    else:
        assert sent == [{"type": "websocket.close", "code": 1000}]


async def test_a_protocol_that_asgi_does_not_have_is_not_answered() -> None:
    with pytest.raises(NotImplementedError):
        await create_app(engine())({"type": "telepathy"}, lambda: _next([]), lambda each: _keep(each, []))
