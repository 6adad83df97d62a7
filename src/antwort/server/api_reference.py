"""Serve the server's own description: `/openapi.json`, and `/docs`, where Swagger UI shows it.

Swagger UI is the npm package `swagger-ui-dist`, unchanged in `vendored/`. The page requests nothing of other servers,
and its Content-Security-Policy keeps it so.
"""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections.abc import Callable, Iterable
from functools import cache
from hashlib import sha256
from pathlib import Path
from time import monotonic
from urllib.parse import quote

from antwort.api.wire import Plain, encode
from antwort.engine.engine import Engine
from antwort.errors import NotFound
from antwort.server.errors import Headers
from antwort.server.exchange import Exchange
from antwort.server.offer import Offer

_FOLDER = Path(__file__).parent / "vendored" / "swagger-ui"
FILES = {"swagger-ui-bundle.js": b"text/javascript; charset=utf-8", "swagger-ui.css": b"text/css; charset=utf-8"}
# Swagger UI leaves these dark on dark.
_STYLE = """
.dark-mode .swagger-ui table.headers td.header-col,
.dark-mode .swagger-ui .examples-select .examples-select__section-label { color: #e4e6e6; }
"""
_SCRIPT = """
const dark = matchMedia("(prefers-color-scheme: dark)");
const follow = () => document.documentElement.classList.toggle("dark-mode", dark.matches);
dark.addEventListener("change", follow);
follow();
const ui = SwaggerUIBundle({
  url: "openapi.json", dom_id: "#swagger-ui", validatorUrl: null, deepLinking: true, tryItOutEnabled: true,
  displayRequestDuration: true, defaultModelsExpandDepth: 0,
  onComplete: () => location.hash || ui.layoutActions.show(["operations", "Responses", "createResponse"], true),
});
"""

_MODEL_SECONDS = 5.0
"""How long to reuse the model of the examples: anyone may request the document, and a backend may be asked for it."""
_MODEL_TIMEOUT_SECONDS = 2.0


class ApiReference:
    """Answer requests for the document, the page and its files. `offered` returns the routes; `offer` what they offer,
    which may change with the settings.
    """

    def __init__(
        self, offered: Callable[[], Iterable[tuple[str, str]]], offer: Callable[[], Offer], engine: Engine
    ) -> None:
        self._offered, self._offer, self._engine = offered, offer, engine
        self._document: Plain = {}
        self._model = ""
        self._made_from: tuple[str, Offer] | None = None
        self._asked_at = -_MODEL_SECONDS
        self._updating = asyncio.Lock()

    async def document(self, exchange: Exchange, _: str) -> None:
        """The examples name a model of this server, and the server URL is where the application is mounted."""
        from antwort.server.openapi import document, servers

        async with self._updating:
            self._model = await self._current_model()
            if self._made_from != (made_from := (self._model, self._offer())):
                model, offer = made_from
                self._document = await asyncio.to_thread(document, tuple(self._offered()), offer, model)
                self._made_from = made_from
        root = quote(exchange.scope.get("root_path", "").rstrip("/"))
        body = encode({**self._document, "servers": servers(root or "/")})
        await _answer(exchange, body, _etag(body), b"application/json", [_NO_CACHE])

    async def _current_model(self) -> str:
        """Return the default model, or the first one; if none is known, the one before."""
        if default := self._engine.settings.default_model:
            return default
        now = monotonic()
        if now - self._asked_at < _MODEL_SECONDS:
            return self._model
        self._asked_at = now
        try:
            async with asyncio.timeout(_MODEL_TIMEOUT_SECONDS):
                models = await self._engine.models()
        except Exception:  # a provider may raise anything
            return self._model
        return models[0].id if models else self._model

    async def page(self, exchange: Exchange, file: str) -> None:
        """Answer with the page or one of its files, which it requests by version: browsers may cache them forever."""
        if not file:
            body, policy = _page()
            headers = [_NO_CACHE, _NO_SNIFF, (b"content-security-policy", policy)]
            await _answer(exchange, body, _etag(body), b"text/html; charset=utf-8", headers)
        elif file in FILES:
            body, tag = await asyncio.to_thread(_file, file)
            await _answer(exchange, body, tag, FILES[file], [_IMMUTABLE, _NO_SNIFF])
        else:
            raise NotFound(f"There is nothing at {exchange.path[:256]!r}.", code="unknown_url")


_NO_CACHE = (b"cache-control", b"no-cache")  # browsers store it, and ask each time whether it has changed
_IMMUTABLE = (b"cache-control", b"public, max-age=31536000, immutable")
_NO_SNIFF = (b"x-content-type-options", b"nosniff")


@cache
def _file(name: str) -> tuple[bytes, bytes]:
    """Return a file and its ETag."""
    body = (_FOLDER / name).read_bytes()
    return body, _etag(body)


@cache
def _page() -> tuple[bytes, bytes]:
    """Return the page and its Content-Security-Policy."""
    version = json.loads((_FOLDER / "package.json").read_text())["version"]
    page = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1"><title>antwort: API reference</title>'
        f'<link rel="icon" href="data:,"><link rel="stylesheet" href="docs/swagger-ui.css?v={version}">'
        f'<style>{_STYLE}</style></head><body><div id="swagger-ui"></div>'
        f'<script src="docs/swagger-ui-bundle.js?v={version}"></script><script>{_SCRIPT}</script></body></html>'
    )
    script, style = (b64encode(sha256(text.encode()).digest()).decode() for text in (_SCRIPT, _STYLE))
    policy = (
        "default-src 'none'; connect-src 'self'; img-src 'self' data:;"
        f" script-src 'self' 'sha256-{script}'; style-src 'self' 'sha256-{style}';"
        " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return page.encode(), policy.encode()


def _etag(body: bytes) -> bytes:
    return b'"%b"' % sha256(body).hexdigest()[:32].encode()


async def _answer(exchange: Exchange, body: bytes, tag: bytes, kind: bytes, headers: Headers) -> None:
    """Answer with `body`, or with a 304 if the client has it already."""
    known = (exchange.headers.get(b"if-none-match") or b"").split(b",")
    if any(each.strip().removeprefix(b"W/") in (tag, b"*") for each in known):
        await exchange.answer_empty(304, [(b"etag", tag), *headers])
    else:
        await exchange.answer(body, headers=[(b"etag", tag), *headers], kind=kind)
