"""`antwort serve` as a process of its own, in front of the backend that does as it is told."""

from __future__ import annotations

import http.client
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

PATIENCE = 20.0
"""Seconds after which an answer that has not come is a hang. The backend never waits."""
UNEXPECTED = "in a way nobody expected"
"""What the log says of a defect."""
SETTINGS = """
{default_model}
{auth}
backends:
  - name: fuzz
    url: http://127.0.0.1:{port}/v1
    tool_calling: {tool_calling}
    timeouts: {{first_byte: 8, idle: 8}}
    breaker: {{failures: 1000000}}
    capabilities: {{files: true}}
routing: {{retry: {{attempts: 1}}}}
tools:
  demo: true
  hosted:
    web_search: {{do: run, toolset: demo}}
    image_generation: {{do: refuse}}
metrics: {{enabled: true}}
log: {{level: warning, format: human}}
"""

KEYS = {"ann": "sk-antwort-fuzz-ann-0123456789", "bob": "sk-antwort-fuzz-bob-0123456789"}
"""Of a server that asks for them, by whom they belong to."""
AUTH = "auth:\n  keys:" + "".join(
    f"\n    - {{name: {name}, key: {key}, limits: {{requests_per_minute: 1000000}}}}" for name, key in KEYS.items()
)


@dataclass(frozen=True)
class Reply:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def kind(self) -> str:
        """The media type, without its parameters."""
        return self.headers.get("content-type", "").partition(";")[0].strip()


class Hang(Exception):
    """No answer, or not all of one."""


class FuzzServer:
    """Use as a context. `folder` holds its settings, its data and its log. It may be asked by
    several threads at once.
    """

    def __init__(
        self, folder: Path, backend_port: int, *, tool_calling: str, default_model: str | None, has_keys: bool = False
    ) -> None:
        self._folder = folder
        auth = AUTH if has_keys else ""
        settings = folder / "antwort.yaml"
        model = f"default_model: {default_model}" if default_model else ""
        settings.write_text(
            SETTINGS.format(port=backend_port, tool_calling=tool_calling, default_model=model, auth=auth)
        )
        settings.chmod(0o600)
        self._command = [sys.executable, "-m", "antwort", "serve", "--port", "0", "--config", str(settings)]
        self._command += ["--data", str(folder / "data")]
        self.port = 0
        self._lines: list[http.client.HTTPConnection] = []
        """Connections that nobody uses just now."""
        self._last_words: str | None = None

    def __enter__(self) -> Self:
        self._log = (self._folder / "log").open("w+")
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, stderr=self._log, text=True)
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if found := re.search(r"listens on http://\S+?:(\d+)$", line.strip()):
                self.port = int(found[1])
            if line.startswith("  try "):
                return self
        raise RuntimeError(f"the server did not start:\n{self.log()}")

    def __exit__(self, *_: object) -> None:
        while self._lines:
            self._lines.pop().close()
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._log.close()
        self._last_words = self.log()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def log(self) -> str:
        """All of it, also when the server has ended and its folder is gone."""
        if self._last_words is not None:
            return self._last_words
        return (self._folder / "log").read_text(encoding="utf-8", errors="replace")

    def send(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Reply:
        """Raises `Hang`."""
        line = (
            self._lines.pop() if self._lines else http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        )
        try:
            return self._exchange(line, method, path, body, {**(headers or {})})
        except TimeoutError as exc:
            line.close()
            raise Hang(f"no answer in {PATIENCE:.0f} seconds") from exc
        except (http.client.HTTPException, OSError) as exc:
            line.close()
            raise Hang(f"{type(exc).__name__}: {exc}") from exc

    def _exchange(
        self, line: http.client.HTTPConnection, method: str, path: str, body: bytes | None, headers: dict[str, str]
    ) -> Reply:
        if body is not None and not any(name.lower() == "content-type" for name in headers):
            headers["content-type"] = "application/json"
        line.request(method, path, body, headers)
        answer = line.getresponse()
        reply = Reply(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())
        if answer.will_close:
            line.close()
        self._lines.append(line)
        return reply


@contextmanager
def serving(
    backend_port: int, *, tool_calling: str, default_model: str | None, has_keys: bool = False
) -> Iterator[FuzzServer]:
    """A server in a folder that goes with it."""
    with tempfile.TemporaryDirectory(prefix="antwort-fuzz-") as folder:
        made = FuzzServer(
            Path(folder), backend_port, tool_calling=tool_calling, default_model=default_model, has_keys=has_keys
        )
        with made as server:
            yield server
