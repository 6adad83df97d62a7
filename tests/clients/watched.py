"""Between a client and the server: a wire that carries every byte as it is, and keeps what was asked for."""

from __future__ import annotations

import contextlib
import re
import socket
import socketserver
import threading
from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import urlsplit

_REQUEST = re.compile(rb"(GET|POST|DELETE) (\S+) HTTP/1\.1\r\n")
_UPGRADE = re.compile(rb"upgrade: *websocket", re.IGNORECASE)
_SIZE = 65536


class Wire(NamedTuple):
    url: str
    """The address to ask instead."""
    asked: list[str]
    """Methods and paths, in the order in which they came; a WebSocket is `UPGRADE`."""

    def count(self, request: str) -> int:
        return self.asked.count(request)


class _Wires(socketserver.ThreadingTCPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, place: tuple[str, int], asked: list[str]) -> None:
        super().__init__(("127.0.0.1", 0), _Carried)
        self.place, self.asked = place, asked


class _Carried(socketserver.BaseRequestHandler):
    server: _Wires
    request: socket.socket

    def handle(self) -> None:
        with contextlib.suppress(OSError), socket.create_connection(self.server.place) as there:
            back = threading.Thread(target=_carry, args=(there, self.request), daemon=True)
            back.start()
            _carry(self.request, there, self._note)
            back.join()

    def _note(self, data: bytes) -> None:
        """What a client sends in a WebSocket is masked, and looks like no request."""
        for found in _REQUEST.finditer(data):
            method = "UPGRADE" if _UPGRADE.search(data, found.end()) else found[1].decode()
            self.server.asked.append(f"{method} {found[2].decode()}")


def _carry(source: socket.socket, target: socket.socket, note: object = None) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(_SIZE):
            if callable(note):
                note(data)
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def watching(url: str) -> Iterator[Wire]:
    parts = urlsplit(url)
    asked: list[str] = []
    with _Wires((parts.hostname or "", parts.port or 80), asked) as wires:
        thread = threading.Thread(target=wires.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield Wire(f"http://127.0.0.1:{wires.server_address[1]}{parts.path}", asked)
        finally:
            wires.shutdown()
            thread.join()
