"""The command line. Each command imports what it needs when it runs, so that `--help` is fast."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

STATUS_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return the exit status."""
    import io
    import sys
    from importlib import import_module

    from antwort.cli.parser import parse

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # some terminals lack the character that masks secrets
    try:
        command, given = parse(sys.argv[1:] if arguments is None else arguments)
        module, _, name = command.run.partition(":")
        run: Callable[[Mapping[str, object]], int] = getattr(import_module(f"antwort.cli.{module}"), name)
        return run(given)
    except KeyboardInterrupt:
        return STATUS_INTERRUPTED
