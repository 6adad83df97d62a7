"""The parts that settings ask for."""

from __future__ import annotations

from pathlib import Path

import pytest

from antwort.app import App, build
from antwort.backends import make_fleet
from antwort.config import CannotStart, Secret, Settings
from antwort.config.settings import BackendSettings, ServerSettings
from antwort.engine.engine import Engine
from antwort.errors import StoreFault
from antwort.storage.memory import MemoryStore
from antwort.testing import ScriptedProvider, demo_provider
from antwort.toolsets import load_tools
from serving import HELLO, RESPONSES, serving
from settings_kit import in_front_of


async def test_a_scripted_server_in_memory_needs_nothing_else() -> None:
    app = await build(Settings(scripted=True, memory=True))
    async with serving(app.engine, app.asgi) as server:
        assert (await server.ask("POST", RESPONSES, HELLO)).json()["status"] == "completed"


async def test_the_body_limit_of_the_settings_holds() -> None:
    app = await build(Settings(scripted=True, memory=True, server=ServerSettings(body_limit=10)))
    async with serving(app.engine, app.asgi) as server:
        assert (await server.ask("POST", RESPONSES, HELLO)).status == 413


async def test_a_data_folder_is_made_where_there_is_none_and_keeps_what_was_stored(tmp_path: Path) -> None:
    settings = Settings(scripted=True, data=str(tmp_path / "new" / "folder"))
    app = await build(settings)
    async with serving(app.engine, app.asgi) as server:
        response = (await server.ask("POST", RESPONSES, HELLO)).json()
    app = await build(settings)
    async with serving(app.engine, app.asgi) as server:
        assert (await server.ask("GET", f"{RESPONSES}/{response['id']}")).json() == response


async def test_a_data_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CannotStart, match=r"^The data folder '.*/file/data' cannot be used: Not a directory\.$"):
        await build(Settings(scripted=True, data=str(tmp_path / "file" / "data")))


def test_the_data_folder_is_the_users_own_unless_it_is_set() -> None:
    assert Settings().data_folder().name == "antwort"
    assert Settings(data="/elsewhere").data_folder() == Path("/elsewhere")


async def test_a_record_that_cannot_be_read_at_the_start_is_one_sentence() -> None:
    class Broken(MemoryStore):
        async def fail_running(self, message: str) -> int:
            raise StoreFault("The store cannot be read.")

    app = App(Engine(demo_provider(), store=Broken()), drain=1)
    with pytest.raises(CannotStart, match=r"^The store cannot be read\.$"):
        await app.start()


async def test_stopping_drains_and_closes_every_part() -> None:
    provider = ScriptedProvider()
    app = App(Engine(provider, store=MemoryStore()), drain=0)
    await app.start()
    await app.stop()
    assert provider.is_closed


@pytest.mark.parametrize(
    "settings",
    [
        in_front_of("http://" + "ü" * 70 + ".example"),
        Settings(backends=(BackendSettings(name="b", url="http://host/v1", api_key=Secret("hush\nhush")),)),
        in_front_of("http://user:hush@host/v1"),
    ],
)
def test_a_backend_that_cannot_be_spoken_to_is_one_sentence(settings: Settings) -> None:
    with pytest.raises(CannotStart, match=r"^The backend.*\.$") as caught:
        make_fleet(settings)
    assert "hush" not in str(caught.value)


async def test_a_backend_may_have_a_name_in_any_script() -> None:
    await make_fleet(in_front_of("http://bücher.example/v1?name=ü")).close()


async def test_a_home_that_is_not_ours_is_one_sentence_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "file"))
    with pytest.raises(CannotStart, match=r"^The data folder '.*' cannot be used: .*\. Say --data DIR"):
        await build(Settings(scripted=True))


def test_a_current_folder_that_is_gone_has_no_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(CannotStart, match="There is no tools module 'no_such_module'"):
        load_tools(["no_such_module"], entry_points=False)
