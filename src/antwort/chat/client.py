"""Speak to the server over HTTP."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Iterator
from typing import TypeVar
from urllib.parse import quote, urlsplit

import msgspec

from antwort.api.wire import encode
from antwort.chat.answer import ReceivedEvent, message_in, read_event
from antwort.errors import NotAuthenticated
from antwort.net.client import HttpClient, HttpResponse, Timeouts
from antwort.net.response import ConnectionLost, HttpError, InvalidResponse, ResponseTimeout
from antwort.net.sse import SseParser

T = TypeVar("T")

_LOOKUP = Timeouts(connect=2.0, first_byte=10.0, idle=10.0)
_PROBE = Timeouts(connect=0.5, first_byte=2.0, idle=2.0)
_ANSWER = Timeouts(connect=5.0, first_byte=900.0, idle=900.0)
_MAX_BYTES = 16 * 2**20
_END = b"[DONE]"


class ChatError(Exception):
    """An error whose message is one line for the user."""


class ServerGone(ChatError):
    """The server cannot be reached, or the connection was lost."""


class RequestRefused(ChatError):
    """The server answered with an error."""

    def __init__(self, status: int, message: str, code: str = "", param: str = "") -> None:
        super().__init__(message)
        self.status, self.code, self.param = status, code, param


class _Named(msgspec.Struct, frozen=True):
    name: str


class ListedToolset(msgspec.Struct, frozen=True, rename={"label": "server_label"}):
    """The tools that a server offers under a label. `error` says why they could not be listed."""

    label: str
    tools: tuple[_Named, ...] = ()
    error: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(tool.name for tool in self.tools)


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: tuple[_Model, ...]


class _Toolsets(msgspec.Struct):
    data: tuple[ListedToolset, ...]


class _Health(msgspec.Struct):
    status: str


class _ErrorBody(msgspec.Struct):
    error: object = None

    def get(self, name: str) -> str:
        return str(self.error.get(name) or "") if isinstance(self.error, dict) else ""


class ServerClient:
    """Client of the server at `url`, with or without `/v1` at its end. Raises `ValueError` for an invalid URL."""

    def __init__(self, url: str, key: str | None = None) -> None:
        parts = urlsplit(url.strip())
        self.url = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/v1')}"
        self._root = f"{parts.path.rstrip('/').removesuffix('/v1')}/v1"
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._http = HttpClient(f"{parts.scheme}://{parts.netloc}", headers=headers, timeouts=_LOOKUP)

    async def close(self) -> None:
        await self._http.close()

    async def is_antwort(self) -> bool:
        """Return whether antwort answers there, without sending a key: other programs use the same port."""
        found = []
        try:
            for path in ("/healthz", "/v1/toolsets"):
                async with await self._http.request("GET", path, timeouts=_PROBE) as response:
                    found.append((response.status, await response.read(_MAX_BYTES)))
        except HttpError:
            return False
        (_, health), (status, body) = found
        if _read(health, _Health) != _Health("ok"):
            return False
        if status != 401:
            return _read(body, _Toolsets) is not None
        return (_read(body, _ErrorBody) or _ErrorBody()).get("code") == NotAuthenticated.code

    async def models(self) -> list[str]:
        return [model.id for model in (await self._get("models", _Models)).data]

    async def toolsets(self) -> list[ListedToolset]:
        """Return what the server offers by label; nothing for a server without such a list."""
        try:
            return list((await self._get("toolsets", _Toolsets)).data)
        except RequestRefused:
            return []

    async def events(self, request: dict[str, object]) -> AsyncGenerator[ReceivedEvent, None]:
        """Yield the events of the answer. Closing the generator closes the connection, which ends the run."""
        with self._errors():
            response = await self._http.request("POST", f"{self._root}/responses", encode(request), _ANSWER)
            async with response:
                await self._check(response)
                parser = SseParser()
                async for data in response:
                    for payload in parser.feed(data):
                        if payload != _END:
                            yield read_event(payload)
                    if parser.open_size > _MAX_BYTES:
                        raise InvalidResponse("an event is too long")

    async def cancel(self, response_id: str) -> None:
        """Cancel a response if it has not ended. Errors are ignored."""
        with contextlib.suppress(HttpError):
            target = f"{self._root}/responses/{quote(response_id, safe='')}/cancel"
            (await self._http.request("POST", target, timeouts=_PROBE)).close()

    async def _get(self, path: str, to: type[T]) -> T:
        with self._errors():
            async with await self._http.request("GET", f"{self._root}/{path}") as response:
                await self._check(response)
                read = _read(await response.read(_MAX_BYTES), to)
        if read is None:
            raise RequestRefused(502, f"What answers at {self.url} is not a server of the Responses API.")
        return read

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except ResponseTimeout as exc:
            raise ServerGone(f"The server at {self.url} does not answer.") from exc
        except InvalidResponse as exc:
            raise ServerGone(f"What answers at {self.url} is not understood.") from exc
        except ConnectionLost as exc:
            raise ServerGone(f"The connection to {self.url} was lost.") from exc
        except HttpError as exc:
            raise ServerGone(f"The server at {self.url} cannot be reached.") from exc

    async def _check(self, response: HttpResponse) -> None:
        if response.status < 400:
            return
        body = _read(await response.read(_MAX_BYTES), _ErrorBody) or _ErrorBody()
        message = message_in(body.error) or f"The server answered with the status {response.status}."
        if response.status == 401:
            message += " Give the server's key by --key-file FILE, or in ANTWORT_API_KEY."
        raise RequestRefused(response.status, message, body.get("code"), body.get("param"))


def _read(body: bytes, to: type[T]) -> T | None:
    try:
        return msgspec.json.decode(body, type=to)
    except (ValueError, RecursionError):
        return None
