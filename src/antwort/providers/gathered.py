"""Inferences that are not streamed, without the ado of a stream: one wait through all providers around a backend, in
place of a generator in each.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from itertools import chain
from types import TracebackType
from typing import NoReturn

from antwort.errors import AntwortError
from antwort.providers.base import ChatRequest, Delta, Heard, Whole


async def gather(stream: AsyncGenerator[list[Delta], None], heard: Heard) -> list[Delta]:
    """A stream, read as `Whole` says."""
    before = len(heard)
    async with aclosing(stream) as batches:
        async for batch in batches:
            heard.append(batch)
    return heard.pop() if len(heard) > before else []


class Gathered(AsyncGenerator[list[Delta], None]):
    """Such an inference with the face of a stream: one batch, and after it the end or what went wrong.

    That the backend has answered is told only when it is of use: an error that comes after it is another than one that
    comes before.
    """

    __slots__ = ("_error", "_request", "_whole", "is_over")

    def __init__(self, whole: Whole, request: ChatRequest) -> None:
        self._whole: Whole | None = whole
        self._request = request
        self._error: AntwortError | None = None
        self.is_over = False
        """Whether nothing comes after the batch that was given out: see `providers.base.is_over`."""

    async def __anext__(self) -> list[Delta]:
        whole, self._whole = self._whole, None
        if whole is None:
            error, self._error = self._error, None
            raise error or StopAsyncIteration
        heard: Heard = []
        try:
            last = await whole(self._request, heard)
            self.is_over = True
        except AntwortError as error:
            if not heard:
                raise
            self._error, last = error, []
        return [*chain(*heard), *last] if any(heard) else last

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
