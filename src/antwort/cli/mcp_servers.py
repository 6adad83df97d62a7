"""Which MCP server a command line means: one that is configured, or one at an address or behind a command."""

from __future__ import annotations

import shlex
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from antwort.cli.subjects import Misused
from antwort.config.problems import CannotStart

if TYPE_CHECKING:
    from antwort.config.settings import Settings
    from antwort.tools.base import ToolDefinition
    from antwort.tools.mcp.executor import McpExecutor
    from antwort.tools.mcp.servers import McpServer

UNNAMED = "server"
"""The label of one that is not configured."""
_SETTINGS = ("config", "set", "tools", "demo_tools")


def read_settings(given: Mapping[str, object]) -> Settings:
    """Raises `CannotStart`. Flags that are these commands' own are none of the settings."""
    from antwort.config.checks import check
    from antwort.config.loading import read

    return check(read({name: given[name] for name in _SETTINGS if name in given}).settings)


def is_unnamed(given: Mapping[str, object]) -> bool:
    """Whether the command line says itself how the server is reached."""
    return "url" in given or "command" in given


def configured(settings: Settings) -> list[McpServer]:
    from antwort.toolsets import make_server

    try:
        return [make_server(each, settings.tools.limits) for each in settings.mcp_servers]
    except ValueError as exc:
        raise CannotStart(str(exc)) from exc


def chosen(given: Mapping[str, object], settings: Settings, label: str | None) -> list[McpServer]:
    """The server that is meant; without a word about it, all that are configured. Raises `Misused`."""
    if is_unnamed(given):
        if label is not None:
            raise Misused("Give a label, or --url, or --command: one of them.")
        return [_unnamed(given)]
    if given.get("transport") is not None:
        raise Misused("--transport is for --url: how a configured server is spoken to is in the settings.")
    servers = configured(settings)
    found = [server for server in servers if label is None or server.label == label]
    if not found:
        raise Misused(_nothing(label, [server.label for server in servers]))
    return found


def _nothing(label: str | None, labels: Sequence[str]) -> str:
    if not labels:
        return "No MCP servers are configured: name them in `mcp_servers`, or give --url or --command."
    return f"No MCP server is configured as {label!r}; there are: {', '.join(labels)}."


def _unnamed(given: Mapping[str, object]) -> McpServer:
    from antwort.net.ssrf import AddressNotAllowed, parse_url
    from antwort.tools.mcp.servers import McpServer

    url, command = given.get("url"), given.get("command")
    try:
        if url is not None and not str(url).lower().startswith(("http://", "https://")):
            raise Misused("--url must be an address that begins with http:// or https://.")
        if url is not None:
            parse_url(str(url))
        words = tuple(shlex.split(str(command))) if command is not None else ()
        return McpServer(
            UNNAMED,
            url=None if url is None else str(url),
            command=words,
            transport=_transport(given, str(url or "")),
            token=None if words else token(given),
        )
    except (AddressNotAllowed, ValueError) as exc:
        raise Misused(f"{'--url' if command is None else '--command'} cannot be used: {exc}") from exc


def _transport(given: Mapping[str, object], url: str) -> Literal["http", "sse"]:
    """By custom, those of the older kind are called so."""
    from urllib.parse import urlsplit

    match given.get("transport"):
        case "http" | "sse" as said:
            return said
        case None:
            pass
        case _:
            raise Misused("--transport must be http or sse.")
    return "sse" if urlsplit(url).path.rstrip("/").endswith("/sse") else "http"


def token(given: Mapping[str, object]) -> str | None:
    from antwort.config.files import expanded
    from antwort.config.secrets import read_secret_file

    file = given.get("token_file")
    if file is None:
        return None
    try:
        return read_secret_file(Path(expanded(str(file))))
    except ValueError as exc:
        raise Misused(f"--token-file: {exc}.") from exc


@asynccontextmanager
async def asked(servers: Sequence[McpServer], settings: Settings) -> AsyncIterator[McpExecutor]:
    """Who asks them, for as long as the block lasts."""
    from antwort.tools.mcp.executor import McpExecutor
    from antwort.toolsets import make_policy

    executor = McpExecutor(servers, make_policy(settings.mcp, is_near=True))
    try:
        yield executor
    finally:
        await executor.close()


async def tools_of(label: str, executor: McpExecutor, given: Mapping[str, object]) -> Sequence[ToolDefinition]:
    """What the server offers. Raises `CannotAsk`."""
    from antwort.api.tools import McpTool
    from antwort.api.wire import UNSET
    from antwort.errors import InvalidField
    from antwort.identity import ANONYMOUS
    from antwort.tools.mcp.base import ServerUnavailable

    brought = None if is_unnamed(given) else token(given)
    declared = McpTool(server_label=label, authorization=UNSET if brought is None else brought)
    try:
        found = await executor.discover(declared, ANONYMOUS)
    except (ServerUnavailable, TimeoutError) as exc:
        why = f" ({exc.details})" if isinstance(exc, ServerUnavailable) and exc.details else ""
        raise CannotAsk(f"{str(exc) or 'It did not answer in time.'}{why}") from exc
    except InvalidField as exc:
        raise Misused(exc.message) from exc
    assert found is not None, "the label is one of its own"
    return found


class CannotAsk(Exception):
    """The server does not say what it offers; the message is a sentence for a person."""
