"""Load the operator's tools: from modules, files and installed packages.

The toolsets and executors of a module are used as they are. Its bare `@tool` functions, those in no toolset, become a
toolset named after the module, or join the one of that name. They also run functions that requests declare under their
names.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeGuard

import msgspec

from antwort.config.problems import CannotStart
from antwort.tools.base import ToolExecutor, ToolKind, labels_of
from antwort.tools.local import LocalExecutor, LocalTool
from antwort.tools.toolset import Toolset, ToolsetInfo

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

_log = logging.getLogger("antwort.tools")

GROUP = "antwort.tools"
"""The group of entry points under which a package registers its tools."""
_WITHOUT = "set tools.entry_points to false to start without the tools of installed packages"


class LoadedTools(msgspec.Struct, frozen=True):
    executors: tuple[ToolExecutor, ...]
    toolsets: tuple[ToolsetInfo, ...]
    """The toolsets that requests reach by label."""

    @property
    def labels(self) -> dict[str, tuple[str, ...] | None]:
        """The labels of all executors, each with the names of its tools where they are known."""
        others = {label: None for executor in self.executors for label in labels_of(executor)}
        return {**others, **{toolset.label: toolset.tools for toolset in self.toolsets}}


class _Source(msgspec.Struct, frozen=True):
    """The tools of one module or package."""

    name: str
    """The label of its functions that are in no toolset."""
    origin: str
    objects: Sequence[LocalTool[..., Any] | ToolExecutor]


def load_tools(modules: Iterable[str], *, entry_points: bool, demo: bool = False) -> LoadedTools:
    """Load the tools of modules (`mypkg.tools`, `path/to/tools.py`) and installed packages, and the demo tools.

    Modules are imported, so their code runs with all rights of the server. Raises `CannotStart`.
    """
    sources = [_read_module(name) for name in dict.fromkeys(modules)]
    if entry_points:
        sources += _installed()
    if demo:
        sources.append(_demo())
    seen: set[int] = set()
    executors: list[ToolExecutor] = []
    infos: dict[str, ToolsetInfo] = {}
    for source in sources:
        for executor in _executors(source, seen):
            executors.append(executor)
            if isinstance(executor, Toolset):
                _register(executor.info(source.origin), infos)
    _warn_of_doubles(executors)
    return LoadedTools(tuple(executors), tuple(infos.values()))


def _warn_of_doubles(executors: Iterable[ToolExecutor]) -> None:
    """Warn of functions with the same name. Labels tell them apart, but a declared function runs the first one."""
    local = [each for each in executors if isinstance(each, LocalExecutor)]
    names = Counter(definition.name for executor in local for definition in executor.definitions)
    for name in (name for name, number in names.items() if number > 1):
        _log.warning("several modules have a function %r: the first answers for one that a request declares", name)


def _register(info: ToolsetInfo, infos: dict[str, ToolsetInfo]) -> None:
    other = infos.setdefault(info.label, info)
    if other is not info:
        both = info.origin if info.origin == other.origin else f"{other.origin} and {info.origin}"
        raise CannotStart(f"There are two toolsets named {info.label!r}, from {both}; give one of them another name.")


# ---- what a module has ----


def _executors(source: _Source, seen: set[int]) -> list[ToolExecutor]:
    """Return the executors of a source, without objects that other sources have as well."""
    fresh = [each for each in source.objects if id(each) not in seen]
    seen.update(id(each) for each in fresh)
    executors = [each for each in fresh if not isinstance(each, LocalTool)]
    bare = [each for each in fresh if isinstance(each, LocalTool)]
    if not bare:
        return executors
    others = [each for each in executors if not _is_named(each, source.name)]
    namesake = next((each for each in executors if _is_named(each, source.name)), None)
    return [*others, *_of_functions(source, bare, namesake)]


def _is_named(executor: ToolExecutor, name: str) -> TypeGuard[Toolset]:
    return isinstance(executor, Toolset) and executor.label == name


def _of_functions(
    source: _Source, bare: Sequence[LocalTool[..., Any]], namesake: Toolset | None
) -> tuple[ToolExecutor, ...]:
    problem = f"The functions of {source.origin} cannot be offered together"
    try:
        toolset = namesake or Toolset(source.name)
    except ValueError as exc:
        raise CannotStart(f"{problem}: {_error_text(exc)}; put them into a Toolset with a name of its own.") from exc
    try:
        return toolset.joined_by(bare), LocalExecutor(*bare)
    except ValueError as exc:
        raise CannotStart(f"{problem}: {_error_text(exc)}; give one of them another with @tool(name=…).") from exc


def _objects(module: ModuleType) -> list[object]:
    """Return what `__all__` of a module names, or else its public names, imported ones as well.

    Raises `ValueError` when `__all__` is wrong.
    """
    names = getattr(module, "__all__", None)
    if names is None:
        return [value for name, value in vars(module).items() if not name.startswith("_")]
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise ValueError("its __all__ is not a list of names")
    if missing := [name for name in names if not hasattr(module, name)]:
        raise ValueError(f"its __all__ names {missing[0]!r}, which it does not have")
    return [getattr(module, name) for name in names]


def _offered(objects: Iterable[object]) -> list[LocalTool[..., Any] | ToolExecutor]:
    """Return each tool and executor once. A function in a toolset is offered by that alone."""
    unique = {id(each): each for each in objects if _is_ours(each)}
    return [each for each in unique.values() if not isinstance(each, LocalTool) or each.is_bare]


def _is_ours(value: object) -> TypeGuard[LocalTool[..., Any] | ToolExecutor]:
    """Return whether it is a tool or an executor. The attributes of some objects exist always, or raise."""
    try:
        return isinstance(value, LocalTool) or _is_executor(value)
    except Exception:
        _log.debug("a %s is left out: it does not say what it is", type(value).__name__, exc_info=True)
        return False


def _is_executor(value: object) -> TypeGuard[ToolExecutor]:
    return not isinstance(value, type) and isinstance(value, ToolExecutor) and isinstance(value.kind, ToolKind)


# ---- modules ----


def _read_module(name: str) -> _Source:
    is_file = name.endswith(".py") or "/" in name or os.sep in name
    module = _import_file(name) if is_file else _import(name)
    try:
        offered = _offered(_objects(module))
    except ValueError as exc:
        raise CannotStart(f"The tools module {name!r} cannot be used: {_error_text(exc)}; mend it.") from exc
    if not offered:
        problem = f"The tools module {name!r} offers nothing"
        raise CannotStart(f"{problem}: it needs @tool functions or a Toolset, by public names of its own.")
    return _Source(Path(name).stem if is_file else name.rpartition(".")[2], name, offered)


def _import(name: str) -> ModuleType:
    if (here := _here()) is not None:
        _make_importable(here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as exc:
        if exc.name is None or not f"{name}.".startswith(f"{exc.name}."):
            raise _broken(name, exc) from exc
        _log.debug("the tools module %r cannot be found", name, exc_info=True)
        hint = "give the name of a module that is installed or lies in the current folder, or the path of a .py file"
        raise CannotStart(f"There is no tools module {name!r}; {hint}.") from exc
    except (Exception, SystemExit) as exc:
        raise _broken(name, exc) from exc


def _import_file(given: str) -> ModuleType:
    """Import a file under a name of its own: another module may have the name of the file."""
    from importlib.util import module_from_spec, spec_from_file_location

    path = Path(given)
    if not path.is_file():
        raise CannotStart(f"There is no file {given!r} to take tools from; give the path of a .py file.")
    _make_importable(path.resolve().parent)
    name = f"antwort_tools_{path.stem}"
    spec = spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as exc:
        del sys.modules[name]
        raise _broken(given, exc) from exc
    return module


def _make_importable(folder: Path) -> None:
    """Put a folder on the import path, as `python` does with the folder of a program."""
    is_there = str(folder) in sys.path or ("" in sys.path and folder == _here())
    if not is_there:
        sys.path.insert(0, str(folder))


def _here() -> Path | None:
    """Return the current folder, or None if it no longer exists."""
    try:
        return Path.cwd()
    except OSError:
        return None


def _broken(name: str, exc: BaseException) -> CannotStart:
    _log.debug("the tools module %r cannot be imported", name, exc_info=exc)
    return CannotStart(f"The tools module {name!r} cannot be imported: {_error_text(exc)}; {_DEBUG}.")


_DEBUG = "mend it, or see the whole traceback with --log-level debug"


def _error_text(exc: BaseException) -> str:
    """Return the message of an exception as part of a sentence."""
    text = " ".join(str(exc).split())
    return (text if isinstance(exc, ValueError) else f"{type(exc).__name__}: {text}").rstrip(" :.")


def _demo() -> _Source:
    from antwort.tools.demo import LABEL, demo_tools

    return _Source(LABEL, "antwort itself", [demo_tools()])


# ---- installed packages ----


def _installed() -> list[_Source]:
    from importlib import metadata

    entries = metadata.entry_points(group=GROUP)
    return [_read_entry(entry) for entry in sorted(entries, key=lambda each: (each.name, each.value))]


def _read_entry(entry: EntryPoint) -> _Source:
    package = entry.dist.name if entry.dist is not None else entry.value
    origin = f"the package {package}"
    try:
        offered = _offered(_contents(entry.load()))
    except (Exception, SystemExit) as exc:
        _log.debug("the entry point %r cannot be loaded", entry.name, exc_info=True)
        problem = f"The tools {entry.name!r} of {origin} cannot be loaded: {_error_text(exc)}"
        raise CannotStart(f"{problem}; mend or remove the package, or {_WITHOUT}.") from exc
    if not offered:
        problem = f"The entry point {entry.name!r} of {origin} names no toolset, list of toolsets, or module with any"
        raise CannotStart(f"{problem}; mend or remove the package, or {_WITHOUT}.")
    return _Source(entry.name, origin, offered)


def _contents(found: object) -> Sequence[object]:
    if isinstance(found, ModuleType):
        return _objects(found)
    return found if isinstance(found, list | tuple) else [found]
