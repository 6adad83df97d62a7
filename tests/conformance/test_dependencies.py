"""What the package, its tests and its tools import of others, and what they declare to need."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILE: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT: dict[str, Any] = FILE["project"]
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


def own_modules(path: Path) -> set[str]:
    """The names of our own modules that a file may import: those of its folder, and of the folders on the path."""
    folders = [path.parent, *(ROOT / name for name in ("tests", "bench", "scripts", "examples", "models"))]
    return {entry.stem for folder in folders for entry in folder.iterdir() if entry.suffix == ".py" or entry.is_dir()}


@pytest.mark.parametrize("folder", ["tests", "bench", "scripts"])
def test_every_package_that_development_imports_is_declared(folder: str) -> None:
    group = [line for line in FILE["dependency-groups"]["dev"] if isinstance(line, str)]
    homes, known = packages_distributions(), declared() | names(group)
    pyraw = ROOT / "bench" / "pyraw"  # has an environment of its own
    for path in (ROOT / folder).rglob("*.py"):
        if "node_modules" in path.parts:
            continue
        if not path.is_relative_to(pyraw):
            foreign = {*imported(path.read_text(encoding="utf-8"))} - sys.stdlib_module_names - {"antwort"}
            for name in foreign - own_modules(path):
                assert known & {normal(home) for home in homes.get(name, [name])}, f"{path} imports {name}"


def test_every_package_that_the_gateway_of_the_benchmark_imports_is_declared() -> None:
    wanted = names((ROOT / "requirements" / "bench.in").read_text(encoding="utf-8").splitlines()[1:])
    for path in (ROOT / "bench" / "pyraw").rglob("*.py"):
        foreign = {*imported(path.read_text(encoding="utf-8"))} - sys.stdlib_module_names - own_modules(path)
        assert {*map(normal, foreign)} <= wanted


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
