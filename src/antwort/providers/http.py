"""Send requests to a backend over HTTP: what the providers of all APIs share."""

from __future__ import annotations

import asyncio
import ssl
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar, Protocol
from urllib.parse import quote, unquote_plus, urlsplit

from msgspec import Raw

from antwort.api.responses import Model
from antwort.api.wire import encode, replace
from antwort.errors import AntwortError, BackendTimeout, BackendUnavailable, ContextTooLong
from antwort.event_loop import Pace, short_turn
from antwort.limiter import Limiter
from antwort.net.client import HttpClient, HttpResponse, Pool
from antwort.net.connection import Timeouts
from antwort.net.response import HttpError
from antwort.providers.answer_parser import DEFAULT_OUTPUT_BYTES, AnswerParser, max_json_bytes
from antwort.providers.base import Capabilities, ChatRequest, Delta, Finished
from antwort.providers.errors import (
    TOO_SLOW,
    UNREACHABLE,
    SentRequest,
    check_error,
    connection_error,
    error_for,
)
from antwort.providers.models import ContextLengths, ModelCache, context_length_path, parse_models, with_context_lengths
from antwort.providers.token_counter import BackendTokenCounter, CountMethod, CountReply

__all__ = ["HttpProvider", "Pool", "Timeouts"]

CHECK_TIMEOUT_SECONDS = 2.0
MODELS_TIMEOUT_SECONDS = 10.0
"""Both bound the whole exchange, however slowly the backend sends."""
_MAX_ERROR_BYTES = 256 * 1024
_MAX_BODY_BYTES = 8 * 2**20
"""The limit for lists of models and token counts."""
_LARGE_READ_BYTES = 16 * 1024
_LARGE_READ_COST = 2
"""In short pieces of work, the unit of `short_turn`. Parsing a read of `_LARGE_READ_BYTES`, and writing its events,
takes one to two milliseconds.
"""


class BackendClient(Protocol):
    """What sends the requests of a provider: an `HttpClient`, or one that finds the backend's address first."""

    async def request(self, method: str, target: str, body: bytes | None = None) -> HttpResponse: ...

    async def close(self) -> None: ...

    @property
    def open_connections(self) -> int: ...


