"""A process that runs an event loop to its end, whatever the tools that it runs leave behind."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn

from antwort.cli.say import complain
from antwort.config.problems import CannotStart

_LAST_MOMENT = 1.0
"""Seconds for whatever is left when the work is done."""


def run_to_end(work: Coroutine[Any, Any, int]) -> int:
    """The exit status that the work comes to; it may raise `CannotStart`."""
    runner = asyncio.Runner(loop_factory=_loop_factory())
    status = 1
    try:
        status = runner.run(work)
    except CannotStart as exc:
        status = complain(exc)
    finally:
        _close(runner, status)
    return status


def fill_gaps() -> None:
    """A standard stream that is closed leaves its number to the next socket or file, and then words go there."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free, which is this one


def spare_the_collector() -> None:
    """What is there now stays, and what a request leaves behind is mostly freed without it: to look through all of it
    after every few hundred objects would take a tenth of the time of a short request. Nor need the event loop keep a
    list of all generators, to close those that are left at its end: here each is closed by who iterates it.
    """
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)
    sys.set_asyncgen_hooks(firstiter=None)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:  # not to be had on Windows
        return None
    return uvloop.new_event_loop


def _close(runner: asyncio.Runner, status: int) -> None:
    """The event loop waits for all that runs on it and beside it; a tool that hangs would keep the process for ever."""
    closing = threading.Thread(target=runner.close, daemon=True)
    closing.start()
    with contextlib.suppress(KeyboardInterrupt):
        closing.join(_LAST_MOMENT)
    if closing.is_alive() or _is_held():
        _leave(status)


def _is_held() -> bool:
    """Whether a thread of somebody's own would keep the process, after a moment to end."""
    end = time.monotonic() + _LAST_MOMENT
    for thread in threading.enumerate():
        if thread is not threading.main_thread() and not thread.daemon:
            thread.join(max(end - time.monotonic(), 0))
            if thread.is_alive():
                return True
    return False


def _leave(status: int) -> NoReturn:
    """End the process now, whoever is still at work in it."""
    logging.getLogger("antwort.cli").warning("something that a tool has left behind does not end; leaving without it")
    for handler in logging.getLogger().handlers:
        handler.flush()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)
