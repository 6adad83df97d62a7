"""The compatibility table: a page made of the lines of a run. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from clients.records import CASES, CLIENTS, EXTRAS, Line, Record
from clients.remarks import REMARKS

_ROOT = Path(__file__).resolve().parents[2]
LINES = _ROOT / "docs" / "assets" / "compatibility.jsonl"
"""The last run."""
PAGE = _ROOT / "docs" / "reference" / "compatibility.md"
OK, FAILED, NOT_APPLICABLE, NOT_TRIED = "✓", "✗", "n/a", ""


def page(record: Record) -> str:
    """The same lines always make the same page."""
    notes = Notes()
    cases = table(record.lines, CASES, notes)
    extras = table(record.lines, EXTRAS, notes)
    return _PAGE.format(antwort=record.antwort, cases=cases, extras=extras, notes=notes.written())


class Notes:
    """Why something cannot be tried, and what else must be known; the same text has one number."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, reason: str) -> int:
        return self._numbers.setdefault(reason, len(self._numbers) + 1)

    def written(self) -> str:
        return "".join(f"{number}. {reason}\n" for reason, number in self._numbers.items())


def table(lines: Iterable[Line], cases: Mapping[str, str], notes: Notes) -> str:
    found = {(line.client, line.case, line.streamed): line for line in lines}
    versions = {line.client: line.version for line in found.values()}
    heads = [f"{client}<br>{versions.get(client, '')}" for client in CLIENTS]
    rows = [["", *heads], ["---", *[":---:" for _ in CLIENTS]]]
    for case, title in cases.items():
        marks = [_cell([found.get((client, case, mode)) for mode in (False, True)], notes) for client in CLIENTS]
        if cases is CASES or any(marks):
            rows.append([title, *marks])
    return "\n".join(_row(cells) for cells in rows)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(lines: Sequence[Line | None], notes: Notes) -> str:
    marks = " ".join(filter(None, _marks(lines, notes)))
    remarks = {REMARKS[line.client, line.case] for line in lines if line and (line.client, line.case) in REMARKS}
    return marks + "".join(f"<sup>{notes.number(remark)}</sup>" for remark in remarks)


def _marks(lines: Iterable[Line | None], notes: Notes) -> Iterator[str]:
    for line in lines:
        if line is None:
            yield NOT_TRIED
        elif line.outcome == "n/a":
            yield f"{NOT_APPLICABLE}<sup>{notes.number(line.detail)}</sup>"
        else:
            yield OK if line.outcome == "ok" else FAILED


_PAGE = """# Compatibility

These clients work against antwort as they are: none is patched. `make test-clients` installs them, takes each through
every case, whole and streamed, and writes this page.
In each case a real client talks to `antwort serve`, and that to a Chat Completions backend with a scripted model, which
refuses histories that make no sense. A case counts when the client ends with what only the right way through can bring:
the result of its tool, a digest of its image, the word that it was told a turn before; or, where something fails, with
the client's own error and what it says.

The run sets some things that you would not, so that failures come at once and in the same way each time. The server
tries a backend once, its circuit breaker stays shut, signs of life come every 0.3 seconds instead of every 20, and it
has a toolset for the tests. The clients do not retry, but where retries are what is tried. Idle timers, where those are
tried, are set to 1.5 seconds; reasoning in clear, which clients send back beside its seal, is taken out on the way
where the seal is tried. Codex is set up by `antwort codex --write`, may do all in its folder without asking
(`danger-full-access`, `approval_policy = "never"`), and its plugins, reports and retries are off. The AI SDK wants a
`connectorId` for a toolset, and is given the label. The model is called `scripted`, or `gpt-5.5` where a footnote says
so: some clients do more for names that they know. Where a context is to overflow, it is that of a model that takes 600
tokens, a word being one; what is compacted is a history of 2,500 words or more. The last row is the other way round: a
server with default settings.

This is what the run with antwort {antwort} gave. The first mark is for the whole answer, the second for the streamed
one: `✓` it works, `✗` it does not, `n/a` there is no such thing with that client.

{cases}

Some clients were taken through more:

{extras}

{notes}
[Each line of that run](../assets/compatibility.jsonl) is kept, for programs.
"""
