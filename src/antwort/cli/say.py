"""Words for the person at the command line."""

from __future__ import annotations

import os
import sys

from antwort.config.problems import BadSettings, CannotStart


def say(*lines: str) -> None:
    """To whoever listens: a program whose output is closed, or full, goes on all the same."""
    try:
        print(*lines, sep="\n", flush=True)
    except OSError:  # what was not written would be tried again at the end, and change the exit status
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def complain(fault: CannotStart) -> int:
    """Say why not; the exit status: 2 where the command line is to blame, 1 otherwise."""
    print(f"antwort: {fault}", file=sys.stderr)
    return 2 if isinstance(fault, BadSettings) and fault.problems[0].is_usage else 1
