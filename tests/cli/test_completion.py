"""Completion: the scripts, run by the shells themselves where they are there."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from antwort.cli import main
from antwort.cli.commands import SHELLS, all_commands

BASH = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
compopt() { :; }  # there is no line being edited
complete -p antwort >/dev/null || exit 1
_antwort
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(params=SHELLS)
def shell(request: pytest.FixtureRequest) -> str:
    name = str(request.param)
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    return name


def script(shell: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert main(["completion", shell]) == 0
    file = folder / f"completion.{shell}"
    file.write_text(capsys.readouterr().out)
    return file


def test_the_shell_understands_its_script(shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = subprocess.run([shell, "-n", script(shell, tmp_path, capsys)], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("antwort ", "serve worker chat doctor model tools mcp codex config openapi key completion --help --version"),
        ("antwort se", "serve"),
        ("antwort serve --po", "--port"),
        ("antwort serve --port 80 --me", "--memory"),
        ("antwort serve --log-level ", "debug info warning error"),
        ("antwort serve --log-level = w", "warning"),
        ("antwort serve --log-level =", "debug info warning error"),
        ("antwort mcp ", "list tools call --help"),
        ("antwort mcp call --tr", "--transport"),
        ("antwort mcp tools --transport ", "http sse"),
        ("antwort tools --l", "--label"),
        ("antwort config ", "show check schema reference --help"),
        ("antwort config show --j", "--json"),
        ("antwort config check --j", ""),
        ("antwort serve --set loop.max_tu", "loop.max_turns="),
        ("antwort serve --set server.port =", ""),
        ("antwort serve --set server.port = 8", ""),
        ("antwort serve --set = server.po", "server.port="),
        ("antwort serve --host ", ""),
        ("antwort completion ", "bash zsh fish --help"),
        ("antwort serve --config ant", "antwort.yaml"),
        ("antwort serve --data d", "data"),
    ],
)
def test_bash_completes(words: str, completed: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = script("bash", tmp_path, capsys)
    (tmp_path / "data").mkdir()
    (tmp_path / "antwort.yaml").touch()
    command = ["bash", "--norc", "-c", BASH, "bash", str(file), *words.split(" ")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert done.stdout.split() == completed.split()


@pytest.mark.parametrize("name", SHELLS)
def test_every_command_and_flag_is_in_every_script(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = script(name, tmp_path, capsys).read_text()
    for _, command in all_commands():
        assert command.name in text
        for flag in command.flags:
            assert (f"-l {flag.key.replace('_', '-')}" if name == "fish" else flag.name) in text


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_completes_a_name_with_a_space_as_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = script("bash", tmp_path, capsys)
    (tmp_path / "my data").mkdir()
    command = ["bash", "--norc", "-c", BASH, "bash", str(file), "antwort", "serve", "--data", "my"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "my data\n"
