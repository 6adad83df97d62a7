"""One of the processes that `antwort serve --workers N` starts: a server on the supervisor's socket."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import sys
from collections.abc import Callable, Sequence

from antwort.cli.output import report
from antwort.cli.process import HANGUP, open_standard_streams, run_process
from antwort.config.problems import CannotStart


class SupervisorLink:
    """A worker's connection to its supervisor: a socket that is open as long as the supervisor lives."""

    def __init__(self, link: socket.socket, listener: socket.socket, *, wants_rows: bool) -> None:
        self.listener, self.wants_rows = listener, wants_rows
        """`wants_rows`: this worker's greeting is the one that the supervisor prints."""
        self._link = link
        self._watching: asyncio.Task[None] | None = None

    async def watch(self, *, on_hurry: Callable[[], None], on_lost: Callable[[], None]) -> None:
        """Call `on_hurry` when the supervisor says to stop at once, `on_lost` when it is gone."""
        self._link.setblocking(False)
        self._watching = asyncio.create_task(self._watch(on_hurry, on_lost))

    async def _watch(self, on_hurry: Callable[[], None], on_lost: Callable[[], None]) -> None:
        try:
            while await asyncio.get_running_loop().sock_recv(self._link, 4096):
                on_hurry()  # the only message there is
        except OSError:
            pass
        on_lost()

    async def report_ready(self, rows: Sequence[tuple[str, str]]) -> None:
        await asyncio.get_running_loop().sock_sendall(self._link, json.dumps(rows).encode() + b"\n")


def main(descriptor: int) -> int:
    """Serve as the supervisor says on the socket with this descriptor; settings are read anew."""
    open_standard_streams()
    if HANGUP is not None:
        signal.signal(HANGUP, signal.SIG_IGN)  # the supervisor decides
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # like SIGTERM, until the server handles it
    from antwort.cli.serve import checked, configure_log, serve
    from antwort.config.checks import of_worker
    from antwort.config.loading import read

    link = socket.socket(fileno=descriptor)
    with link.makefile("rb") as lines:
        line = lines.readline()
    if not line:  # the supervisor is gone
        return 1
    order = json.loads(line)
    try:
        loaded = read(order["flags"])
        configure_log(loaded)
        settings = of_worker(checked(loaded.settings), order["index"], order["workers"])
    except CannotStart as exc:
        return report(exc)
    listener = socket.socket(fileno=order["listener"])
    return run_process(
        serve(settings, loaded.file, link=SupervisorLink(link, listener, wants_rows=order["wants_rows"]))
    )


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
