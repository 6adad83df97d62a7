"""A process that runs an event loop: its signals, its memory, and an exit that no tool can block."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any

from antwort.cli.output import report
from antwort.config.problems import CannotStart

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
HANGUP: signal.Signals | None = getattr(signal, "SIGHUP", None)
"""None on Windows."""
_CLOSE_SECONDS = 1.0
"""What tools have left running may take this long to end."""


def run_process(work: Coroutine[Any, Any, int]) -> int:
    """Run the work in an event loop and return its exit status. The work may raise `CannotStart`."""
    runner = asyncio.Runner(loop_factory=_loop_factory())
    status = 1
    try:
        status = runner.run(work)
    except CannotStart as exc:
        status = report(exc)
    finally:
        # The loop waits for all threads and tasks; a tool that hangs would keep the process for ever.
        closing = threading.Thread(target=runner.close, daemon=True)
        closing.start()
        with contextlib.suppress(KeyboardInterrupt):
            closing.join(_CLOSE_SECONDS)
        if closing.is_alive() or _has_threads():
            _exit_now(status)
    return status


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:  # not available on Windows
        return None
    return uvloop.new_event_loop


def _has_threads() -> bool:
    """Return whether threads that are not daemons still run after a moment."""
    end = time.monotonic() + _CLOSE_SECONDS
    threads = [each for each in threading.enumerate() if each is not threading.main_thread() and not each.daemon]
    for thread in threads:
        thread.join(max(end - time.monotonic(), 0))
    return any(thread.is_alive() for thread in threads)


def _exit_now(status: int) -> None:
    logging.getLogger("antwort.cli").warning("something that a tool has left behind does not end; leaving without it")
    for each in (*logging.getLogger().handlers, sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # a stream may be None
            each.flush()
    os._exit(status)


def open_standard_streams() -> None:
    """Open closed standard streams on the null device, so that no socket or file gets their numbers."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one


# ---- signals ----


@contextlib.contextmanager
def signal_handlers(handlers: Mapping[signal.Signals, Callable[[], None]]) -> Iterator[None]:
    """Call the handlers in the event loop on these signals. On Windows, where that is impossible, nothing is done."""
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in handlers}
    with contextlib.suppress(NotImplementedError):
        for number, handler in handlers.items():
            loop.add_signal_handler(number, handler)
    try:
        yield
    finally:
        for number, former in before.items():
            with contextlib.suppress(NotImplementedError):
                loop.remove_signal_handler(number)
            signal.signal(number, former)


def hangup_handler(reload: Callable[[], None], stop: Callable[[], None]) -> Mapping[signal.Signals, Callable[[], None]]:
    """Return a handler of SIGHUP that calls `reload`; or `stop` if it was sent because the terminal that the program
    was started from is closed, unless SIGHUP was ignored then, as by `nohup`.
    """
    if HANGUP is None:
        return {}
    ends_with_terminal = _has_terminal() and signal.getsignal(HANGUP) is not signal.SIG_IGN
    return {HANGUP: lambda: stop() if ends_with_terminal and not _has_terminal() else reload()}


def _has_terminal() -> bool:
    try:
        return os.isatty(0)
    except OSError:
        return False


# ---- memory ----

CHECK_SECONDS = 5.0
"""Between two looks at the size of the process."""
_PAUSE_SECONDS = 60.0
"""Between two collections if what the process holds is in use."""
_GROWTH_BYTES = 64 * 2**20
"""Growth over the smallest size that leads to a collection."""
_MALLOPT = (
    (-3, 256 * 1024),  # M_MMAP_THRESHOLD: blocks from this size on are mapped by themselves
    (-1, 8 * 2**20),  # M_TRIM_THRESHOLD: as much may be free at the end of the heap
    (-8, 2),  # M_ARENA_MAX: pools of memory for threads
)
_STATM = Path("/proc/self/statm")


def tune_garbage_collector() -> None:
    """Exempt everything that exists now from garbage collection, and collect less often.

    A request leaves few cycles behind; the default thresholds would take a tenth of the time of a short request. The
    event loop does not track generators either: whoever iterates one closes it.
    """
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)
    sys.set_asyncgen_hooks(firstiter=None)


def configure_malloc() -> None:
    """Have glibc return large blocks to the system when they are freed.

    By default the size from which it does grows with every large block that is freed, up to 32 MiB, and smaller blocks
    stay in pools of each thread: hundreds of megabytes after large histories.
    """
    if (mallopt := _glibc("mallopt")) is not None:
        for parameter, value in _MALLOPT:
            mallopt(parameter, value)


async def release_memory(interval: float = CHECK_SECONDS) -> None:
    """Collect garbage and return small blocks, too, whenever the process has grown by 64 MiB; until cancelled.

    Without it, 500 streams of 2 MB whose clients leave keep 300 MB. It takes about 50 ms, and is repeated after a
    minute at the earliest if it frees less than a tenth.
    """
    trim = _glibc("malloc_trim")
    if trim is None or sys.platform != "linux":
        return
    smallest = _resident_bytes()
    pause = interval
    while True:
        await asyncio.sleep(pause)
        before = _resident_bytes()
        smallest = min(smallest, before)
        pause = interval
        if before - smallest > _GROWTH_BYTES:
            gc.collect()
            await asyncio.to_thread(trim, 0)
            if before - _resident_bytes() < before // 10:
                pause = max(interval, _PAUSE_SECONDS)


def _resident_bytes() -> int:
    return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _glibc(name: str) -> Any:
    return None if sys.platform == "win32" else getattr(ctypes.CDLL(None), name, None)
