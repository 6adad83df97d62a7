"""Large blocks go back to the system when they are freed."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

FREED = """
from antwort.cli.process import give_memory_back

def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

give_memory_back()
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