class HttpProvider(ABC):
    """A backend at a `base_url` such as `http://host:8000/v1`. Subclasses know its API."""

    path: ClassVar[str]
    """The path of inferences below the base URL."""
    default_capabilities: ClassVar[Capabilities] = Capabilities()
    """The capabilities of such backends, unless they are configured."""
    count_methods: ClassVar[tuple[CountMethod, ...]] = ()
    """The methods of such backends to count tokens."""
    parser: ClassVar[type[AnswerParser]]
    """Parses an answer."""

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
        output_bytes: int = DEFAULT_OUTPUT_BYTES,
    ) -> None:
        url = urlsplit(base_url)
        if url.username is not None or url.password is not None:
            raise ValueError("a backend's address carries no credentials; give its key as the API key")
        own = {"Accept-Encoding": "identity"} | ({"Authorization": f"Bearer {api_key}"} if api_key else {})
        client = HttpClient(
            f"{url.scheme}://{url.netloc}", headers=own | dict(headers or {}), timeouts=timeouts, pool=pool, tls=tls
        )
        self._http: BackendClient = client
        self._limiter: Limiter | None = None
        """Limits how many inferences run at once; None: no limit."""
        self._path = quote(url.path.rstrip("/"), safe=_IN_PATH)
        self._query = f"?{quote(url.query, safe=_IN_QUERY)}" if url.query else ""
        self._inference_path = self._target(self.path)
        self._capabilities = capabilities or self.default_capabilities
        self._max_output_bytes, self._max_body_bytes = output_bytes, max_json_bytes(output_bytes)
        self._by_name = ModelCache[str, Capabilities]()
        """A cache until the next list of models."""
        self._lengths = ContextLengths(self._capabilities.context_length)
        self._counter = BackendTokenCounter(self._post, self.count_methods)
        self._listed: set[tuple[str, str]] | None = None
        known = (api_key or "", url.netloc, url.hostname or "", client.host, *(headers or {}).values())
        self._secrets = tuple({secret for secret in (*known, *_query_values(url.query)) if len(secret) > 2})

    @property
    def open_connections(self) -> int:
        return self._http.open_connections

    async def infer(self, request: ChatRequest) -> AsyncGenerator[list[Delta], None]:
        body = await self.serialize(request)
        is_streamed = request.stream is True
        out: list[Delta] = []
        """The answer to a request that is not streamed, which is one batch in whatever form it comes."""
        if self._limiter is not None:
            await self._limiter.acquire()
        try:
            reply = await self._http.request("POST", self._inference_path, body)
            sent = SentRequest(request.model, self._secrets, body)
            has_answered = False
            try:
                if not 200 <= reply.status < 300:
                    raise await _refusal(reply, sent)
                has_answered = True
                if is_streamed:
                    yield []
                parser = self.parser(sent, self._max_output_bytes)
                headers = reply.headers  # the content type counts first, then what was requested
                if headers.is_events or (is_streamed and not headers.is_json):
                    async for data in reply:
                        if len(data) > _LARGE_READ_BYTES:
                            await short_turn(_LARGE_READ_COST)
                        out += parser.feed(data)
                        if parser.ended:
                            if not parser.is_cut and not reply.is_complete:
                                reply.release()  # only the end of the HTTP message is left
                            break
                        if is_streamed and out:
                            yield out
                            out = []
                    out += parser.finish()
                else:
                    data = await reply.read(self._max_body_bytes)
                    if len(data) > _LARGE_READ_BYTES:
                        await short_turn(_LARGE_READ_COST)
                    out = parser.parse_body(data)
            except (AntwortError, HttpError):
                if has_answered and (out or not is_streamed):
                    yield out  # an empty batch says that the backend has answered
                raise
            finally:
                if not reply.is_complete:
                    reply.close()
            if out:
                if isinstance(end := out[-1], Finished):
                    self._lengths.record_answer(request.model, end.usage)
                yield out
        except HttpError as fault:
            raise connection_error(fault) from fault
        except ContextTooLong as refusal:
            self._lengths.learn(request, refusal)
            raise
        finally:
            if self._limiter is not None:
                self._limiter.release()

    @abstractmethod
    async def serialize(self, request: ChatRequest) -> bytes:
        """Serialize a request for this backend, with pauses for other tasks where that takes long."""

    async def models(self) -> Sequence[Model]:
        try:
            async with asyncio.timeout(MODELS_TIMEOUT_SECONDS), await self._get("/models") as reply:
                if not 200 <= reply.status < 300:
                    raise await _refusal(reply, SentRequest(secrets=self._secrets))
                models = parse_models(await reply.read(_MAX_BODY_BYTES))
        except TimeoutError as exc:
            raise BackendTimeout(TOO_SLOW) from exc
        except HttpError as fault:
            self._forget()
            raise connection_error(fault) from fault
        listed = {(model.id, model.owned_by) for model in models}
        if self._listed not in (None, listed):
            self._counter.forget()  # the engine may be another one
        self._listed = listed
        models = self._lengths.update(await self._complete_lengths(models))
        self._by_name.clear()
        return models

    async def _complete_lengths(self, models: list[Model]) -> Sequence[Model]:
        """Add the context lengths that the engine has at another endpoint, unless that fails or takes long."""
        if (path := context_length_path(models)) is None:
            return models
        with suppress(HttpError, TimeoutError):
            async with asyncio.timeout(CHECK_TIMEOUT_SECONDS), await self._get(path, is_unversioned=True) as reply:
                if reply.status == 200:
                    return with_context_lengths(models, await reply.read(_MAX_BODY_BYTES))
        return models

    def capabilities(self, model: str) -> Capabilities:
        """Return the capabilities with the model's context length. The object is cached: every inference needs it."""
        known = self._by_name.get(model)
        if known is not None and not self._lengths.refused:  # a length from a refusal expires by itself
            return known
        length = self._lengths.of(model)
        known = self._capabilities if length is None else replace(self._capabilities, context_length=length)
        if not self._lengths.refused:
            self._by_name.put(model, known)
        return known

    async def count(self, request: ChatRequest) -> int | None:
        return await self._counter.count(request)

    async def check(self) -> None:
        """Raise `BackendUnavailable` unless the backend takes requests. It need not have a list of models."""
        try:
            async with asyncio.timeout(CHECK_TIMEOUT_SECONDS), await self._get("/models") as reply:
                status = reply.status
                reply.release()
        except (HttpError, TimeoutError) as exc:
            self._forget()
            raise BackendUnavailable(UNREACHABLE) from exc
        if (error := check_error(status)) is not None:
            raise error

    async def close(self) -> None:
        await self._http.close()

    def _forget(self) -> None:
        """Forget what was learned: the backend is gone, and another one may take its place."""
        self._counter.forget()
        self._lengths.forget()

    async def _get(self, path: str, *, is_unversioned: bool = False) -> HttpResponse:
        return await self._http.request("GET", self._target(path, is_unversioned=is_unversioned))

    async def _post(self, path: str, body: bytes, *, is_unversioned: bool = False) -> CountReply:
        async with await self._http.request("POST", self._target(path, is_unversioned=is_unversioned), body) as reply:
            return CountReply(reply.status, await reply.read(_MAX_BODY_BYTES))

    def _target(self, path: str, *, is_unversioned: bool = False) -> str:
        """Return a path below the base URL; `is_unversioned`: beside its `/v1`, for engines' own endpoints."""
        base = self._path.removesuffix("/v1") if is_unversioned else self._path
        return f"{base}{path}{self._query}"


# ---- the request ----

UNPAUSED_CHARS = 2**18
"""Text that is serialized without a pause: it takes less than a millisecond."""


async def encode_parts(content: Sequence[Any], pace: Pace) -> list[Any]:
    """Serialize the parts of a content one by one, with pauses for other tasks: one may hold a large image."""
    parts = []
    for part in content:
        parts.append(Raw(encode(part)))
        await pace.pause()
    return parts


# ---- the address ----

_IN_PATH = "/%:@!$&'()*+,;=~"
_IN_QUERY = _IN_PATH + "?"


def _query_values(query: str) -> Iterator[str]:
    """Yield the values of a query, quoted and unquoted: some backends take their key there."""
    for field in query.split("&"):
        name, _, value = field.partition("=")
        yield from (value, unquote_plus(value)) if value else (name, unquote_plus(name))


# ---- the answer ----


async def _refusal(reply: HttpResponse, sent: SentRequest) -> AntwortError:
    """Return the error that the backend has answered with."""
    try:
        body = await reply.read(_MAX_ERROR_BYTES)
    except HttpError:
        body = b""  # the status is enough
    return error_for(reply.status, reply.headers, body, sent)
