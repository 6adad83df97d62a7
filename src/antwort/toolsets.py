"""Load the operator's tools, from modules, files and installed packages, and set up its MCP servers.

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
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeGuard

import msgspec
from msgspec.structs import replace

from antwort.api.wire import UNSET, UnsetType
from antwort.config.checks import keys_required, mcp_server_problems, only_near
from antwort.config.problems import CannotStart, Problem
from antwort.config.secrets import Secret
from antwort.config.settings import McpServerSettings, McpSettings, Settings
from antwort.net.media import MediaHosts
from antwort.net.ssrf import AddressNotAllowed, AddressPolicy, parse_host_pattern, parse_url
from antwort.tools.base import ToolExecutor, ToolKind, labels_of
from antwort.tools.limits import ToolBounds, ToolLimits
from antwort.tools.local import LocalExecutor, LocalTool
from antwort.tools.mcp.base import ClientCredentials
from antwort.tools.mcp.executor import McpExecutor
from antwort.tools.mcp.servers import Audience, HeaderRules, McpPolicy, McpServer, McpToolPolicy
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


# ---- MCP servers ----


def make_mcp(settings: Settings, *, is_near: bool | None = None) -> McpExecutor:
    """Return the executor of the MCP servers; it connects to none yet. `is_near`: whether only this machine can reach
    antwort; None: as `is_alone` returns. Raises `CannotStart`.
    """
    for problem in (*mcp_server_problems(settings), *find_network_problems(settings)):
        raise CannotStart(str(problem))
    servers = [make_server(server, settings.tools.limits) for server in settings.mcp_servers]
    is_near = is_alone(settings) if is_near is None else is_near
    return McpExecutor(servers, make_policy(settings.mcp, is_near=is_near))


def is_alone(settings: Settings) -> bool:
    """Return whether requests come from this machine only. A server that requires keys may be behind a proxy, so it
    counts as reachable by others even if it listens on loopback only.
    """
    return only_near(settings) and not keys_required(settings)


def make_policy(mcp: McpSettings, *, is_near: bool) -> McpPolicy:
    reach = mcp.reach
    return McpPolicy(
        declared=mcp.declared,
        reach=AddressPolicy(
            allow=reach.allow,
            deny=reach.deny,
            only_allowed=reach.only_allowed,
            http=reach.http,
            loopback=reach.loopback == "always" or (reach.loopback == "auto" and is_near),
        ),
        headers=HeaderRules(mcp.headers_allow, mcp.headers_deny),
        require_approval=mcp.require_approval,
        force_approval=mcp.force_approval,
        connect=mcp.connect,
        largest=mcp.largest,
        unsolicited=mcp.unsolicited_bytes,
        sessions=mcp.sessions,
        idle=mcp.idle,
    )


def make_server(server: McpServerSettings, limits: ToolLimits) -> McpServer:
    """`limits` are those of all tools, which the server's own override."""
    oauth, standing = server.oauth, server.standing
    credentials = (
        None
        if oauth is None
        else ClientCredentials(
            client_id=oauth.client_id,
            client_secret=oauth.client_secret.reveal(),
            scopes=oauth.scopes,
            token_url=oauth.token_url,
            issuer=oauth.issuer,
        )
    )
    audience = None
    if standing is not None:
        audience = Audience(models=standing.models, subjects=standing.subjects, tenants=standing.tenants)
    tools = {
        name: McpToolPolicy(
            parallel=tool.parallel is not False,
            read_only=_or_none(tool.read_only),
            idempotent=_or_none(tool.idempotent),
            require_approval=_or_none(tool.require_approval),
        )
        for name, tool in server.tools.items()
    }
    return McpServer(
        label=server.label,
        url=server.url,
        command=server.command,
        transport=server.transport,
        env=_revealed(server.env),
        folder=server.folder,
        description=server.description,
        headers=_revealed(server.headers),
        token=None if server.token is None else server.token.reveal(),
        oauth=credentials,
        authorization=server.authorization,
        sessions=server.sessions,
        allowed_tools=server.allowed_tools,
        require_approval=server.require_approval,
        standing=audience,
        connect=server.connect,
        list_age=server.list_age,
        limits=_limits(server, limits),
        tools=tools,
    )


def _limits(server: McpServerSettings, usual: ToolLimits) -> ToolLimits:
    """Return the limits of a server. Those for all tools of one name fill the gaps of its own tools."""
    single: dict[str, ToolBounds] = {}
    for name, tool in server.tools.items():
        bounds = usual.tools.get(name, ToolBounds())
        single[name] = replace(
            bounds,
            timeout=tool.timeout or bounds.timeout,
            concurrency=tool.concurrency or bounds.concurrency,
            output_bytes=tool.output_bytes or bounds.output_bytes,
            parallel=bounds.parallel if tool.parallel is UNSET else tool.parallel,
        )
    return replace(
        usual,
        timeout=server.timeout or usual.timeout,
        total=server.concurrency or usual.total,
        output_bytes=server.output_bytes or usual.output_bytes,
        tools={**usual.tools, **single},
    )


def _revealed(secrets: Mapping[str, Secret]) -> dict[str, str]:
    return {name: secret.reveal() for name, secret in secrets.items()}


def _or_none(value: bool | UnsetType) -> bool | None:
    return None if value is UNSET else value


def find_label_problems(settings: Settings, taken: Collection[str]) -> Iterator[Problem]:
    """Yield the servers whose label is `taken` by a toolset."""
    for at, server in enumerate(settings.mcp_servers):
        if server.label in taken:
            what = f"is that of a toolset, too: {server.label!r}"
            yield Problem(f"mcp_servers[{at}].label", what, "choose another")


def find_network_problems(settings: Settings) -> Iterator[Problem]:
    """Yield the addresses that the network layer refuses."""
    for at, server in enumerate(settings.mcp_servers):
        try:
            parse_url(server.url or "https://example.com/")
        except AddressNotAllowed as exc:
            yield Problem(f"mcp_servers[{at}].url", str(exc).rstrip("."))
    for field in ("allow", "deny"):
        for at, entry in enumerate(getattr(settings.mcp.reach, field)):
            try:
                parse_host_pattern(entry)
            except ValueError as exc:
                yield Problem(f"mcp.reach.{field}[{at}]", str(exc))
    for at, host in enumerate(settings.limits.media_hosts):
        try:
            MediaHosts([host])
        except ValueError as exc:
            yield Problem(f"limits.media_hosts[{at}]", str(exc))
