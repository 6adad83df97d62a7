"""How long `antwort serve` takes from the start of its process to the line that says where it listens."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

RUNS = 10
COMMAND = (sys.executable, "-m", "antwort", "serve", "--scripted", "--memory", "--port", "0")


def measure() -> float:
    """Milliseconds of one start, in a fresh process."""
    begin = time.perf_counter()
    with subprocess.Popen([*COMMAND, *sys.argv[1:]], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        process.stdout.readline()
        took = time.perf_counter() - begin
        process.kill()
    return took * 1000


def main() -> int:
    times = sorted(measure() for _ in range(RUNS))
    print(f"median {statistics.median(times):.0f} ms of {RUNS} (from {times[0]:.0f} to {times[-1]:.0f})")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
