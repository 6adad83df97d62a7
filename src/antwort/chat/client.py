"""The server, over HTTP."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Iterator
from typing import TypeVar
from urllib.parse import quote, urlsplit

import msgspec

from antwort.api.wire import encode
from antwort.chat.frames import Frame, message_in, read_frame
from antwort.errors import NotAuthenticated
from antwort.net.client import HttpClient, HttpResponse, Timeouts
from antwort.net.response import ConnectionLost, HttpError, InvalidResponse, ResponseTimeout
from antwort.net.sse import SseParser

T = TypeVar("T")

_QUICK = Timeouts(connect=2.0, first_byte=10.0, idle=10.0)
_AT_ONCE = Timeouts(connect=0.5, first_byte=2.0, idle=2.0)
_PATIENT = Timeouts(connect=5.0, first_byte=900.0, idle=900.0)
_LARGEST = 16 * 2**20
_END = b"[DONE]"


class ChatFault(Exception):
    """Something that the person at the terminal is told, in one line."""


class ServerGone(ChatFault):
    """The server could not be reached, or was lost."""


class Refused(ChatFault):
    """The server answered with an error."""

    def __init__(self, status: int, message: str, code: str = "", param: str = "") -> None:
        super().__init__(message)
        self.status, self.code, self.param = status, code, param


class _Tool(msgspec.Struct, frozen=True):
    name: str


class Toolset(msgspec.Struct, frozen=True, rename={"label": "server_label"}):
    """What a server offers under a label; `error` says why it could not be asked."""

    label: str
    tools: tuple[_Tool, ...] = ()
    error: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(tool.name for tool in self.tools)


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: tuple[_Model, ...]


class _Toolsets(msgspec.Struct):
    data: tuple[Toolset, ...]


class _Health(msgspec.Struct):
    status: str


class _Fault(msgspec.Struct):
    error: object = None


class Client:
    """Speaks to the server at `url`, with or without the `/v1` at its end. Raises `ValueError` for what is no URL."""

    def __init__(self, url: str, key: str | None = None) -> None:
        parts = urlsplit(url.strip())
        self.url = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/v1')}"
        self._root = f"{parts.path.rstrip('/').removesuffix('/v1')}/v1"
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._http = HttpClient(f"{parts.scheme}://{parts.netloc}", headers=headers, timeouts=_QUICK)

    async def close(self) -> None:
        await self._http.close()

    async def is_there(self) -> bool:
        """Whether a server of ours answers, with or without a key: others listen on usual ports, too."""
        try:
            _, health = await self._look("/healthz")
            status, listed = await self._look("/v1/toolsets")
        except HttpError:
            return False
        return _read(health, _Health) == _Health("ok") and (
            _is_our_refusal(listed) if status == 401 else _read(listed, _Toolsets) is not None
        )

    async def _look(self, place: str) -> tuple[int, bytes]:
        async with await self._http.request("GET", place, timeouts=_AT_ONCE) as reply:
            return reply.status, await reply.read(_LARGEST)

    async def models(self) -> list[str]:
        return [model.id for model in (await self._get("models", _Models)).data]

    async def toolsets(self) -> list[Toolset]:
        """What the server offers by label; a server that does not tell has none that are known."""
        try:
            return list((await self._get("toolsets", _Toolsets)).data)
        except Refused:
            return []

    async def frames(self, request: dict[str, object]) -> AsyncGenerator[Frame, None]:
        """The events of the answer. Closing the generator tells the server that nobody listens any more."""
        with self._faults():
            reply = await self._http.request("POST", f"{self._root}/responses", encode(request), _PATIENT)
            async with reply:
                await self._check(reply)
                parser = SseParser()
                async for data in reply:
                    for payload in parser.feed(data):
                        if payload != _END:
                            yield read_frame(payload)
                    if parser.open_size > _LARGEST:
                        raise InvalidResponse("an event is too long")

    async def cancel(self, response_id: str) -> None:
        """Make sure that it has ended. One that has is left as it is, and a server that cannot be asked, too."""
        with contextlib.suppress(HttpError):
            target = f"{self._root}/responses/{quote(response_id, safe='')}/cancel"
            (await self._http.request("POST", target, timeouts=_AT_ONCE)).close()

    async def _get(self, place: str, to: type[T]) -> T:
        with self._faults():
            async with await self._http.request("GET", f"{self._root}/{place}") as reply:
                await self._check(reply)
                read = _read(await reply.read(_LARGEST), to)
        if read is None:
            raise Refused(502, f"What answers at {self.url} is not a server of the Responses API.")
        return read

    @contextlib.contextmanager
    def _faults(self) -> Iterator[None]:
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

    async def _check(self, reply: HttpResponse) -> None:
        if reply.status < 400:
            return
        fault = _read(await reply.read(_LARGEST), _Fault) or _Fault()
        said = message_in(fault.error) or f"The server answered with the status {reply.status}."
        if reply.status == 401:
            said += " Give the server's key by --key-file FILE, or in ANTWORT_API_KEY."
        detail = fault.error if isinstance(fault.error, dict) else {}
        raise Refused(reply.status, said, str(detail.get("code") or ""), str(detail.get("param") or ""))


def _is_our_refusal(body: bytes) -> bool:
    fault = _read(body, _Fault)
    return fault is not None and isinstance(fault.error, dict) and fault.error.get("code") == NotAuthenticated.code


def _read(body: bytes, to: type[T]) -> T | None:
    try:
        return msgspec.json.decode(body, type=to)
    except (ValueError, RecursionError):
        return None
