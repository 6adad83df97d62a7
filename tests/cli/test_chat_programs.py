"""`antwort chat` for programs: what is piped in, and what comes out."""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
from pathlib import Path

import pytest

from antwort.chat.server import usual_server
from antwort.cli import main
from antwort.local.demo import DEMO_NAME
from chat_backend import ChatBackend, Says
from live_server import PATIENCE, launched
from terminal import ENTER, terminal


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTWORT_CONFIG", os.devnull)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in ("ANTWORT_URL", "ANTWORT_API_KEY"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("missing", ["rich", "prompt_toolkit", "markdown_it"])
def test_without_the_extra_it_says_what_to_install(
    missing: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)  # as where it cannot be imported
    assert main(["chat", "Hello"]) == 1
    told = "antwort: `antwort chat` is not installed: `pip install 'antwort[demo]'` brings it.\n"
    assert capsys.readouterr() == ("", told)


async def shell(line: str, *arguments: str, asked: bytes | None = None) -> tuple[int, bytes, str]:
    """A line of the shell in which `$chat` is `antwort chat` with the arguments."""
    chat = shlex.join([sys.executable, "-m", "antwort", "chat", *arguments])
    process = await asyncio.create_subprocess_exec(
        *("bash", "-c", line.replace("$chat", chat)),
        stdin=asyncio.subprocess.DEVNULL if asked is None else asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(PATIENCE):
        output, errors = await process.communicate(asked)
    assert process.returncode is not None
    return process.returncode, output, errors.decode()


async def test_what_is_piped_in_stands_behind_the_question() -> None:
    async with ChatBackend(Says(("Yes.",))) as backend:
        await shell("$chat", "--backend", backend.url, "Summarize this:", asked=b"One.\nTwo.\n")
        assert backend.requests[0]["messages"][0]["content"] == "Summarize this:\n\nOne.\nTwo."


async def test_an_answer_is_written_as_the_model_says_it() -> None:
    """However it comes in pieces; only what a terminal would obey is shown by a sign."""
    hold = asyncio.Event()
    pieces = ("all:\n\tgo \u200fx\u200e\r", "\n\tgo \x1b[2J\r", "\nend")
    async with ChatBackend(Says(pieces, hold=hold)) as backend, asyncio.timeout(PATIENCE):
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "antwort", "chat", "--backend", backend.url, "Hello"),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        first = await process.stdout.readuntil("\u200e".encode())
        hold.set()
        rest = await process.stdout.read()
        assert await process.wait() == 0
    assert (first + rest).decode() == "all:\n\tgo \u200fx\u200e\n\tgo ␛[2J\nend\n"


async def test_an_answer_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    full = shlex.quote(str(tmp_path / "full"))
    status, _, errors = await shell(f"ulimit -f 0; $chat > {full}", "--scripted", "Hello")
    assert (status, errors) == (1, "antwort: The output cannot be written: File too large.\n")


async def test_an_output_that_is_closed_is_told() -> None:
    status, _, errors = await shell("$chat >&-", "--scripted", "Hello")
    assert (status, errors) == (1, "antwort: The output cannot be written: it is closed.\n")


async def test_an_input_that_is_closed_is_none() -> None:
    assert await shell("$chat <&-", "--scripted", "--no-tools", "Hello") == (0, b"You said: Hello\n", "")


async def test_what_a_client_reads_from_the_environment_is_no_fault_of_a_server_of_its_own() -> None:
    line = "ANTWORT_API_KEY=sk-some-key-of-another ANTWORT_URL=http://127.0.0.1:1 $chat"
    assert await shell(line, "--scripted", "--no-tools", "Hello") == (0, b"You said: Hello\n", "")


@pytest.mark.parametrize(("model", "is_told"), [(DEMO_NAME, True), ("another", False)])
async def test_whoever_talks_to_the_demo_model_is_told_so(model: str, is_told: bool) -> None:
    async with ChatBackend(models=[model]) as backend, terminal("chat", "--backend", backend.url) as seen:
        assert (f"{model}: a 135M demo model, often wrong" in await seen.prompted(1)) is is_told


async def test_what_looks_like_a_mouse_is_passed_over() -> None:
    async with ChatBackend(Says(("Yes.",))) as backend, terminal("chat", "--backend", backend.url) as seen:
        await seen.prompted(1)
        seen.type("\x1b[M\x01!!", "\x1b[<999;1;1M", "Hello", ENTER)
        assert "Unhandled" not in await seen.prompted(2)
        assert backend.requests[0]["messages"][0]["content"] == "Hello"


# ---- the key ----


@pytest.mark.parametrize("answer", [b"200 OK", b"401 Unauthorized"])
async def test_the_key_is_not_shown_to_whoever_listens_at_the_usual_address(
    answer: bytes,
) -> None:
    heard: list[bytes] = []

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.readuntil(b"\r\n\r\n"))
        body = b'{"status": "ok"}'
        writer.write(b"HTTP/1.1 %b\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b" % (answer, len(body), body))
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(listen, "127.0.0.1", 0) as server:
        assert await usual_server("sk-hush", f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}") is None
    assert heard
    assert b"hush" not in b"".join(heard)


async def test_a_server_of_ours_at_the_usual_address_gets_the_key() -> None:
    key = "sk-test-abcdefghijklmnopqrstuvwxyz"
    async with launched("--scripted", "--memory", "--set", f"auth.keys=[{{name: a, key: {key}}}]") as server:
        found = await usual_server(key, server.url)
        assert found is not None
        try:
            assert await found.client.models() == ["scripted"]
        finally:
            await found.close()
