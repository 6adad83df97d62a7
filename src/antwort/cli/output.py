"""What commands write to standard output and standard error."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Coroutine
from contextlib import suppress
from typing import TypeVar

from antwort.config.problems import BadSettings, CannotStart, printable

T = TypeVar("T")

_SILENT_SECONDS = 1.0
"""Without a terminal, work that ends sooner is not mentioned."""
_REPEAT_SECONDS = 10.0
"""Without a terminal, between two lines about the same work."""


class UsageError(CannotStart):
    """The command line is wrong."""


def report(error: CannotStart, command: str = "") -> int:
    """Print an error to standard error, and return the exit status: 2 if the command line is wrong, 1 otherwise."""
    is_usage = isinstance(error, UsageError)
    flush_log()
    print(f"{f'antwort {command}'.strip() if is_usage else 'antwort'}: {printable(str(error))}", file=sys.stderr)
    return 2 if is_usage or (isinstance(error, BadSettings) and error.problems[0].is_usage) else 1


def flush_log() -> None:
    """Write the log lines that are queued, so that they come before what is printed next."""
    if (logging := sys.modules.get("logging")) is not None:
        for handler in logging.getLogger().handlers:
            handler.flush()


def note(line: str) -> None:
    """Print a remark beside the output, to standard error."""
    print(printable(line), file=sys.stderr, flush=True)


def say(*lines: str) -> None:
    """Print status lines. A program whose output is closed or full goes on."""
    _write(*lines)


def print_result(*lines: str) -> int:
    """Print the result of a command, and return its exit status: 1 if the output could not be written."""
    return report_lost("it is closed" if sys.stdout is None else _write(*lines))


def report_lost(problem: str) -> int:
    """Report why the output could not be written, if `problem` is not empty, and return the exit status."""
    if problem:
        print(f"antwort: The output cannot be written: {problem}.", file=sys.stderr)
    return 1 if problem else 0


def _write(*lines: str) -> str:
    try:
        print(*lines, sep="\n", flush=True)
    except OSError as exc:
        return discard_output(exc)
    return ""


def discard_output(error: OSError) -> str:
    """Redirect the output to nowhere after an error, and return what the problem is; empty if the reader is gone.

    What is still buffered would be written again at the end, and change the exit status.
    """
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
    return "" if isinstance(error, BrokenPipeError) else error.strerror or "it cannot be reached"


class SafeOutput:
    """Standard output as a file whose methods never raise. `problem` says why something was lost."""

    def __init__(self) -> None:
        self._stream = sys.stdout
        self.problem = "" if self._stream is not None else "it is closed"
        self.encoding = "utf-8" if self._stream is None else self._stream.encoding

    def isatty(self) -> bool:
        return self._stream is not None and self._stream.isatty()

    def fileno(self) -> int:
        if self._stream is None:
            raise io.UnsupportedOperation("fileno")
        return self._stream.fileno()

    def write(self, text: str) -> int:
        if self._stream is not None:
            try:
                self._stream.write(text)
                self._stream.flush()
            except OSError as exc:
                self.problem = discard_output(exc)
                self._stream = None
        return len(text)

    def flush(self) -> None:
        self.write("")


def is_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()


async def with_progress(work: Coroutine[None, None, T], what: str, *, only_on_terminal: bool = False) -> T:
    """Return the result of `work`. A line on a terminal counts the seconds meanwhile, and is cleared at the end;
    another output gets a line every ten seconds, or none.
    """
    import asyncio

    clock = asyncio.get_running_loop().time
    task, start, width = asyncio.create_task(work), clock(), 0
    is_shown = is_terminal()
    try:
        while not task.done():
            seconds = clock() - start
            text = f"{what} ... {seconds:.0f} s"
            timeout: float | None = None
            if is_shown:
                width = _overwrite(text, width)
                timeout = 1.0 - seconds % 1.0
            elif not only_on_terminal and seconds < _SILENT_SECONDS:
                timeout = _SILENT_SECONDS - seconds
            elif not only_on_terminal:
                say(text)
                timeout = _REPEAT_SECONDS
            await asyncio.wait({task}, timeout=timeout)
    finally:
        task.cancel()  # no effect if it is done
        if is_shown:
            _overwrite("", width)
    return await task


def _overwrite(text: str, width: int) -> int:
    """Write over a line of `width` characters, and return the new width."""
    with suppress(OSError):  # a terminal that is gone is no reason to stop
        print(text.ljust(width), end="\r", flush=True)
    return len(text)
