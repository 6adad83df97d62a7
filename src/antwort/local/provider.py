"""A model on this machine, as a provider."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from antwort.api.responses import Model
from antwort.api.wire import UNSET, replace
from antwort.errors import AntwortError, InvalidField, ModelNotFound
from antwort.limiter import Limiter
from antwort.local.demo import ADAPTER, is_demo, pull_command, with_penalty
from antwort.local.llama_server import ServerOptions
from antwort.local.process import ModelProcess
from antwort.local.server_options import CannotRun, NotInstalled, has_llama, server_options
from antwort.local.supervisor import Supervisor
from antwort.net.client import HttpClient
from antwort.net.connection import CONNECT_LIMIT_SECONDS
from antwort.net.response import ConnectFailed, ConnectionLost, HttpResponse
from antwort.providers.answer_parser import DEFAULT_OUTPUT_BYTES
from antwort.providers.base import Capabilities, ChatRequest
from antwort.providers.chat import ChatProvider, Timeouts

_log = logging.getLogger("antwort.local")
_TIMEOUTS = Timeouts(connect=1.0, first_byte=600.0, idle=300.0)
"""A large model on a small machine reads a long prompt for minutes, without sending anything."""
CHECK_SECONDS = 1.8
"""How long a health check waits for a model that is loading."""
END_DELAY_SECONDS = 0.5
"""Longest time between a lost connection to the process and the report of its end by the system."""
SCHEMA_BYTES = 1 << 16
SCHEMA_CHOICES = 500
"""Enum values and members of unions in a schema. For each token, llama.cpp tries all of them: with very many, a token
takes minutes, in which it answers nobody. 500 take half a second on a slow machine."""


class LocalProvider(ChatProvider):
    """Runs a GGUF file with llama.cpp in a subprocess, which is started at the first request, restarted when it dies,
    and ended with `close` or with this process.

        async with Engine(LocalProvider("models/qwen3-4b.gguf")) as engine:
            response = await engine.create(input="Hello")

    `model` is the file. The demo model, known by its file name, gets its own chat template, sampling and adapter.
    `name` is its name in requests (default: the file's name). `template` is a file with a chat template that replaces
    the model's own, `adapter` a LoRA adapter (GGUF). `context` is the number of tokens of a request and its answer
    together, `slots` the number of requests at once, `threads` the number of processor threads (default: half of the
    processors, and at least two), and `ready` how many seconds loading may take. `patience` is how many seconds an
    inference waits for a model that is loading (default: `ready`) before it fails with `NotReady`. `start_process`
    starts the subprocess.

    Raises `CannotRun`, a `ValueError`, when llama.cpp is not installed (`pip install 'antwort[demo]'`), a file cannot
    be used, or a number is too small. `await provider.ready()` waits until the model is loaded.
    """

    default_capabilities = Capabilities(vision=False)

    def __init__(
        self,
        model: str | Path,
        *,
        name: str | None = None,
        template: str | Path | None = None,
        adapter: str | Path | None = None,
        context: int = 4096,
        slots: int = 2,
        threads: int | None = None,
        ready: float = 120.0,
        patience: float | None = None,
        output_bytes: int = DEFAULT_OUTPUT_BYTES,
        start_process: Callable[[ServerOptions], Awaitable[ModelProcess]] = ModelProcess.start,
    ) -> None:
        if not has_llama():
            raise NotInstalled
        self._options = server_options(
            Path(model),
            name=name,
            template=Path(template) if template else None,
            adapter=Path(adapter) if adapter else None,
            context=context,
            slots=slots,
            threads=threads,
        )
        self.name = self._options["name"]
        self.file = Path(self._options["model"])
        self.is_demo = is_demo(self.file)
        self.is_constrained = self.is_demo and self._options["adapter"] is not None
        """Whether tool calls work best with constrained decoding from the first: the adapter is trained for that."""
        if self.is_demo and not self.is_constrained:
            message = "the demo model calls tools badly without its adapter: put %s, from the source tree, at %s"
            _log.warning(message, ADAPTER, self.file.with_name(ADAPTER))
        super().__init__("http://127.0.0.1/v1", timeouts=_TIMEOUTS, output_bytes=output_bytes)
        self._patience = ready if patience is None else patience
        self._start_process = start_process
        self._supervisor = Supervisor(self.name, self._start, load_seconds=ready)
        self._http = self._client = ProcessClient(self._supervisor, self._patience)
        self._limiter = Limiter(self._options["slots"])
        """In llama.cpp, each waiting request takes a thread, so that none would be left for health checks."""

    async def ready(self) -> None:
        """Start the model, and wait until it is loaded. Raises `CannotRun`."""
        try:
            await self._supervisor.first_start()
        except CannotRun as exc:
            if not self.is_demo:
                raise
            raise CannotRun(f"{exc}; where its file is damaged, `{pull_command(self.file)}` fetches it anew") from exc

    @property
    def pid(self) -> int | None:
        """The process id of the subprocess; None while the model is not loaded."""
        return self._supervisor.pid

    async def door(self) -> tuple[str, str]:
        """Return the address and the API key of llama.cpp's own server. Raises `NotReady`."""
        process = await self._supervisor.process(self._patience)
        return process.address, process.key

    async def serialize(self, request: ChatRequest) -> bytes:
        """Serialize a request after checking its model and its schemas."""
        if request.model != self.name:
            raise ModelNotFound(request.model)
        check_schemas(request)
        return await super().serialize(with_penalty(request) if self.is_demo else request)

    async def models(self) -> Sequence[Model]:
        """Return the model with its context length, which may be shorter than the configured one."""
        if self.pid is not None:
            with suppress(AntwortError):
                await super().models()
        return [Model(id=self.name, context_length=self._context_length())]

    def capabilities(self, model: str) -> Capabilities:  # noqa: ARG002 - there is one model
        return replace(self.default_capabilities, context_length=self._context_length())

    async def count(self, request: ChatRequest) -> int | None:
        if self.pid is None or request.model != self.name:
            return None
        return await super().count(request)

    async def check(self) -> None:
        """Raise `BackendUnavailable` unless it answers, after a short wait while it is loading."""
        await self._client.connect(CHECK_SECONDS)
        await super().check()

    async def close(self) -> None:
        await self._supervisor.close()
        await super().close()

    def _context_length(self) -> int:
        configured, listed = self._options["context"], self._lengths.of(self.name)
        return configured if listed is None else min(configured, listed)

    async def _start(self) -> ModelProcess:
        self._forget()  # what is known of the process before
        key = secrets.token_urlsafe(32)
        self._secrets = (key,)  # removed from error messages
        return await self._start_process({**self._options, "key": key})


class ProcessClient:
    """HTTP client of the subprocess that runs the model: each one has an address and a key of its own."""

    def __init__(self, supervisor: Supervisor, patience: float) -> None:
        self._supervisor, self._patience = supervisor, patience
        self._process: ModelProcess | None = None
        self._client: HttpClient | None = None

    @property
    def open_connections(self) -> int:
        return 0 if self._client is None else self._client.open_connections

    async def connect(self, timeout: float | None = None) -> HttpClient:
        """Return the client of the process that is ready, after at most `timeout` seconds. Raises `NotReady`."""
        limits = (self._patience, CONNECT_LIMIT_SECONDS.get(), timeout)
        process = await self._supervisor.process(min(each for each in limits if each is not None))
        if self._client is None or self._process is not process:
            former, self._process = self._client, process
            headers = {"Accept-Encoding": "identity", "Authorization": f"Bearer {process.key}"}
            self._client = HttpClient(process.address, headers=headers, timeouts=_TIMEOUTS)
            if former is not None:
                await former.close()
        return self._client

    async def request(self, method: str, target: str, body: bytes | None = None) -> HttpResponse:
        """Send a request, and once more to the next process if this one has died. Raises `NotReady`."""
        client = await self.connect()
        sent_at = time.monotonic()
        try:
            return await client.request(method, target, body)
        except (ConnectFailed, ConnectionLost) as error:
            is_recent = time.monotonic() - sent_at < END_DELAY_SECONDS
            may_have_died = isinstance(error, ConnectFailed) or (is_recent and not error.response_started)
            if not may_have_died or not await self._has_ended():
                raise
        client = await self.connect()
        return await client.request(method, target, body)

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()

    async def _has_ended(self) -> bool:
        """Return whether the process has ended: its connections close a moment before the system says so."""
        with suppress(TimeoutError):
            async with asyncio.timeout(END_DELAY_SECONDS):
                if self._process is not None:
                    await self._process.ended()
                return True
        return False


def check_schemas(request: ChatRequest) -> None:
    """Raise `InvalidField` for schemas that are too large for llama.cpp."""
    if request.response_format is not UNSET:
        _check_schema(request.response_format, "text.format", "the schema, with those of the tools,")
    if request.tools is not UNSET:
        _check_schema([tool.function.parameters or {} for tool in request.tools], "tools", "the schemas")


def _check_schema(schema: object, param: str, what: str) -> None:
    if len(msgspec.json.encode(schema)) > SCHEMA_BYTES:
        raise InvalidField(param, f"{what} cannot be longer than {SCHEMA_BYTES} bytes for the model on this machine.")
    choices, left = 0, [schema]
    while left:
        match left.pop():
            case dict() as node:
                unions = (node.get(word) for word in ("enum", "anyOf", "oneOf"))
                choices += sum(len(union) for union in unions if isinstance(union, list | tuple))
                left.extend(node.values())
            case list() | tuple() as nodes:
                left.extend(nodes)
    if choices > SCHEMA_CHOICES:
        problem = f"{what} cannot have more than {SCHEMA_CHOICES} enum values and members of unions"
        raise InvalidField(param, f"{problem} for the model on this machine.")
