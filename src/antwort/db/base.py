"""What an operation sees of a database, whichever it is.

An operation is a plain function that works inside a transaction, on a thread. Its statements are SQL that both
understand, with `:name` or `?` where a value goes. Where they differ, `Connection.dialect` tells.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

T = TypeVar("T")

Dialect: TypeAlias = Literal["sqlite", "postgresql"]
Value: TypeAlias = str | int | float | bytes | list[int] | list[str] | list[bytes] | None
"""What a column holds. A truth value is a `bool` on its way in, and is asked for by its name alone (`AND is_on`). Lists
are for PostgreSQL alone.
"""
Values: TypeAlias = Mapping[str, Value] | Sequence[Value]

NO_WORDS = "The store could not be read or written."
"""What is said of a fault that there is no sentence for."""


class Cursor(Protocol):
    @property
    def rowcount(self) -> int: ...

    def fetchone(self) -> Any: ...

    def fetchall(self) -> list[Any]: ...

    def __iter__(self) -> Iterator[Any]: ...


class Connection(Protocol):
    @property
    def dialect(self) -> Dialect: ...

    def execute(self, statement: str, values: Values = ..., /) -> Cursor: ...

    def executemany(self, statement: str, values: Sequence[Values], /) -> object: ...


Operation: TypeAlias = Callable[[Connection], T]
"""Works inside a transaction and may be run a second time, after a rollback."""


class Database(Protocol):
    """`open` it before use, `close` it at the end. What goes wrong with it is a `StoreFault`."""

    @property
    def dialect(self) -> Dialect: ...

    async def open(self) -> None: ...

    async def close(self) -> None:
        """What was accepted is still written; what comes later is refused."""
        ...

    async def write(self, operation: Operation[T]) -> T:
        """What `operation` returns, once its changes are committed.

        An operation that raises is undone alone; its neighbours in the transaction are not. One that was accepted is
        run even when nobody waits for it any more.
        """
        ...

    async def hasten(self, operation: Operation[T]) -> T:
        """As `write`, for what is short and must not wait for what is long: beside it, where there may be two writers.
        Whoever writes in both ways holds no row in one that it waits for in the other.
        """
        ...

    async def read(self, operation: Operation[T]) -> T:
        """What `operation` finds. All its queries see the same state, which holds every write awaited before."""
        ...
