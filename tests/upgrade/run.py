"""Continue with this version what an older version has stored.

PYTHONPATH=tests python -m upgrade.run --from REVISION

The older version is installed from its commit, with its own dependencies. It stores responses of every kind, is killed
in the middle of a background response, and this version opens the same data: in SQLite and in PostgreSQL. Then both
versions share one PostgreSQL database, and the older one is stopped under load.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from postgres import Postgres, free_port

REPOSITORY = Path(__file__).parents[2]
PATIENCE = 90.0
"""Seconds after which a step has failed: the lease of a killed process alone is 20 s on PostgreSQL."""
PAUSE = 0.05
"""Seconds between two pieces of an answer."""
WORDS = 120
"""Length of the answers that are interrupted."""
Json: TypeAlias = dict[str, Any]
Program: TypeAlias = Sequence[str]
Settings: TypeAlias = Mapping[str, str]

ASK: Json = {"type": "function", "name": "ask", "parameters": {"type": "object", "properties": {}}}


# ---- the backend ----


class Model(BaseHTTPRequestHandler):
    """Count to N when asked to "count N", call `ask` when told to "ask", else repeat all that the user has said."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None: ...

    def do_GET(self) -> None:
        self._send_json({"object": "list", "data": [{"id": "m", "object": "model"}]})

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        said = [text_of(message) for message in request["messages"] if message["role"] == "user"]
        results = [text_of(message) for message in request["messages"] if message["role"] == "tool"]
        if said[-1] == "ask" and not results:
            call = {"index": 0, "id": "c", "type": "function", "function": {"name": "ask", "arguments": "{}"}}
            self._answer(request, [{"role": "assistant", "tool_calls": [call]}], "tool_calls")
            return
        words = [f"{number} " for number in range(int(said[-1].split()[1]))] if said[-1].startswith("count") else said
        self._answer(request, [{"role": "assistant", "content": word} for word in [*words, *results]], "stop")

    def _answer(self, request: Json, deltas: Sequence[Json], finish: str) -> None:
        if not request.get("stream"):
            message = deltas[0] | {"content": "".join(delta.get("content") or "" for delta in deltas)}
            self._send_json({"choices": [{"index": 0, "message": message, "finish_reason": finish}]})
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        for delta in deltas:
            self._send_event({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
            time.sleep(PAUSE)
        self._send_event({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
        self.wfile.write(b"data: [DONE]\n\n")

    def _send_event(self, chunk: Json) -> None:
        self.wfile.write(b"data: %b\n\n" % json.dumps(chunk).encode())

    def _send_json(self, content: Json) -> None:
        body = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class Backend(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, *_: object) -> None:
        """A client that was killed is no error."""


def text_of(message: Json) -> str:
    content = message["content"]
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def counted(number: int) -> str:
    return "".join(f"{each} " for each in range(number))


# ---- servers and clients ----


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: Json


class Server:
    """`antwort serve` of one version."""

    def __init__(self, program: Program, settings: Settings) -> None:
        self.port = free_port()
        environment = {**os.environ, **settings, "ANTWORT_LOG_LEVEL": "error"}
        command = [*program, "serve", "--demo-tools", "--port", str(self.port)]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=environment)
        until(lambda: self.ask("GET", "/readyz").status == 200, "the server answers")

    def ask(self, method: str, path: str, body: Json | None = None, headers: Mapping[str, str] = {}) -> Answer:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            sent = None if body is None else json.dumps({"model": "m", **body})
            connection.request(method, path, sent, {"Content-Type": "application/json", **headers})
            answer = connection.getresponse()
            return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, json.loads(answer.read()))
        finally:
            connection.close()

    def create(self, text: str, headers: Mapping[str, str] = {}, **fields: object) -> Json:
        answer = self.ask("POST", "/v1/responses", {"input": text, **fields}, headers)
        assert answer.status == 200, answer
        return answer.body

    def events(self, method: str, path: str, body: Json | None = None) -> Iterator[Json]:
        """Yield the events of a stream, as far as they come: a server that is stopped or killed ends it early."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            sent = None if body is None else json.dumps({"model": "m", "stream": True, **body})
            connection.request(method, path, sent, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            assert answer.status == 200, (answer.status, answer.read())
            while line := answer.readline():
                if line.startswith(b"data: {"):
                    yield json.loads(line[6:])
        except (OSError, HTTPException):
            return
        finally:
            connection.close()

    def replay(self, response_id: str, after: int | None = None) -> Iterator[Json]:
        behind = "" if after is None else f"&starting_after={after}"
        return self.events("GET", f"/v1/responses/{response_id}?stream=true{behind}")

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        assert self._process.wait(PATIENCE) == 0, "it did not end by itself"


def until(is_so: Any, what: str) -> None:
    end = time.monotonic() + PATIENCE
    while True:
        try:
            if is_so():
                return
        except (OSError, HTTPException):
            pass
        assert time.monotonic() < end, f"not within {PATIENCE:.0f} s: {what}"
        time.sleep(PAUSE)


def output_text(response: Json) -> str:
    """Return the text of the last message."""
    texts = [part["text"] for item in response["output"] if item["type"] == "message" for part in item["content"][:1]]
    return texts[-1] if texts else ""


def check_numbers(events: Sequence[Json]) -> None:
    numbers = [event["sequence_number"] for event in events]
    assert numbers == [*range(len(numbers))], f"not every number once: {numbers[:5]} … {numbers[-5:]}"


# ---- old data ----


def open_old_data(old: Program, new: Program, settings: Settings) -> int:
    """Return how many events the response had that the old version was killed in."""
    server = Server(old, settings)
    finished = server.create("hello")
    streamed = [*server.events("POST", "/v1/responses", {"input": "count 10", "background": True})]
    keyed = server.create("hello again", {"Idempotency-Key": "k1"})
    paused = server.create("ask", tools=[ASK])
    assert paused["status"] == "requires_action"
    conversation = server.ask("POST", "/v1/conversations", {}).body["id"]
    server.create("first turn. ", conversation=conversation)
    broken: list[Json] = []
    for event in server.events("POST", "/v1/responses", {"input": f"count {WORDS}", "background": True}):
        broken.append(event)
        if len(broken) == WORDS // 3:
            server.kill()
    assert len(broken) < WORDS

    server = Server(new, settings)
    for response in (finished, keyed, paused):
        assert server.ask("GET", f"/v1/responses/{response['id']}").body == response
    streamed_id = streamed[0]["response"]["id"]
    assert [*server.replay(streamed_id)] == streamed
    again = server.ask("POST", "/v1/responses", {"input": "hello again"}, {"Idempotency-Key": "k1"})
    assert (again.body, again.headers["idempotent-replayed"]) == (keyed, "true")
    assert server.ask("POST", "/v1/responses", {"input": "another"}, {"Idempotency-Key": "k1"}).status in (409, 422)
    call = next(item for item in paused["output"] if item["type"] == "function_call")
    result = [{"type": "function_call_output", "call_id": call["call_id"], "output": "yes"}]
    went_on = server.ask(
        "POST", "/v1/responses", {"input": result, "previous_response_id": paused["id"], "tools": [ASK]}
    )
    assert (went_on.body["status"], output_text(went_on.body)) == ("completed", "askyes")
    assert output_text(server.create("second turn.", conversation=conversation)) == "first turn. second turn."
    followed = server.create(" bye", previous_response_id=finished["id"])
    assert output_text(followed) == "hello bye"

    broken += server.replay(broken[0]["response"]["id"], after=broken[-1]["sequence_number"])
    check_numbers(broken)
    assert broken[-1]["type"] == "response.completed", broken[-1]
    assert output_text(broken[-1]["response"]) == counted(WORDS)
    server.stop()
    return len(broken)


# ---- a rolling restart ----


def restart(old: Program, new: Program, settings: Settings, streams: int) -> tuple[float, int]:
    """Stop the old version while it runs background streams and short requests, beside the new version. Return the
    seconds until it had ended, and how many short requests were answered.
    """
    before, after = Server(old, settings), Server(new, settings)
    events: list[list[Json]] = [[] for _ in range(streams)]
    stopping = threading.Event()
    answered = 0

    def read(number: int) -> None:
        own = events[number]
        own += before.events("POST", "/v1/responses", {"input": f"count {WORDS}", "background": True})
        end = time.monotonic() + PATIENCE
        while own[-1]["type"] not in ("response.completed", "response.failed") and time.monotonic() < end:
            own += after.replay(own[0]["response"]["id"], after=own[-1]["sequence_number"])

    def ask() -> int:
        """Ask the old server as long as it answers, and then the new one, as a load balancer does."""
        count = 0
        server = before
        end = time.monotonic() + 8 * WORDS * PAUSE / 6
        while time.monotonic() < end:
            try:
                response = server.create(f"hello {count}")
            except (OSError, HTTPException, AssertionError):
                assert stopping.is_set(), "a request failed before the old server was stopped"
                assert server is before, "a request to the new server failed"
                server = after
                continue
            assert after.ask("GET", f"/v1/responses/{response['id']}").body == response
            count += 1
        return count

    with ThreadPoolExecutor(streams + 4) as pool:
        readers = [pool.submit(read, number) for number in range(streams)]
        askers = [pool.submit(ask) for _ in range(4)]
        until(lambda: all(len(own) > WORDS // 4 for own in events), "all streams are under way")
        began = time.monotonic()
        stopping.set()
        before.stop()
        took = time.monotonic() - began
        for reader in readers:
            reader.result()
        answered = sum(asker.result() for asker in askers)
    for own in events:
        check_numbers(own)
        assert own[-1]["type"] == "response.completed", own[-1]
        assert output_text(own[-1]["response"]) == counted(WORDS)
    after.stop()
    return took, answered


# ---- the older version ----


def install(revision: str, folder: Path) -> Program:
    """Install the version of a commit with its own dependencies. Return the command that starts it."""
    commit = _git("rev-parse", "--short=12", revision)
    home = folder / commit
    python = str(home / "venv/bin/python")
    if not (home / "ready").exists():
        home.mkdir(parents=True, exist_ok=True)
        archive = subprocess.run(["git", "archive", commit], cwd=REPOSITORY, capture_output=True, check=True).stdout
        (home / "source").mkdir(exist_ok=True)
        subprocess.run(["tar", "-x", "-C", home / "source"], input=archive, check=True)
        subprocess.run([sys.executable, "-m", "venv", home / "venv"], check=True)
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "--require-hashes", "-r", home / "source/requirements/serve.lock"], check=True)
        subprocess.run([*pip, "--no-deps", "--no-build-isolation", home / "source"], check=True)
        (home / "ready").touch()
    return [python, "-m", "antwort"]


def _git(*arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=REPOSITORY, capture_output=True, check=True, text=True
    ).stdout.strip()


@contextmanager
def backend() -> Iterator[str]:
    server = Backend(("127.0.0.1", 0), Model)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m upgrade.run", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--from", dest="revision", required=True, metavar="REVISION", help="the older version")
    parser.add_argument("--folder", type=Path, default=REPOSITORY / ".bench/upgrade", help="where it is installed")
    parser.add_argument("--streams", type=int, default=24, help="background streams during the restart")
    chosen = parser.parse_args()
    old, new = install(chosen.revision, chosen.folder.resolve()), [sys.executable, "-m", "antwort"]
    with ExitStack() as stack:
        url = stack.enter_context(backend())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        postgres = Postgres(is_durable=True)
        stack.callback(postgres.remove)
        postgres.start()

        def settings(name: str, database: str | None = None) -> Settings:
            stored = {} if database is None else {"ANTWORT_DATABASE": database}
            return {
                "ANTWORT_BACKENDS": json.dumps([{"name": "m", "url": url}]),
                "ANTWORT_DATA": str(folder / name),
                **stored,
            }

        for name, database in (("SQLite", None), ("PostgreSQL", postgres.fresh_database())):
            count = open_old_data(old, new, settings(name, database))
            say(f"{name}: old data opened; the interrupted response has {count} events without gaps")
        took, answered = restart(old, new, settings("shared", postgres.fresh_database()), chosen.streams)
        say(f"rolling restart: {chosen.streams} streams complete, {answered} requests answered, ended in {took:.1f} s")


def say(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - a program


if __name__ == "__main__":
    main()
