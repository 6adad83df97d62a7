"""The server's own description: what it offers, and the OpenAPI document and page that say so."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable
from hashlib import sha256
from html import escape
from typing import Literal, TypeAlias
from urllib.parse import quote

import msgspec

from antwort.api.decoding import Limits
from antwort.api.wire import Plain, encode
from antwort.engine.settings import EngineSettings
from antwort.server.auth import is_near
from antwort.server.errors import Headers
from antwort.server.exchange import Exchange, Scope

_HOST = re.compile(rb"[A-Za-z0-9._:\[\]-]{1,255}")
_CACHE = (b"cache-control", b"no-cache")  # kept, and asked about each time
_PROXIED = frozenset(
    {b"forwarded", b"via", b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto", b"x-real-ip"}
)

Credentials: TypeAlias = Literal["none", "key", "own"]
"""What a request must bring: nothing, an API key, or what the program wants that the server is a part of."""
Access: TypeAlias = Literal["open", "locked", "hidden"]
"""What a client without a key finds: all of it, a 401, or nothing."""


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """What differs from one server to the next. By default, as much as there can be."""

    limits: Limits = Limits()
    credentials: Credentials = "key"
    metrics: Access = "locked"
    remembers_keys: bool = True
    """Whether an `Idempotency-Key` means anything."""
    tells_quotas: bool = True
    """Whether answers say how much of a minute's share is left."""
    requires_action: Literal["status", "event", "completed"] = "status"
    """How a response ends whose calls are the client's to run."""
    strict: bool = False
    """Whether it writes to the letter of the standard."""
    websocket: bool = True
    """Whether responses can be had over WebSocket."""
    background: bool = True
    """Whether they are made in the background, too."""


def offer_of(
    settings: EngineSettings, *, credentials: Credentials, metrics: Access, tells_quotas: bool, websocket: bool
) -> Offer:
    return Offer(
        limits=settings.limits,
        credentials=credentials,
        metrics=metrics,
        remembers_keys=settings.idempotency > 0,
        tells_quotas=tells_quotas,
        requires_action=settings.requires_action,
        strict=settings.strict,
        websocket=websocket,
        background=settings.background.enabled,
    )


class Description:
    """The OpenAPI document of the routes, and the page that shows it. Both are made once, in a thread."""

    def __init__(self, offered: Callable[[], Iterable[tuple[str, str]]], offer: Offer) -> None:
        self._offered, self._offer = offered, offer
        self._document: Plain = {}
        self._page = ""

    async def answer_document(self, exchange: Exchange, _: str) -> None:
        """Answer with the document, which says where the application is mounted."""
        if not self._document:
            self._document = await asyncio.to_thread(self._make)
        mounted = {**self._document, "servers": servers(_root(exchange.scope) or "/")}
        await _answer(exchange, encode(mounted), b"application/json")

    async def answer_page(self, exchange: Exchange, _: str) -> None:
        """Answer with the page. Its commands have the address that the page was requested under, or a place for it."""
        if not self._page:
            self._page = await asyncio.to_thread(self._write)
        from antwort.server.openapi.page import ADDRESS, POLICY, WHERE, where

        address = address_of(exchange.scope)
        told = "" if address else where(_root(exchange.scope))
        body = self._page.replace(WHERE, told).replace(ADDRESS, escape(address or "$ANTWORT"))
        guarded = [(b"content-security-policy", POLICY.encode()), (b"x-content-type-options", b"nosniff")]
        await _answer(exchange, body.encode(), b"text/html; charset=utf-8", guarded)

    def _make(self) -> Plain:
        from antwort.server.openapi.document import document

        return document(self._offered(), self._offer)

    def _write(self) -> str:
        from antwort.server.openapi.page import page

        return page(self._make())


def servers(url: str) -> list[Plain]:
    return [{"url": url, "description": "This server."}]


async def _answer(exchange: Exchange, body: bytes, kind: bytes, headers: Headers | None = None) -> None:
    """Answer with the body, or with 304 if the client has it already."""
    tag = b'"%b"' % sha256(body).hexdigest()[:32].encode()
    about = [(b"etag", tag), _CACHE, *(headers or ())]
    known = (exchange.headers.get(b"if-none-match") or b"").split(b",")
    if any(each.strip().removeprefix(b"W/") in (tag, b"*") for each in known):
        await exchange.answer_empty(304, about)
    else:
        await exchange.answer(body, headers=about, kind=kind)


def address_of(scope: Scope) -> str | None:
    """Return where a client reaches the application, or None if its request does not show that.

    If it came unencrypted from another machine, or through a proxy, clients may know another address, and commands that
    carry a key must not be sent to this one.
    """
    headers: dict[bytes, bytes] = dict(scope["headers"])
    host, scheme = headers.get(b"host", b""), scope.get("scheme", "http")
    if not _HOST.fullmatch(host) or not _PROXIED.isdisjoint(headers):
        return None
    if scheme != "https" and not is_near(host.decode()):
        return None
    return f"{scheme}://{host.decode()}{_root(scope)}"


def _root(scope: Scope) -> str:
    return quote(scope.get("root_path", "").rstrip("/"))
