"""`python -m antwort.cli.leashed COMMAND …`: the command, ended as soon as standard input ends.

Whoever starts a server for their own use keeps the other end of its standard input: when they are gone, in whatever
way, so is the server.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading

from antwort.cli import main


def hold() -> None:
    threading.Thread(target=_end_with_input, daemon=True).start()


def _end_with_input() -> None:
    with contextlib.suppress(OSError):
        while os.read(0, 1024):
            pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    hold()
    sys.exit(main())
