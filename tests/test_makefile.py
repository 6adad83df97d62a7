"""What `make serve` does with what it is given, as make itself tells it."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from antwort.config.loading import read
from antwort.local.demo import DEMO, demo_path

ROOT = Path(__file__).resolve().parents[1]

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")


def commands(target: str, arguments: str = "", **environment: str) -> list[str]:
    """What make would run, once all is set up."""
    return said("-n", "-o", ".venv/.ready", target, f"ARGS={arguments}", **environment)


def said(*words: str, **environment: str) -> list[str]:
    """What make says when it is called so, and not from within another make."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ANTWORT_", "MAKE", "MFLAGS"))}
    made = subprocess.run(
        ["make", "--no-print-directory", *words],
        cwd=ROOT,
        env={**kept, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return made.stdout.splitlines()


@pytest.mark.parametrize("arguments", ["", "--port 0", "--data '/x y' --set a='b c'"])
def test_make_serve_asks_for_the_model_and_offers_the_demo_tools(arguments: str) -> None:
    fetch, serve = commands("serve", arguments)
    assert fetch == f".venv/bin/python scripts/fetch_model.py {arguments} >/dev/null"
    assert serve == f".venv/bin/antwort serve --demo-tools {arguments}"


@pytest.fixture
def pulls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Path]]:
    """The folders that the model is fetched to when the script is called with these arguments."""
    for name in [name for name in os.environ if name.startswith("ANTWORT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    script = runpy.run_path(str(ROOT / "scripts" / "fetch_model.py"))
    main = script["main"]

    def folders(*arguments: str) -> list[Path]:
        pulled: list[Path] = []

        def pull(given: Mapping[str, object]) -> int:
            pulled.append(read(given).settings.data_folder())
            return 7

        main.__globals__["pull"] = pull
        assert main(list(arguments)) == (7 if pulled else 0)
        return pulled

    return folders


@pytest.mark.parametrize(
    "arguments",
    [
        ("--backend", "http://a/v1"),
        ("--scripted", "--port", "0"),
        ("--gguf", "a.gguf"),
        ("--model", "a.gguf"),
        ("--set", "scripted=true"),
    ],
)
def test_nothing_is_fetched_where_somebody_else_answers(
    arguments: tuple[str, ...], pulls: Callable[..., list[Path]]
) -> None:
    assert pulls(*arguments) == []


def test_nothing_is_fetched_where_the_settings_name_a_backend(
    pulls: Callable[..., list[Path]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my settings.yaml").write_text("backends: [{name: a, url: 'http://a/v1'}]")
    assert pulls("--config", "my settings.yaml") == []
    monkeypatch.setenv("ANTWORT_BACKEND", "http://a/v1")
    assert pulls() == []


def test_settings_that_are_wrong_are_left_for_the_server_to_tell(pulls: Callable[..., list[Path]]) -> None:
    assert pulls("--set", "server.port=x") == []


def test_the_model_is_fetched_to_where_the_server_looks_for_it(
    pulls: Callable[..., list[Path]], tmp_path: Path
) -> None:
    assert pulls("--port", "0") == [tmp_path / "home" / "antwort"]
    assert pulls(f"--data={tmp_path / 'my data'}") == [tmp_path / "my data"]
    place = demo_path(tmp_path / "my data")
    place.parent.mkdir(parents=True)
    with place.open("wb") as file:
        file.truncate(DEMO.size)
    assert pulls("--data", str(tmp_path / "my data")) == []


def test_make_help_says_what_serve_brings() -> None:
    [line] = [line for line in said("help") if line.startswith("serve")]
    assert "demo model, fetched once (93 MB)" in line
