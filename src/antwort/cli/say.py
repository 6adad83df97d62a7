"""Words for the person at the command line."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from antwort.config.problems import BadSettings, CannotStart
from antwort.config.repeating import printable


def say(*lines: str) -> None:
    """To whoever listens: a program whose output is closed, or full, goes on all the same."""
    _write(lines)


def tell(*lines: str) -> int:
    """The result of a command; its exit status. Nobody is to take for written what is lost."""
    problem = "it is closed" if sys.stdout is None else _write(lines)
    if problem:
        print(f"antwort: The output cannot be written: {problem}.", file=sys.stderr)
    return 1 if problem else 0


def _write(lines: Sequence[str]) -> str:
    """Why not, if not. Somebody who stops reading has read enough."""
    try:
        print(*lines, sep="\n", flush=True)
    except OSError as exc:  # what was not written would be tried again at the end, and change the exit status
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
        return "" if isinstance(exc, BrokenPipeError) else exc.strerror or "it cannot be reached"
    return ""


def complain(fault: CannotStart) -> int:
    """Say why not; the exit status: 2 where the command line is to blame, 1 otherwise."""
    print(f"antwort: {printable(str(fault))}", file=sys.stderr)
    return 2 if isinstance(fault, BadSettings) and fault.problems[0].is_usage else 1
