"""Statements are written once. What PostgreSQL says otherwise is told in one place."""

from __future__ import annotations

import pytest

from antwort.storage.database import to_postgres


@pytest.mark.parametrize(
    ("written", "sent"),
    [
        ("SELECT a FROM t WHERE b = :b AND c = ?", "SELECT a FROM t WHERE b = %(b)s AND c = %s"),
        ("SELECT ':no', '?', 'it''s :no' WHERE a = :yes", "SELECT ':no', '?', 'it''s :no' WHERE a = %(yes)s"),
        ("SELECT :n::bigint", "SELECT %(n)s::bigint"),
        ("SELECT a FROM t WHERE b LIKE 'x%'", "SELECT a FROM t WHERE b LIKE 'x%%'"),
        ("WHERE a IS :after AND b IS NULL", "WHERE a IS NOT DISTINCT FROM %(after)s AND b IS NULL"),
        ("FROM a CROSS JOIN b AS c ON c.x = a.x", "FROM a JOIN b AS c ON c.x = a.x"),
        ("FROM a CROSS JOIN b ON b.x = a.x", "FROM a JOIN b ON b.x = a.x"),
        ("FROM a CROSS JOIN b WHERE b.x = a.x", "FROM a CROSS JOIN b WHERE b.x = a.x"),
        ("SELECT a FROM t WHERE b = :b /*pg: FOR UPDATE */", "SELECT a FROM t WHERE b = %(b)s  FOR UPDATE "),
        ("SELECT /*sqlite*/ min(?) /*pg: least(?) */ FROM t", "SELECT  least(%s)  FROM t"),
    ],
)
def test_a_statement_is_translated(written: str, sent: str) -> None:
    assert to_postgres(written).decode() == sent
