"""Every example runs, and prints what its docstring says it prints."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
PARTS = {"loopback", "shop_tools"}
"""What the others use."""
_SHOWN = re.compile(r"prints:\n(?P<output>(?: {4}.*\n)+)")
_ID = re.compile(r"\b(resp|msg|fc|call|mcp|req)_(?:[0-9a-f]{32}|…)")


def shown(path: Path) -> str | None:
    """The output that the docstring shows."""
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")), clean=False) or ""
    found = _SHOWN.search(docstring)
    return dedent(found["output"]) if found else None


def masked(text: str) -> str:
    return _ID.sub(r"\1_…", text)


def test_there_are_examples_and_each_but_the_parts_shows_its_output() -> None:
    assert len(EXAMPLES) > 8
    assert {path.stem for path in EXAMPLES if shown(path) is None} == PARTS


@pytest.mark.parametrize("path", [path for path in EXAMPLES if path.stem not in PARTS], ids=lambda path: path.stem)
def test_an_example_prints_what_it_says(path: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, cwd=tmp_path)
    assert (masked(done.stdout), done.stderr, done.returncode) == (shown(path), "", 0)
    how = f"python examples/{path.name}"
    assert f"\n{how}\n" in path.read_text(encoding="utf-8")
