"""An answer as those who asked for it read it: whole, or as it comes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import TracebackType
from typing import Protocol, Self

from antwort.net.exchange import AnswerTooLong, Exchange


class Carrier(Protocol):
    """The connection that an answer comes by, as far as its reader knows."""

    def resume(self) -> None: ...

    def drain(self) -> None: ...

    def abort(self) -> None: ...


class Reply(Exchange, kw_only=True, eq=False):
    """An answer whose head has come. Close it, or leave its `async with`: an unread rest is then not waited for.

    Where it is `complete`, all of it has come, and its connection is free: there is nothing to close.
    """

    carrier: Carrier

    async def read(self, limit: int) -> bytes:
        """The whole body. Raises `AnswerTooLong` when it is longer than `limit`."""
        if self.complete:  # as short ones mostly are when their head has come
            return self.whole(limit)
        pieces, size = [], 0
        async for data in self:
            pieces.append(data)
            size += len(data)
            if size > limit:
                raise AnswerTooLong("the answer is too long")
        return b"".join(pieces)

    def whole(self, limit: int) -> bytes:
        """The same of an answer that is complete."""
        data = self.take()
        if len(data) > limit:
            raise AnswerTooLong("the answer is too long")
        return data

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        while not self.pieces:
            if self.complete:
                raise StopAsyncIteration
            if self.failure is not None:
                raise self.failure
            self.waiter = self.waiter.get_loop().create_future()
            await self.waiter
        data = self.take_some()
        if not self.complete and not self.pieces:
            self.carrier.resume()
        return data

    def release(self) -> None:
        """Close without haste: what was asked for has come, and the rest of the message is only its end."""
        if not self.complete and self.failure is None:
            self.carrier.drain()

    def close(self) -> None:
        if not self.complete and self.failure is None and not self.is_unwanted:
            self.carrier.abort()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
