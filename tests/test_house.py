"""The figures of `make house`, counted on a package that is small enough to count by hand."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "house.py"
FILES = {
    "pyproject.toml": '[project]\nname = "antwort"\ndependencies = ["msgspec>=0.20"]\n',
    "src/antwort/__init__.py": '"""A package."""\n',
    "src/antwort/errors.py": "class Problem(Exception): pass\n",
    "src/antwort/api/__init__.py": "",
    "src/antwort/api/items.py": """
import os, msgspec
from antwort.errors import Problem

class Item(msgspec.Struct):
    \"\"\"An item.\"\"\"

    name: str

def read(text: str) -> Item:
    return _checked(Item(text))

def _checked(item: Item) -> Item:
    \"\"\"Return the item.\"\"\"
    return item
""",
    "src/antwort/engine/__init__.py": "",
    "src/antwort/engine/loop/loop.py": """
from uvicorn._types import ASGISendEvent
from antwort.api import items
from antwort.errors import Problem

class Item:
    async def again(self) -> None:
        if items.read("a") == items.read("b"):
            raise Problem
""",
}


@pytest.fixture
def house() -> dict[str, Any]:
    return runpy.run_path(str(SCRIPT))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return tmp_path


def test_the_code_of_a_package_is_counted(house: dict[str, Any], root: Path) -> None:
    assert house["measure_code"](root) == {
        "source: lines": "29",
        "source: statements": "17",
        "source: modules": "6",
        "source: functions": "3",
        "class names that exist more than once": "1",
        "modules with one importer": "1",
        "functions of at most three lines with one caller": "1",
        "imports that are not declared": "1",
        "private imports of other packages": "1",
    }


def test_what_is_counted_can_be_named(house: dict[str, Any], root: Path) -> None:
    modules = house["read_modules"](root / "src" / "antwort", SCRIPT.parents[1] / "pyproject.toml")
    assert house["repeated_classes"](modules) == ["Item"]
    assert house["single_importers"](modules) == ["antwort.api.items"]
    assert house["short_single_callers"](modules) == ["antwort.api.items._checked"]
    assert house["undeclared_imports"](modules, root / "pyproject.toml") == ["uvicorn"]
    assert house["private_imports"](modules) == ["antwort.engine.loop.loop: uvicorn._types.ASGISendEvent"]
    assert [(name, len(found)) for name, found in house["by_package"](modules)] == [
        ("api", 2),
        ("engine", 2),
        ("modules beside them", 2),
    ]


def test_the_start_is_kept_when_the_table_is_renewed(house: dict[str, Any]) -> None:
    now = {"source: lines": "70", "new": "1"}
    table = house["as_markdown"](now, {"source: lines": "80"})
    assert table.splitlines()[2:] == ["| source: lines | 80 | 70 |", "| new | - | 1 |"]
    page = f"<!-- made by scripts/house.py -->\n\n{table}\n\n<!-- end -->"
    assert house["read_start"](page) == {"source: lines": "80", "new": "-"}


def test_the_page_shows_each_figure_of_the_code(house: dict[str, Any], root: Path) -> None:
    start = house["read_start"](house["PAGE"].read_text(encoding="utf-8"))
    assert house["measure_code"](root).keys() <= start.keys()
