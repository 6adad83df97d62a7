"""Settings that change while the server runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from antwort.app import RELOADABLE, App, Reloaded, build
from antwort.asgi import Application, create_app
from antwort.config import Settings, load
from antwort.engine.engine import Engine
from antwort.testing import ScriptedProvider
from config_kit import Operator
from engine_kit import ask
from key_kit import bearing
from raw_http import Reply
from serving import HELLO, RESPONSES, STREAMED, Serving, serving, until

ANN, BEN = "sk-test-ann-0123456789", "sk-test-ben-0123456789"
FILE = """
scripted: true
memory: true
auth:
  keys:
    - {name: ann, key: %s}
"""


@pytest.fixture
def operator(tmp_path: Path) -> Operator:
    return Operator(tmp_path)


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.INFO, "antwort.config"), caplog.filtering(logging.Filter("antwort.config")):
        yield caplog


class Running:
    """A server of the operator's file."""

    def __init__(self, app: App, server: Serving, file: Path) -> None:
        self.app, self._server, self._file = app, server, file

    def reloads(self, text: str) -> Reloaded:
        self._file.write_text(text)
        return self.app.reload(lambda: load(self._file, environment={}))

    async def ask(self, method: str, path: str) -> Reply:
        return await self._server.ask(method, path, None, bearing(ANN))

    async def answers(self, key: str = ANN, body: Mapping[str, Any] = HELLO) -> int:
        return (await self._server.ask("POST", RESPONSES, body, bearing(key))).status


@asynccontextmanager
async def running(operator: Operator, text: str = FILE % ANN) -> AsyncIterator[Running]:
    file = operator.writes(text)
    file.chmod(0o600)
    app = await build(load(file, environment={}))
    async with serving(app.engine, app.asgi) as server:
        yield Running(app, server, file)


async def test_api_keys_can_be_added_and_taken_away(operator: Operator, log: pytest.LogCaptureFixture) -> None:
    async with running(operator) as server:
        assert (await server.answers(ANN), await server.answers(BEN)) == (200, 401)
        assert server.reloads(FILE % BEN) == Reloaded(changed=("auth.keys",))
        assert (await server.answers(ANN), await server.answers(BEN)) == (401, 200)
    assert log.messages == ["settings reloaded: auth.keys"]


async def test_to_take_the_last_key_away_does_not_open_the_server(operator: Operator) -> None:
    async with running(operator) as server:
        found = server.reloads("{scripted: true, memory: true}")
        assert found == Reloaded(changed=("auth.keys",), needs_restart=("auth.keys",))
        assert (await server.answers(ANN), await server.answers("")) == (401, 401)


async def test_a_server_that_asks_for_no_key_needs_a_restart_to_ask_for_one(operator: Operator) -> None:
    async with running(operator, "{scripted: true, memory: true}") as server:
        assert server.reloads(FILE % ANN) == Reloaded(needs_restart=("auth.keys",))
        assert server.reloads(FILE % ANN) == Reloaded(needs_restart=("auth.keys",))
        assert await server.answers(BEN) == 200


async def test_a_server_that_is_to_ask_for_no_key_takes_the_old_ones_until_its_restart(operator: Operator) -> None:
    async with running(operator) as server:
        found = server.reloads("{scripted: true, memory: true, auth: {required: never}}")
        assert found == Reloaded(needs_restart=("auth.keys", "auth.required"))
        assert (await server.answers(ANN), await server.answers(BEN)) == (200, 401)


async def test_a_key_gets_other_limits_and_models_and_keeps_what_it_has_used(operator: Operator) -> None:
    limited = FILE % f"{ANN}, models: [scripted], limits: {{requests_per_minute: %d}}"
    async with running(operator, limited % 1) as server:
        assert [await server.answers(), await server.answers()] == [200, 429]
        assert server.reloads((limited % 1).replace("scripted]", "other]")).changed == ("auth.keys",)
        assert await server.answers() == 429  # the minute is not over
        assert server.reloads((limited % 3).replace("scripted]", "other]")).changed == ("auth.keys",)
        assert await server.answers() == 403
        server.reloads(limited % 3)
        assert await server.answers() == 200


async def test_the_first_key_that_may_read_metrics_needs_a_restart_for_them(operator: Operator) -> None:
    async with running(operator) as server:
        text = FILE % f"{ANN}, metrics: true"
        assert server.reloads(text) == Reloaded(("auth.keys",), ("auth.keys[].metrics",))
        assert await server.answers() == 200


async def test_the_default_model_and_the_limits_of_requests_change(operator: Operator) -> None:
    no_model = {"input": "Hello", "metadata": {"a": "b", "c": "d"}}
    async with running(operator) as server:
        assert await server.answers(body=no_model) == 200
        text = FILE % ANN + "default_model: other\nlimits: {metadata_keys: 1}\nloop: {max_turns: 3}\n"
        assert server.reloads(text).changed == ("default_model", "limits.metadata_keys", "loop.max_turns")
        assert await server.answers(body=no_model) == 400
        assert server.app.engine.settings.default_model == "other"
        assert server.app.engine.settings.max_turns == 3
        plan = await server.app.engine.plan(ask(model="other", input="Hello"))
        assert plan.budget.turns == 3


