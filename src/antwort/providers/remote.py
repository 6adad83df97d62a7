"""A backend over HTTP, whatever it speaks: its address and key, its list of models, its failures in our words."""

from __future__ import annotations

import asyncio
import ssl
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from typing import ClassVar
from urllib.parse import quote, unquote_plus, urlsplit

from antwort.api.responses import Model
from antwort.errors import AntwortError, BackendCut, BackendError, BackendTimeout, BackendUnavailable
from antwort.providers.base import Capabilities, ChatRequest, Delta
from antwort.providers.connection import Timeouts
from antwort.providers.exchange import ConnectFailed, ConnectTimedOut, Cut, HttpFault, TimedOut
from antwort.providers.failures import CLOSED, CONNECT_TIMEOUT, REFUSED_CREDENTIALS, Asked, error_for
from antwort.providers.http import HttpClient, Pool, Reply
from antwort.providers.listing import listed_models
from antwort.providers.reading import Reader

__all__ = ["Pool", "Remote", "Timeouts"]

ERROR_CAP = 256 * 1024
MODELS_CAP = 8 * 2**20
MODELS_SECONDS = 10.0
CHECK_SECONDS = 2.0
"""The most that a question that needs no inference may take from beginning to end, however the backend drips."""


class Remote(ABC):
    """`base_url` is what OpenAI's clients call it: `http://host:8000/v1`. What is said there is a subclass's matter."""

    path: ClassVar[str]
    """Where inferences are asked for, below the base address."""
    usual: ClassVar[Capabilities] = Capabilities()
    """What such backends take, unless the operator knows better."""

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        capabilities: Capabilities | None = None,
        timeouts: Timeouts | None = None,
        pool: Pool | None = None,
        headers: Mapping[str, str] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        url = urlsplit(base_url)
        if url.username is not None or url.password is not None:
            raise ValueError("a backend's address carries no credentials; give its key as the API key")
        own = {"Accept-Encoding": "identity"} | ({"Authorization": f"Bearer {api_key}"} if api_key else {})
        self._http = HttpClient(
            f"{url.scheme}://{url.netloc}", headers=own | dict(headers or {}), timeouts=timeouts, pool=pool, tls=tls
        )
        self._path = quote(url.path.rstrip("/"), safe=_IN_PATH)
        self._query = f"?{quote(url.query, safe=_IN_QUERY)}" if url.query else ""
        self._capabilities = capabilities or self.usual
        known = (api_key or "", url.netloc, url.hostname or "", self._http.host, *(headers or {}).values())
        self._secrets = tuple({secret for secret in (*known, *_values(url.query)) if len(secret) > 2})

    @property
    def open_connections(self) -> int:
        return self._http.open_connections

    async def infer(self, request: ChatRequest) -> AsyncGenerator[list[Delta], None]:
        asked = Asked(request.model, self._secrets)
        body = self._body(request)
        try:
            async with await self._http.request("POST", self._target(self.path), body) as reply:
                await _raise_for(reply, asked)
                yield []
                reader = self._reader(asked, is_streamed=_is_streamed(reply, is_expected=request.stream is True))
                async for data in reply.reads():
                    if batch := reader.feed(data):
                        yield batch
                    if reader.ended:
                        reply.release()
                        break
        except HttpFault as fault:
            raise _failure(fault) from fault
        if batch := reader.finish():
            yield batch

    @abstractmethod
    def _body(self, request: ChatRequest) -> bytes:
        """The request as this backend takes it."""

    @abstractmethod
    def _reader(self, asked: Asked, *, is_streamed: bool) -> Reader:
        """Who reads its answer."""

    async def models(self) -> Sequence[Model]:
        try:
            async with asyncio.timeout(MODELS_SECONDS), await self._get("/models") as reply:
                await _raise_for(reply, Asked(secrets=self._secrets))
                return listed_models(await reply.read(MODELS_CAP))
        except TimeoutError as exc:
            raise BackendTimeout(_TOO_SLOW) from exc
        except HttpFault as fault:
            raise _failure(fault) from fault

    def capabilities(self, model: str) -> Capabilities:  # noqa: ARG002 - one backend, one answer
        return self._capabilities

    async def check(self) -> None:
        """Raise `BackendUnavailable` unless the backend takes requests; that it does not list models is no fault."""
        try:
            async with asyncio.timeout(CHECK_SECONDS), await self._get("/models") as reply:
                status = reply.status
                reply.release()
        except (HttpFault, TimeoutError) as exc:
            raise BackendUnavailable(_UNREACHABLE) from exc
        if problem := _problem(status):
            raise BackendUnavailable(problem)

    async def close(self) -> None:
        await self._http.close()

    async def _get(self, path: str) -> Reply:
        return await self._http.request("GET", self._target(path))

    def _target(self, path: str) -> str:
        return f"{self._path}{path}{self._query}"


# ---- the address ----

_IN_PATH = "/%:@!$&'()*+,;=~"
_IN_QUERY = _IN_PATH + "?"


def _values(query: str) -> Iterator[str]:
    """The values in a query, as they are written and as they are meant: some backends take their key there."""
    for field in query.split("&"):
        name, _, value = field.partition("=")
        yield from (value, unquote_plus(value)) if value else (name, unquote_plus(name))


# ---- the answer ----


def _is_streamed(reply: Reply, *, is_expected: bool) -> bool:
    """A backend may answer in the other form than it was asked for; what it says it sends is believed."""
    kind = reply.headers.get("content-type", "").lower()
    if "event-stream" in kind:
        return True
    return False if "json" in kind else is_expected


async def _raise_for(reply: Reply, asked: Asked) -> None:
    if 200 <= reply.status < 300:
        return
    try:
        body = await reply.read(ERROR_CAP)
    except HttpFault:
        body = b""  # the status says enough
    raise error_for(reply.status, reply.headers, body, asked)


_UNREACHABLE = "The backend cannot be reached."
_TOO_SLOW = "The backend took too long."


def _problem(status: int) -> str:
    """What keeps a backend that answers with `status` from taking requests; empty when nothing does."""
    if status in (401, 403):
        return REFUSED_CREDENTIALS
    if 300 <= status < 400:
        return "The backend answers with a redirection: its address is not right."
    return "The backend is not ready." if status >= 500 else ""


def _failure(fault: HttpFault) -> AntwortError:
    match fault:
        case ConnectFailed():
            return BackendUnavailable(_UNREACHABLE)
        case ConnectTimedOut():
            return BackendTimeout("The backend cannot be reached: connecting took too long.", code=CONNECT_TIMEOUT)
        case TimedOut():
            return BackendTimeout(_TOO_SLOW)
        case Cut(heard=False):
            return BackendUnavailable("The backend closed the connection without an answer.", code=CLOSED)
        case Cut():
            return BackendCut("The backend's answer broke off.")
        case _:
            return BackendError("The backend's answer cannot be understood.")
