"""Give memory back to the system after large work. All of this is for glibc; elsewhere nothing is done."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import sys
from pathlib import Path
from typing import Any

CHECK_SECONDS = 5.0
"""How often the size of the process is looked at."""
_PAUSE_SECONDS = 60.0
"""How long it is left alone when what it holds is in use."""
_GROWTH_BYTES = 64 * 2**20
"""How much more than at its smallest the process may hold without being looked through."""
_MALLOPT = (
    (-3, 256 * 1024),  # M_MMAP_THRESHOLD: blocks from this size on are mapped by themselves
    (-1, 8 * 2**20),  # M_TRIM_THRESHOLD: as much may be free at the end of the heap
    (-8, 2),  # M_ARENA_MAX: pools of memory for threads
)
_STATM = Path("/proc/self/statm")


def configure_malloc() -> None:
    """Have large blocks returned to the system when they are freed.

    Left to itself, glibc raises the size from which it does with every large block that is freed, up to 32 MiB, and
    keeps the smaller ones in pools of its own for each thread: after large histories, hundreds of megabytes.
    """
    if (mallopt := _glibc("mallopt")) is not None:
        for parameter, value in _MALLOPT:
            mallopt(parameter, value)


async def release_memory(interval: float = CHECK_SECONDS) -> None:
    """Collect and return small blocks, too, once the process has grown by 64 MiB; until cancelled.

    They are spread over pages that others use, and many wait for the garbage collector: 500 streams of 2 MB that their
    clients leave keep 300 MB otherwise. It takes about 50 ms, a minute apart where it frees less than a tenth.
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
