"""From what a request declares to how the server is reached: in whose name, and with which credentials. Pure.

Whatever a request brings, an address or credentials, makes a session of its identity's own.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from msgspec.structs import replace

from antwort.api.tools import McpTool
from antwort.api.wire import UNSET
from antwort.errors import InvalidField
from antwort.identity import Identity
from antwort.net.ssrf import AddressNotAllowed
from antwort.tools.mcp.base import ServerSpec, Transport
from antwort.tools.mcp.servers import HeaderRules, McpPolicy, McpServer

_OWN_SHARE = 4
"""How much more an operator's own server may send unasked: it is chatty, not hostile."""


def base_spec(server: McpServer, policy: McpPolicy) -> ServerSpec:
    """How a server of the operator's own is reached, as far as no request has a say in it."""
    login = {} if server.token is None else {"Authorization": _bearer(server.token)}
    return ServerSpec(
        label=server.label,
        transport=server.way,
        url=server.url or "",
        command=server.command,
        env=dict(server.env),
        folder=server.folder,
        headers={**server.headers, **login},
        oauth=server.oauth,
        connect=server.connect,
        list_age=server.list_age,
        largest=policy.largest,
        unsolicited=policy.unsolicited * _OWN_SHARE,
    )


def own_spec(server: McpServer, base: ServerSpec, declared: McpTool, identity: Identity) -> ServerSpec:
    """Raises `InvalidField` for what a request may not say of this server."""
    _check_place(server, declared)
    if (brought := _brought(server, declared)) is not None:
        return replace(base, headers={**base.headers, "Authorization": brought}, owner=_owner(identity))
    is_theirs = server.sessions == "identity" or server.authorization == "request"
    return replace(base, owner=_owner(identity)) if is_theirs else base


def untrusted_spec(declared: McpTool, identity: Identity, policy: McpPolicy) -> ServerSpec:
    """Raises `InvalidField` where the server, or a header for it, may not be named."""
    assert isinstance(declared.server_url, str), "a server by its address"
    if not policy.declared:
        problem = "servers are not named by address here; use the label of one that the operator offers."
        raise InvalidField("server_url", problem, code="unsupported_parameter")
    if declared.connector_id is not UNSET:
        problem = "there are no connectors here; the server has an address, leave it out."
        raise InvalidField("connector_id", problem, code="unexpected_parameter")
    try:
        place = policy.reach.check(declared.server_url)
    except AddressNotAllowed as exc:
        raise InvalidField("server_url", str(exc), code="server_not_allowed") from exc
    return ServerSpec(
        label=declared.server_label,
        transport=_guess(declared.server_url),
        url=place.url,
        headers=policy.headers.check(declared),
        is_untrusted=True,
        owner=_owner(identity),
        connect=policy.connect,
        largest=policy.largest,
        unsolicited=policy.unsolicited,
    )


def remembered(declared: McpTool) -> McpTool:
    """What of a declaration is needed to reach the server again."""
    return McpTool(
        server_label=declared.server_label,
        server_url=declared.server_url,
        authorization=declared.authorization,
        headers=declared.headers,
    )


def _owner(identity: Identity) -> tuple[str, str]:
    return identity.tenant, identity.owner


def _bearer(token: str) -> str:
    return token if token[:7].lower() == "bearer " else f"Bearer {token}"


def _guess(url: str) -> Transport:
    """A request does not say which: by custom, those of the older kind are called so."""
    return "sse" if urlsplit(url).path.rstrip("/").endswith("/sse") else "http"


# ---- what a request says of the operator's servers ----


def _check_place(server: McpServer, declared: McpTool) -> None:
    if declared.connector_id not in (UNSET, server.label):  # some clients must say one
        raise _unexpected("connector_id", f"{server.label!r} is a server of its own and no connector; leave it out.")
    if declared.server_url is UNSET:
        return
    if server.url is None or declared.server_url.rstrip("/") != server.url.rstrip("/"):
        raise _unexpected("server_url", f"{server.label!r} is a server of the operator's; leave its address out.")


def _brought(server: McpServer, declared: McpTool) -> str | None:
    """The credentials in the request. Other headers would tell the operator's server what only the operator may."""
    if server.authorization == "request":
        return next(iter(_ONLY_LOGIN.check(declared).values()), None)
    for field in ("authorization", "headers"):
        if getattr(declared, field):
            raise _unexpected(field, f"{server.label!r} is logged in to by this server itself; leave it out.")
    return None


_ONLY_LOGIN = HeaderRules(allow=("Authorization",))


def _unexpected(field: str, problem: str) -> InvalidField:
    return InvalidField(field, problem, code="unexpected_parameter")
