"""A backend over HTTP, whatever it speaks: its address and key, its list of models, its failures in our words."""

from __future__ import annotations

import asyncio
import ssl
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar
from urllib.parse import quote, unquote_plus, urlsplit

from msgspec import Raw

from antwort.api.responses import Model
from antwort.api.steps import Steps
from antwort.api.wire import encode, replace
from antwort.errors import (
    AntwortError,
    BackendCut,
    BackendError,
    BackendTimeout,
    BackendUnavailable,
    ContextTooLong,
)
from antwort.event_loop import in_turns, short_turn
from antwort.net.connection import Timeouts
from antwort.net.exchange import ConnectFailed, ConnectTimedOut, Cut, HttpFault, TimedOut
from antwort.net.http import HttpClient, Pool, Reply
from antwort.providers.answer_parser import DEFAULT_OUTPUT_BYTES, AnswerParser
from antwort.providers.base import Capabilities, ChatRequest, Delta, Finished
from antwort.providers.errors import CLOSED, CONNECT_TIMEOUT, REFUSED_CREDENTIALS, Asked, CheckRefused, error_for
from antwort.providers.models import Lengths, corrected, listed_models, told_beside
from antwort.providers.token_counter import Counter, Told, Way

__all__ = ["Pool", "Remote", "Timeouts"]

_LARGE_READ = 16 * 1024
_LARGE_READ_COST = 2
"""Reading so many bytes of a stream, and writing what comes of them, takes one to two milliseconds."""
ERROR_CAP = 256 * 1024
MODELS_CAP = 8 * 2**20
_MOST_LENGTHS = 64
_MOST_NAMES = 256
_LONGEST_NAME = 256
MODELS_SECONDS = 10.0
CHECK_SECONDS = 2.0
"""The most that a question that needs no inference may take from beginning to end, however the backend drips."""


