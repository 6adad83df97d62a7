"""`antwort chat`: in a real terminal, against a real server."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from chat_backend import Calls, ChatBackend, Refuses, Says
from live_server import PATIENCE, launched, run, start
from terminal import ALT_ENTER, CTRL_C, CTRL_D, ENTER, PROMPT, UP, Terminal, terminal

SUM = Calls([("calculate", '{"expression": "17 * 23"}')])


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody's settings, nobody's history, and no server that happens to run."""
    monkeypatch.setenv("ANTWORT_CONFIG", os.devnull)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    for name in ("ANTWORT_URL", "ANTWORT_API_KEY", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)


@asynccontextmanager
async def chatting(backend: ChatBackend, *flags: str) -> AsyncIterator[Terminal]:
    """A chat with a server of its own before the backend, as far as its first prompt."""
    async with terminal("chat", "--backend", backend.url, *flags) as seen:
        await seen.prompted(1)
        yield seen


async def say(seen: Terminal, text: str, times: int) -> str:
    """Type it, and wait for the next prompt, which is the so-manieth."""
    seen.type(text, ENTER)
    return await seen.prompted(times)


# ---- turns ----


async def test_a_turn_is_streamed_and_says_what_it_took() -> None:
    hold = asyncio.Event()
    async with ChatBackend(Says(("# Ahoy\n\nHello", " **you**\n"), hold=hold)) as backend, chatting(backend) as seen:
        assert "antwort" in seen.text
        assert "test-model · a server of its own, gone with this chat" in seen.text
        assert "tools demo: current_time, calculate, convert_units" in seen.text
        seen.type("Say hello", ENTER)
        await seen.until("Hello")
        hold.set()
        shown = await seen.prompted(2)
        lines = shown[shown.index(f"{PROMPT} Say hello") :].split("\n")
        assert lines[:5] == [f"{PROMPT} Say hello", "", "Ahoy", "", "Hello you"]
        assert lines[6].startswith("5 tokens in · 7 out · ")
        assert backend.requests[0]["messages"] == [{"role": "user", "content": "Say hello"}]


async def test_a_call_is_shown_with_arguments_result_and_time() -> None:
    async with ChatBackend(SUM, Says(("It is **391**.",))) as backend, chatting(backend) as seen:
        shown = await say(seen, "How much is 17 * 23?", 2)
        lines = shown[shown.index(f"{PROMPT} How much") :].split("\n")
        assert lines[2].startswith('  ✓ demo.calculate(expression: "17 * 23")  ')
        assert lines[2].endswith("s")
        assert "391" in lines[3]
        assert "It is 391." in lines


async def test_the_conversation_goes_on_from_the_last_answer() -> None:
    async with ChatBackend(Says(("One.",)), Says(("Two.",))) as backend, chatting(backend) as seen:
        await say(seen, "First", 2)
        await say(seen, "Second", 3)
        assert [message["content"] for message in backend.requests[1]["messages"]] == ["First", "One.", "Second"]


async def test_ctrl_c_cancels_the_answer_and_not_the_chat() -> None:
    held = Says(("Never", " ending"), hold=asyncio.Event())
    answers = (Says(("One.",)), held, Says(("Three.",)))
    async with ChatBackend(*answers) as backend, chatting(backend) as seen:
        await say(seen, "First", 2)
        seen.type("Second", ENTER)
        await seen.until("Never")
        seen.type(CTRL_C)
        assert "cancelled · " in await seen.prompted(3)
        await backend.until(lambda: backend.open_requests == 0)
        assert "Three." in await say(seen, "Third", 4)
        assert [message["content"] for message in backend.requests[2]["messages"]] == ["First", "One.", "Third"]


async def test_keys_typed_while_the_model_answers_wait_for_the_prompt() -> None:
    hold = asyncio.Event()
    async with ChatBackend(Says(("Wait", " for it."), hold=hold)) as backend, chatting(backend) as seen:
        seen.type("First", ENTER)
        await seen.until("Wait")
        seen.type("Second")
        hold.set()
        shown = await seen.until(f"{PROMPT} Second")
        assert shown.count("Second") == 1


async def test_an_error_of_the_server_is_one_line_and_the_chat_goes_on() -> None:
    async with ChatBackend(Refuses(400, "no such luck"), Says(("Better.",))) as backend, chatting(backend) as seen:
        shown = await say(seen, "First", 2)
        lines = shown[shown.index(f"{PROMPT} First") :].split("\n")
        assert "no such luck" in lines[2]
        assert "Better." in await say(seen, "Second", 3)


