"""Take clients through all cases, and keep a line for each.

PYTHONPATH=tests python -m clients.run --only openai-python,codex --out lines.jsonl

Lines of other clients that are in the file stay there.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from antwort.version import __version__
from clients.ground import Ground, started
from clients.records import CLIENTS, Line, Record, missing, read_record, write_record
from clients.runners import RUNNERS


def collected(ground: Ground, clients: Sequence[str]) -> list[Line]:
    """The lines of these clients, each shown as it comes."""
    lines = []
    for client in clients:
        for line in RUNNERS[client](ground):
            mode = "streamed" if line.streamed else "whole"
            print(f"{line.outcome:<6}  {client:<22} {line.case:<16} {mode:<8}  {line.detail}", flush=True)  # noqa: T201
            lines.append(line)
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0 when every case of every client asked for is there, and nothing has failed."""
    parser = argparse.ArgumentParser(prog="python -m clients.run", description="Take clients through all cases.")
    parser.add_argument("--only", metavar="NAMES", help="these clients, separated by commas")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where the lines go")
    chosen = parser.parse_args(arguments)
    clients = chosen.only.split(",") if chosen.only else [name for name in CLIENTS if name in RUNNERS]
    with tempfile.TemporaryDirectory() as folder, started(Path(folder)) as ground:
        lines = collected(ground, clients)
        problems = ground.faults()
    if chosen.out:
        keep(lines, clients, chosen.out)
    for client, case, streamed in missing(lines, clients):
        problems.append(f"missing: {client} {case} {'streamed' if streamed else 'whole'}")
    for problem in problems:
        print(problem, file=sys.stderr)  # noqa: T201 - a program
    return 1 if problems or any(line.outcome == "failed" for line in lines) else 0


def keep(lines: Sequence[Line], clients: Sequence[str], file: Path) -> None:
    """Put the lines in the place of what the file has of these clients."""
    others = [line for line in read_record(file).lines if line.client not in clients] if file.exists() else []
    write_record(Record(__version__, (*others, *lines)), file)


if __name__ == "__main__":
    sys.exit(main())
