"""One of several workers: a process that `antwort serve --workers N` starts."""

from __future__ import annotations

import signal
import socket
import sys
from typing import TYPE_CHECKING

from antwort.cli.berth import Berth, Order, take_order
from antwort.cli.process import fill_gaps, run_to_end
from antwort.cli.say import complain
from antwort.config.problems import CannotStart

if TYPE_CHECKING:
    from pathlib import Path

    from antwort.config.settings import Settings


def main(link: int) -> int:
    """`link` is the descriptor of the socket that orders come by."""
    fill_gaps()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # it is not for a worker to decide
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # until it serves, as SIGTERM
    from antwort.cli.serve import serve

    speaking = socket.socket(fileno=link)
    try:
        order = take_order(speaking)
    except EOFError:
        return 1
    try:
        settings, file = _read(order)
    except CannotStart as exc:
        return complain(exc)
    berth = Berth(speaking, socket.socket(fileno=order.front), speaks=order.speaks)
    return run_to_end(serve(settings, file, berth))


def _read(order: Order) -> tuple[Settings, Path | None]:
    """Anew, so that workers that take others' places have what is in the file by then."""
    from antwort.cli.serve import begin_log, checked
    from antwort.config.checks import of_worker
    from antwort.config.loading import read

    loaded = read(order.given)
    begin_log(loaded)
    return of_worker(checked(loaded.settings), order.index, order.workers), loaded.file


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
