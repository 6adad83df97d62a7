"""Make the MCP executor from the settings, and find problems in the settings of MCP servers."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from msgspec.structs import replace

from antwort.api.wire import UNSET, UnsetType
from antwort.config.checks import keys_required
from antwort.config.mcp import McpServerSettings, McpSettings, McpToolSettings, OAuthSettings, StandingSettings
from antwort.config.mcp_checks import about_servers
from antwort.config.problems import CannotStart, Problem
from antwort.config.secrets import Secret
from antwort.config.settings import Settings
from antwort.config.sharing import only_near
from antwort.net.media import MediaHosts
from antwort.net.ssrf import AddressNotAllowed, AddressPolicy, parse_host_pattern, parse_url
from antwort.tools.limits import ToolBounds, ToolLimits
from antwort.tools.mcp.base import ClientCredentials
from antwort.tools.mcp.executor import McpExecutor
from antwort.tools.mcp.servers import Audience, HeaderRules, McpPolicy, McpServer, McpToolPolicy


def make_mcp(settings: Settings, *, is_near: bool | None = None) -> McpExecutor:
    """Make the executor. It connects to no server yet.

    `is_near`: whether only this machine can reach antwort; None: as `is_alone` returns. Raises `CannotStart`.
    """
    for problem in find_problems(settings):
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
        oauth=None if server.oauth is None else _credentials(server.oauth),
        authorization=server.authorization,
        sessions=server.sessions,
        allowed_tools=server.allowed_tools,
        require_approval=server.require_approval,
        standing=None if server.standing is None else _audience(server.standing),
        connect=server.connect,
        list_age=server.list_age,
        limits=_limits(server, limits),
        tools={name: _tool(tool) for name, tool in server.tools.items()},
    )


def find_problems(settings: Settings) -> Iterator[Problem]:
    """Yield all problems of the settings of MCP servers, those of addresses included."""
    yield from about_servers(settings.mcp_servers)
    yield from find_network_problems(settings)


def find_label_problems(settings: Settings, taken: Collection[str]) -> Iterator[Problem]:
    """Yield the servers whose label is `taken` by a toolset."""
    for at, server in enumerate(settings.mcp_servers):
        if server.label in taken:
            what = f"is that of a toolset, too: {server.label!r}"
            yield Problem(f"mcp_servers[{at}].label", what, "choose another")


def find_network_problems(settings: Settings) -> Iterator[Problem]:
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


def _revealed(secrets: Mapping[str, Secret]) -> dict[str, str]:
    return {name: secret.reveal() for name, secret in secrets.items()}


def _credentials(oauth: OAuthSettings) -> ClientCredentials:
    return ClientCredentials(
        client_id=oauth.client_id,
        client_secret=oauth.client_secret.reveal(),
        scopes=oauth.scopes,
        token_url=oauth.token_url,
        issuer=oauth.issuer,
    )


def _audience(standing: StandingSettings) -> Audience:
    return Audience(models=standing.models, subjects=standing.subjects, tenants=standing.tenants)


def _tool(tool: McpToolSettings) -> McpToolPolicy:
    return McpToolPolicy(
        parallel=tool.parallel is not False,
        read_only=_or_none(tool.read_only),
        idempotent=_or_none(tool.idempotent),
        require_approval=_or_none(tool.require_approval),
    )


def _or_none(value: bool | UnsetType) -> bool | None:
    return None if value is UNSET else value


def _limits(server: McpServerSettings, usual: ToolLimits) -> ToolLimits:
    single = {name: _bounds(tool, usual.tools.get(name, ToolBounds())) for name, tool in server.tools.items()}
    return replace(
        usual,
        timeout=server.timeout or usual.timeout,
        total=server.concurrency or usual.total,
        output_bytes=server.output_bytes or usual.output_bytes,
        tools={**usual.tools, **single},
    )


def _bounds(tool: McpToolSettings, usual: ToolBounds) -> ToolBounds:
    """Return the bounds of a tool of this server. Those for all tools of that name fill the gaps."""
    return replace(
        usual,
        timeout=tool.timeout or usual.timeout,
        concurrency=tool.concurrency or usual.concurrency,
        output_bytes=tool.output_bytes or usual.output_bytes,
        parallel=usual.parallel if tool.parallel is UNSET else tool.parallel,
    )
