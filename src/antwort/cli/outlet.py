"""The standard output as something to write to bit by bit, which never raises."""

from __future__ import annotations

import io
import sys

from antwort.cli.say import abandon


class Outlet:
    """What is written to it goes to the standard output, as long as that takes it. `problem` says why not, if not:
    somebody who stops reading has read enough, and is none.
    """

    def __init__(self) -> None:
        self._to = sys.stdout
        self.problem = "" if self._to is not None else "it is closed"
        self.encoding = "utf-8" if self._to is None else self._to.encoding

    def isatty(self) -> bool:
        return self._to is not None and self._to.isatty()

    def fileno(self) -> int:
        if self._to is None:
            raise io.UnsupportedOperation("fileno")
        return self._to.fileno()

    def write(self, text: str) -> int:
        self._try(text)
        return len(text)

    def flush(self) -> None:
        self._try("")

    def _try(self, text: str) -> None:
        if self._to is None:
            return
        try:
            self._to.write(text)
            self._to.flush()
        except OSError as exc:
            self.problem = abandon(exc)
            self._to = None
