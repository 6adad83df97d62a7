"""One life of a model's process, seen from this side."""

from __future__ import annotations

import asyncio
import logging
import os
import signal

import pytest

from antwort.local.process import ProcessEnded
from local_kit import ADDRESS, BROKEN, GOOD, SLOW, begin


async def test_it_tells_where_it_answers_and_ends_when_its_input_does() -> None:
    process = await begin(*GOOD)
    await process.ready()
    assert (process.address, process.key, process.has_ended) == (ADDRESS, "hush", False)
    await process.stop()
    assert process.has_ended
    assert str(await process.ended()) == "its process ended with status 0"


async def test_it_is_out_of_reach_of_the_terminal() -> None:
    process = await begin(*GOOD)
    await process.ready()
    assert os.getsid(process.pid) == os.getpgid(process.pid) == process.pid
    await process.stop()


async def test_one_that_does_not_come_up_says_why() -> None:
    process = await begin(*BROKEN)
    with pytest.raises(ProcessEnded, match=r"^its process ended with status 3$") as caught:
        await process.ready()
    assert caught.value.last_lines == ("0.00.002 E gguf_init: failed to read header", "E more")
    assert caught.value.error == "gguf_init: failed to read header"
    await process.stop()


async def test_one_that_dies_without_a_word_has_no_error_to_tell() -> None:
    process = await begin("exit=1")
    with pytest.raises(ProcessEnded) as caught:
        await process.ready()
    assert (caught.value.last_lines, caught.value.error) == ((), "")
    await process.stop()


async def test_one_that_is_killed_was_ended_by_a_signal() -> None:
    process = await begin(*GOOD)
    await process.ready()
    os.kill(process.pid, signal.SIGKILL)
    assert str(await process.ended()) == "its process was ended by SIGKILL"
    await process.stop()


async def test_one_that_does_not_end_by_itself_is_killed() -> None:
    process = await begin(f"ready={ADDRESS}", "deaf")
    await process.ready()
    process.grace_seconds = 0.05
    await process.stop()
    assert str(await process.ended()) == "its process was ended by SIGKILL"


async def test_its_log_is_a_part_of_ours_line_by_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "antwort.local")
    process = await begin("log=one\ntw", "log=o\n", f"log={'x' * 5000}\n", "log=\udcff end", "exit=0")
    await process.ended()
    await process.stop()
    assert caplog.messages == [
        "llama.cpp: one",
        "llama.cpp: two",
        f"llama.cpp: {'x' * 2000}",
        "llama.cpp: � end",
    ]


MARKER = "my-secret-words"
SAID = (
    f"log=1.00.000 W srv warn: {MARKER}\n1.00.001 E srv send_error: {MARKER}\n{MARKER}\n1.00.002 D srv body: {MARKER}\n"
    "1.00.003 I slot launch: id 0 | task 1 | processing\n/src/ggml.c:12: GGML_ASSERT(n > 0) failed\n"
)


@pytest.mark.parametrize("wanted", [False, True])
async def test_what_it_says_of_requests_is_for_no_log_but_that_of_contents(
    caplog: pytest.LogCaptureFixture, wanted: bool
) -> None:
    caplog.set_level(logging.INFO if wanted else logging.CRITICAL + 1, "antwort.content")
    caplog.set_level(logging.DEBUG, "antwort.local")
    process = await begin("log=0.00.000 W load: slow disk\n", f"ready={ADDRESS}", "wait", SAID, "exit=6")
    await process.ready()
    await process.stop()
    end = await process.ended()
    assert end.last_lines == ("/src/ggml.c:12: GGML_ASSERT(n > 0) failed",)
    assert [name for name, _, said in caplog.record_tuples if MARKER in said] == ["antwort.content"] * 4 * wanted
    assert "llama.cpp: 1.00.003 I slot launch: id 0 | task 1 | processing" in caplog.messages


async def test_several_may_wait_for_its_end() -> None:
    process = await begin(*SLOW)
    waiting = [asyncio.create_task(process.ended()) for _ in range(3)]
    await process.stop()
    assert {str(end) for end in await asyncio.gather(*waiting)} == {"its process was ended by SIGKILL"}


async def test_one_that_is_still_loading_is_not_waited_for() -> None:
    process = await begin("deaf")
    await process.stop()
    assert str(await process.ended()) == "its process was ended by SIGKILL"


@pytest.mark.parametrize("word", ["\udcff", "x" * 100_000])
async def test_one_that_does_not_say_where_it_answers_is_of_no_use(word: str) -> None:
    process = await begin(f"ready={word}", "wait")
    with pytest.raises(ProcessEnded, match="does not say where it answers"):
        await process.ready()
    await process.stop()
