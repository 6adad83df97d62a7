"""A run of the clients goes on, whatever one of them does."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from clients import run, runners, trying
from clients.ground import Ground
from clients.model import ScriptedModel, running
from clients.records import CASES, CLIENTS, Line, cases_of, read_record
from clients.trying import Client, Trial

FIRST, SECOND = CLIENTS[:2]


@pytest.fixture
def backend() -> Iterator[ScriptedModel]:
    with running() as model:
        yield model


@pytest.fixture
def ground(backend: ScriptedModel, tmp_path: Path) -> Ground:
    (tmp_path / "server.log").touch()
    return Ground(backend.url, backend.url, backend, tmp_path)


async def well(at: Trial) -> None:
    del at


async def unrefused(at: Trial) -> None:
    """An error that was to come, and did not."""
    del at
    with pytest.raises(ValueError, match="no"):
        pass


def tried(ground: Ground, cases: Sequence[str]) -> Iterator[Line]:
    yield from trying.lines(Client(SECOND, "openai", dict.fromkeys(cases_of(SECOND), well)), ground, cases)


def broken(ground: Ground, cases: Sequence[str]) -> Iterator[Line]:
    """A program that says something and ends badly."""
    del cases
    line = Line(FIRST, "1", "plain", False, "ok").written()
    return runners.printed([sys.executable, "-c", f"print({line!r}); raise SystemExit(3)"], ground, ground.folder)


def test_an_error_that_does_not_come_fails_its_case_and_the_next_one_is_tried(ground: Ground) -> None:
    client = Client(FIRST, "openai", {"unknown-model": unrefused, "plain": well})
    lines = list(trying.lines(client, ground))
    assert [(line.case, line.outcome) for line in lines] == [("unknown-model", "failed")] * 2 + [("plain", "ok")] * 2
    assert "DID NOT RAISE ValueError" in lines[0].detail


def test_a_runner_that_breaks_off_fails_what_it_left_and_the_next_client_has_its_turn(
    ground: Ground,
) -> None:
    lines = run.collected(ground, ground, [FIRST, SECOND], {FIRST: broken, SECOND: tried})
    first = [line for line in lines if line.client == FIRST]
    assert {line.case for line in first} == set(cases_of(FIRST))
    assert [line.case for line in first if line.outcome == "ok"] == ["plain"]
    assert all("ended with 3" in line.detail for line in first if line.outcome == "failed")
    second = [line for line in lines if line.client == SECOND]
    assert {(line.case, line.outcome) for line in second} == {(case, "ok") for case in cases_of(SECOND)}


def test_a_failed_case_is_written_down_and_the_run_ends_badly(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "lines.jsonl"
    assert run.main(["--only", FIRST, "--out", str(out)], {FIRST: broken}) == 1
    kept = read_record(out).lines
    assert len(kept) == 2 * len(cases_of(FIRST))
    assert [line.case for line in kept if line.outcome == "ok"] == ["plain"]
    assert "failed" in capsys.readouterr().out


def test_with_default_settings_one_line_tells_of_all_cases_but_errors(
    ground: Ground,
) -> None:
    seen: list[Sequence[str]] = []

    def runner(ground: Ground, cases: Sequence[str]) -> Iterator[Line]:
        seen.append(cases)
        plays = {case: unrefused if cases and case == "image" else well for case in cases_of(FIRST)}
        return trying.lines(Client(FIRST, "openai", plays), ground, cases or tuple(CASES))

    lines = run.collected(ground, ground, [FIRST], {FIRST: runner})
    told = [line for line in lines if line.case == "as-is"]
    assert [(line.streamed, line.outcome) for line in told] == [(False, "failed"), (True, "failed")]
    assert all(line.detail.startswith("image: ") for line in told)
    assert seen[1] == run.WITHOUT_ERRORS
    assert "backend-500" not in run.WITHOUT_ERRORS
