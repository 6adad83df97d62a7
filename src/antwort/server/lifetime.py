"""How long a WebSocket is open at most."""

from __future__ import annotations

import asyncio

from antwort.errors import ConnectionTooOld
from antwort.server.channel import Channel
from antwort.server.inbox import Inbox
from antwort.server.session import Session


class Lifetime:
    """When the time is up, no further response is begun. `patience` seconds later the client is hung up on, if it is
    still there, however slowly it takes its goodbye; later only if a response was under way meanwhile.
    """

    def __init__(self, seconds: float, patience: float, session: Session, inbox: Inbox, channel: Channel) -> None:
        self._patience = patience
        self._session, self._inbox, self._channel = session, inbox, channel
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(seconds, self._expire, ConnectionTooOld(seconds))

    def end(self) -> None:
        """The conversation is over. The client that was told so may still be there: its time goes on."""
        if not isinstance(self._inbox.ending, ConnectionTooOld):
            self._timer.cancel()

    def _expire(self, reason: ConnectionTooOld) -> None:
        self._inbox.end(reason)
        self._wait()

    def _wait(self) -> None:
        self._timer = self._loop.call_later(self._patience, self._look, self._session.is_answering)

    def _look(self, was_answering: bool) -> None:
        if was_answering or self._session.is_answering:
            self._wait()
        else:
            self._channel.abort()
