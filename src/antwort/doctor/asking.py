"""Asking a backend over HTTP, within bounds of time and size. Every answer is a value; nothing is raised."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Mapping
from urllib.parse import parse_qsl, quote, urlsplit

import msgspec

from antwort.api.wire import Plain, Wire, encode
from antwort.config.secrets import Secret
from antwort.doctor.answers import Answer, Fault, Piece, Speech
from antwort.net.client import HttpClient, HttpResponse
from antwort.net.connection import Timeouts
from antwort.net.response import ConnectFailed, ConnectionLost, ConnectTimeout, HttpError, ResponseTimeout
from antwort.providers.base import ChatRequest
from antwort.providers.responses import responses_request

ANSWER_CAP = 2**20
"""Bytes of an answer that are read."""
LIST_CAP = 8 * 2**20
"""The same of what is listed: some have many models."""
CONNECT_SECONDS = 5.0
LOOK_SECONDS = 10.0
"""For what needs no inference."""
PATHS: Mapping[Speech, str] = {"chat": "/chat/completions", "responses": "/responses"}
_SAFE = "/%:@!$&'()*+,;=~"
_LEAST_SECRET = 8
_DONE = (b"\ndata: [DONE]", b"\ndata:[DONE]")


class Access(Wire):
    """What it takes to be let in by a backend."""

    key: Secret | None = None
    headers: Mapping[str, Secret] = {}
    tls: ssl.SSLContext | None = None

    def secrets(self) -> tuple[str, ...]:
        own = () if self.key is None else (self.key.reveal(),)
        return (*own, *(value.reveal() for value in self.headers.values()))


class Line:
    """A connection to one backend. `patience`: the seconds that one inference may take."""

    def __init__(self, url: str, access: Access, patience: float, speech: Speech = "chat") -> None:
        parts = urlsplit(url)
        self.speech: Speech = speech
        """The API that `ask` uses."""
        self._secrets = (*access.secrets(), *_in_query(parts.query))
        self._patience = patience
        self._http = HttpClient(
            f"{parts.scheme}://{parts.netloc}",
            headers=_fields(access),
            timeouts=Timeouts(connect=min(CONNECT_SECONDS, patience), first_byte=patience, idle=patience),
            tls=access.tls,
        )

    async def get(self, url: str) -> Answer:
        return await self._exchange("GET", url, None, min(LOOK_SECONDS, self._patience), cap=LIST_CAP)

    async def post(self, url: str, body: bytes) -> Answer:
        """A question that needs no inference."""
        return await self._exchange("POST", url, body, min(LOOK_SECONDS, self._patience), cap=LIST_CAP)

    async def ask(self, base: str, question: Plain | bytes, *, is_brief: bool = False) -> Answer:
        """`is_brief`: the first piece of a good answer is enough, and then the backend is hung up on."""
        body = question if isinstance(question, bytes) else _encoded(question, self.speech)
        url = below(base, PATHS[self.speech])
        return await self._exchange("POST", url, body, self._patience, is_brief=is_brief)

    async def close(self) -> None:
        await self._http.close()

    async def _exchange(
        self,
        method: str,
        url: str,
        body: bytes | None,
        seconds: float,
        *,
        is_brief: bool = False,
        cap: int = ANSWER_CAP,
    ) -> Answer:
        reading = _Reading(self._secrets, self.speech, is_brief=is_brief, cap=cap)
        try:
            async with asyncio.timeout(seconds):
                async with await self._http.request(method, _target(url), body) as reply:
                    await reading.read(reply)
        except TimeoutError:
            return reading.ended("endless" if reading.pieces else "slow")
        except HttpError as fault:
            return reading.ended(*_told(fault, reading))
        return reading.ended("endless" if reading.size > cap else "")


class _Reading:
    """An answer on its way in."""

    def __init__(self, secrets: tuple[str, ...], speech: Speech, *, is_brief: bool, cap: int) -> None:
        self._secrets, self._is_brief, self._cap = secrets, is_brief, cap
        self._speech: Speech = speech
        self._clock = asyncio.get_running_loop().time
        self._start = self._clock()
        self._status, self._headers = 0, dict[str, str]()
        self.pieces: list[Piece] = []
        self.size = 0

    async def read(self, reply: HttpResponse) -> None:
        self._status, self._headers = reply.status, {name: reply.headers[name] for name in reply.headers}
        tail = b"\n"
        async for data in reply:
            self.pieces.append(Piece(self._clock() - self._start, data))
            self.size += len(data)
            tail = tail[-len(_DONE[0]) :] + data
            if self.size > self._cap or (self._is_brief and self._status < 400):
                return
            if any(mark in tail for mark in _DONE):
                reply.release()
                return

    def ended(self, fault: Fault, reason: str = "") -> Answer:
        return Answer(
            status=self._status,
            headers=self._headers,
            pieces=tuple(self.pieces),
            seconds=self._clock() - self._start,
            fault=fault,
            reason=reason,
            secrets=self._secrets,
            speech=self._speech,
        )


def _encoded(question: Plain, speech: Speech) -> bytes:
    if speech == "chat":
        return encode(question)
    return encode(responses_request(msgspec.convert(question, ChatRequest)))


def _fields(access: Access) -> dict[str, str]:
    own = {"Accept-Encoding": "identity"}
    if access.key is not None:
        own["Authorization"] = f"Bearer {access.key.reveal()}"
    return own | {name: value.reveal() for name, value in access.headers.items()}


def _in_query(query: str) -> tuple[str, ...]:
    """Some backends take their key there; what is short, such as a version, is none."""
    return tuple(value for _, value in parse_qsl(query) if len(value) >= _LEAST_SECRET)


def _target(url: str) -> str:
    parts = urlsplit(url)
    query = f"?{quote(parts.query, safe=_SAFE + '?')}" if parts.query else ""
    return f"{quote(parts.path, safe=_SAFE) or '/'}{query}"


def below(base: str, path: str) -> str:
    """The address of an endpoint; a query of the base goes along."""
    address, mark, query = base.partition("?")
    return f"{address.rstrip('/')}{path}{mark}{query}"


def beside(base: str, path: str) -> str:
    """The address of an endpoint that an engine has for itself."""
    address, mark, query = base.partition("?")
    return f"{address.rstrip('/').removesuffix('/v1')}{path}{mark}{query}"


def _told(fault: HttpError, reading: _Reading) -> tuple[Fault, str]:
    match fault:
        case ConnectFailed():
            return "unreachable", _reason(fault.__cause__)
        case ConnectTimeout():
            return "unreachable", "connecting took too long"
        case ResponseTimeout():
            return ("endless" if reading.pieces else "slow"), ""
        case ConnectionLost(response_started=False):
            return "cut", "it closed the connection without an answer"
        case ConnectionLost():
            return "cut", "its answer broke off"
        case _:
            return "garbled", "what answers there does not speak HTTP"


def _reason(cause: BaseException | None) -> str:
    match cause:
        case socket.gaierror():
            return "its name is not known"
        case ssl.SSLCertVerificationError():
            return "its certificate is not trusted (a backend's `ca_file` names another authority)"
        case ssl.SSLError():
            return "it does not speak TLS as it should (http:// instead of https://?)"
        case ConnectionRefusedError():
            return "nothing listens there"
        case _:
            return "no connection could be made"