async def test_what_the_model_says_gives_the_terminal_no_orders() -> None:
    evil = "\x1b]0;owned\x07\x1b[2J\x1b[31mred \u202etxet <http://a/%1b[5m>"
    async with ChatBackend(Says((evil,))) as backend, chatting(backend) as seen:
        shown = await say(seen, "Go", 2)
        assert "␛]0;owned␇␛[2J␛[31mred" in shown
        assert not any(order in seen.received for order in (b"\x1b]0;", b"\x1b[2J", b"\x1b[5m", "\u202e".encode()))


# ---- at the prompt ----


async def test_ctrl_c_clears_the_line_and_ctrl_d_ends_with_status_0() -> None:
    async with ChatBackend() as backend, chatting(backend) as seen:
        seen.type("Nonsense")
        await seen.until("Nonsense")
        seen.type(CTRL_C)
        await seen.prompted(1)
        seen.type(CTRL_D)
        assert await seen.ended() == 0
        assert backend.requests == []


async def test_a_question_may_have_several_lines() -> None:
    async with ChatBackend(Says(("Yes.",))) as backend, chatting(backend) as seen:
        seen.type("One", ALT_ENTER, "two\\", ENTER, "three", ENTER)
        await seen.prompted(2)
        assert backend.requests[0]["messages"][-1]["content"] == "One\ntwo\nthree"


async def test_what_was_asked_is_kept_for_the_next_time_and_for_nobody_else(tmp_path: Path) -> None:
    async with ChatBackend(Says(("Yes.",))) as backend:
        async with chatting(backend) as seen:
            await say(seen, "Remember me", 2)
            seen.type(CTRL_D)
            await seen.ended()
        file = tmp_path / "state" / "antwort" / "chat-history"
        assert "+Remember me" in file.read_text()
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        async with chatting(backend) as seen:
            seen.type(UP)
            await seen.until(f"{PROMPT} Remember me")


async def test_without_history_nothing_is_kept(tmp_path: Path) -> None:
    async with ChatBackend(Says(("Yes.",))) as backend, chatting(backend, "--no-history") as seen:
        await say(seen, "Forget me", 2)
        seen.type(CTRL_D)
        assert await seen.ended() == 0
    assert not (tmp_path / "state").exists()


# ---- commands ----


async def test_help_lists_the_commands_and_a_slip_is_understood() -> None:
    async with ChatBackend() as backend, chatting(backend) as seen:
        shown = await say(seen, "/help", 2)
        assert all(name in shown for name in ("/new", "/model", "/tools", "/save", "/quit", "Alt-Enter"))
        assert "There is no command /sav; did you mean /save?" in await say(seen, "/sav", 3)
        seen.type("/quit", ENTER)
        assert await seen.ended() == 0


async def test_new_begins_anew() -> None:
    async with ChatBackend(Says(("Yes.",))) as backend, chatting(backend) as seen:
        await say(seen, "First", 2)
        await say(seen, "/new", 3)
        await say(seen, "Second", 4)
        assert [message["content"] for message in backend.requests[1]["messages"]] == ["Second"]


async def test_a_model_is_listed_completed_and_switched_to() -> None:
    async with ChatBackend(Says(("Yes.",)), models=["small", "large"]) as backend, chatting(backend) as seen:
        shown = await say(seen, "Hello", 2)
        assert "/model" in shown.split(f"{PROMPT} Hello")[1]  # which one, the server does not know
        shown = await say(seen, "/model", 3)
        assert "    small\n    large" in shown
        assert "Talking to large from now on." in await say(seen, "/model la\t", 4)
        assert "✓ large" in await say(seen, "/model", 5)
        await say(seen, "Hello", 6)
        assert backend.requests[-1]["model"] == "large"


async def test_tools_are_listed_and_switched() -> None:
    async with ChatBackend(Says(("Yes.",))) as backend, chatting(backend) as seen:
        assert "demo  on  current_time, calculate, convert_units" in await say(seen, "/tools", 2)
        assert "The tools of demo are off." in await say(seen, "/tools demo off", 3)
        await say(seen, "Hello", 4)
        assert "tools" not in backend.requests[0]
        assert "The server has no tools labelled 'nope'; it has demo." in await say(seen, "/tools nope on", 5)
        await say(seen, "/tools demo on", 6)
        await say(seen, "Hello", 7)
        assert len(backend.requests[1]["tools"]) == 3


