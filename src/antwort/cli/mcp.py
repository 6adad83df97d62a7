"""`antwort mcp`: MCP servers, tried from the command line the way that a request would use them."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from antwort.cli.listed_tools import as_json, as_plain, lines
from antwort.cli.mcp_servers import CannotAsk, asked, chosen, read_settings, tools_of
from antwort.cli.say import complain, tell
from antwort.cli.subjects import Misused
from antwort.config.problems import CannotStart, printable

if TYPE_CHECKING:
    from antwort.tools.base import ToolDefinition
    from antwort.tools.mcp.executor import McpExecutor
    from antwort.tools.mcp.servers import McpServer

T = TypeVar("T")

UNREACHABLE = 3
"""The exit status where a server cannot be asked; a call that fails ends with 1."""


def list_servers(given: Mapping[str, object]) -> int:
    return conclude("antwort mcp list", _list, given)


def show_tools(given: Mapping[str, object]) -> int:
    return conclude("antwort mcp tools", _tools, given)


def conclude(
    name: str, work: Callable[[Mapping[str, object]], Coroutine[None, None, int]], given: Mapping[str, object]
) -> int:
    """Run it; the exit status. What is wrong is said here, and not by the log as well."""
    logging.getLogger("antwort").addHandler(logging.NullHandler())
    try:
        return asyncio.run(work(given))
    except Misused as exc:
        print(f"{name}: {printable(str(exc))}", file=sys.stderr)
        return 2
    except CannotStart as exc:
        return complain(exc)


async def waited(work: Coroutine[None, None, T], what: str) -> T:
    """In sight of whoever sits at a terminal; an output that goes elsewhere holds nothing but the result."""
    from antwort.cli.waiting import shown

    if sys.stdout is not None and sys.stdout.isatty():
        return await shown(work, what)
    return await work


# ---- what there is ----


async def _list(given: Mapping[str, object]) -> int:
    settings = read_settings(given)
    if not settings.mcp_servers:
        return tell(as_json([]) if given.get("json") else "No MCP servers are configured.")
    servers = chosen(given, settings, None)
    async with asked(servers, settings) as executor:
        found = await waited(_survey(servers, executor, given), connecting(servers))
    status = UNREACHABLE if any(isinstance(each, CannotAsk) for each in found) else 0
    told = list(zip(servers, found, strict=True))
    if given.get("json"):
        plain = [
            {**_standing(server, each), "unknown_tools": [*executor.unknown_tools(server.label)]}
            for server, each in told
        ]
        return tell(as_json(plain)) or status
    rows = [(server.label, _way(server), f"{_state(each)}{_missing(server, executor)}") for server, each in told]
    return tell(*_rows(rows)) or status


def _missing(server: McpServer, executor: McpExecutor) -> str:
    """What is named in the settings, and is not there."""
    unknown = executor.unknown_tools(server.label)
    return f"; the settings name {', '.join(map(repr, unknown))}, which it has not" if unknown else ""


async def _survey(
    servers: Sequence[McpServer], executor: McpExecutor, given: Mapping[str, object]
) -> list[Sequence[ToolDefinition] | CannotAsk]:
    """Each server's tools, or why not: side by side, so that one that is down delays none."""

    async def one(server: McpServer) -> Sequence[ToolDefinition] | CannotAsk:
        try:
            return await tools_of(server.label, executor, given)
        except CannotAsk as exc:
            return exc
        except Misused as exc:
            return CannotAsk(str(exc))

    return list(await asyncio.gather(*(one(server) for server in servers)))


def _way(server: McpServer) -> str:
    """Without anything that it is logged in to with: addresses and arguments may hold that."""
    from antwort.config.shown import shown_address, shown_command

    if server.command:
        return printable(" ".join(shown_command(server.command)))
    return shown_address(str(server.url))


def _state(found: Sequence[ToolDefinition] | CannotAsk) -> str:
    if isinstance(found, CannotAsk):
        return f"cannot be used: {printable(str(found))}"
    return f"{len(found)} tool{'' if len(found) == 1 else 's'}"


def _standing(server: McpServer, found: Sequence[ToolDefinition] | CannotAsk) -> dict[str, Any]:
    return {
        "label": server.label,
        "transport": server.way,
        "address": _way(server),
        "standing": server.standing is not None,
        "tools": None if isinstance(found, CannotAsk) else [tool.own_name for tool in found],
        "problem": str(found) if isinstance(found, CannotAsk) else None,
    }


def _rows(table: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[at]) for row in table) for at in range(len(table[0]))]
    return ["  ".join(f"{word:{width}}" for word, width in zip(row, widths, strict=True)).rstrip() for row in table]


# ---- the tools of one, or of all ----


async def _tools(given: Mapping[str, object]) -> int:
    settings = read_settings(given)
    label = given.get("label")
    servers = chosen(given, settings, None if label is None else str(label))
    async with asked(servers, settings) as executor:
        found = await waited(_survey(servers, executor, given), connecting(servers))
    told = list(zip(servers, found, strict=True))
    if given.get("json"):
        plain = {
            server.label: [as_plain(tool) for tool in each] for server, each in told if not isinstance(each, CannotAsk)
        }
        status = tell(as_json(plain))
    else:
        shown = [line for server, each in told for line in _shown(server, each, is_alone=len(told) == 1)]
        status = tell(*shown) if shown else 0
    for server in servers:
        if missing := _missing(server, executor):
            print(f"antwort: The server {server.label!r}{missing.replace(';', ':', 1)}.", file=sys.stderr)
    return status or complain_of(told)


def _shown(server: McpServer, found: Sequence[ToolDefinition] | CannotAsk, *, is_alone: bool) -> list[str]:
    if isinstance(found, CannotAsk):
        return []
    head = [] if is_alone else [f"{server.label}:"]
    return [*head, *(lines(found) if found else ["  It has no tools."])]


def complain_of(told: Sequence[tuple[McpServer, Sequence[ToolDefinition] | CannotAsk]]) -> int:
    """Say which cannot be asked; the exit status."""
    status = 0
    for server, found in told:
        if isinstance(found, CannotAsk):
            print(f"antwort: The server {server.label!r} cannot be used: {printable(str(found))}", file=sys.stderr)
            status = UNREACHABLE
    return status


def connecting(servers: Sequence[McpServer]) -> str:
    return f"connecting to {servers[0].label if len(servers) == 1 else f'{len(servers)} servers'}"
