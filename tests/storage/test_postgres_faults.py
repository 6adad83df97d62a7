"""What is told of errors of PostgreSQL: to clients, and to whoever reads the log."""

from __future__ import annotations

import psycopg
import pytest
from psycopg import errors

from antwort.storage.postgres import store_fault

AT = 'connection to server at "db.internal" (10.0.0.5), port 5432 failed: '


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (psycopg.OperationalError(f"{AT}Connection refused\n\tIs the server running?"), "connection refused"),
        (psycopg.OperationalError(f"{AT}timeout expired"), "timed out"),
        (errors.ConnectionTimeout("connection timeout expired"), "timed out"),
        (psycopg.OperationalError('could not translate host name "db.internal" to address'), "its name is not known"),
        (
            psycopg.OperationalError(f'{AT}FATAL:  password authentication failed for user "hush"'),
            "it does not let this user in",
        ),
        (psycopg.OperationalError(f"{AT}FATAL:  the database system is starting up"), "it starts"),
        (errors.AdminShutdown("terminating connection due to administrator command"), "it is shut down"),
        (psycopg.OperationalError("server closed the connection unexpectedly"), "the connection was lost"),
        (psycopg.OperationalError("hush"), "OperationalError"),
    ],
)
def test_the_log_learns_why_in_words_that_name_nobody(error: psycopg.Error, why: str) -> None:
    fault = store_fault(error)
    assert fault.why == why
    assert not any(name in fault.message + fault.why for name in ("db.internal", "10.0.0.5", "hush"))
