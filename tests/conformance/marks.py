"""A plugin for pytest that writes down which tests carry which requirement ids.

The tests are collected, not run: so marks are found wherever they were put, also on single cases of a table.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--marks-to", type=Path, required=True, help="the file to write the marks to")


def pytest_collection_finish(session: pytest.Session) -> None:
    proofs: defaultdict[str, set[str]] = defaultdict(set)
    for item in session.items:
        test = item.nodeid.partition("[")[0]
        for mark in item.iter_markers("proves"):
            for key in mark.args:
                proofs[key].add(test)
    plain = {key: sorted(tests) for key, tests in proofs.items()}
    session.config.getoption("--marks-to").write_text(json.dumps(plain), encoding="utf-8")
