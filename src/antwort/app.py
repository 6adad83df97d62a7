"""The composition root: settings in, a server's worth of parts out. It owns start and stop."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from antwort.backends import make_fleet, patient
from antwort.config import CannotStart, Settings
from antwort.engine.engine import Engine
from antwort.errors import AntwortError
from antwort.providers.base import Provider
from antwort.providers.fleet import BackendStatus, Fleet
from antwort.storage.base import ResponseStore
from antwort.tools.toolset import ToolsetInfo
from antwort.transport.http import Transport


class App:
    """An engine and the ASGI application in front of it."""

    def __init__(self, engine: Engine, *, drain: float, body_limit: int, fleet: Fleet | None = None) -> None:
        self.engine = engine
        self.toolsets: Sequence[ToolsetInfo] = ()
        """What requests can reach by label."""
        self._fleet = fleet
        self._drain = drain
        self.asgi = Transport(engine, body_limit=body_limit, start=self.start, stop=self.stop)

    async def start(self) -> None:
        """Raises `CannotStart`."""
        try:
            await self.engine.open()
        except AntwortError as exc:
            raise CannotStart(exc.message) from exc
        if self._fleet is not None:
            await self._fleet.open()

    async def survey(self) -> Sequence[BackendStatus]:
        """How each backend stands, after a look at all of them that takes two seconds at most."""
        if self._fleet is None:
            return ()
        with suppress(AntwortError):  # what is wrong with one is part of how it stands
            await self._fleet.models()
        return self._fleet.status()

    async def stop(self) -> None:
        """Runs still under way get the drain time, then their end."""
        await self.engine.drain(self._drain)
        await self.close()

    async def close(self) -> None:
        """For a server that has drained already, or must not wait: runs still under way are ended at once."""
        await self.engine.close()


async def build(settings: Settings) -> App:
    """Raises `CannotStart` when a part cannot be had."""
    fleet = make_fleet(settings)
    provider = patient(fleet, settings.routing.retry)
    engine = Engine(provider, store=await open_store(settings), settings=settings.engine())
    return App(engine, drain=settings.server.drain, body_limit=settings.server.body_limit, fleet=fleet)


def make_provider(settings: Settings) -> Provider:
    """Raises `CannotStart` when the settings name a backend that cannot be spoken to."""
    return patient(make_fleet(settings), settings.routing.retry)


async def open_store(settings: Settings) -> ResponseStore:
    if settings.memory:
        from antwort.storage.memory import MemoryStore

        return MemoryStore()
    from antwort.storage.sqlite import SqliteStore

    folder = settings.data_folder()
    try:
        return await SqliteStore.open(folder / "antwort.db")
    except AntwortError as exc:
        raise CannotStart(f"The data folder {str(folder)!r} cannot be used: {_problem(exc)}") from exc


def _problem(fault: AntwortError) -> str:
    """The fault's own words, or the system's where it has none of its own."""
    from antwort.db import NO_WORDS

    reason = fault.__cause__.strerror if isinstance(fault.__cause__, OSError) else None
    return f"{reason}." if reason and fault.message == NO_WORDS else fault.message
