"""What can be wrong with the settings for MCP servers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from urllib.parse import urlsplit

from antwort.config.addresses import without_query
from antwort.config.mcp import McpServerSettings, McpSettings
from antwort.config.names import is_token
from antwort.config.problems import Problem
from antwort.config.repeating import slip
from antwort.tools.base import HOUSE_LABEL, LABEL, LABEL_IN_WORDS

_OURS = ("connection", "content-length", "content-type", "host", "transfer-encoding")
_OF_A_COMMAND = ("env", "folder")
_OF_AN_ADDRESS = ("headers", "token", "oauth")


def about_servers(servers: Sequence[McpServerSettings]) -> Iterator[Problem]:
    labels: set[str] = set()
    for at, server in enumerate(servers):
        path = f"mcp_servers[{at}]"
        if server.label in labels:
            yield Problem(f"{path}.label", f"is the same as that of another MCP server: {server.label!r}")
        if not re.fullmatch(LABEL, server.label):
            yield Problem(f"{path}.label", f"must be {LABEL_IN_WORDS}")
        if server.label == HOUSE_LABEL:
            yield Problem(f"{path}.label", "is our own: calls that are refused show under it", "choose another")
        labels.add(server.label)
        yield from _about_place(server, path)
        yield from _about_login(server, path)
        yield from _about_headers(server, path)


def about_strangers(mcp: McpSettings) -> Iterator[Problem]:
    """What holds for servers that requests name by address."""
    if mcp.force_approval and mcp.require_approval == "never":
        problem = "means nothing where mcp.require_approval is `never`"
        yield Problem("mcp.force_approval", problem, "write `require_approval: always`, or leave it out")


def _about_place(server: McpServerSettings, path: str) -> Iterator[Problem]:
    if (server.url is None) == (not server.command):
        how = "has both a url and a command" if server.command else "needs either a url or a command"
        yield Problem(path, how, "write one of them")
        return
    if server.url is not None:
        yield from _about_address(server.url, f"{path}.url")
    elif not server.command[0].strip():
        yield Problem(f"{path}.command", "begins with no program")
    if server.command and server.transport != "http":
        yield Problem(f"{path}.transport", "is for servers with a url: a command speaks on its own input and output")
    meaningless, needed = (_OF_AN_ADDRESS, "url") if server.command else (_OF_A_COMMAND, "command")
    for field in meaningless:
        if getattr(server, field):
            yield Problem(f"{path}.{field}", f"means nothing without a {needed}", "leave it out")
    if any(not name or "=" in name or "\0" in name for name in server.env):
        yield Problem(f"{path}.env", "has a name that cannot be that of a variable")


def _about_address(url: str, path: str) -> Iterator[Problem]:
    """In words that repeat nothing that may be a secret."""
    url = url.strip()
    if "@" in url.partition("?")[0]:
        yield Problem(path, "must not carry a name or password", "give them as a token or in headers")
        return
    try:
        parts = urlsplit(url)
        is_usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_usable = False
    if not is_usable or not url.isprintable() or " " in url:
        shown = f"{without_query(url)!r} " if url.isascii() and url.isprintable() else ""
        yield Problem(path, f"{shown}is not a URL like https://tools.example.com/mcp")


def _about_login(server: McpServerSettings, path: str) -> Iterator[Problem]:
    ways = [
        name
        for name, is_set in (
            ("token", server.token is not None),
            ("oauth", server.oauth is not None),
            ("authorization: request", server.authorization == "request"),
        )
        if is_set
    ]
    if len(ways) > 1:
        yield Problem(path, f"has {' and '.join(ways)}: it can be logged in to in one way only", "leave one of them")
    if server.authorization == "request" and server.command:
        yield Problem(f"{path}.authorization", "means nothing without a url", "leave it out")
    if server.authorization == "request" and server.standing is not None:
        problem = "cannot be where authorization is `request`: a request that does not name it brings nothing"
        yield Problem(f"{path}.standing", problem, "leave one of them out")
    if server.oauth is not None and server.oauth.token_url is not None:
        yield from _about_address(server.oauth.token_url, f"{path}.oauth.token_url")


def _about_headers(server: McpServerSettings, path: str) -> Iterator[Problem]:
    logs_in = server.token is not None or server.oauth is not None or server.authorization == "request"
    for name in server.headers:
        if not is_token(name):
            yield Problem(f"{path}.headers", "has a name that cannot be that of a header", slip(name))
        elif name.lower() in _OURS or name.lower().startswith("mcp-"):
            yield Problem(f"{path}.headers", f"has {name!r}, which is not to be changed")
        elif name.lower() == "authorization" and logs_in:
            yield Problem(f"{path}.headers", "has 'Authorization' beside another way to log in", "leave one of them")
