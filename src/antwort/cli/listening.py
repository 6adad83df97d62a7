"""Where a server listens: to its clients, and to the processes beside it."""

from __future__ import annotations

import errno
import socket
from typing import NamedTuple

from antwort.cli.greeting import address
from antwort.config.problems import CannotStart
from antwort.config.settings import Settings


class Peers(NamedTuple):
    socket: socket.socket
    address: str
    """What the others are told."""


def listen_to_clients(settings: Settings) -> socket.socket:
    """Raises `CannotStart`."""
    from antwort.server.server import listen, reason

    host, port = settings.server.host, settings.server.port
    try:
        return listen(host, port)
    except OSError as exc:
        fix = "; choose another with --port" if exc.errno == errno.EADDRINUSE else ""
        raise CannotStart(f"Cannot listen on {address(host, port)}: {reason(exc)}{fix}.") from exc


def listen_to_peers(settings: Settings) -> Peers | None:
    """None for a process alone. Raises `CannotStart`."""
    from antwort.config.checks import peers_host
    from antwort.server.server import listen, reason

    host, port = peers_host(settings), settings.server.peer_port
    if host is None:
        return None
    try:
        sock = listen(host, port)
    except OSError as exc:
        fix = "see server.peer_host and server.peer_port"
        raise CannotStart(
            f"Cannot listen on {address(host, port)} for the other processes: {reason(exc)}; {fix}."
        ) from exc
    return Peers(sock, settings.server.peer_url or address(host, sock.getsockname()[1]))
