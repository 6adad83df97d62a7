"""`python -m antwort.cli.die_with_parent COMMAND …`: run a command, and stop it when standard input ends.

A program that starts a server for its own use keeps the other end: the server ends with it, however it ends.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading

from antwort.cli import main


def _stop_at_end_of_input() -> None:
    with contextlib.suppress(OSError):
        while os.read(0, 1024):
            pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=_stop_at_end_of_input, daemon=True).start()
    sys.exit(main())
