"""Tests speak the surfaces that users touch, so that the inside can change: they patch nothing of ours and set nothing
that is private, and what they share imports public names.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
FILES = sorted(path for path in TESTS.rglob("*.py") if "node_modules" not in path.parts)
KITS = [path for path in sorted(TESTS.glob("*.py")) if not path.name.startswith("test_")]

MAY_SET = {
    "api/test_api_wire.py": "an event cannot be changed",
    "tampering_store.py": "a store that changes what it was given",
}
"""Who calls the built-in `setattr`, or forces it, and why."""

PUBLIC = (
    "antwort",
    "antwort.api",
    "antwort.config",
    "antwort.config.settings",
    "antwort.engine.settings",
    "antwort.errors",
    "antwort.identity",
    "antwort.ids",
    "antwort.providers.base",
    "antwort.storage.base",
    "antwort.storage.run_log",
    "antwort.testing",
    "antwort.tools.base",
)
"""What kits may import, with all that is below `api` and `testing`."""

BESIDES: dict[str, tuple[str, ...]] = {
    "chat_screen_kit": ("chat",),
    "chunk_kit": ("providers",),
    "database_kit": ("storage",),
    "doctor_kit": ("doctor",),
    "fitting_kit": ("engine.context",),
    "fleet_kit": ("providers",),
    "grammar_kit": ("tools",),
    "http_kit": ("net",),
    "key_kit": ("server",),
    "local_kit": ("local",),
    "local_model": ("local",),
    "mcp_house": ("app",),
    "mcp_versions_peer": ("tools.mcp",),
    "mcp_sessions_kit": ("tools",),
    "mounted": ("asgi",),
    "openapi_kit": ("server",),
    "package_index": ("local",),
    "plan_kit": ("engine.loop", "engine.plan"),
    "postgres": ("storage",),
    "run_holder": ("storage",),
    "runs_home": ("storage",),
    "session_kit": ("net", "tools"),
    "telemetry_kit": ("providers", "telemetry", "server"),
    "turn_kit": ("engine.loop",),
}
"""The packages that kits import besides, each because the tests that share the kit are about that very part."""


def test_nothing_of_ours_is_patched_and_nothing_private_is_set() -> None:
    found = [f"{path.relative_to(TESTS)}:{fault}" for path in FILES for fault in _faults(path)]
    assert found == []


@pytest.mark.parametrize(
    "line",
    [
        'monkeypatch.setattr(Engine, "plan", None)',
        'monkeypatch.setattr(engine.log, "add", None)',
        'monkeypatch.setattr("antwort.ids.new_id", None)',
        'monkeypatch.delattr(made(), "plan")',
        'patch("antwort.ids.new_id")',
        'patch.object(Engine, "plan")',
        'setattr(engine, "plan", None)',
        "engine._plan = None",
        "engine._plans += 1",
        'engine.plans._by_name["a"] = 1',
        "del engine._plan",
        "Engine.__new__(Engine)",
    ],
)
def test_a_test_that_reaches_inside_is_found(line: str, tmp_path: Path) -> None:
    path = tmp_path / "test_it.py"
    path.write_text(f"from antwort import Engine\nengine = Engine()\n{line}\n")
    assert [fault.partition(":")[0] for fault in _faults(path)] == ["3"]


@pytest.mark.parametrize(
    "line",
    [
        'monkeypatch.setattr(os.path, "exists", None)',
        'monkeypatch.setattr("sys.stdout", None)',
        'monkeypatch.setattr(os.getcwd(), "x", None)',
        'monkeypatch.setattr(Own, "x", None)',
        "self._plan = None",
        "engine.plan = None",
        "engine.__cause__ = None",
    ],
)
def test_what_is_not_ours_may_be_patched(line: str, tmp_path: Path) -> None:
    path = tmp_path / "test_it.py"
    path.write_text(f"import os\nclass Own: ...\n{line}\n")
    assert [*_faults(path)] == []


@pytest.mark.parametrize("path", KITS, ids=lambda path: path.stem)
def test_a_kit_imports_public_names_and_what_is_listed(path: Path) -> None:
    listed = [f"antwort.{part}" for part in BESIDES.get(path.stem, ())]
    found = {module for module in _imports(path) if not _is_public(module)}
    homes = {module: [part for part in listed if module == part or module.startswith(f"{part}.")] for module in found}
    assert [module for module, parts in homes.items() if not parts] == []
    assert {part for parts in homes.values() for part in parts} == {*listed}, "listed, and not needed"


def test_no_kit_is_listed_that_is_not_there() -> None:
    assert BESIDES.keys() <= {path.stem for path in KITS}
    assert MAY_SET.keys() <= {path.relative_to(TESTS).as_posix() for path in FILES}


# ---- what a file does ----


def _faults(path: Path) -> Iterator[str]:
    tree = _tree(path)
    theirs, ours = _names(tree)
    may_set = TESTS in path.parents and path.relative_to(TESTS).as_posix() in MAY_SET
    for node in ast.walk(tree):
        match node:
            case (
                ast.Call(func=ast.Attribute(attr="setattr" | "delattr"), args=[target, *_])
                | ast.Call(
                    func=ast.Name(id="patch") | ast.Attribute(value=ast.Name(id="patch"), attr="object"),
                    args=[target, *_],
                )
            ) if not _is_theirs(target, theirs):
                yield f"{node.lineno}: {ast.unparse(node)}"
            case ast.Call(
                func=ast.Name(id="setattr" | "force_setattr") | ast.Attribute(attr="force_setattr" | "__setattr__")
            ) if not may_set:
                yield f"{node.lineno}: {ast.unparse(node)}"
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="__new__")) if name in ours:
                yield f"{node.lineno}: {ast.unparse(node)}"
            case ast.Assign(targets=targets) | ast.Delete(targets=targets):
                yield from (f"{node.lineno}: {ast.unparse(node)}" for each in targets if _is_private(each))
            case ast.AugAssign(target=target) | ast.AnnAssign(target=target) if _is_private(target):
                yield f"{node.lineno}: {ast.unparse(node)}"


def _is_theirs(target: ast.expr, theirs: set[str]) -> bool:
    """Whether what is patched belongs to a library, or to the test itself."""
    if isinstance(target, ast.Constant):
        return not str(target.value).startswith("antwort")
    while not isinstance(target, ast.Name):
        match target:
            case ast.Attribute(value=inner) | ast.Call(func=inner) | ast.Subscript(value=inner):
                target = inner
            case _:
                return False
    return target.id in theirs


def _is_private(target: ast.expr) -> bool:
    """Whether it is an attribute of something else that its owner keeps to itself, or an entry of one."""
    match target:
        case ast.Subscript(value=inner):
            return _is_private(inner)
        case ast.Tuple(elts=parts):
            return any(map(_is_private, parts))
        case ast.Attribute(value=ast.Name(id="self" | "cls")):
            return False
        case ast.Attribute(attr=name):
            return name.startswith("_") and not name.startswith("__")
    return False


def _names(tree: ast.Module) -> tuple[set[str], set[str]]:
    """Names of libraries and of classes of the file itself; those that are imported from antwort."""
    theirs, ours = set[str](), set[str]()
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str(module), names=names):
                (ours if _is_ours(module) else theirs).update(each.asname or each.name for each in names)
            case ast.Import(names=names):
                for each in names:
                    (ours if _is_ours(each.name) else theirs).add(each.asname or each.name.partition(".")[0])
            case ast.ClassDef(name=name):
                theirs.add(name)
    return theirs, ours


def _is_ours(module: str) -> bool:
    """Whether it is a module of the package, or a kit that may hand on what is."""
    return module.partition(".")[0] in {"antwort", *(path.stem for path in KITS)}


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(_tree(path)):
        match node:
            case ast.ImportFrom(module=str(module)) if module.partition(".")[0] == "antwort":
                yield module
            case ast.Import(names=names):
                yield from (each.name for each in names if each.name.partition(".")[0] == "antwort")


def _is_public(module: str) -> bool:
    return module in PUBLIC or module.startswith(("antwort.api.", "antwort.testing."))


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())
