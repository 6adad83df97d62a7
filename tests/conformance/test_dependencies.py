"""What the package imports of others, and what it declares to need."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
OPTIONAL: dict[str, list[str]] = PROJECT["optional-dependencies"]


def normal(name: str) -> str:
    """A distribution's name as it is compared."""
    return re.sub(r"[-_.]+", "-", name).lower()


def names(lines: list[str]) -> set[str]:
    return {normal(re.split(r"[^\w.-]", line, maxsplit=1)[0]) for line in lines}


def declared() -> set[str]:
    return names(PROJECT["dependencies"]).union(*map(names, OPTIONAL.values()))


def imported(source: str) -> Iterator[str]:
    """The packages that a module imports anywhere in it, also by a name that is written out."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                yield from (alias.name.partition(".")[0] for alias in names)
            case ast.ImportFrom(module=str(name), level=0):
                yield name.partition(".")[0]
            case ast.Call(func=ast.Attribute(attr="import_module"), args=[ast.Constant(value=str(name))]):
                yield name.partition(".")[0]


def test_every_package_that_is_imported_is_declared_and_no_other() -> None:
    sources = (ROOT / "src" / "antwort").rglob("*.py")
    packages = {name for path in sources for name in imported(path.read_text(encoding="utf-8"))}
    homes = packages_distributions()
    foreign = packages - sys.stdlib_module_names - {"antwort"}
    assert {normal(home) for name in foreign for home in homes[name]} == declared()


def test_uvicorn_whose_connection_is_subclassed_has_an_upper_bound() -> None:
    [uvicorn] = [line for line in PROJECT["dependencies"] if line.startswith("uvicorn")]
    assert "<" in uvicorn


def test_the_lock_files_say_what_is_needed_directly() -> None:
    without = {
        "run": set[str]().union(*map(names, OPTIONAL.values())),
        "serve": names(OPTIONAL["testing"]),
        "dev": set[str](),
    }
    for name, left_out in without.items():
        text = (ROOT / "requirements" / f"{name}.lock").read_text(encoding="utf-8")
        pins = re.findall(r"^([\w.-]+)==(.*?)(?=^\S|\Z)", text, re.MULTILINE | re.DOTALL)
        direct = {normal(pin) for pin, rest in pins if re.search(r"antwort \(pyproject\.toml\)", rest)}
        assert direct == declared() - left_out
