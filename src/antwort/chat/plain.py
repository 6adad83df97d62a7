"""One question, one answer, as plain text: for a program that reads it."""

from __future__ import annotations

import asyncio
import sys
import time

from antwort.chat.answer import Answer
from antwort.chat.receiving import receive
from antwort.chat.scrub import in_one_line, scrub_for_file
from antwort.chat.start import WAITS, Options, begin, find_home

_A_MOMENT = 0.05


async def answer_once(options: Options) -> int:
    """The exit status. Raises `ChatFault`."""
    home = await find_home(options, lambda _: None)
    try:
        conversation = await begin(home, options)
        answer = Answer(began=time.monotonic())
        receiving = asyncio.create_task(receive(home, conversation, options.question or "", answer))
        try:
            await _copy(answer, receiving)
        finally:
            receiving.cancel()
            await asyncio.wait({receiving})
    finally:
        await home.close()
    return _status(answer)


async def _copy(answer: Answer, receiving: asyncio.Task[None]) -> None:
    """Write what is said as it is said. A CR at the end waits for the LF that may follow."""
    written, is_over = 0, False
    while not is_over:
        await asyncio.wait({receiving}, timeout=_A_MOMENT)
        is_over = receiving.done()
        said = answer.text
        end = len(said) if is_over else len(said.rstrip("\r"))
        _write(scrub_for_file(said[written:end]))
        written = max(written, end)
    if said and not said.endswith("\n"):
        _write("\n")
    await receiving


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _status(answer: Answer) -> int:
    """An answer that was cut off is one; whoever reads only that does not have to know."""
    if answer.asked:
        sys.stderr.write(f"antwort: {WAITS}\n")
        return 1
    if answer.status != "completed":
        sys.stderr.write(f"antwort: {in_one_line(answer.problem or answer.status, 2000)}\n")
    return 0 if answer.status in ("completed", "incomplete") else 1
