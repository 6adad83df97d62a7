"""One client taken through one case: the frame that all Python clients share."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from importlib.metadata import version
from typing import NamedTuple, TypeAlias

import pytest

from clients.ground import Ground
from clients.records import Line
from clients.strict import Json

PNG = (
    "data:image/png;base64,"
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
)
"""One pixel."""
PNG_DIGEST = "image/png of 70 bytes, 497790947d46"
"""What the model says of it when it has seen all of it."""

WHOLE = "a whole answer comes at once: the client's timeout is for all of it, and no sign of life can make it longer"
"""Why nobody can help who waits for the whole answer of a slow tool."""


class NotApplicable(Exception):
    """There is no such thing with this client; the text says why."""


class Trial(NamedTuple):
    ground: Ground
    mark: str
    """Stands in what is asked, so that what reaches the backend can be told from all else."""
    streamed: bool

    def bared(self) -> Trial:
        """The same, with nothing but the seal left of the reasoning that the client brings back."""
        return self._replace(ground=self.ground._replace(url=self.ground.bare_url))

    def reached(self) -> Sequence[Json]:
        """The bodies of the requests that came to the backend."""
        return [request["body"] for request in self.ground.backend.seen(self.mark)]


Play: TypeAlias = Callable[[Trial], Awaitable[None]]


class Client(NamedTuple):
    name: str
    package: str
    plays: Mapping[str, Play]

    @property
    def version(self) -> str:
        return version(self.package)


async def play(client: Client, case: str, ground: Ground, *, streamed: bool) -> None:
    """Raises whatever goes wrong, or `NotApplicable`."""
    mark = f"{client.name}-{case}-{'streamed' if streamed else 'whole'}"
    await client.plays[case](Trial(ground, mark, streamed))


def lines(client: Client, ground: Ground, cases: Collection[str] = ()) -> Iterator[Line]:
    """The client through all its cases, or through these."""
    for case in cases or client.plays:
        for streamed in (False, True):
            yield _line(client, case, ground, streamed=streamed)


def _line(client: Client, case: str, ground: Ground, *, streamed: bool) -> Line:
    try:
        asyncio.run(play(client, case, ground, streamed=streamed))
    except NotApplicable as why:
        return Line(client.name, client.version, case, streamed, "n/a", str(why))
    except (Exception, pytest.fail.Exception) as exc:  # the latter is raised where nothing was, and is no `Exception`
        where = traceback.extract_tb(exc.__traceback__)[-1]
        told = f"{type(exc).__name__}: {exc} ({where.name}, line {where.lineno})"
        return Line(client.name, client.version, case, streamed, "failed", " ".join(told.split())[:300])
    return Line(client.name, client.version, case, streamed, "ok")