class Remote(ABC):
    """`base_url` is what OpenAI's clients call it: `http://host:8000/v1`. What is said there is a subclass's matter."""

    path: ClassVar[str]
    """Where inferences are asked for, below the base address."""
    usual: ClassVar[Capabilities] = Capabilities()
    """What such backends take, unless the operator knows better."""
    ways: ClassVar[tuple[Way, ...]] = ()
    """How they may count tokens."""

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
        self._http = HttpClient(
            f"{url.scheme}://{url.netloc}", headers=own | dict(headers or {}), timeouts=timeouts, pool=pool, tls=tls
        )
        self._path = quote(url.path.rstrip("/"), safe=_IN_PATH)
        self._query = f"?{quote(url.query, safe=_IN_QUERY)}" if url.query else ""
        self._inferences = self._target(self.path)
        self._capabilities = capabilities or self.usual
        self._most = output_bytes
        self._by_length: dict[int | None, Capabilities] = {None: self._capabilities}
        self._by_name: dict[str, Capabilities] = {}
        """What comes of the list as it stands; names of models may be a client's invention, and as long as a body."""
        self._lengths = Lengths(self._capabilities.context_length)
        self._counter = Counter(self._post, self.ways)
        self._listed: set[tuple[str, str]] | None = None
        known = (api_key or "", url.netloc, url.hostname or "", self._http.host, *(headers or {}).values())
        self._secrets = tuple({secret for secret in (*known, *_values(url.query)) if len(secret) > 2})

    @property
    def open_connections(self) -> int:
        return self._http.open_connections

    async def infer(self, request: ChatRequest) -> AsyncGenerator[list[Delta], None]:
        body = self._body(request) if not _is_large(request) else await in_turns(self._body_steps(request))
        asked = Asked(request.model, self._secrets, body)
        try:
            async with await self._http.request("POST", self._inferences, body) as reply:
                await _raise_for(reply, asked)
                yield []  # the backend has answered
                reader = self._parser(asked, is_streamed=_is_streamed(reply, is_expected=request.stream is True))
                while not (reader.ended or reply.is_read):
                    data = reply.at_hand() or await reply.next()
                    if len(data) > _LARGE_READ:
                        await short_turn(_LARGE_READ_COST)
                    batch = reader.feed(data)
                    if reader.ended and not reader.is_cut:
                        reply.release()  # the rest of the message is only its end
                    if batch:
                        if isinstance(last := batch[-1], Finished):
                            self._lengths.answered(request.model, last.usage)
                        yield batch
            if batch := reader.finish():
                if isinstance(last := batch[-1], Finished):
                    self._lengths.answered(request.model, last.usage)
                yield batch
        except HttpFault as fault:
            raise _failure(fault) from fault
        except ContextTooLong as refusal:
            self._lengths.learn(request, refusal)
            raise

    @abstractmethod
    def _body(self, request: ChatRequest) -> bytes:
        """The request as this backend takes it."""

    @abstractmethod
    def _body_steps(self, request: ChatRequest) -> Steps[bytes]:
        """The same for a large one, in pieces."""

    @abstractmethod
    def _parser(self, asked: Asked, *, is_streamed: bool) -> AnswerParser:
        """Who reads its answer as it comes."""

    async def models(self) -> Sequence[Model]:
        try:
            async with asyncio.timeout(MODELS_SECONDS), await self._get("/models") as reply:
                await _raise_for(reply, Asked(secrets=self._secrets))
                models = listed_models(await reply.read(MODELS_CAP))
        except TimeoutError as exc:
            raise BackendTimeout(_TOO_SLOW) from exc
        except HttpFault as fault:
            raise self._lost(fault) from fault
        self._note_change(models)
        models = self._lengths.take(await self._told_more(models))
        self._by_name.clear()
        return models

    async def _told_more(self, models: list[Model]) -> Sequence[Model]:
        """With what the engine says of their contexts elsewhere, if it does, and does so at once."""
        if (path := told_beside(models)) is None:
            return models
        with suppress(HttpFault, TimeoutError):
            async with asyncio.timeout(CHECK_SECONDS), await self._get(path, is_beside=True) as reply:
                return corrected(models, await reply.read(MODELS_CAP)) if reply.status == 200 else models
        return models

    def capabilities(self, model: str) -> Capabilities:
        """The same object as long as nothing else is known: it is asked for with each inference."""
        known = self._by_name.get(model)
        if known is None or self._lengths.told:  # what a refusal told passes by itself
            known = self._looked_up(model)
        return known

    def _looked_up(self, model: str) -> Capabilities:
        length = self._lengths.of(model)
        known = self._by_length.get(length)
        if known is None:
            if len(self._by_length) >= _MOST_LENGTHS:
                self._by_length = {None: self._capabilities}
            known = self._by_length[length] = replace(self._capabilities, context_length=length)
        if not self._lengths.told and len(model) <= _LONGEST_NAME:
            if len(self._by_name) >= _MOST_NAMES:
                self._by_name.clear()
            self._by_name[model] = known
        return known

    async def count(self, request: ChatRequest) -> int | None:
        return await self._counter.count(request)

    async def check(self) -> None:
        """Raise `BackendUnavailable` unless the backend takes requests; that it does not list models is no fault."""
        try:
            async with asyncio.timeout(CHECK_SECONDS), await self._get("/models") as reply:
                status = reply.status
                reply.release()
        except (HttpFault, TimeoutError) as exc:
            self._forget()
            raise BackendUnavailable(_UNREACHABLE) from exc
        if problem := _problem(status):
            raise CheckRefused(problem)

    async def close(self) -> None:
        await self._http.close()

    def _lost(self, fault: HttpFault) -> AntwortError:
        self._forget()
        return _failure(fault)

    def _forget(self) -> None:
        self._counter.forget()
        self._lengths.forget()

    def _note_change(self, models: Sequence[Model]) -> None:
        """Another list is another engine, mostly, and that may count."""
        listed = {(model.id, model.owned_by) for model in models}
        if self._listed not in (None, listed):
            self._counter.forget()
        self._listed = listed

    async def _get(self, path: str, *, is_beside: bool = False) -> Reply:
        return await self._http.request("GET", self._target(path, is_beside=is_beside))

    async def _post(self, path: str, body: bytes, *, is_beside: bool = False) -> Told:
        async with await self._http.request("POST", self._target(path, is_beside=is_beside), body) as reply:
            return Told(reply.status, await reply.read(MODELS_CAP))

    def _target(self, path: str, *, is_beside: bool = False) -> str:
        """Below the base address; or beside it, where engines have what is theirs alone."""
        base = self._path.removesuffix("/v1") if is_beside else self._path
        return f"{base}{path}{self._query}"


# ---- the request ----

_LARGE = 2**20
_MANY_PARTS = 1000


def _is_large(request: ChatRequest) -> bool:
    """Whether it takes long to write: about that many characters, or many parts."""
    contents = [message.content for message in request.messages if message.content]
    size = sum([len(content) for content in contents if isinstance(content, str)])
    for content in contents:
        if size >= _LARGE:
            return True
        if not isinstance(content, str):
            size += _LARGE if len(content) > _MANY_PARTS else sum(map(_size_of, content))
    return size >= _LARGE


def _size_of(part: Mapping[str, Any]) -> int:
    """The texts in a part, and in what is in it."""
    inner = [value for value in part.values() if isinstance(value, dict)]
    texts = [text for values in (part, *inner) for text in values.values() if isinstance(text, str)]
    return sum(map(len, texts))


def written_steps(entries: Sequence[Any], field: str = "content") -> Steps[list[Any]]:
    """The entries of a list as JSON, each by itself, and so are those of a list that each may hold under `field`."""
    written: list[Any] = []
    for entry in entries:
        inner = entry.get(field) if isinstance(entry, dict) else getattr(entry, field, None)
        if isinstance(inner, list):
            parts = []
            for number, part in enumerate(inner):
                parts.append(Raw(encode(part)))
                if number % 100 == 0 or number < 100:
                    yield
            changed = {**entry, field: parts} if isinstance(entry, dict) else replace(entry, **{field: parts})
            written.append(Raw(encode(changed)))
        else:
            written.append(Raw(encode(entry)))
        yield
    return written


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
    return reply.headers.is_events or (is_expected and not reply.headers.is_json)


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
