"""Memory goes back to the system when it is freed."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

FREED = """
from antwort.cli.process import configure_malloc

def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

configure_malloc()
first = bytes(16 * 2**20)
del first  # left to itself, glibc would from now on keep blocks of this size in its pool
blocks = []
for _ in range(32):
    blocks.append(b"x" * (4 * 2**20))
    blocks.append(b"y" * 300_000)
before = resident()
kept = blocks[1::2]
del blocks
print(before - resident() > 100 * 2**20, len(kept))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries are left as they are")
def test_large_blocks_go_back_to_the_system_as_soon_as_they_are_free() -> None:
    told = subprocess.run([sys.executable, "-c", FREED], capture_output=True, text=True, check=True)
    assert told.stdout.split() == ["True", "32"]


LEFT_BEHIND = """
import asyncio, gc
from antwort.cli.process import release_memory

def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

async def main() -> None:
    gc.disable()
    first = resident()
    releasing = asyncio.create_task(release_memory(0.01))
    await asyncio.sleep(0)
    blocks = [b"x" * 10_000 for _ in range(20_000)]
    kept = blocks[::100]  # so that the heap cannot shrink from its end
    blocks.append(blocks)
    print(resident() - first > 150 * 2**20)
    del blocks
    async with asyncio.timeout(20):
        while resident() - first > 60 * 2**20:
            await asyncio.sleep(0)
    print(len(kept))
    releasing.cancel()

asyncio.run(main())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries are left as they are")
def test_small_blocks_that_wait_for_the_garbage_collector_go_back_as_well() -> None:
    told = subprocess.run([sys.executable, "-c", LEFT_BEHIND], capture_output=True, text=True, check=True)
    assert told.stdout.split() == ["True", "200"]
