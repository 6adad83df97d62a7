"""Print one table of how large this repository is and what a request passes in it.

    python scripts/house.py [--write] [--root DIR]

With `--write`, renew the column "now" of docs/architecture.md; the column "start" stays. With `--root`, measure
another checkout of this repository with the packages of this environment.

Of the code, after `ruff format`:

- Lines are all lines. Statements are those of `ast` at any depth, without docstrings and other strings that stand
  alone. Functions are all `def`, methods and nested ones among them.
- A class name exists more than once when two `class` statements of the package have it.
- A module has one importer when exactly one other module of the package imports it or something of it.
- A function of at most three lines has them without decorators and docstring. It has one caller when its name occurs
  once: in its module for a private name, in the package for any other.
- An import is declared when `dependencies` or an extra in pyproject.toml names its distribution.
- A private import names a module or a member of another package that starts with an underscore.

Of requests: see scripts/traced_requests.py.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "docs" / "architecture.md"
PACKAGE = "antwort"
OTHER_FOLDERS = ("examples", "scripts", "bench", "models", "tests")
SHORT_FUNCTION_LINES = 3
NOT_MEASURED = "-"

_TABLE = re.compile(r"(?<=<!-- made by scripts/house.py -->\n\n).*?(?=\n\n<!-- end -->)", re.DOTALL)

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Module(NamedTuple):
    name: str
    text: str
    tree: ast.Module


# ---- size ----


def read_modules(folder: Path, ruff_config: Path) -> list[Module]:
    """Return the modules below a folder as `ruff format` writes them."""
    with tempfile.TemporaryDirectory() as copied:
        copy = Path(copied) / folder.name
        shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("node_modules", "__pycache__"))
        ruff = [sys.executable, "-m", "ruff", "format", "--quiet", "--no-cache", "--config", str(ruff_config)]
        subprocess.run([*ruff, copied], check=True)
        texts = {path: path.read_text(encoding="utf-8") for path in sorted(copy.rglob("*.py"))}
        return [Module(_dotted(path.relative_to(copied)), text, ast.parse(text)) for path, text in texts.items()]


def _dotted(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def size(modules: list[Module]) -> tuple[int, int, int, int]:
    """Return the lines, statements, modules and functions."""
    nodes = [node for module in modules for node in ast.walk(module.tree)]
    return (
        sum(len(module.text.splitlines()) for module in modules),
        sum(isinstance(node, ast.stmt) and not _is_docstring(node) for node in nodes),
        len(modules),
        sum(isinstance(node, Function) for node in nodes),
    )


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def by_package(modules: list[Module]) -> Iterator[tuple[str, list[Module]]]:
    """Yield the packages directly below the whole, and the modules beside them, each with its modules."""
    packages = {module.name.split(".")[1] for module in modules if module.name.count(".") > 1}
    for package in sorted(packages):
        yield package, [module for module in modules if module.name.split(".")[1:2] == [package]]
    yield "modules beside them", [module for module in modules if not {*module.name.split(".")[1:2]} & packages]


# ---- structure ----


def repeated_classes(modules: list[Module]) -> list[str]:
    nodes = (node for module in modules for node in ast.walk(module.tree))
    names = Counter(node.name for node in nodes if isinstance(node, ast.ClassDef))
    return sorted(name for name, count in names.items() if count > 1)


def imports(module: Module) -> set[str]:
    """Return the dotted names that a module imports anywhere in it, modules and members alike."""
    found = set()
    for node in ast.walk(module.tree):
        match node:
            case ast.Import(names=names):
                found |= {alias.name for alias in names}
            case ast.ImportFrom(module=str(source), names=names, level=0):
                found |= {f"{source}.{alias.name}" for alias in names}
            case ast.Call(func=ast.Attribute(attr="import_module"), args=[ast.Constant(value=str(name)), *_]):
                found.add(name)
    return found


def single_importers(modules: list[Module]) -> list[str]:
    """Return the modules that exactly one other module imports."""
    known = {module.name for module in modules}
    importers: Counter[str] = Counter()
    for module in modules:
        targets = {name if name in known else name.rpartition(".")[0] for name in imports(module)}
        importers.update(targets & known - {module.name})
    return sorted(name for name, count in importers.items() if count == 1)


def short_single_callers(modules: list[Module]) -> list[str]:
    """Return the functions of at most three lines whose name occurs once."""
    defined = {module.name: _defined(module) for module in modules}
    used = {module.name: _used(module) for module in modules}
    all_defined = Counter(function.name for functions in defined.values() for function in functions)
    all_used = sum(used.values(), Counter[str]())
    found = []
    for module, functions in defined.items():
        own_defined = Counter(function.name for function in functions)
        for function in functions:
            is_private = function.name.startswith("_")
            definitions, uses = (own_defined, used[module]) if is_private else (all_defined, all_used)
            if definitions[function.name] == uses[function.name] == 1 and _lines(function) <= SHORT_FUNCTION_LINES:
                found.append(f"{module}.{function.name}")
    return sorted(found)


def _defined(module: Module) -> list[Function]:
    return [node for node in ast.walk(module.tree) if isinstance(node, Function)]


def _used(module: Module) -> Counter[str]:
    used: Counter[str] = Counter()
    for node in ast.walk(module.tree):
        match node:
            case ast.Name(id=name, ctx=ast.Load()) | ast.Attribute(attr=name):
                used[name] += 1
    return used


def _lines(function: Function) -> int:
    docstring = function.body[0] if _is_docstring(function.body[0]) else None
    lines = (function.end_lineno or 0) - function.lineno + 1
    return lines - (0 if docstring is None else (docstring.end_lineno or 0) - docstring.lineno + 1)


def undeclared_imports(modules: list[Module], pyproject: Path) -> list[str]:
    """Return the packages that are imported while pyproject.toml names no distribution of theirs."""
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    extras = [line for lines in project.get("optional-dependencies", {}).values() for line in lines]
    declared = {_normalized(re.split(r"[^\w.-]", line)[0]) for line in [*project.get("dependencies", ()), *extras]}
    packages = {name.partition(".")[0] for module in modules for name in imports(module)}
    homes = packages_distributions()
    foreign = packages - sys.stdlib_module_names - {PACKAGE}
    return sorted(name for name in foreign if not declared & {_normalized(home) for home in homes.get(name, ())})


def _normalized(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()


def private_imports(modules: list[Module]) -> list[str]:
    """Return the private names of other packages that are imported, each with its module."""
    return sorted(
        f"{module.name}: {name}"
        for module in modules
        for name in imports(module)
        if re.search(r"(^|\.)_(?!_)", name) and name.partition(".")[0] not in {PACKAGE, *sys.stdlib_module_names}
    )


# ---- the table ----


def measure_code(root: Path) -> dict[str, str]:
    """Return the rows about the package, by their label."""
    modules = read_modules(root / "src" / PACKAGE, HERE.parent / "pyproject.toml")
    lines, statements, count, functions = size(modules)
    return {
        "source: lines": f"{lines:,}",
        "source: statements": f"{statements:,}",
        "source: modules": f"{count:,}",
        "source: functions": f"{functions:,}",
        "class names that exist more than once": f"{len(repeated_classes(modules)):,}",
        "modules with one importer": f"{len(single_importers(modules)):,}",
        "functions of at most three lines with one caller": f"{len(short_single_callers(modules)):,}",
        "imports that are not declared": f"{len(undeclared_imports(modules, root / 'pyproject.toml')):,}",
        "private imports of other packages": f"{len(private_imports(modules)):,}",
    }


def measure_requests(root: Path) -> dict[str, str]:
    """Return the rows about requests, by their label."""
    environment = {**os.environ, "PYTHONPATH": str(root / "src")}
    command = [sys.executable, str(HERE / "traced_requests.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"The requests could not be traced.\n{done.stderr}")
    figures = json.loads(done.stdout)

    def row(name: str) -> str:
        passed = figures[name]
        return f"{passed['modules']:,} / {passed['own_calls']:,} / {passed['calls']:,}"

    return {
        "short answer, stored: modules / calls of ours / all calls": row("short"),
        "one MCP call, stored: the same": row("call"),
        "one MCP call, stored and streamed: the same": row("streamed_call"),
        "one text delta: calls / async generators": "{calls} / {async_generators}".format(**figures["delta"]),
    }


def measure_folders(root: Path) -> dict[str, str]:
    """Return a row for each package and each other folder with code."""
    config = HERE.parent / "pyproject.toml"
    packages = by_package(read_modules(root / "src" / PACKAGE, config))
    rows = {f"{name}: lines / statements / modules / functions": modules for name, modules in packages}
    for folder in OTHER_FOLDERS:
        rows[f"{folder}/: the same"] = read_modules(root / folder, config)
    return {label: " / ".join(f"{figure:,}" for figure in size(modules)) for label, modules in rows.items()}


def read_start(page: str) -> dict[str, str]:
    """Return the column "start" of the page's table, by the label of the row."""
    found = _TABLE.search(page)
    rows = [line.strip("| ").split(" | ") for line in found[0].splitlines()[2:]] if found else []
    return {cells[0]: cells[1] for cells in rows}


def as_markdown(now: Mapping[str, str], start: Mapping[str, str]) -> str:
    rows = [f"| {label} | {start.get(label, NOT_MEASURED)} | {figure} |" for label, figure in now.items()]
    return "\n".join(["| | start | now |", "|---|---:|---:|", *rows])


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description="Measure the code and the requests of this repository.")
    parser.add_argument("--write", action="store_true", help="renew the table in docs/architecture.md")
    parser.add_argument("--root", type=Path, default=HERE.parent, help="the checkout to measure")
    chosen = parser.parse_args(arguments)
    page = PAGE.read_text(encoding="utf-8")
    start = read_start(page)
    now = {**measure_code(chosen.root), **measure_requests(chosen.root)}
    print(as_markdown({**now, **measure_folders(chosen.root)}, start))
    if chosen.write:
        PAGE.write_text(_TABLE.sub(lambda _: as_markdown(now, start), page), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