async def test_metrics_name_a_key_that_was_added(operator: Operator) -> None:
    ann = FILE % f"{ANN}, metrics: true"
    ben = f"    - {{name: ben, key: {BEN}, limits: {{requests_per_minute: 1}}}}\n"
    async with running(operator, ann) as server:
        assert server.reloads(ann + ben).changed == ("auth.keys",)
        assert [await server.answers(BEN) for _ in range(2)] == [200, 429]
        metrics = (await server.ask("GET", "/metrics")).body.decode()
    assert 'antwort_key_limits_total{key="ben"' in metrics


async def test_the_document_has_the_limits_of_now(operator: Operator) -> None:
    async with running(operator) as server:
        assert '"maxProperties":16' in (await server.ask("GET", "/openapi.json")).body.decode()
        server.reloads(FILE % ANN + "limits: {metadata_keys: 7}\n")
        document = (await server.ask("GET", "/openapi.json")).body.decode()
    assert '"maxProperties":7' in document
    assert '"maxProperties":16' not in document


async def test_what_needs_a_restart_is_named_each_time_and_stays_as_it_was(
    operator: Operator, log: pytest.LogCaptureFixture
) -> None:
    async with running(operator) as server:
        text = FILE % ANN + "server: {port: 9001, drain: 3}\nlimits: {output_bytes: 5}\n"
        named = ("limits.output_bytes", "server.drain", "server.port")
        assert server.reloads(text) == Reloaded(needs_restart=named)
        assert server.reloads(f"{text}loop: {{deadline: 5}}\n") == Reloaded(("loop.deadline",), named)
        assert await server.answers() == 200
        assert server.reloads(FILE % ANN) == Reloaded(("loop.deadline",))
    assert log.messages == [
        "needs a restart: limits.output_bytes, server.drain, server.port",
        "settings reloaded: loop.deadline",
        "needs a restart: limits.output_bytes, server.drain, server.port",
        "settings reloaded: loop.deadline",
    ]


@pytest.mark.parametrize("text", ["auth: [", "auth: {kees: []}", "auth: {required: always, keys: []}"])
async def test_a_file_that_is_wrong_changes_nothing_and_is_reported(
    text: str, operator: Operator, log: pytest.LogCaptureFixture
) -> None:
    async with running(operator) as server:
        found = server.reloads(f"scripted: true\nmemory: true\ndefault_model: other\n{text}")
        assert found.problem
        assert (found.changed, found.needs_restart) == ((), ())
        assert await server.answers() == 200
        assert server.app.engine.settings.default_model is None
    assert log.messages == [f"the settings stay as they are: {found.problem}"]


async def test_a_stream_goes_on_while_the_settings_change(operator: Operator) -> None:
    async with running(operator) as server:
        asking = asyncio.create_task(server.answers(body=STREAMED))
        await until(lambda: server.app.asgi.requests > 0)
        server.reloads(FILE % BEN)
        assert await asking == 200


async def test_the_log_level_changes_unless_the_program_has_set_its_own(
    operator: Operator, log: pytest.LogCaptureFixture
) -> None:
    logger = logging.getLogger("antwort")
    before = logger.level
    try:
        logger.setLevel(logging.INFO)
        async with running(operator) as server:
            assert server.reloads(FILE % ANN + "log: {level: debug}\n").changed == ("log.level",)
            assert logger.level == logging.DEBUG
            assert server.reloads(FILE % ANN + "log: {level: error}\n").changed == ("log.level",)
            assert (logger.level, log.messages) == (logging.ERROR, ["settings reloaded: log.level"] * 2)
            server.reloads(FILE % ANN + "log: {level: debug}\n")
            logger.setLevel(logging.ERROR)
            server.reloads(FILE % ANN)
            assert logger.level == logging.ERROR
    finally:
        logger.setLevel(before)


async def test_an_application_reads_its_own_file_anew(operator: Operator) -> None:
    file = operator.writes(FILE % ANN)
    app = create_app(file)
    async with app.lifespan():
        assert app.reload() == Reloaded()
        file.write_text(FILE % ANN + "default_model: other\n")
        assert app.reload() == Reloaded(("default_model",))
        assert app.engine.settings.default_model == "other"
    async with app.lifespan():
        assert app.engine.settings.default_model == "other"
        file.write_text("nonsense")
        assert app.reload().problem
    file.write_text(FILE % ANN)


@pytest.mark.parametrize("make", [lambda: create_app(Settings(scripted=True, memory=True)), lambda: _of_an_engine()])
async def test_an_application_without_a_file_has_nothing_to_read_anew(make: object) -> None:
    assert callable(make)
    app: Application = make()
    async with app.lifespan():
        with pytest.raises(RuntimeError, match="was not made from a configuration file"):
            app.reload()


def _of_an_engine() -> Application:
    return create_app(Engine(ScriptedProvider()))


def test_the_docs_name_each_setting_that_can_change() -> None:
    page = (Path(__file__).parents[1] / "docs" / "how-to" / "production.md").read_text(encoding="utf-8")
    section = page.partition("## Settings that change while it runs")[2].partition("\n## ")[0]
    assert [
        path for path in sorted(RELOADABLE) if f"`{path.removeprefix('loop.').removeprefix('limits.')}`" not in section
    ] == []
