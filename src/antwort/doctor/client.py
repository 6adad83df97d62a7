"""Send requests to a backend, within limits of time and size. Every answer is a value; no exception is raised."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Mapping
from urllib.parse import parse_qsl, quote, urlsplit, urlunsplit

import msgspec

from antwort.api.wire import Plain, Wire, encode
from antwort.config.secrets import Secret
from antwort.doctor.answers import ApiKind, BackendAnswer, Chunk, Fault
from antwort.net.client import HttpClient
from antwort.net.connection import Timeouts
from antwort.net.response import ConnectFailed, ConnectionLost, ConnectTimeout, HttpError, ResponseTimeout
from antwort.providers.base import ChatRequest
from antwort.providers.responses import responses_request

ANSWER_LIMIT = 2**20
LIST_LIMIT = 8 * 2**20
"""Bytes that are read of an answer, and of a list: some backends have many models."""
CONNECT_SECONDS = 5.0
LOOKUP_SECONDS = 10.0
"""Timeout of requests that need no inference."""
PATHS: Mapping[ApiKind, str] = {"chat": "/chat/completions", "responses": "/responses"}
_ENDPOINTS = ("/chat/completions", "/completions", "/models", "/responses")
_VERSION = "/v1"
_SAFE = "/%:@!$&'()*+,;=~"
_SECRET_LENGTH = 8
_DONE = (b"\ndata: [DONE]", b"\ndata:[DONE]")


class Access(Wire):
    """The credentials for a backend."""

    key: Secret | None = None
    headers: Mapping[str, Secret] = {}
    tls: ssl.SSLContext | None = None

    def secrets(self) -> tuple[str, ...]:
        own = () if self.key is None else (self.key.reveal(),)
        return (*own, *(value.reveal() for value in self.headers.values()))


class ProbeClient:
    """A client of one backend. `timeout` is the limit of one inference, in seconds."""

    def __init__(self, url: str, access: Access, timeout: float, kind: ApiKind = "chat") -> None:
        parts = urlsplit(url)
        self.kind: ApiKind = kind
        """The API that `ask` uses."""
        # Some backends take their key in the query. What is short there, such as a version, is not secret.
        in_query = (value for _, value in parse_qsl(parts.query) if len(value) >= _SECRET_LENGTH)
        self._secrets = (*access.secrets(), *in_query)
        self._timeout = timeout
        headers = {"Accept-Encoding": "identity"}
        if access.key is not None:
            headers["Authorization"] = f"Bearer {access.key.reveal()}"
        self._http = HttpClient(
            f"{parts.scheme}://{parts.netloc}",
            headers=headers | {name: value.reveal() for name, value in access.headers.items()},
            timeouts=Timeouts(connect=min(CONNECT_SECONDS, timeout), first_byte=timeout, idle=timeout),
            tls=access.tls,
        )

    async def get(self, url: str) -> BackendAnswer:
        return await self._exchange("GET", url, None, min(LOOKUP_SECONDS, self._timeout), limit=LIST_LIMIT)

    async def post(self, url: str, body: bytes) -> BackendAnswer:
        """Send a request that needs no inference."""
        return await self._exchange("POST", url, body, min(LOOKUP_SECONDS, self._timeout), limit=LIST_LIMIT)

    async def ask(self, base: str, request: Plain | bytes, *, is_brief: bool = False) -> BackendAnswer:
        """Request an inference. `is_brief`: disconnect after the first chunk of a good answer."""
        if isinstance(request, bytes):
            body = request
        elif self.kind == "chat":
            body = encode(request)
        else:
            body = encode(responses_request(msgspec.convert(request, ChatRequest)))
        return await self._exchange("POST", below(base, PATHS[self.kind]), body, self._timeout, is_brief=is_brief)

    async def close(self) -> None:
        await self._http.close()

    async def _exchange(
        self,
        method: str,
        url: str,
        body: bytes | None,
        timeout: float,
        *,
        is_brief: bool = False,
        limit: int = ANSWER_LIMIT,
    ) -> BackendAnswer:
        clock = asyncio.get_running_loop().time
        started_at = clock()
        status, headers, chunks, size = 0, dict[str, str](), list[Chunk](), 0
        fault: Fault = ""
        reason = ""
        try:
            async with asyncio.timeout(timeout), await self._http.request(method, _target(url), body) as response:
                status, headers = response.status, {name: response.headers[name] for name in response.headers}
                tail = b"\n"
                async for data in response:
                    chunks.append(Chunk(clock() - started_at, data))
                    size += len(data)
                    tail = tail[-len(_DONE[0]) :] + data
                    if size > limit:
                        fault = "endless"
                        break
                    if is_brief and status < 400:
                        break
                    if any(mark in tail for mark in _DONE):
                        response.release()
                        break
        except (TimeoutError, ResponseTimeout):
            fault = "endless" if chunks else "slow"
        except HttpError as error:
            fault, reason = _describe(error)
        return BackendAnswer(
            status=status,
            headers=headers,
            chunks=tuple(chunks),
            seconds=clock() - started_at,
            fault=fault,
            reason=reason,
            secrets=self._secrets,
            kind=self.kind,
        )


def _describe(error: HttpError) -> tuple[Fault, str]:
    match error:
        case ConnectTimeout():
            return "unreachable", "connecting took too long"
        case ConnectFailed():
            match error.__cause__:
                case socket.gaierror():
                    return "unreachable", "its name is not known"
                case ssl.SSLCertVerificationError():
                    problem = "its certificate is not trusted (a backend's `ca_file` names another authority)"
                    return "unreachable", problem
                case ssl.SSLError():
                    return "unreachable", "it does not speak TLS as it should (http:// instead of https://?)"
                case ConnectionRefusedError():
                    return "unreachable", "nothing listens there"
            return "unreachable", "no connection could be made"
        case ConnectionLost(response_started=False):
            return "cut", "it closed the connection without an answer"
        case ConnectionLost():
            return "cut", "its answer broke off"
    return "garbled", "what answers there does not speak HTTP"


# ---- addresses ----


def candidates(written: str) -> list[str]:
    """Return the base addresses that a user may mean, the likeliest first. Raises `ValueError`."""
    address = written.strip()
    parts = urlsplit(address if "://" in address else f"http://{address}")
    path = parts.path.rstrip("/")
    for endpoint in _ENDPOINTS:
        path = path.removesuffix(endpoint)
    if not path:
        paths = [_VERSION, ""]
    elif path.endswith(_VERSION):
        paths = [path, path.removesuffix(_VERSION)]
    else:
        paths = [path, f"{path}{_VERSION}"]
    return [urlunsplit((parts.scheme, parts.netloc, each, parts.query, "")) for each in paths]


def without_slash(base: str) -> str:
    """Remove the slash at the end of the path, and keep the query."""
    address, mark, query = base.partition("?")
    return f"{address.rstrip('/')}{mark}{query}"


def root_of(base: str) -> str:
    """Return the address below which an engine has its unversioned endpoints, without a query."""
    parts = urlsplit(base)
    return urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/").removesuffix(_VERSION), "", ""))


def below(base: str, path: str, *, is_unversioned: bool = False) -> str:
    """Return the address of an endpoint, with the query of the base."""
    address, mark, query = base.partition("?")
    address = address.rstrip("/")
    return f"{address.removesuffix(_VERSION) if is_unversioned else address}{path}{mark}{query}"


def _target(url: str) -> str:
    parts = urlsplit(url)
    query = f"?{quote(parts.query, safe=_SAFE + '?')}" if parts.query else ""
    return f"{quote(parts.path, safe=_SAFE) or '/'}{query}"
