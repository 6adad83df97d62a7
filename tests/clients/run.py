"""Take clients through all cases, and keep a line for each.

PYTHONPATH=tests python -m clients.run --only openai-python,codex --out lines.jsonl

Lines of other clients that are in the file stay there.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path

from antwort.version import __version__
from clients.ground import Ground, defaults, started
from clients.records import AS_IS, CASES, CLIENTS, Line, Record, missing, read_record, write_record
from clients.runners import RUNNERS, Runner, version_of

_ERRORS = ("unknown-model", "bad-request", "backend-429", "backend-500", "cut-stream")
WITHOUT_ERRORS = tuple(case for case in CASES if case not in _ERRORS)
"""What is tried on a server with default settings: there, those that fail are retried, which takes its time."""


def collected(
    ground: Ground, usual: Ground, clients: Sequence[str], runners: Mapping[str, Runner] = RUNNERS
) -> list[Line]:
    """The lines of these clients, each shown as it comes. `usual` is a ground whose server has default settings.

    What a runner has no line for, because it broke off, has failed.
    """
    lines: list[Line] = []
    for client in clients:
        for line in _all_of(client, runners[client], ground, usual):
            mode = "streamed" if line.streamed else "whole"
            print(f"{line.outcome:<6}  {client:<22} {line.case:<16} {mode:<8}  {line.detail}", flush=True)  # noqa: T201 - a program
            lines.append(line)
    return lines


def _all_of(client: str, runner: Runner, ground: Ground, usual: Ground) -> Iterator[Line]:
    lines: list[Line] = []
    trouble = "the runner has no line for it"
    try:
        for line in chain(runner(ground, ()), _as_is(runner, usual)):
            lines.append(line)
            yield line
    except Exception as exc:  # whatever it is, the other clients have their turn
        trouble = " ".join(f"the runner broke off: {type(exc).__name__}: {exc}".split())[:300]
    for _, case, streamed in missing(lines, [client]):
        yield Line(client, version_of(client), case, streamed, "failed", trouble)


def _as_is(runner: Runner, ground: Ground) -> Iterator[Line]:
    """One line for the answer as a whole, one for the stream: all cases are well, or the first that is not."""
    lines = list(runner(ground, WITHOUT_ERRORS))
    for streamed in (False, True):
        tried = [line for line in lines if line.streamed is streamed and line.case in WITHOUT_ERRORS]
        failed = [line for line in tried if line.outcome == "failed"]
        passed = [line for line in tried if line.outcome == "ok"]
        found = (failed or passed or tried)[0]
        detail = f"{found.case}: {found.detail}" if failed else found.detail
        yield found._replace(case=AS_IS, detail=detail)


def main(arguments: Sequence[str] | None = None, runners: Mapping[str, Runner] = RUNNERS) -> int:
    """The exit status: 0 when every case of every client asked for is there, and nothing has failed."""
    parser = argparse.ArgumentParser(prog="python -m clients.run", description="Take clients through all cases.")
    parser.add_argument("--only", metavar="NAMES", help="these clients, separated by commas")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where the lines go")
    chosen = parser.parse_args(arguments)
    clients = chosen.only.split(",") if chosen.only else [name for name in CLIENTS if name in runners]
    with (
        tempfile.TemporaryDirectory() as folder,
        started(Path(folder) / "tuned") as ground,
        started(Path(folder) / "usual", defaults) as usual,
    ):
        lines = collected(ground, usual, clients, runners)
        problems = [*ground.faults(), *usual.faults()]
    if chosen.out:
        keep(lines, clients, chosen.out)
    for problem in problems:
        print(problem, file=sys.stderr)  # noqa: T201 - a program
    return 1 if problems or any(line.outcome == "failed" for line in lines) else 0


def keep(lines: Sequence[Line], clients: Sequence[str], file: Path) -> None:
    """Put the lines in the place of what the file has of these clients."""
    others = [line for line in read_record(file).lines if line.client not in clients] if file.exists() else []
    write_record(Record(__version__, (*others, *lines)), file)


if __name__ == "__main__":
    sys.exit(main())
