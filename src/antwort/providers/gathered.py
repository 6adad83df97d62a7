"""Inferences that are not streamed, without the ado of a stream: one wait through all providers around a backend, in
place of a generator in each.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from itertools import chain
from types import TracebackType
from typing import NoReturn, TypeAlias

from antwort.errors import AntwortError
from antwort.providers.base import ChatRequest, Delta, Heard, Whole


async def gather(stream: AsyncGenerator[list[Delta], None], heard: Heard) -> list[Delta]:
    """A stream, read as `Whole` says."""
    before = len(heard)
    async with aclosing(stream) as batches:
        async for batch in batches:
            heard.append(batch)
    return heard.pop() if len(heard) > before else []


Again: TypeAlias = Callable[[AntwortError, ChatRequest, Heard, float], Awaitable[list[Delta]]]
"""What becomes of an inference whose first try has failed; it is told until when another one may begin."""


class Gathered(AsyncGenerator[list[Delta], None]):
    """Such an inference with the face of a stream: one batch, and after it the end or what went wrong.

    That the backend has answered is told only when it is of use: an error that comes after it is another than one that
    comes before.
    """

    __slots__ = ("_again", "_error", "_last_start", "_request", "_whole", "is_over")

    def __init__(self, whole: Whole, request: ChatRequest, again: Again, last_start: float) -> None:
        self._whole: Whole | None = whole
        self._request, self._again, self._last_start = request, again, last_start
        self._error: AntwortError | None = None
        self.is_over = False
        """Whether nothing comes after the batch that was given out: see `providers.base.is_over`."""

    async def __anext__(self) -> list[Delta]:
        whole, self._whole = self._whole, None
        if whole is None:
            error, self._error = self._error, None
            raise error or StopAsyncIteration
        heard: Heard = []
        failure = None
        try:
            last = await whole(self._request, heard)
        except AntwortError as error:
            failure = error
        if failure is not None:
            last = await self._tried_again(failure, heard)
        self.is_over = self._error is None
        return [*chain(*heard), *last] if any(heard) else last

    async def _tried_again(self, failure: AntwortError, heard: Heard) -> list[Delta]:
        """What goes wrong after the backend has answered is told later."""
        try:
            return await self._again(failure, self._request, heard, self._last_start)
        except AntwortError as error:
            if not heard:
                raise
            self._error = error
        return []

    async def asend(self, value: None) -> list[Delta]:  # noqa: ARG002 - a stream takes nothing
        return await self.__anext__()

    async def athrow(
        self,
        typ: type[BaseException] | BaseException,
        val: BaseException | object = None,  # noqa: ARG002 - the shape of a generator
        tb: TracebackType | None = None,  # noqa: ARG002
    ) -> NoReturn:
        await self.aclose()
        raise typ

    async def aclose(self) -> None:
        """Nothing is open between two waits."""
        self._whole = self._error = None
