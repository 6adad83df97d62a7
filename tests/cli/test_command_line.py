"""The command line itself: help, version, and what is not understood."""

from __future__ import annotations

import asyncio
import secrets
import sys

import pytest

from antwort.cli import main
from antwort.cli.commands import COMMANDS, all_commands
from antwort.version import __version__
from live_server import run, start


def stopped_with(arguments: list[str]) -> int:
    """The status with which the program ends before a command is run."""
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert isinstance(caught.value.code, int)
    return caught.value.code


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert stopped_with(["--version"]) == 0
    assert capsys.readouterr().out == f"antwort {__version__}\n"


def test_help_names_every_command_and_shows_what_to_try(capsys: pytest.CaptureFixture[str]) -> None:
    assert stopped_with(["--help"]) == 0
    shown = capsys.readouterr().out
    for command in COMMANDS:
        assert f"  {command.name} " in shown
        assert command.help in shown
    assert "antwort serve --demo-tools" in shown


@pytest.mark.parametrize(
    ("words", "same"),
    [
        (["help"], ["--help"]),
        (["help", "serve"], ["serve", "--help"]),
        (["help", "config", "show"], ["config", "show", "--help"]),
        (["version"], ["--version"]),
    ],
)
def test_help_and_version_are_commands_too(
    words: list[str], same: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    shown = []
    for arguments in (words, same):
        assert stopped_with(arguments) == 0
        shown.append(capsys.readouterr())
    assert shown[0] == shown[1]


@pytest.mark.parametrize("name", [name for name, command in all_commands() if command.flags])
def test_the_help_of_a_command_names_every_flag(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert stopped_with([*name.split(), "--help"]) == 0
    shown = capsys.readouterr().out
    [command] = [command for each, command in all_commands() if each == name]
    for flag in command.flags:
        assert f"  {flag.name}" in shown
    words = [f"[{each.metavar}]" if each.is_optional else each.metavar for each in command.arguments]
    assert shown.startswith(f"usage: {' '.join(['antwort', name, *words, '[options]'])}\n")
    assert max(len(line) for line in shown.splitlines()) <= 120


def test_the_help_of_serve_is_in_groups_with_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert stopped_with(["serve", "--help"]) == 0
    shown = capsys.readouterr().out
    titles = ["who answers:", "where it listens:", "what it keeps:", "the loop:", "logs:", "all other settings:"]
    assert [line for line in shown.splitlines() if line in titles] == titles
    assert "ANTWORT_BACKEND_API_KEY" in shown
    assert "examples:\n  antwort serve --demo-tools\n" in shown
    assert "\n  antwort serve --scripted --memory\n" in shown


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["serv"], "antwort: there is no command 'serv'; did you mean serve?"),
        (
            ["xyzzy"],
            f"antwort: there is no command 'xyzzy'; the commands are {', '.join(each.name for each in COMMANDS)}",
        ),
        (["config", "shwo"], "antwort config: there is no command 'shwo'; did you mean show?"),
        (["serve", "--prot", "1"], "antwort serve: there is no option --prot; did you mean --port?"),
        (["serve", "--back=http://a"], "antwort serve: there is no option --back; did you mean --backend?"),
        (["serve", "--xyzzy"], "antwort serve: there is no option --xyzzy"),
        (["serve", "now"], "antwort serve: there is no use for 'now'"),
        (["--versoin"], "antwort: there is no option --versoin; did you mean --version?"),
        (["serve", "--port"], "antwort serve: argument --port: expected one argument"),
        (
            ["serve", "--scripted", "--backend", "x"],
            "antwort serve: argument --backend: not allowed with argument --scripted",
        ),
        (["completion"], "antwort completion: the following arguments are required: "),
        (["completion", "tcsh"], "antwort completion: argument {bash,zsh,fish}: invalid choice: 'tcsh'"),
    ],
)
def test_what_is_not_understood_is_told_in_a_line_with_what_may_be_meant(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert stopped_with(arguments) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith(said)
    assert second == f"Try `{said.partition(':')[0]} --help`."


@pytest.mark.parametrize("arguments", [[], ["config"]])
def test_a_command_line_that_stops_short_is_shown_the_commands(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert stopped_with(arguments) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "commands:\n" in shown.err


def test_an_interrupt_ends_any_command_quietly(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(_: int) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(secrets, "token_urlsafe", interrupted)
    assert main(["key"]) == 130
    assert capsys.readouterr() == ("", "")


async def test_an_output_that_cannot_write_every_character_gets_what_it_can() -> None:
    process = await start(
        "config", "show", "--set", "metrics.key=hush-hush-hush-hush", environment={"PYTHONIOENCODING": "ascii"}
    )
    output, errors = await process.communicate()
    assert (process.returncode, errors) == (0, b"")
    assert b"key: ????" in output


QUICK = """
import sys
from antwort.cli import main
try:
    main([sys.argv[1]])
except SystemExit:
    pass
print(sorted(name for name in sys.modules if name.startswith("antwort") or name in SLOW), file=sys.stderr)
"""


@pytest.mark.parametrize("flag", ["--help", "--version"])
async def test_help_and_version_import_nothing_that_takes_time(flag: str) -> None:
    slow = ("msgspec", "asyncio", "yaml", "sqlalchemy", "uvicorn", "ssl", "typing_extensions", "prometheus_client")
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        f"SLOW = {slow!r}\n{QUICK}",
        flag,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    _, errors = await process.communicate()
    cli, config = (
        [f"antwort.cli{each}" for each in ("", ".commands", ".parser")],
        ["antwort.config", "antwort.config.flags"],
    )
    assert errors.decode().strip() == str(["antwort", *cli, *config, "antwort.suggestions", "antwort.version"])


STARTED = """
import asyncio, sys
import antwort.cli.greeting, antwort.cli.serve, antwort.server.server
from antwort.app import build
from antwort.config import read

async def main():
    flags = {"scripted": True, "memory": True, "config": "/dev/null", "port": "0"}
    environment = {"ANTWORT_LOOP_MAX_TURNS": "3", "ANTWORT_METRICS_ENABLED": "false"}
    app = await build(read(flags, environment=environment).settings)
    await app.start()
    await app.close()

asyncio.run(main())
print([name for name in SLOW if name in sys.modules], file=sys.stderr)
"""


async def test_a_server_without_a_file_a_store_and_metrics_starts_without_what_they_need() -> None:
    slow = ["yaml", "sqlalchemy", "alembic", "prometheus_client", "platformdirs", "httpx", "email.parser"]
    slow += ["antwort.server.openapi", "llguidance", "cryptography"]
    code = f"SLOW = {slow!r}\n{STARTED}"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stderr=asyncio.subprocess.PIPE)
    _, errors = await process.communicate()
    assert errors.decode() == "[]\n"


async def test_the_program_can_be_run_as_a_module() -> None:
    assert await run("--version") == (0, f"antwort {__version__}\n", "")


@pytest.mark.parametrize("name", ["config", *(name for name, _ in all_commands())])
def test_the_version_is_told_wherever_it_is_asked_for(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert stopped_with([*name.split(), "--version"]) == 0
    assert capsys.readouterr().out == f"antwort {__version__}\n"


def test_words_are_repeated_without_what_a_terminal_would_obey(capsys: pytest.CaptureFixture[str]) -> None:
    assert stopped_with(["serve", "--\x1b[31m"]) == 2
    assert "--\\x1b[31m" in capsys.readouterr().err
