"""The command line. Each command imports what it needs when it runs, so that `--help` is fast."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence

Run = Callable[[Mapping[str, object]], "int | Coroutine[None, None, int]"]
"""A command: it takes the values of its flags, returns its exit status, and may raise `CannotStart`."""
STATUS_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return the exit status."""
    import io
    import sys
    from importlib import import_module

    from antwort.cli.commands import all_commands
    from antwort.cli.parser import parse

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # some terminals lack the character that masks secrets
    try:
        command, given = parse(sys.argv[1:] if arguments is None else arguments)
        from antwort.cli.output import report
        from antwort.config.problems import CannotStart

        module, _, function = command.run.partition(":")
        try:
            run: Run = getattr(import_module(f"antwort.cli.{module}"), function)
            status = run(given)
            if not isinstance(status, int):
                import asyncio

                status = asyncio.run(status)
        except CannotStart as exc:
            status = report(exc, next(name for name, each in all_commands() if each is command))
    except KeyboardInterrupt:
        return STATUS_INTERRUPTED
    return status
