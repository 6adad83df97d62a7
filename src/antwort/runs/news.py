"""What a process hears of runs: from itself and, over PostgreSQL, from the others. All of it is hints."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import uniform
from typing import TYPE_CHECKING

from antwort.runs import notices
from antwort.runs.hints import Hint, Tails
from antwort.runs.notices import Notice

if TYPE_CHECKING:
    from antwort.runs.listening import Listener
    from antwort.storage.postgres import BoundedConnection as Raw

KEEPALIVE_SECONDS = (1.0, 5.0)
"""Between the signs of life of one who follows a run: where news may be missed, and where they are heard."""
_LOOKS = (10.0, 15.0)
"""Seconds until one who hears the news looks for itself all the same; not all at once."""


class News:
    def __init__(
        self,
        sender: str,
        connect: Callable[[], Raw] | None,
        poll: float | None,
        keepalive_seconds: tuple[float, float] = KEEPALIVE_SECONDS,
    ) -> None:
        """`connect`: to where others tell what they do; None: there are no others. `poll`: seconds after which one who
        follows a run looks for itself, whatever it hears. `keepalive_seconds`: see `KEEPALIVE_SECONDS`.
        """
        self._keepalive_unheard, self._keepalive_heard = keepalive_seconds
        self._sender, self._connect, self._poll = sender, connect, poll
        self.work, self.cancels, self.tails = Hint(), Hint(), Tails()
        self._listener: Listener | None = None
        self._is_closed = False

    def listen(self) -> None:
        """From now on, once for all."""
        if self._listener is None and self._connect is not None and not self._is_closed:
            from antwort.runs.listening import Listener

            self._listener = Listener(self._connect, self)

    async def close(self) -> None:
        self._is_closed = True
        listener, self._listener = self._listener, None
        if listener is not None:
            await listener.close()

    # ---- for those who follow a run ----

    @property
    def pause(self) -> float:
        """Seconds until the next sign of life."""
        return self._poll or (self._keepalive_heard if self._is_told else self._keepalive_unheard)

    def look_in(self) -> float:
        """Seconds after which one who has heard nothing looks for itself."""
        return uniform(*_LOOKS) if self.is_enough else 0.0  # noqa: S311 - so that not all look at once; nothing to guess

    @property
    def is_enough(self) -> bool:
        """Whether it will do to wait for news."""
        return self._is_told and self._poll is None

    @property
    def _is_told(self) -> bool:
        return self._connect is None or (self._listener is not None and self._listener.is_connected)

    # ---- what is told ----

    def hear(self, payloads: Sequence[str]) -> None:
        """What other processes tell, and this one tells itself."""
        for notice in map(notices.read, payloads):
            match notice:
                case Notice(sender=self._sender) | None:
                    pass
                case Notice(kind="e", ids=ids):
                    self.tails.tell_some(ids)
                case Notice(kind="w"):
                    self.work.set()
                case Notice(kind="c"):
                    self.cancels.set()

    def hear_all(self) -> None:
        """Something may have been missed: everybody looks for itself."""
        self.work.set()
        self.cancels.set()
        self.tails.tell_all()
