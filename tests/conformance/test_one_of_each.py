"""Pauses that grow, limits on what is under way, and bounded caches have one home each, and caches are listed."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src" / "antwort"

HOMES = {
    "backoff": ("concurrency.py",),
    "limiter": ("limiter.py",),
    # A pool is no cache: sessions in use stay, and those that go are closed.
    "cache": ("caching.py", "tools/mcp/pool.py"),
}
"""By what is looked for, where it may be."""


def kinds(source: str) -> Iterator[str]:
    """What a module makes by hand, and whether it has a cache of the known kinds."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.BinOp(left=ast.Constant(value=2 | 2.0), op=ast.Pow(), right=right):
                if not isinstance(right, ast.Constant):
                    yield "backoff"
            case ast.AugAssign(op=ast.Mult(), value=ast.Constant(value=2 | 2.0)):
                yield "backoff"
            case ast.Assign(targets=targets, value=value) if _doubles(value, targets):
                yield "backoff"
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.alias(name=name):
                if name in ("Cache", "lru_cache"):
                    yield "known cache"
                if name in ("Semaphore", "BoundedSemaphore"):
                    yield "limiter"
                if name in ("OrderedDict", "popitem", "move_to_end"):
                    yield "cache"
            case ast.Call(func=ast.Attribute(attr="pop"), args=[first, *_]) if _is_oldest(first):
                yield "cache"
            case ast.Delete(targets=[ast.Subscript(slice=key)]) if _is_oldest(key):
                yield "cache"


def _doubles(value: ast.expr, targets: list[ast.expr]) -> bool:
    """Whether one of the variables that are set is doubled on the way."""
    doubled = set[str]()
    for node in ast.walk(value):
        match node:
            case (
                ast.BinOp(left=ast.Constant(value=2 | 2.0), op=ast.Mult(), right=other)
                | ast.BinOp(left=other, op=ast.Mult(), right=ast.Constant(value=2 | 2.0))
            ):
                doubled.add(ast.unparse(other))
    return any(ast.unparse(node) in doubled for target in targets for node in ast.walk(target) if doubled)


def _is_oldest(node: ast.expr) -> bool:
    """Whether it is `next(iter(…))`, the oldest key of a dict."""
    match node:
        case ast.Call(func=ast.Name(id="next"), args=[ast.Call(func=ast.Name(id="iter")), *_]):
            return True
    return False


def test_each_is_made_in_one_place() -> None:
    for path in SOURCE.rglob("*.py"):
        for kind in {*kinds(path.read_text(encoding="utf-8"))} & {*HOMES}:
            assert path.relative_to(SOURCE).as_posix() in HOMES[kind], kind


def test_every_module_with_a_cache_is_in_the_architecture_page() -> None:
    page = (SOURCE.parents[1] / "docs" / "architecture.md").read_text(encoding="utf-8")
    listed = page[page.index("## Caches") : page.index("## Invariants")]
    for path in SOURCE.rglob("*.py"):
        if "known cache" in kinds(path.read_text(encoding="utf-8")):
            assert f"`{path.relative_to(SOURCE).as_posix()}`" in listed


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("pause = base * 2 ** tried", "backoff"),
        ("pause *= 2", "backoff"),
        ("pause = min(2 * pause, most)", "backoff"),
        ("pause, self.next = self.next, min(max(self.next * 2, first), most)", "backoff"),
        ("slots = asyncio.Semaphore(4)", "limiter"),
        ("from asyncio import BoundedSemaphore", "limiter"),
        ("entries = collections.OrderedDict()", "cache"),
        ("del entries[next(iter(entries))]", "cache"),
        ("entries.pop(next(iter(entries)), None)", "cache"),
    ],
)
def test_each_is_recognized(line: str, kind: str) -> None:
    assert kind in kinds(line)


@pytest.mark.parametrize("line", ["limit = 64 * 2**20", "excess = min(count, 2 * most)", "first = next(iter(entries))"])
def test_sizes_counts_and_lookups_are_none_of_them(line: str) -> None:
    assert not [*kinds(line)]
