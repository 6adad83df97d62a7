"""A model on this machine, as a provider."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path

from antwort.api.responses import Model
from antwort.api.wire import replace
from antwort.errors import AntwortError, ModelNotFound
from antwort.limiter import Limiter
from antwort.local import traits
from antwort.local.bounds import check_schemas
from antwort.local.child import Order
from antwort.local.demo import pull_command
from antwort.local.files import CannotRun, NotInstalled, has_llama
from antwort.local.keeper import Keeper
from antwort.local.orders import make_order
from antwort.local.process import ModelProcess
from antwort.local.traits import is_demo
from antwort.net.client import HttpClient
from antwort.net.connection import CONNECT_LIMIT_SECONDS
from antwort.net.response import ConnectFailed, ConnectionLost, HttpResponse
from antwort.providers.answer_parser import DEFAULT_OUTPUT_BYTES
from antwort.providers.base import Capabilities, ChatRequest
from antwort.providers.chat import ChatProvider, Timeouts

_TIMEOUTS = Timeouts(connect=1.0, first_byte=600.0, idle=300.0)
"""A large model on a small machine reads a long prompt for minutes, and says nothing meanwhile."""
CHECK_SECONDS = 1.8
"""Seconds that whoever looks after the model waits for it."""
END_DELAY_SECONDS = 0.5
"""Longest time between the moment when a process is no longer reached and the one when it has ended."""


class LocalProvider(ChatProvider):
    """Runs a GGUF file with llama.cpp, in a process of its own that is started when it is first needed, started again
    when it dies, and ended with `close` or with this process, whichever comes first.

        async with Engine(LocalProvider("models/qwen3-4b.gguf")) as engine:
            response = await engine.create(input="Hello")

    `model` is the file; of the demo model, which is known by its name, the chat template, the sampling and the adapter
    are our own. `name` is what requests call it: unset, after the file. `template` is a file with a chat template to
    use instead of the model's own, `adapter` a LoRA adapter (GGUF). `context` is how many tokens a request and its
    answer may have together, `slots` how many requests are worked on at once, `threads` how many processor threads
    that takes (unset: half of the processors, and at least two), and `ready` how many seconds it may take to load.
    `patience` is how many seconds an inference waits for a model that is not loaded yet (unset: as long as it may
    take); then it is a `NotReady`. `start_process` starts the process that runs the model.

    Raises `CannotRun`, a `ValueError`, when llama.cpp is not installed (`pip install 'antwort[local]'`), a file is not
    what it should be, or a number is too small. `await provider.ready()` waits until the model is loaded.
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
        start_process: Callable[[Order], Awaitable[ModelProcess]] = ModelProcess.start,
    ) -> None:
        if not has_llama():
            raise NotInstalled
        self._order = make_order(
            Path(model),
            name=name,
            template=Path(template) if template else None,
            adapter=Path(adapter) if adapter else None,
            context=context,
            slots=slots,
            threads=threads,
        )
        self.name = self._order["name"]
        self.file = Path(self._order["model"])
        self.is_demo = is_demo(self.file)
        super().__init__("http://127.0.0.1/v1", timeouts=_TIMEOUTS, output_bytes=output_bytes)
        self._patience = ready if patience is None else patience
        self._start_process = start_process
        self._keeper = Keeper(self.name, self._begin, ready=ready)
        self._http = self._client = ProcessClient(self._keeper, self._patience)
        self._limiter = Limiter(self._order["slots"])
        """In llama.cpp each waiting request takes a thread, and none is left to answer health checks."""

    async def ready(self) -> None:
        """Start it, and wait until it is loaded. Raises `CannotRun` when it cannot be."""
        try:
            await self._keeper.first()
        except CannotRun as exc:
            if not self.is_demo:
                raise
            raise CannotRun(f"{exc}; where its file is damaged, `{pull_command(self.file)}` fetches it anew") from exc

    @property
    def pid(self) -> int | None:
        """The process that runs it now; None when there is none that answers."""
        return self._keeper.pid

    async def door(self) -> tuple[str, str]:
        """The address and the key of the process that runs it now, for whoever looks at llama.cpp itself. Raises
        `NotReady`.
        """
        process = await self._keeper.process(self._patience)
        return process.address, process.key

    async def serialize(self, request: ChatRequest) -> bytes:
        """Serialize a request after checking its model and its schemas, which could exhaust llama.cpp."""
        if request.model != self.name:
            raise ModelNotFound(request.model)
        check_schemas(request)
        return await super().serialize(traits.eased(request) if self.is_demo else request)

    async def models(self) -> Sequence[Model]:
        """Where it is loaded, it is asked how long its context is: a model may have a shorter one than is ordered."""
        if self.pid is not None:
            with suppress(AntwortError):
                await super().models()
        return [Model(id=self.name, context_length=self._length())]

    def capabilities(self, model: str) -> Capabilities:  # noqa: ARG002 - one model, one answer
        return replace(self.default_capabilities, context_length=self._length())

    async def count(self, request: ChatRequest) -> int | None:
        if self.pid is None or request.model != self.name:
            return None
        return await super().count(request)

    async def check(self) -> None:
        """Raise `BackendUnavailable` unless it answers, after a short wait while it is loading."""
        await self._client.connect(CHECK_SECONDS)
        await super().check()

    async def close(self) -> None:
        await self._keeper.close()
        await super().close()

    def _length(self) -> int:
        ordered, listed = self._order["context"], self._lengths.of(self.name)
        return ordered if listed is None else min(ordered, listed)

    async def _begin(self) -> ModelProcess:
        self._forget()  # what was learned of the process before
        key = secrets.token_urlsafe(32)
        self._secrets = (key,)  # not to be shown in an error message
        return await self._start_process({**self._order, "key": key})


class ProcessClient:
    """HTTP client of the process that runs the model: each one has an address and a key of its own."""

    def __init__(self, keeper: Keeper, patience: float) -> None:
        self._keeper, self._patience = keeper, patience
        self._process: ModelProcess | None = None
        self._client: HttpClient | None = None

    @property
    def open_connections(self) -> int:
        return 0 if self._client is None else self._client.open_connections

    async def connect(self, most: float | None = None) -> HttpClient:
        """Return the client of the process that runs now, at most `most` seconds later. Raises `NotReady`."""
        limits = (self._patience, CONNECT_LIMIT_SECONDS.get(), most)
        process = await self._keeper.process(min(each for each in limits if each is not None))
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
            may_be_gone = isinstance(error, ConnectFailed) or (is_recent and not error.response_started)
            if not may_be_gone or not await self._has_ended():
                raise
        client = await self.connect()
        return await client.request(method, target, body)

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()

    async def _has_ended(self) -> bool:
        """Whether the process is gone, which can be seen at its door before the system tells."""
        with suppress(TimeoutError):
            async with asyncio.timeout(END_DELAY_SECONDS):
                if self._process is not None:
                    await self._process.ended()
                return True
        return False
