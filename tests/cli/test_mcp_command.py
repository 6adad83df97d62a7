"""`antwort mcp`: real servers, asked from the command line."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import pytest

from antwort.cli import main
from antwort.cli.mcp import print_tool_result
from antwort.testing.mcp import Faults, Served, TryServer
from antwort.tools.base import ToolResult
from live_server import run
from mcp_kit import STDIO, nobody_there, served_beside

Run: TypeAlias = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def there() -> Iterator[Served]:
    with served_beside() as server:
        yield server


@pytest.fixture
def config(there: Served, tmp_path: Path) -> Path:
    file = tmp_path / "antwort.yaml"
    file.write_text(f"mcp_servers: [{{label: try, url: '{there.url}'}}]\n")
    return file


@pytest.fixture
def ended(config: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """A command to its end: exit status, output, errors."""

    def run_it(*words: str) -> tuple[int, str, str]:
        status = main([*words, "--config", str(config)])
        shown = capsys.readouterr()
        return status, shown.out, shown.err

    return run_it


def test_the_configured_servers_are_listed_with_how_they_stand(ended: Run, config: Path, there: Served) -> None:
    dead = f"http://127.0.0.1:{nobody_there()}/mcp"
    config.write_text(f"mcp_servers: [{{label: try, url: '{there.url}'}}, {{label: dead, url: '{dead}?key=hidden'}}]")
    status, shown, _ = ended("mcp", "list")
    assert status == 3
    first, second = shown.splitlines()
    assert first.split() == ["try", there.url, "19", "tools"]
    assert second.startswith(f"dead  {dead}  cannot be used: ")
    assert "hidden" not in shown
    status, shown, _ = ended("mcp", "list", "--json")
    one, other = json.loads(shown)
    assert (status, one["problem"], other["tools"]) == (3, None, None)
    assert "echo" in one["tools"]
    assert other["problem"]


def test_a_list_shows_nothing_that_lets_somebody_in(ended: Run, config: Path) -> None:
    dead = f"http://127.0.0.1:{nobody_there()}/u/hush/mcp"
    run = "{label: run, command: [no-such-program, --api-key, hush, 'A=hush']}"
    config.write_text(f"mcp_servers: [{{label: dead, url: '{dead}?key=hush'}}, {run}]")
    for words in (("mcp", "list"), ("mcp", "list", "--json"), ("config", "show"), ("config", "show", "--json")):
        _, shown, errors = ended(*words)
        assert "no-such-program" in shown
        assert "hush" not in shown + errors


def test_where_none_is_configured_that_is_said(ended: Run, config: Path) -> None:
    config.write_text("{}")
    assert ended("mcp", "list") == (0, "No MCP servers are configured.\n", "")
    status, _, errors = ended("mcp", "tools")
    assert status == 2
    assert "give --url or --command" in errors


def test_the_tools_of_a_server_are_shown_with_what_they_take(ended: Run, there: Served) -> None:
    status, shown, _ = ended("mcp", "tools", "try")
    assert status == 0
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    assert "echo(text) read-only Give back the text." in lines
    assert "fail([message]) Say that it did not work." in lines
    status, shown, _ = ended("mcp", "tools", "--json", "--url", there.url)
    (add,) = (tool for tool in json.loads(shown)["server"] if tool["name"] == "add")
    assert (status, add["parameters"]["required"]) == (0, ["a", "b"])
    assert add["annotations"] == {"readOnlyHint": True}


def test_the_older_way_of_asking_is_known_by_its_address(ended: Run, there: Served) -> None:
    assert ended("mcp", "call", "--url", there.sse_url, "echo", "text=old") == (0, "old\n", "")


@pytest.mark.parametrize(
    ("words", "result"),
    [
        (["echo", "text=5"], (0, "5\n", "")),
        (["add", '{"a": 1, "b": 2}'], (0, "3\n", "")),
        (["fail", "message=No such file."], (1, "", "antwort: No such file.\n")),
        (["image"], (0, "One pixel:\n[image/png, 72 bytes; --json has it]\n", "")),
    ],
)
def test_the_result_of_a_call_is_all_that_is_written(
    words: list[str], result: tuple[int, str, str], ended: Run
) -> None:
    assert ended("mcp", "call", "try", *words) == result


def test_all_of_a_result_is_there_as_json(ended: Run) -> None:
    status, shown, _ = ended("mcp", "call", "try", "image", "--json")
    assert status == 0
    assert [part["type"] for part in json.loads(shown)["output"]] == ["input_text", "input_image"]
    status, shown, _ = ended("mcp", "call", "try", "--json", "fail")
    assert (status, json.loads(shown)) == (1, {"is_error": True, "output": "It did not work."})


@pytest.mark.parametrize(
    ("words", "status", "problem"),
    [
        (["nobody", "echo"], 2, "No MCP server is configured as 'nobody'; there are: try."),
        (["try"], 2, "Say which tool of 'try' to call; `antwort mcp tools try` lists them."),
        (["try", "ecko"], 2, "There is no tool 'ecko'; did you mean 'echo'?"),
        (["try", "echo", "text"], 2, "'text' is not an argument"),
        (["try", "wait", "--timeout", "0.2"], 1, "The tool 'wait' did not answer within 0.2 s."),
        (["try", "wait", "--timeout", "soon"], 2, "--timeout must be a number of seconds"),
        (["echo", "--url", "ftp://there"], 2, "--url must be an address that begins with http:// or https://."),
        (["echo", "--url", "http://127.0.0.1/", "--transport", "smoke"], 2, "--transport must be http or sse."),
        (["echo", "--command", "'"], 2, "--command cannot be used"),
        (["try", "echo", "text=a", "--transport", "sse"], 2, "--transport is for --url"),
        (["echo", "--url", "http://127.0.0.1/", "--token-file", "/nowhere"], 2, "--token-file: "),
        (["try", "add", "a=1"], 1, '"b" is a required property'),
    ],
)
def test_what_goes_wrong_is_said_on_the_standard_error(words: list[str], status: int, problem: str, ended: Run) -> None:
    found, shown, errors = ended("mcp", "call", *words)
    assert (found, shown) == (status, "")
    assert problem in errors


def test_a_server_that_cannot_be_asked_ends_with_a_status_of_its_own(ended: Run, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("wrong\n")
    with served_beside(TryServer(faults=Faults(token="right"))) as closed:
        call = ("mcp", "call", "--url", closed.url, "echo", "text=hi", "--token-file", str(token))
        status, shown, errors = ended(*call)
        assert (status, shown) == (3, "")
        assert "wrong" not in errors
        token.write_text("right\n")
        assert ended(*call) == (0, "hi\n", "")


async def test_a_program_is_started_for_the_call_and_gone_afterwards(config: Path) -> None:
    call = ("mcp", "call", "--config", str(config), "--command", shlex.join(STDIO))
    assert await run(*call, "echo", "text=hello") == (0, "hello\n", "")


def test_a_call_has_the_limits_that_a_request_has(ended: Run, config: Path, there: Served) -> None:
    config.write_text(
        f"mcp_servers: [{{label: try, url: '{there.url}', timeout: 0.2, output_bytes: 100,"
        " tools: {hold: {timeout: 0.1}}}]"
    )
    assert ended("mcp", "call", "try", "wait") == (1, "", "antwort: The tool 'wait' did not answer within 0.2 s.\n")
    assert "within 0.1 s" in ended("mcp", "call", "try", "hold", "name=a")[2]
    assert "within 0.3 s" in ended("mcp", "call", "try", "hold", "name=a", "--timeout", "0.3")[2]
    status, shown, _ = ended("mcp", "call", "try", "big", "bytes=5000", "--timeout", "60")
    assert status == 0
    assert len(shown) < 300


def test_tools_that_the_settings_name_and_the_server_has_not_are_told(ended: Run, config: Path, there: Served) -> None:
    config.write_text(
        f"mcp_servers: [{{label: try, url: '{there.url}', allowed_tools: [echo, ecko],"
        " tools: {ad: {require_approval: true}, add: {timeout: 5}}}]"
    )
    status, shown, _ = ended("mcp", "list")
    assert status == 0
    assert shown.endswith("1 tool; the settings name 'ecko', 'ad', which it has not\n")
    assert json.loads(ended("mcp", "list", "--json")[1])[0]["unknown_tools"] == ["ecko", "ad"]
    status, _, errors = ended("mcp", "tools")
    assert (status, errors) == (0, "antwort: The server 'try': the settings name 'ecko', 'ad', which it has not.\n")


def test_a_server_that_cannot_be_asked_leaves_the_output_empty(ended: Run) -> None:
    status, shown, errors = ended("mcp", "tools", "--command", "sh -c 'echo No key. >&2; exit 3'")
    assert (status, shown) == (3, "")
    assert errors.endswith("(it ended with status 3; its last words: No key.)\n")


def test_what_a_terminal_would_obey_is_told_to_no_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    result = ToolResult("call_1", "\x1b[31mred \x9b31m\tend\nnext")
    assert print_tool_result(result, is_json=False) == 0
    assert capsys.readouterr().out == f"{result.output}\n"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert print_tool_result(result, is_json=False) == 0
    assert capsys.readouterr().out == "\\x1b[31mred \\x9b31m    end\nnext\n"
    assert print_tool_result(result, is_json=True) == 0
    assert "\x9b" not in capsys.readouterr().out
