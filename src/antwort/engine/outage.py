"""What a process says of a log of runs that cannot be used: one line when that begins, and one when it is over."""

from __future__ import annotations

import logging

from antwort.errors import AntwortError
from antwort.runs.base import Unavailable

_log = logging.getLogger("antwort.runs")


class Outage:
    """Several ask the log, each again and again. It is over when none of them asks in vain any more."""

    def __init__(self) -> None:
        self._in_vain: set[str] = set()

    def begins(self, who: str, error: AntwortError) -> None:
        if not self._in_vain:
            reason = error.reason if isinstance(error, Unavailable) else ""
            _log.warning("the log of runs cannot be used now: %s", reason or error.message)
        self._in_vain.add(who)

    def ends(self, who: str) -> None:
        if who in self._in_vain:
            self._in_vain.discard(who)
            if not self._in_vain:
                _log.info("the log of runs can be used again")
