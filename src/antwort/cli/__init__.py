"""The command line. Each command imports what it needs when it runs, so that `--help` is quick."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module

INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; what it returns is the exit status."""
    import io
    import sys

    from antwort.cli.parser import parse

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without the dots of a mask is no reason to fail
    try:
        command, given = parse(sys.argv[1:] if arguments is None else arguments)
        return _function(command.run)(given)
    except KeyboardInterrupt:  # somebody who has changed their mind needs no traceback
        return INTERRUPTED


def _function(name: str) -> Callable[[Mapping[str, object]], int]:
    module, _, function = name.partition(":")
    found: Callable[[Mapping[str, object]], int] = getattr(import_module(module), function)
    return found
