"""Arrows point one way: api <- {schema, net} <- {tools, providers, storage} <- engine <- transport <- app."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src"

LEAVES = (
    "caching",
    "crypto",
    "identity",
    "errors",
    "ids",
    "concurrency",
    "event_loop",
    "limiter",
    "notes",
    "suggestions",
    "version",
)
CONTRACTS = ("tools.base", "providers.base", "storage.base", "storage.run_log")
ROOMS = (
    "api",
    "schema",
    "net",
    "tools",
    "providers",
    "storage",
    "engine",
    "server",
    "telemetry",
    "local",
)
MAKERS = ("backends", "observing", "persistence", "toolsets")
"""Each makes one part of the server of the settings."""
MAY_IMPORT: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(LEAVES, ()),
    "event_loop": ("identity",),
    "api": ("errors", "ids", "suggestions"),
    "schema": ("errors", "ids", "api", "caching"),
    "net": ("api", *LEAVES),
    "tools": ("api", "schema", "net", *LEAVES),
    "providers": ("api", "schema", "net", *LEAVES),
    "storage": ("api", *LEAVES),
    # Contracts, and one store: what an engine that is given none keeps its responses in; which log goes with a store.
    "engine": (
        "api",
        "schema",
        *CONTRACTS,
        "net.media",
        "storage.memory",
        "storage.event_codec",
        "storage.bounds",
        "tools.routing",
        "tools.limits",
        "tools.grammar",
        "tools.search",
        "caching",
        "identity",
        "errors",
        "ids",
        "concurrency",
        "event_loop",
        "limiter",
        "notes",
        "crypto",
        "suggestions",
    ),
    "server": ("api", "engine", *CONTRACTS, *LEAVES),
    # A client of the server: it knows what travels, and how to read and write it.
    "chat": ("api", "net.client", "net.response", "net.sse", *LEAVES),
    # Beside contracts, the hook through which it checks the streams of engines, and the server in front of one.
    "testing": (
        "api",
        *CONTRACTS,
        "engine.engine",
        "engine.settings",
        "engine.runs.event_log",
        "server.http",
        "server.server",
        *LEAVES,
    ),
    "telemetry": ("api", "engine", "server", *CONTRACTS, *LEAVES),
    "config": ("api", "engine", *CONTRACTS, "tools.limits", *LEAVES),
    "local": ("providers", "net", "api", *LEAVES),
    # A client of backends, as plain as it can be: it judges what they answer, and what that means for the settings.
    "doctor": ("api", "net", "providers", "config", *LEAVES),
    "persistence": ("storage", "config", *LEAVES),
    "toolsets": ("api", "net", "tools", "config", *LEAVES),
    "backends": ("providers", "local", "config", "testing", *LEAVES),
    "observing": ("telemetry", "engine", "server", "config", *CONTRACTS, *LEAVES),
    # What puts the pieces together may know them all. Only there are the fakes of `testing` of use outside of tests.
    "app": (*ROOMS, "config", *MAKERS, "testing", *LEAVES),
    "asgi": (*ROOMS, "config", *MAKERS, "app", *LEAVES),
    "cli": (*ROOMS, "doctor", "chat", "config", *MAKERS, "testing", "app", *LEAVES),
    "__main__": ("cli",),
    # The public face: names of every room, imported when they are asked for.
    "__init__": ("api", "engine", "tools", "providers", "local", "storage", "config", "asgi", *LEAVES),
}
"""For each room, or module beside them, what of ours it may import besides itself."""


ENGINE = ("history", "prompt", "context", "loop", "runs")
"""The subpackages of the engine: each imports those before it."""
ENGINE_UPWARD: dict[str, tuple[str, ...]] = {
    "history": (
        "context.compaction_item",
        "prompt.content_checks",
        "prompt.declared_tools",
        "prompt.discovery",
        "prompt.tool_names",
        "prompt.toolbox",
    ),
    "prompt": (
        "context.compaction_item",
        "context.message_text",
        "loop.custom_input",
        "loop.fold",
        "loop.limits",
        "loop.steps",
    ),
    # Of a live run, the type alone.
    "context": ("loop.fold", "loop.steps", "runs.live"),
    "loop": ("runs.live",),
}
"""The modules behind it that one of them imports all the same."""


EDGE = ("chat", "doctor", "local")
"""Programs beside the server, some with dependencies of their own. They are loaded when they are used, by the CLI."""
EDGE_BESIDES: dict[str, tuple[str, ...]] = {
    "__init__": ("local.provider",),
    "app": ("local.provider",),
    "backends": ("local.demo", "local.provider", "local.server_options"),
}
"""The one exception: `LocalProvider` is a public name, and a kind of backend that the settings can name."""


def modules() -> dict[str, Path]:
    """Every module of ours by its name within the package."""
    root = SOURCE / "antwort"
    return {_name(path.relative_to(root)): path for path in sorted(root.rglob("*.py"))}


def _name(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


def imported(source: str, known: frozenset[str], *, is_at_once: bool = False) -> Iterator[str]:
    """What of ours a module imports anywhere in it, also inside functions and for type checking only. `is_at_once`:
    only what is loaded with the module.
    """
    tree = ast.parse(source)
    for node in _loaded(tree) if is_at_once else ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are written out in full"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (_module(name, known) for name in names if f"{name}.".startswith("antwort."))


def _loaded(node: ast.AST) -> Iterator[ast.AST]:
    """What runs when the module is loaded: nothing in functions, and nothing for type checking only."""
    for child in ast.iter_child_nodes(node):
        is_for_types = isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"
        if not is_for_types and not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield child
            yield from _loaded(child)


def _module(name: str, known: frozenset[str]) -> str:
    """The module that `name`, a module or something in one, is of."""
    inner = name.removeprefix("antwort").removeprefix(".")
    while inner and inner not in known:
        inner = inner.rpartition(".")[0]
    return inner or "__init__"


def room_of(module: str) -> str:
    return module.partition(".")[0]


def is_allowed(module: str, target: str) -> bool:
    room = room_of(module)
    within = (room, *MAY_IMPORT[room])
    return any(f"{target}.".startswith(f"{allowed}.") for allowed in within)


MODULES = modules()
KNOWN = frozenset(MODULES)


def test_every_room_has_a_rule() -> None:
    assert {room_of(module) for module in MODULES} <= MAY_IMPORT.keys()


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_only_what_lies_below_it(module: str) -> None:
    targets = set(imported(MODULES[module].read_text(encoding="utf-8"), KNOWN))
    assert [target for target in sorted(targets) if not is_allowed(module, target)] == []


@pytest.mark.parametrize("module", [module for module in MODULES if room_of(module) not in EDGE])
def test_programs_at_the_edge_are_loaded_by_the_cli_alone_and_when_they_are_used(module: str) -> None:
    source = MODULES[module].read_text(encoding="utf-8")
    targets = {target for target in imported(source, KNOWN) if room_of(target) in EDGE}
    if room_of(module) != "cli":
        assert targets <= {*EDGE_BESIDES.get(module, ())}
    at_once = {target for target in imported(source, KNOWN, is_at_once=True) if room_of(target) in EDGE}
    assert at_once == set()


OPTIONAL = {"markdown_it": "chat", "prompt_toolkit": "chat", "rich": "chat", "xllamacpp": "local", "psycopg": "storage"}
"""Libraries of extras, and the package that needs them."""


@pytest.mark.parametrize("module", MODULES)
def test_libraries_of_extras_are_imported_only_by_the_package_that_needs_them(module: str) -> None:
    found = []
    for node in ast.walk(ast.parse(MODULES[module].read_text(encoding="utf-8"))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        found += [name for name in names if OPTIONAL.get(name.partition(".")[0], room_of(module)) != room_of(module)]
    assert found == []


@pytest.mark.parametrize("name", ENGINE)
def test_a_subpackage_of_the_engine_imports_those_before_it(name: str) -> None:
    own = [module for module in MODULES if module.startswith(f"engine.{name}.")]
    targets = {target for module in own for target in imported(MODULES[module].read_text(encoding="utf-8"), KNOWN)}
    behind = tuple(f"engine.{each}." for each in ENGINE[ENGINE.index(name) + 1 :])
    upward = {target.removeprefix("engine.") for target in targets if target.startswith(behind)}
    assert upward == {*ENGINE_UPWARD.get(name, ())}


def test_the_rules_themselves_point_one_way() -> None:
    """No room may reach itself again through the rooms it may import."""
    for room, targets in MAY_IMPORT.items():
        reached: set[str] = set()
        new = {room_of(target) for target in targets}
        while new - reached:
            reached |= new
            new = {room_of(target) for step in new for target in MAY_IMPORT[step]}
        assert room not in reached


@pytest.mark.parametrize(
    ("module", "target"),
    [
        ("api.items", "identity"),
        ("api.items", "engine.loop"),
        ("schema.references", "tools.base"),
        ("schema.validate", "net.client"),
        ("tools.local", "providers.base"),
        ("providers.chat", "tools.base"),
        ("storage.sqlite", "providers.base"),
        ("storage.memory", "engine.runs.live"),
        ("engine.loop", "storage.sql_run_log"),
        ("engine.loop", "storage.sqlite"),
        ("engine.loop", "tools.local"),
        ("engine.loop", "providers.chat"),
        ("engine.loop", "transport.sse"),
        ("engine.loop", "testing"),
        ("engine.loop", "testing.scripted"),
        ("engine.loop", "config"),
        ("server.http", "app"),
        ("server.http", "storage.sqlite"),
        ("server.http", "testing.grammar"),
        ("errors", "api.items"),
        ("ids", "errors"),
        ("concurrency", "errors"),
        ("storage.base", "__init__"),
    ],
)
def test_an_arrow_that_points_up_or_sideways_is_refused(module: str, target: str) -> None:
    assert not is_allowed(module, target)


def test_imports_are_found_wherever_they_stand() -> None:
    source = """
import antwort
import antwort.api.items as items
from antwort import errors, Engine
from antwort.engine.loop.loop import run_loop
from antwort.storage import sqlite
import antwortlike, os

if TYPE_CHECKING:
    from antwort.app import build

def later():
    from antwort.testing import say
"""
    found = sorted(imported(source, KNOWN))
    ours = ["api.items", "app", "engine.loop.loop", "errors", "storage.sqlite", "testing"]
    assert found == ["__init__", "__init__", *ours]
    at_once = sorted(imported(source, KNOWN, is_at_once=True))
    assert at_once == ["__init__", "__init__", "api.items", "engine.loop.loop", "errors", "storage.sqlite"]
