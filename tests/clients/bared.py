"""Between a client and the server: a proxy that takes what the model thought out of what the client brings back.

Clients bring back the reasoning in clear beside its seal, and the clear text alone would do. Behind this, only the seal
is left to go by.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

_OF_ONE_HOP = frozenset({"connection", "content-length", "host", "keep-alive", "transfer-encoding"})
_PATIENCE = 60.0


def bared(body: bytes) -> bytes:
    """The request without any reasoning in clear; what is not a request stays as it is."""
    try:
        request = json.loads(body)
    except ValueError:
        return body
    if not isinstance(request, dict) or not isinstance(request.get("input"), list):
        return body
    return json.dumps({**request, "input": [_without_words(item) for item in request["input"]]}).encode()


def _without_words(item: Any) -> Any:
    if not isinstance(item, dict) or item.get("type") != "reasoning":
        return item
    return {**{name: value for name, value in item.items() if name != "content"}, "summary": []}


class _Proxy(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, place: str) -> None:
        super().__init__(("127.0.0.1", 0), _Passing)
        self.place = place


class _Passing(BaseHTTPRequestHandler):
    server: _Proxy

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is theirs
        pass

    def do_GET(self) -> None:
        self._pass_on(None)

    def do_POST(self) -> None:
        self._pass_on(bared(self.rfile.read(int(self.headers.get("content-length", "0")))))

    def _pass_on(self, body: bytes | None) -> None:
        """The answer is written as it comes, and ends with the connection."""
        given = {name: value for name, value in self.headers.items() if name.lower() not in _OF_ONE_HOP}
        with contextlib.closing(HTTPConnection(self.server.place, timeout=_PATIENCE)) as server:
            server.request(self.command, self.path, body, given)
            answer = server.getresponse()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in _OF_ONE_HOP:
                    self.send_header(name, value)
            self.end_headers()
            with contextlib.suppress(ConnectionError):  # who asked has hung up
                while piece := answer.read1():
                    self.wfile.write(piece)


@contextlib.contextmanager
def baring(url: str) -> Iterator[str]:
    """The address to ask instead of `url`."""
    parts = urlsplit(url)
    with _Proxy(parts.netloc) as proxy:
        thread = threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{proxy.server_port}{parts.path}"
        finally:
            proxy.shutdown()
            thread.join()