async def test_a_transcript_is_saved_once_and_again_only_by_force(tmp_path: Path) -> None:
    async with ChatBackend(SUM, Says(("It is **391**.",))) as backend, chatting(backend) as seen:
        assert "There is nothing to save yet." in await say(seen, "/save x.md", 2)
        await say(seen, "How much?", 3)
        assert "Saved to x.md." in await say(seen, "/save x.md", 4)
        file = tmp_path / "x.md"
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        saved = file.read_text()
        assert all(words in saved for words in ("## You\n\nHow much?", "**demo.calculate**", "It is **391**."))
        file.write_text("mine")
        assert "`/save! x.md` overwrites it" in await say(seen, "/save x.md", 5)
        assert file.read_text() == "mine"
        await say(seen, "/save! x.md", 6)
        assert file.read_text() == saved


async def test_what_the_model_is_told_first_can_be_set() -> None:
    async with ChatBackend(Says(("Yes.",))) as backend, chatting(backend, "--system", "Be brief.") as seen:
        await say(seen, "One", 2)
        await say(seen, "/system Be kind.", 3)
        await say(seen, "Two", 4)
        told = [request["messages"][0] for request in backend.requests]
        assert told == [{"role": "system", "content": "Be brief."}, {"role": "system", "content": "Be kind."}]


# ---- the server ----


@pytest.mark.parametrize("how", ["ctrl-d", signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
async def test_the_server_that_was_started_is_gone_however_the_chat_ends(how: str | signal.Signals) -> None:
    async with ChatBackend(Says(("Never", " ending"), hold=asyncio.Event())) as backend, chatting(backend) as seen:
        seen.type("Hello", ENTER)
        await seen.until("Never")
        if isinstance(how, signal.Signals):
            seen.signal(how)
        else:
            seen.type(CTRL_C, CTRL_D)
        await seen.ended()
        async with asyncio.timeout(PATIENCE):
            await backend.until(lambda: backend.connections == 0)


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="who the children are is read from /proc")
async def test_a_server_of_its_own_that_dies_is_started_again_and_told_all() -> None:
    async with ChatBackend(Says(("One.",)), Says(("Two.",))) as backend, chatting(backend) as seen:
        await say(seen, "First", 2)
        for child in children(seen.pid):
            os.kill(child, signal.SIGKILL)
        await backend.until(lambda: backend.connections == 0)
        shown = await say(seen, "Second", 3)
        if "Two." not in shown:  # the turn may be asked for before its end is noticed
            await say(seen, "Second", 4)
        assert [message["content"] for message in backend.requests[1]["messages"]] == ["First", "One.", "Second"]


async def test_a_server_that_runs_is_talked_to_and_left_running() -> None:
    async with (
        ChatBackend(Says(("Yes.",))) as backend,
        launched("--backend", backend.url, "--memory", "--demo-tools") as server,
    ):
        url = server.url.removesuffix("/v1")
        async with terminal("chat", "--url", url) as seen:
            shown = await seen.prompted(1)
            assert f"test-model · {url}" in shown
            assert "tools demo: " in shown
            await say(seen, "Hello", 2)
            await server.stop()
            assert "cannot be reached" in await say(seen, "Hello?", 3)
            seen.type(CTRL_D)
            assert await seen.ended() == 0


async def test_a_server_that_forgets_is_told_all_again() -> None:
    async with ChatBackend(Says(("One.",)), Says(("Two.",))) as backend:
        async with launched("--backend", backend.url, "--memory") as server:
            port = str(server.port)
            async with terminal("chat", "--url", server.url) as seen:
                await seen.prompted(1)
                await say(seen, "First", 2)
                await server.stop()
                again = await start("serve", "--port", port, "--backend", backend.url, "--memory")
                try:
                    assert again.stdout is not None
                    async with asyncio.timeout(PATIENCE):
                        await again.stdout.readline()
                    assert "Two." in await say(seen, "Second", 3)
                finally:
                    again.kill()
                    await again.communicate()
        assert [message["content"] for message in backend.requests[1]["messages"]] == ["First", "One.", "Second"]


async def test_a_label_that_the_server_does_not_know_is_told_and_switched_off() -> None:
    async with ChatBackend(Says(("Yes.",))) as backend, chatting(backend, "--tools", "nope") as seen:
        assert "The server has no tools labelled 'nope'; they are switched off now." in await say(seen, "Hello", 2)
        assert "Yes." in await say(seen, "Hello", 3)


async def test_a_server_that_cannot_start_says_why_in_its_own_words() -> None:
    status, output, errors = await run("chat", "--backend", "ftp://x", "Hello")
    assert (status, output) == (1, "")
    assert errors.startswith("antwort: ")
    assert "--backend" in errors


# ---- for programs ----


async def piped(*arguments: str, asked: bytes = b"") -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "antwort", "chat", *arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(PATIENCE):
        output, errors = await process.communicate(asked)
    assert process.returncode is not None
    return process.returncode, output.decode(), errors.decode()


async def test_a_question_from_a_pipe_is_answered_in_plain_text() -> None:
    async with ChatBackend(SUM, Says(("It is **391**.\x1b[2J",))) as backend:
        answered = await piped("--backend", backend.url, asked=b"How much is 17 * 23?\n")
        assert answered == (0, "It is **391**.␛[2J\n", "")
        assert backend.requests[0]["messages"][0]["content"] == "How much is 17 * 23?"


async def test_a_failure_is_told_on_the_other_stream_with_status_1() -> None:
    async with ChatBackend(Refuses(400, "no such luck")) as backend:
        status, output, errors = await piped("--backend", backend.url, "Hello")
    assert (status, output) == (1, "")
    assert errors.startswith("antwort: ")
    assert "no such luck" in errors
    assert errors.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "There is no question"),
        (("--url", "http://127.0.0.1:1", "Hello"), "cannot be reached"),
        (("--url", "not an address", "Hello"), "is not the address of a server"),
        (("--url", "http://127.0.0.1:1", "--scripted", "Hello"), "leave one of them out"),
        (("--url", "http://127.0.0.1:1", "--key-file", "/no/such", "Hello"), "cannot be read"),
        (("--gguf", "missing.gguf", "Hello"), "missing.gguf"),
    ],
)
async def test_what_cannot_be_done_is_one_line_with_status_1(arguments: tuple[str, ...], said: str) -> None:
    status, output, errors = await piped(*arguments)
    assert (status, output) == (1, "")
    assert said in errors
    assert errors.count("\n") == 1


