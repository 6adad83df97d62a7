"""The table of findings, whatever it is written to."""

from __future__ import annotations

import io

from antwort.doctor.findings import works
from antwort.doctor.table import FindingsTable


def test_what_the_output_cannot_show_is_escaped_and_ends_nothing() -> None:
    written = io.BytesIO()
    table = FindingsTable(io.TextIOWrapper(written, encoding="ascii"))
    table.row(works("models", "1: größe…"))
    assert written.getvalue() == b"ok  models                1: gr\\xf6\\xdfe\\u2026\n"
