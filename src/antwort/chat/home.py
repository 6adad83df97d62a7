"""The server that the chat is held with: one that runs, or one of our own."""

from __future__ import annotations

from antwort.chat.client import ChatFault, Client, Toolset
from antwort.chat.server import OwnServer, Report

USUAL_URL = "http://127.0.0.1:8080"


class Home:
    """`client` speaks to it; a server of our own that has died is started again by `ready`."""

    def __init__(self, client: Client, own: OwnServer | None = None) -> None:
        self.client = client
        self.models: list[str] = []
        self.toolsets: list[Toolset] = []
        self._own = own

    @property
    def is_own(self) -> bool:
        return self._own is not None

    async def ready(self, report: Report) -> None:
        """Raises `ChatFault`."""
        if self._own is not None and not self._own.is_running:
            await self.client.close()
            await self._own.start(report)
            self.client = Client(self._own.url, self._own.key)

    async def look(self, report: Report) -> None:
        """See what there is. Raises `ChatFault`."""
        await self.ready(report)
        self.models = await self.client.models()
        self.toolsets = await self.client.toolsets()

    async def close(self) -> None:
        await self.client.close()
        if self._own is not None:
            await self._own.stop()


async def running(url: str, key: str | None) -> Home:
    """Raises `ChatFault` for what is no address."""
    try:
        return Home(Client(url, key))
    except ValueError as exc:
        raise ChatFault(f"{url!r} is not the address of a server, such as {USUAL_URL}.") from exc


async def usual(key: str | None, url: str = USUAL_URL) -> Home | None:
    """The server at the usual address, if one answers there. Whoever else listens there does not get to see the key."""
    stranger = Client(url)
    try:
        return Home(Client(url, key)) if await stranger.is_there() else None
    finally:
        await stranger.close()


async def own(flags: tuple[str, ...], report: Report) -> Home:
    """Raises `ChatFault`."""
    server = OwnServer(flags)
    await server.start(report)
    return Home(Client(server.url, server.key), server)
