"""`antwort chat` and calls that wait for approval."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from chat_backend import Calls, ChatBackend, Says
from live_server import PATIENCE
from terminal import CTRL_C, CTRL_D, ENTER, Terminal, terminal

TOOLS = '''
from antwort import Toolset

depot = Toolset("depot")


@depot.tool(require_approval=True)
def ship(box: str) -> str:
    """Ship a box."""
    return f"shipped {box}"
'''
SHIP = Calls([("ship", '{"box": "seven"}')])


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    for name in ("ANTWORT_URL", "ANTWORT_API_KEY", "ANTWORT_CONFIG", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "depot_tools.py").write_text(TOOLS)
    file = tmp_path / "antwort.yaml"
    file.write_text(f"tools:\n  modules: ['{tmp_path / 'depot_tools.py'}']\n")
    return file


@asynccontextmanager
async def chatting(backend: ChatBackend, config: Path) -> AsyncIterator[Terminal]:
    async with terminal("chat", "--config", str(config), "--backend", backend.url) as seen:
        await seen.prompted(1)
        yield seen


@pytest.mark.parametrize(
    ("answer", "result"), [("y", "shipped seven"), ("n", "The user denied this call."), ("NO", "The user denied")]
)
async def test_a_call_is_shown_with_its_arguments_and_asked_about(config: Path, answer: str, result: str) -> None:
    async with ChatBackend(SHIP, Says(("As you say.",))) as backend, chatting(backend, config) as seen:
        seen.type("Ship it.", ENTER)
        shown = await seen.until('Run depot.ship(box: "seven")? [y/n]')
        assert '? depot.ship(box: "seven")' in shown
        seen.type(answer, ENTER)
        await seen.until("As you say.")
        shown = await seen.prompted(2)
        assert result in shown
        assert result in backend.requests[1]["messages"][-1]["content"]


async def test_it_is_asked_again_until_the_answer_is_clear(config: Path) -> None:
    async with ChatBackend(SHIP, Says(("Done.",))) as backend, chatting(backend, config) as seen:
        seen.type("Ship it.", ENTER)
        await seen.until('Run depot.ship(box: "seven")? [y/n]')
        seen.type("maybe", ENTER)
        await seen.until('Run depot.ship(box: "seven")? [y/n]', 2)
        seen.type("yes", ENTER)
        assert "shipped seven" in await seen.prompted(2)


@pytest.mark.parametrize("key", [CTRL_C, CTRL_D])
async def test_who_does_not_want_to_decide_runs_nothing_and_chats_on(config: Path, key: str) -> None:
    async with ChatBackend(SHIP, Says(("Never mind.",))) as backend, chatting(backend, config) as seen:
        seen.type("Ship it.", ENTER)
        await seen.until('Run depot.ship(box: "seven")? [y/n]')
        seen.type(key)
        assert "Nothing is run." in await seen.prompted(2)
        seen.type("Forget it.", ENTER)
        assert "Never mind." in await seen.prompted(3)
        told = backend.requests[1]["messages"]
        assert (told[-1]["content"], told[-2]["role"]) == ("Forget it.", "tool")
        assert "none was given" in told[-2]["content"]


async def test_what_is_long_is_shown_whole_before_anybody_says_yes(config: Path) -> None:
    box = "look at the state of the folder " * 20 + "; then throw it all away"
    long = Calls([("ship", json.dumps({"box": box}))])
    async with ChatBackend(long, Says(("Done.",))) as backend, chatting(backend, config) as seen:
        seen.type("Ship it.", ENTER)
        shown = await seen.until("Run depot.ship with this? [y/n]")
        assert "then throw it all away" in " ".join(shown.split())
        seen.type("n", ENTER)
        await seen.prompted(2)


async def test_what_is_too_long_says_so_and_is_shown_when_asked_for(config: Path) -> None:
    long = Calls([("ship", json.dumps({"box": "x" * 5000 + " the end"}))])
    async with ChatBackend(long, Says(("Done.",))) as backend, chatting(backend, config) as seen:
        seen.type("Ship it.", ENTER)
        shown = await seen.until("Run depot.ship with this? [y/n/all]")
        assert "… 1015 more characters, which `all` shows" in shown
        assert "the end" not in shown
        seen.type("all", ENTER)
        shown = await seen.until("Run depot.ship with this? [y/n/all]", 2)
        assert "the end" in shown
        seen.type("y", ENTER)
        await seen.prompted(2)
        assert "the end" in backend.requests[1]["messages"][-1]["content"]


async def test_two_calls_are_two_questions(config: Path) -> None:
    two = Calls([("ship", '{"box": "seven"}'), ("ship", '{"box": "eight"}')])
    async with ChatBackend(two, Says(("Done.",))) as backend, chatting(backend, config) as seen:
        seen.type("Ship them.", ENTER)
        await seen.until('Run depot.ship(box: "seven"), 1 of 2? [y/n]')
        seen.type("n", ENTER)
        await seen.until('Run depot.ship(box: "eight"), 2 of 2? [y/n]')
        seen.type("y", ENTER)
        await seen.prompted(2)
        results = [each["content"] for each in backend.requests[1]["messages"] if each["role"] == "tool"]
        assert results == ["The user denied this call.", "shipped eight"]


async def test_where_nobody_can_be_asked_it_says_so_and_fails(config: Path) -> None:
    async with ChatBackend(SHIP) as backend, asyncio.timeout(PATIENCE):
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "antwort", "chat", "--config", str(config), "--backend", backend.url, "Ship it."),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ},
        )
        _, errors = await process.communicate()
    assert process.returncode == 1
    assert b"waits to be approved" in errors
