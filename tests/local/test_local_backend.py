"""The model that antwort runs by itself, among the backends."""

from __future__ import annotations

import pwd
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from antwort.backends import make_fleet, make_local
from antwort.config import CannotStart, Settings
from antwort.config.settings import BackendSettings, LocalSettings
from local_kit import demo_file, gguf_file

AWAY = BackendSettings(name="b", url="http://127.0.0.1:9/v1")


@pytest.fixture
def model(tmp_path: Path) -> str:
    return str(gguf_file(tmp_path / "some-model.gguf"))


def test_it_is_the_only_backend_where_no_other_is_named(model: str) -> None:
    [status] = make_fleet(Settings(local=LocalSettings(model=model))).status()
    assert (status.name, status.kind, status.models, status.state) == ("local", "local", ("some-model",), "unknown")


def test_it_stands_beside_those_that_are_named(model: str) -> None:
    fleet = make_fleet(Settings(backends=(AWAY,), local=LocalSettings(model=model, name="house")))
    assert [(each.name, each.models) for each in fleet.status()] == [("b", None), ("local", ("house",))]


def test_it_is_not_there_where_others_answer() -> None:
    assert make_local(Settings(backends=(AWAY,))) is None
    assert make_local(Settings(scripted=True)) is None


@pytest.mark.parametrize(
    ("tool_calling", "is_demo", "mode"),
    [
        ("auto", False, "auto"),
        ("auto", True, "constrained"),
        ("constrained", False, "constrained"),
        ("native", True, None),
    ],
)
def test_the_demo_model_is_never_asked_for_tool_calls_that_it_cannot_make(
    model: str, tmp_path: Path, tool_calling: Any, is_demo: bool, mode: str | None
) -> None:
    model = str(demo_file(tmp_path)) if is_demo else model
    fleet = make_fleet(Settings(local=LocalSettings(model=model, tool_calling=tool_calling)))
    [member] = fleet._members
    assert (member.emulation.mode if member.emulation else None) == mode


def test_without_its_adapter_the_demo_model_is_asked_for_native_calls_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_file = Path.is_file
    monkeypatch.setattr(Path, "is_file", lambda path: path.name != "smollm2-tools.gguf" and is_file(path))
    fleet = make_fleet(Settings(local=LocalSettings(model=str(demo_file(tmp_path)))))
    [member] = fleet._members
    assert member.emulation is not None
    assert member.emulation.mode == "auto"


SERVED = """
import asyncio, sys
from antwort.app import build
from antwort.cli import greeting, serve
from antwort.config import Settings
from antwort.config.settings import BackendSettings

async def main():
    app = await build(Settings(backends=(BackendSettings(name="b", url="http://127.0.0.1:9/v1"),), memory=True))
    await app.close()

asyncio.run(main())
print([name for name in sys.modules if name.startswith(("antwort.local", "xllamacpp"))])
"""


def test_a_server_in_front_of_backends_loads_nothing_of_it() -> None:
    done = subprocess.run([sys.executable, "-c", SERVED], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


# ---- what is missing ----


OTHERS = "or name a backend with --backend URL, or a GGUF file with --gguf FILE; --scripted does without a model."
INSTALL = "pip install 'antwort[demo]'"
PULL = "antwort model pull --data '{0}'"


@pytest.mark.parametrize(
    ("has_llama", "has_model", "said"),
    [
        (True, False, f"the demo model is not there: `{PULL}` fetches it"),
        (False, True, f"llama.cpp is not installed: `{INSTALL}` brings it"),
        (
            False,
            False,
            f"neither llama.cpp nor the demo model is there: `{INSTALL} && {PULL}` brings both",
        ),
    ],
)
def test_the_one_command_is_told_that_brings_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_llama: bool, has_model: bool, said: str
) -> None:
    data = tmp_path / "my data"
    if not has_llama:
        monkeypatch.setitem(sys.modules, "xllamacpp", None)  # as where it cannot be imported
    if has_model:
        demo_file(data)
    with pytest.raises(CannotStart) as caught:
        make_local(Settings(data=str(data)))
    assert str(caught.value) == f"No backend is named, and {said.format(data)}; {OTHERS}"


def test_a_model_that_is_named_needs_llama_cpp_alone(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    with pytest.raises(CannotStart) as caught:
        make_local(Settings(local=LocalSettings(model=model)))
    assert str(caught.value) == f"The model cannot be run: llama.cpp is not installed; `{INSTALL}` brings it."


def test_a_user_without_a_home_has_no_demo_model(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)  # nor does the machine know the user
    with pytest.raises(CannotStart, match=r"no home folder .* --data DIR, or name a backend"):
        make_local(Settings(memory=True))


def test_a_file_that_is_wrong_is_one_sentence(tmp_path: Path, model: str) -> None:
    adapter = str(tmp_path / "none.gguf")
    with pytest.raises(CannotStart) as caught:
        make_local(Settings(local=LocalSettings(model=model, adapter=adapter)))
    assert str(caught.value) == f"The model cannot be run: there is no file {adapter!r}."
