"""The command line. Each command imports what it needs when it runs, so that `--help` is quick."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from antwort.version import __version__


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; what it returns is the exit status."""
    from antwort.cli import serve

    parser = argparse.ArgumentParser(
        prog="antwort",
        description="The OpenAI Responses API in front of any Chat Completions backend, with an agentic tool loop.",
    )
    parser.add_argument("--version", action="version", version=f"antwort {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    serve.declare(commands)
    chosen = parser.parse_args(arguments)
    status: int = chosen.run(chosen)
    return status
