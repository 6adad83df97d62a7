"""What is behind an error is told by its kind: the exceptions of others carry what they failed at."""

from __future__ import annotations

import asyncio
import json
import logging

import pytest

from antwort.errors import BackendError
from antwort.notes import note, reason_behind


def raised_from(cause: BaseException | None) -> BackendError:
    error = BackendError("x")
    error.__cause__ = cause
    return error


def not_unicode() -> UnicodeDecodeError:
    with pytest.raises(UnicodeDecodeError) as caught:
        b"the patient is called John \xff".decode()
    return caught.value


def not_json() -> ValueError:
    with pytest.raises(json.JSONDecodeError) as caught:
        json.loads("the patient is called John")
    return caught.value


@pytest.mark.parametrize(
    ("cause", "reason"),
    [
        (None, ""),
        (not_unicode(), " (UnicodeDecodeError)"),
        (not_json(), " (JSONDecodeError)"),
        (KeyError("John"), " (KeyError)"),
        (OSError("John"), " (OSError)"),
        (ConnectionRefusedError(111, "Connection refused"), " (ConnectionRefusedError: Connection refused)"),
        (raised_from(TimeoutError(110, "Timed out")), " (TimeoutError: Timed out)"),
    ],
)
def test_a_reason_is_the_kind_of_what_is_at_the_bottom_and_what_the_system_said(
    cause: BaseException | None, reason: str
) -> None:
    assert reason_behind(raised_from(cause)) == reason
    assert "John" not in reason


def test_a_cancellation_below_a_timeout_is_no_reason() -> None:
    timeout = TimeoutError()
    timeout.__cause__ = asyncio.CancelledError()
    assert reason_behind(raised_from(timeout)) == " (TimeoutError)"


def test_an_error_that_is_behind_itself_has_an_end_all_the_same() -> None:
    own, one, other = ValueError(), ValueError(), OSError(2, "No such file")
    own.__cause__, one.__cause__, other.__cause__ = own, other, one
    assert reason_behind(own) == ""
    assert reason_behind(one) == " (FileNotFoundError: No such file)"


# ---- records ----


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


def noted(monkeypatch: pytest.MonkeyPatch, *, is_bare: bool) -> logging.LogRecord:
    for asked in ("logThreads", "logProcesses", "logMultiprocessing"):
        monkeypatch.setattr(logging, asked, not is_bare)
    logger, kept = logging.Logger("antwort.test"), Kept()
    logger.addHandler(kept)
    note(logger, logging.WARNING, "100 % as it is", said={"event": "x"}, tool="echo")
    return kept.records[0]


def test_a_note_makes_the_record_that_the_logging_module_makes(monkeypatch: pytest.MonkeyPatch) -> None:
    usual, bare = (vars(noted(monkeypatch, is_bare=is_bare)) for is_bare in (False, True))
    assert list(bare) == list(usual)
    times = {"created", "msecs", "relativeCreated"}
    others = {"thread", "threadName", "process", "processName", "taskName"}
    assert {name: bare[name] for name in bare.keys() - times - others} == {
        name: usual[name] for name in usual.keys() - times - others
    }
    assert [type(bare[name]) for name in sorted(times)] == [type(usual[name]) for name in sorted(times)]
    assert bare["relativeCreated"] - usual["relativeCreated"] == pytest.approx(
        (bare["created"] - usual["created"]) * 1000, abs=50
    )


def test_a_record_of_an_application_s_own_making_is_made_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Own(logging.LogRecord):
        pass

    before = logging.getLogRecordFactory()
    logging.setLogRecordFactory(Own)
    try:
        assert isinstance(noted(monkeypatch, is_bare=True), Own)
    finally:
        logging.setLogRecordFactory(before)