async def test_a_question_on_the_command_line_is_answered_and_that_is_all() -> None:
    async with (
        ChatBackend(SUM, Says(("It is **391**.",))) as backend,
        terminal("chat", "--backend", backend.url, "How much is 17 * 23?") as seen,
    ):
        assert await seen.ended() == 0
        assert "demo.calculate" in seen.text
        assert "It is 391." in seen.text
        assert PROMPT not in seen.text


async def test_the_key_of_a_server_is_sent_and_a_missing_one_is_asked_for(tmp_path: Path) -> None:
    key = "sk-test-abcdefghijklmnopqrstuvwxyz"
    (tmp_path / "key").write_text(key)
    keys = f"auth.keys=[{{name: a, key: {key}}}]"
    async with launched("--scripted", "--memory", "--set", keys) as server:
        status, _, errors = await piped("--url", server.url, "Hello")
        assert (status, "ANTWORT_API_KEY" in errors) == (1, True)
        assert await piped("--url", server.url, "--key-file", str(tmp_path / "key"), "Hello") == (
            0,
            "You said: Hello\n",
            "",
        )


@pytest.mark.parametrize(("width", "height"), [(20, 8), (12, 4)])
async def test_a_small_window_is_enough(width: int, height: int) -> None:
    text = "A sentence that is longer than the window is wide.\n\n```py\nprint('a line of code that is long')\n```\n"
    async with (
        ChatBackend(Says((text,))) as backend,
        terminal("chat", "--backend", backend.url, width=width, height=height) as seen,
    ):
        await seen.prompted(1)
        assert "A sentence" in await say(seen, "Hi", 2)


async def test_without_colours_and_letters_it_still_talks() -> None:
    environment = {"NO_COLOR": "1", "PYTHONIOENCODING": "ascii:replace", "TERM": "dumb"}
    async with (
        ChatBackend(Says(("Hello", " you"))) as backend,
        terminal("chat", "--backend", backend.url, "Say hello", environment=environment) as seen,
    ):
        assert await seen.ended() == 0
        assert "Hello you" in seen.text
        assert seen.received.isascii()
        assert b"\x1b" not in seen.received
