"""Words for the person at the command line."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from antwort.config.problems import BadSettings, CannotStart, printable


def say(*lines: str) -> None:
    """To whoever listens: a program whose output is closed, or full, goes on all the same."""
    _write(lines)


def tell(*lines: str) -> int:
    """The result of a command; its exit status. Nobody is to take for written what is lost."""
    return lost("it is closed" if sys.stdout is None else _write(lines))


def lost(problem: str) -> int:
    """Say why the output could not be written, if so; the exit status."""
    if problem:
        print(f"antwort: The output cannot be written: {problem}.", file=sys.stderr)
    return 1 if problem else 0


def _write(lines: Sequence[str]) -> str:
    """Why not, if not."""
    try:
        print(*lines, sep="\n", flush=True)
    except OSError as exc:
        return abandon(exc)
    return ""


def abandon(fault: OSError) -> str:
    """The output is not written to any more; why that is one's problem. Somebody who stops reading has read enough.

    What was not written would be tried again at the end, and change the exit status.
    """
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
    return "" if isinstance(fault, BrokenPipeError) else fault.strerror or "it cannot be reached"


def complain(fault: CannotStart) -> int:
    """Say why not; the exit status: 2 where the command line is to blame, 1 otherwise."""
    print(f"antwort: {printable(str(fault))}", file=sys.stderr)
    return 2 if isinstance(fault, BadSettings) and fault.problems[0].is_usage else 1
