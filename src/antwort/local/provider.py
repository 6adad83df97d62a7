"""A model on this machine, as a provider."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from pathlib import Path

from antwort.api.responses import Model
from antwort.api.wire import replace
from antwort.errors import AntwortError, BackendUnavailable, ModelNotFound
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
from antwort.net.connection import CONNECT_LIMIT_SECONDS
from antwort.providers.answer_parser import DEFAULT_OUTPUT_BYTES
from antwort.providers.base import Capabilities, ChatRequest, Delta
from antwort.providers.chat import ChatProvider, Timeouts
from antwort.providers.errors import CONNECTION_CLOSED
from antwort.providers.retry_policy import is_connection_failure

_TIMEOUTS = Timeouts(connect=1.0, first_byte=600.0, idle=300.0)
"""A large model on a small machine reads a long prompt for minutes, and says nothing meanwhile."""
CHECK_SECONDS = 1.8
"""Seconds that whoever looks after the model waits for it."""
_LAST_BREATH = 0.5
"""Seconds between the moment when a process is no longer reached and the one when it has ended."""
_CAPABILITIES = Capabilities(vision=False)


class LocalProvider:
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
        self._patience = ready if patience is None else patience
        self._output_bytes = output_bytes
        self._start_process = start_process
        self._keeper = Keeper(self.name, self._begin, ready=ready)
        self._turns = Limiter(self._order["slots"])
        """Who waits does it here: there each takes a thread of llama.cpp, and none is left to say that it is well."""
        self._chat: ChatProvider | None = None
        self._chats_with: ModelProcess | None = None

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

    async def infer(self, request: ChatRequest) -> AsyncGenerator[list[Delta], None]:
        """As the contract says. Raises `NotReady` where the model is not loaded, after some wait for it."""
        if request.model != self.name:
            raise ModelNotFound(request.model)
        check_schemas(request)
        request = traits.eased(request) if self.is_demo else request
        async with self._turns, aclosing(self._infer(request)) as batches:
            async for batch in batches:
                yield batch

    async def models(self) -> Sequence[Model]:
        """Where it is loaded, it is asked how long its context is: a model may have a shorter one than is ordered."""
        if self._chat is not None and self.pid is not None:
            with suppress(AntwortError):
                await self._chat.models()
        return [Model(id=self.name, context_length=self._length())]

    def capabilities(self, model: str) -> Capabilities:  # noqa: ARG002 - one model, one answer
        return replace(_CAPABILITIES, context_length=self._length())

    async def count(self, request: ChatRequest) -> int | None:
        if self.pid is None or request.model != self.name:
            return None
        with suppress(AntwortError):
            return await (await self._backend(CHECK_SECONDS)).count(request)
        return None

    async def check(self) -> None:
        """Raise `BackendUnavailable` unless it answers, after a short wait while it is loading."""
        chat = await self._backend(CHECK_SECONDS)
        await chat.check()

    async def close(self) -> None:
        await self._keeper.close()
        if self._chat is not None:
            await self._chat.close()

    # ---- within ----

    def _length(self) -> int:
        ordered = self._order["context"]
        told = None if self._chat is None else self._chat.capabilities(self.name).context_length
        return ordered if told is None else min(ordered, told)

    async def _infer(self, request: ChatRequest) -> AsyncGenerator[list[Delta], None]:
        chat = await self._backend()
        asked, has_begun = time.monotonic(), False
        try:
            async with aclosing(chat.infer(request)) as batches:
                async for batch in batches:
                    has_begun = True
                    yield batch
            return
        except BackendUnavailable as error:
            was_gone = is_connection_failure(error) or (
                error.code == CONNECTION_CLOSED and time.monotonic() - asked < _LAST_BREATH
            )
            if has_begun or not was_gone or not await self._has_ended():
                raise
        chat = await self._backend()  # the process was gone when it was asked: the next one can answer
        async with aclosing(chat.infer(request)) as batches:
            async for batch in batches:
                yield batch

    async def _backend(self, most: float | None = None) -> ChatProvider:
        """Whom to ask: each process has an address and a key of its own. Raises `NotReady`."""
        limits = (self._patience, CONNECT_LIMIT_SECONDS.get(), most)
        process = await self._keeper.process(min(each for each in limits if each is not None))
        if self._chat is None or self._chats_with is not process:
            former = self._chat
            self._chats_with = process
            self._chat = ChatProvider(
                f"{process.address}/v1",
                api_key=process.key,
                capabilities=_CAPABILITIES,
                timeouts=_TIMEOUTS,
                output_bytes=self._output_bytes,
            )
            if former is not None:
                await former.close()
        return self._chat

    async def _has_ended(self) -> bool:
        """Whether the process is gone, which can be seen at its door before the system tells."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_BREATH):
                if self._chats_with is not None:
                    await self._chats_with.ended()
                return True
        return False

    async def _begin(self) -> ModelProcess:
        return await self._start_process({**self._order, "key": secrets.token_urlsafe(32)})
