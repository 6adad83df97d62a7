"""A plugin for pytest that writes down which tests carry which requirement ids.

The tests are collected, not run: so marks are found wherever they were put, also on single cases of a table.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--marks-to", type=Path, required=True, help="the file to write the marks to")


def pytest_collection_finish(session: pytest.Session) -> None:
    session.config.getoption("--marks-to").write_text(json.dumps(marks_of(session.items)), encoding="utf-8")


def marks_of(items: Iterable[pytest.Item]) -> dict[str, list[str]]:
    """For each id that a test names, the tests that name it, sorted."""
    proofs: defaultdict[str, set[str]] = defaultdict(set)
    for item in items:
        test = item.nodeid.partition("[")[0]
        for mark in item.iter_markers("proves"):
            for key in mark.args:
                proofs[key].add(test)
    return {key: sorted(tests) for key, tests in proofs.items()}
