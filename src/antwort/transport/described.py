"""The server's own description: the OpenAPI document and the page that shows it, made when first asked for."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable
from hashlib import sha256
from html import escape
from urllib.parse import quote

from antwort.api.requests import Limits
from antwort.api.wire import Plain, encode
from antwort.transport.errors import Headers
from antwort.transport.exchange import Exchange, Scope

_HOST = re.compile(rb"[A-Za-z0-9._:\[\]-]{1,255}")
_CACHE = (b"cache-control", b"no-cache")  # kept, and asked about each time


class Description:
    """What the routes offer, in words. Making it takes a while and is left to a thread; it is made once."""

    def __init__(self, offered: Callable[[], Iterable[tuple[str, str]]], limits: Limits) -> None:
        self._offered, self._limits = offered, limits
        self._documents: dict[bool, bytes] = {}
        self._pages: dict[bool, str] = {}

    async def answer_document(self, exchange: Exchange, *, asks_for_keys: bool) -> None:
        if asks_for_keys not in self._documents:
            self._documents[asks_for_keys] = encode(await asyncio.to_thread(self._make, asks_for_keys))
        await _answer(exchange, self._documents[asks_for_keys], b"application/json")

    async def answer_page(self, exchange: Exchange, *, asks_for_keys: bool) -> None:
        """The commands in it are right for the address that the page was asked for under."""
        if asks_for_keys not in self._pages:
            self._pages[asks_for_keys] = await asyncio.to_thread(self._write, asks_for_keys)
        from antwort.transport.openapi.page import ADDRESS, POLICY

        body = self._pages[asks_for_keys].replace(ADDRESS, escape(address_of(exchange.scope)))
        guarded = [(b"content-security-policy", POLICY.encode()), (b"x-content-type-options", b"nosniff")]
        await _answer(exchange, body.encode(), b"text/html; charset=utf-8", guarded)

    def _make(self, asks_for_keys: bool) -> Plain:
        from antwort.transport.openapi.document import document

        return document(self._offered(), limits=self._limits, asks_for_keys=asks_for_keys)

    def _write(self, asks_for_keys: bool) -> str:
        from antwort.transport.openapi.page import page

        return page(self._make(asks_for_keys))


async def _answer(exchange: Exchange, body: bytes, kind: bytes, headers: Headers | None = None) -> None:
    """With nothing, where the client has it already."""
    tag = b'"%b"' % sha256(body).hexdigest()[:32].encode()
    about = [(b"etag", tag), _CACHE, *(headers or ())]
    known = (exchange.header(b"if-none-match") or b"").split(b",")
    if any(each.strip().removeprefix(b"W/") in (tag, b"*") for each in known):
        await exchange.answer_empty(304, about)
    else:
        await exchange.answer(body, headers=about, kind=kind)


def address_of(scope: Scope) -> str:
    """Where a client reaches the application, as far as its request shows."""
    headers: dict[bytes, bytes] = dict(scope["headers"])
    host = headers.get(b"host", b"")
    root = quote(scope.get("root_path", "").rstrip("/"))
    if not _HOST.fullmatch(host):
        name, port = scope.get("server") or ("", None)
        host = (f"{name}:{port}" if port else "localhost").encode()
    return f"{scope.get('scheme', 'http')}://{host.decode()}{root}"
