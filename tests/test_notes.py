"""What is behind an error is told by its kind: the exceptions of others carry what they failed at."""

from __future__ import annotations

import asyncio
import json

import pytest

from antwort.errors import BackendError
from antwort.notes import reason_behind


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
