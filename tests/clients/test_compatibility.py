"""The compatibility table is what the last run gave, and the run was whole."""

from __future__ import annotations

import json

import pytest

from clients.python import PYTHON_CLIENTS, python_client
from clients.records import CASES, CLIENTS, EXTRAS, Line, Record, cases_of, missing, read_line, read_record
from clients.remarks import REMARKS
from clients.runners import version_of
from clients.table import LINES, PAGE, page

RECORD = read_record(LINES)


def test_the_page_is_what_the_lines_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(RECORD), "run scripts/compatibility.py"


def test_every_client_was_taken_through_every_case() -> None:
    assert list(missing(RECORD.lines)) == []


@pytest.mark.parametrize(
    ("client", "case"),
    [("codex", "apply-patch"), ("codex", "shell"), ("@ai-sdk/openai", "item-reference"), ("openai-node", "slow-tool")],
)
def test_a_line_that_is_gone_is_missed(client: str, case: str) -> None:
    left = [line for line in RECORD.lines if (line.client, line.case) != (client, case)]
    assert list(missing(left)) == [(client, case, False), (client, case, True)]


def test_nothing_failed() -> None:
    assert [line for line in RECORD.lines if line.outcome == "failed"] == []


@pytest.mark.parametrize("name", CLIENTS)
def test_the_clients_are_those_that_are_to_be_tried(name: str) -> None:
    told = {line.version for line in RECORD.lines if line.client == name}
    assert told == {version_of(name)}, "run make test-clients"
    tried = {line.case for line in RECORD.lines if line.client == name}
    assert tried == set(cases_of(name)), "run make test-clients"


@pytest.mark.parametrize("name", PYTHON_CLIENTS)
@pytest.mark.xdist_group("clients")
def test_a_python_client_tells_the_version_that_is_to_be_tried(name: str) -> None:
    assert python_client(name).version == version_of(name)


def test_a_remark_is_made_of_what_is_tried() -> None:
    assert [(client, case) for client, case in REMARKS if case not in cases_of(client)] == []


# ---- how it is made ----


def line(case: str = "plain", *, streamed: bool = False, outcome: str = "ok", detail: str = "") -> Line:
    return read_line(told(case=case, streamed=streamed, outcome=outcome, detail=detail))


def told(**changed: object) -> str:
    """A line as a runner prints it."""
    return json.dumps({**Line("codex", "1.0", "plain", False, "ok")._asdict(), **changed})


def row_of(text: str, title: str) -> list[str]:
    [row] = [row for row in text.splitlines() if row.startswith(f"| {title} |")]
    return [cell.strip() for cell in row.split("|")[2:-1]]


def test_a_cell_tells_whole_and_streamed_apart() -> None:
    lines = (line(outcome="failed", detail="boom"), line(streamed=True))
    assert row_of(page(Record("1", lines)), CASES["plain"])[CLIENTS.index("codex")] == "✗ ✓"


def test_the_same_reason_is_one_footnote() -> None:
    lines = tuple(line(case, outcome="n/a", detail="it cannot") for case in ("plain", "function"))
    made = page(Record("1", lines))
    assert made.count("it cannot") == 1
    assert row_of(made, CASES["function"])[CLIENTS.index("codex")] == "n/a<sup>1</sup>"


def test_what_must_be_known_of_a_cell_is_a_footnote() -> None:
    made = page(Record("1", (line("apply-patch"), line("apply-patch", streamed=True))))
    assert row_of(made, EXTRAS["apply-patch"])[CLIENTS.index("codex")] == "✓ ✓<sup>1</sup>"
    assert f"1. {REMARKS['codex', 'apply-patch']}" in made


def test_a_case_that_nobody_tried_besides_has_no_row() -> None:
    made = page(Record("1", (line("shell"),)))
    assert "a command run in a real folder" in made
    assert "`item_reference`" not in made


@pytest.mark.parametrize(
    "changed",
    [{"client": "curl"}, {"case": "magic"}, {"outcome": "fine"}, {"outcome": "failed"}, {"streamed": 1}],
    ids=lambda changed: next(iter(changed)),
)
def test_a_line_that_makes_no_sense_is_refused(changed: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"no such|not an outcome|says why"):
        read_line(told(**changed))
