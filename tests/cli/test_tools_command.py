"""`antwort tools`: what the model would be offered."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

from antwort.cli import main
from antwort.testing.mcp import TryServer
from mcp_kit import nobody_there, served_beside

Run: TypeAlias = Callable[..., tuple[int, str, str]]

OWN = '''
from antwort import Toolset

house = Toolset("house")


@house.tool
def echo(text: str) -> str:
    """Say it again."""
    return text
'''


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "antwort.yaml"
    file.write_text("{}")
    return file


@pytest.fixture
def ended(config: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """The command to its end: exit status, output, errors."""

    def run_it(*words: str) -> tuple[int, str, str]:
        status = main(["tools", *words, "--config", str(config)])
        shown = capsys.readouterr()
        return status, shown.out, shown.err

    return run_it


def test_tools_show_under_the_names_that_the_model_sees(ended: Run, config: Path, tmp_path: Path) -> None:
    module = tmp_path / "own_house.py"
    module.write_text(OWN)
    with served_beside() as there:
        config.write_text(
            f"tools: {{modules: ['{module}'], max_in_prompt: 5}}\n"
            f"mcp_servers:\n- {{label: try, url: '{there.url}', allowed_tools: [echo, add, release],\n"
            "   require_approval: writes, standing: {models: ['qwen*']}}\n"
        )
        status, shown, errors = ended()
        assert (status, errors) == (0, "")
        assert [" ".join(line.split()) for line in shown.splitlines()] == [
            "house (toolset)",
            "house__echo = echo(text) Say it again.",
            "try (MCP server)",
            "try__echo = echo(text) read-only Give back the text.",
            "add(a, b) read-only Add two numbers.",
            "release(name) needs approval, idempotent Let those go that `hold` that name.",
        ]
        status, shown, _ = ended("--label", "house", "--model", "qwen3", "--json")
    servers = json.loads(shown)["servers"]
    found = [(each["label"], each["kind"], each["standing"]) for each in servers]
    assert (status, found) == (0, [("house", "toolset", False), ("try", "mcp", True)])
    assert servers[1]["tools"][0]["name"] == "try__echo"


def test_more_tools_than_the_prompt_takes_are_said_to_be_searched_for(ended: Run, config: Path) -> None:
    with served_beside(TryServer(many=100)) as there:
        config.write_text(f"mcp_servers: [{{label: try, url: '{there.url}'}}]\n")
        status, shown, _ = ended()
    assert status == 0
    assert shown.splitlines()[-1] == "The model is told of 0 of these 119 tools, and looks for the others."
    assert shown.count("looked for") == 119


def test_a_server_that_is_down_is_part_of_the_picture(ended: Run, config: Path) -> None:
    config.write_text(f"mcp_servers: [{{label: gone, url: 'http://127.0.0.1:{nobody_there()}/mcp'}}]\n")
    status, shown, _ = ended("--demo-tools")
    assert status == 3
    assert "demo (toolset)\n" in shown
    assert "\ngone (MCP server, cannot be used: " in shown


def test_a_label_that_nobody_has_is_refused(ended: Run) -> None:
    status, _, errors = ended("--demo-tools", "--label", "dem")
    assert (status, errors) == (2, "antwort tools: Nothing is offered under the label 'dem'; there are: demo.\n")
    assert ended() == (0, "No tools are offered here.\n", "")


def test_what_stands_in_requests_of_some_alone_shows_for_them(ended: Run, config: Path) -> None:
    with served_beside() as there:
        config.write_text(
            f"mcp_servers: [{{label: try, url: '{there.url}', standing: {{tenants: [acme], subjects: [anne]}}}}]\n"
        )
        assert "in every request" not in ended()[1]
        assert "in every request" not in ended("--tenant", "acme", "--subject", "bob")[1]
        assert "in every request" in ended("--tenant", "acme", "--subject", "anne")[1]
