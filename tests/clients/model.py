"""A Chat Completions backend over HTTP with a scripted model: what all clients are tried against.

PYTHONPATH=tests python -m clients.model --port 0

prints its address in one line and serves until it is ended. What the model does is in `script.py`, what is refused in
`strict.py`.

    GET    /v1/models
    POST   /v1/chat/completions
    GET    /requests?contains=TEXT   what was asked, oldest first: {"requests": [{"case", "status", "code", …}]}
    DELETE /requests                 forget it
"""

from __future__ import annotations

import argparse
import contextlib
import json
import threading
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from clients.cues import described
from clients.replies import chunks, completion, error, refusal, words
from clients.script import Breaks, Calls, Refuses, Says, answer
from clients.strict import Json, Malformed, check

MODELS = ("scripted", "gpt-5.5", "gpt-6-sol", "small")
"""The second is one that Codex and the AI SDK think they know: they then send and ask for more. For the third, Codex
declares its tools in an `additional_tools` item.
"""
CONTEXTS = {"small": 600}
"""Tokens, which are words: what a model takes at most, with what it is to say."""


class ScriptedModel(ThreadingHTTPServer):
    """Answers as soon as it is made, once `serve_forever` runs."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, port: int = 0, models: Sequence[str] = MODELS) -> None:
        super().__init__(("127.0.0.1", port), _Exchange)
        self.models = tuple(models)
        self._requests: list[Json] = []
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"

    def note(self, request: Json) -> None:
        with self._lock:
            self._requests.append(request)

    def forget(self) -> None:
        with self._lock:
            self._requests.clear()

    def seen(self, contains: str = "") -> list[Json]:
        """The requests in whose body this stands."""
        with self._lock:
            return [request for request in self._requests if contains in json.dumps(request["body"])]

    def verdict(self, request: Any) -> Says | Calls | Refuses | Breaks:
        """What becomes of a body."""
        if not isinstance(request, dict):
            return Refuses(400, "The body is not an object.")
        if request.get("model") not in self.models:
            return Refuses(404, f"The model {request.get('model')!r} does not exist.", "model_not_found")
        try:
            check(request)
            return overflow(request) or answer(request)
        except Malformed as fault:
            return Refuses(400, f"Malformed: {fault}", "malformed")
        except (KeyError, TypeError, ValueError, AttributeError) as exc:
            return Refuses(400, f"Malformed: {type(exc).__name__}: {exc}", "malformed")


def overflow(request: Json) -> Refuses | None:
    """The refusal of a request that is longer than its model's context."""
    most = CONTEXTS.get(request["model"])
    asked = words(request)
    if most is None or asked <= most:
        return None
    told = f"This model's maximum context length is {most} tokens. However, your messages resulted in {asked} tokens."
    return Refuses(400, told, "context_length_exceeded")


def described_model(name: str) -> Json:
    """As vLLM lists it."""
    told: Json = {"id": name, "object": "model", "created": 1, "owned_by": "script"}
    return {**told, "max_model_len": CONTEXTS[name]} if name in CONTEXTS else told


class _Exchange(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: ScriptedModel

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is theirs
        pass

    def do_GET(self) -> None:
        path = urlsplit(self.path)
        if path.path == "/v1/models":
            listed = [described_model(name) for name in self.server.models]
            self._reply(200, {"object": "list", "data": listed})
        elif path.path == "/requests":
            self._reply(200, {"requests": self.server.seen(parse_qs(path.query).get("contains", [""])[0])})
        else:
            self._reply(404, error("There is nothing here.", "not_found"))

    def do_DELETE(self) -> None:
        self.server.forget()
        self._reply(200, {})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", "0")))
        if self.path != "/v1/chat/completions":
            self._reply(404, error("There is nothing here.", "not_found"))
            return
        request: Any = None
        with contextlib.suppress(ValueError):
            request = json.loads(body)
        found = self.server.verdict(request)
        self.server.note(_record(request, found))
        with contextlib.suppress(ConnectionError):  # who asked has hung up
            self._play(request, found)

    def _play(self, request: Json, found: Says | Calls | Refuses | Breaks) -> None:
        if isinstance(found, Refuses):
            self._reply(found.status, refusal(found), found.headers)
        elif request.get("stream"):
            self._stream(request, found)
        elif isinstance(found, Breaks):
            self._break_off(found)
        else:
            self._reply(200, completion(request, found))

    def _reply(self, status: int, content: Json, headers: dict[str, str] | None = None) -> None:
        data = json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"content-type": "application/json", **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _stream(self, request: Json, found: Says | Calls | Breaks) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for chunk in chunks(request, found):
            self._write(json.dumps(chunk))
        if isinstance(found, Breaks) and not found.error:
            self.close_connection = True
            return
        self._write("[DONE]")
        self.wfile.write(b"0\r\n\r\n")

    def _write(self, data: str) -> None:
        frame = f"data: {data}\n\n".encode()
        self.wfile.write(b"%x\r\n%b\r\n" % (len(frame), frame))

    def _break_off(self, found: Breaks) -> None:
        """A body that is shorter than was said."""
        if found.error:
            self._reply(500, error(found.error, "internal_error"))
            return
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", "1000")
        self.end_headers()
        self.wfile.write(b'{"choices": [')
        self.close_connection = True


def _record(request: Any, found: Says | Calls | Refuses | Breaks) -> Json:
    status, code = (found.status, found.code) if isinstance(found, Refuses) else (200, None)
    streamed = bool(isinstance(request, dict) and request.get("stream"))
    return {"case": described(request), "status": status, "code": code, "stream": streamed, "body": request}


@contextlib.contextmanager
def running(port: int = 0, models: Sequence[str] = MODELS) -> Iterator[ScriptedModel]:
    """The backend, answering on threads of its own."""
    with ScriptedModel(port, models) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(prog="python -m clients.model", description="A scripted backend.")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--model", action="append", metavar="NAME", help="a model it has; may be given again")
    chosen = parser.parse_args(arguments)
    with ScriptedModel(chosen.port, chosen.model or MODELS) as server, contextlib.suppress(KeyboardInterrupt):
        print(server.url, flush=True)  # noqa: T201 - a program
        server.serve_forever()


if __name__ == "__main__":
    main()
