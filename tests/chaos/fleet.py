"""The processes of the chaos suite: servers, the database, the model and the tools; and what is done to them."""

from __future__ import annotations

import asyncio
import base64
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

from chaos.faults import Fault
from chaos.story import LABEL
from chaos.tools import SERVER_HEADER
from postgres import Postgres, free_port
from raw_http import ask

PATIENCE = 60.0
COMMAND = (sys.executable, "-m", "antwort")
LEDGER = "ledger.jsonl"
INFERENCES = "inferences.jsonl"
_NO_DATABASE = "antwort: The database cannot be used"
_NOT_STORED = "could not be stored"
"""Of a response in the foreground, which does not wait until the database is back."""
Home: TypeAlias = Literal["sqlite", "postgres"]


class Pace(NamedTuple):
    """Seconds."""

    model: float
    """Between two pieces of an answer."""
    work: float
    """That a call takes, on the average."""
    lease: float


class Span(NamedTuple):
    """When something was wrong with a server process or with the database, in seconds since 1970."""

    server: str
    """Empty: the database."""
    begin: float
    end: float


class Server:
    """`antwort serve`. It keeps its port and its settings over `kill` and `start`."""

    def __init__(self, number: int, folder: Path, settings: dict[str, Any], work: float) -> None:
        self.number, self.port = number, free_port()
        self._environment = {"CHAOS_LEDGER": str(folder / LEDGER), "CHAOS_WORK": str(work)}
        self.log = folder / f"server-{number}.log"
        self._file = folder / f"server-{number}.yaml"
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None
        self._lives = 0
        self._is_wanted = False

    @property
    def name(self) -> str:
        """Of the process that runs now."""
        return f"{self.number}.{self._lives}"

    def start(self) -> None:
        self._lives += 1
        self._is_wanted = True
        tools = {**self._settings["mcp_servers"][0], "headers": {SERVER_HEADER: self.name}}
        self._file.write_text(json.dumps({**self._settings, "mcp_servers": [tools]}))  # which is YAML
        self._file.chmod(0o600)
        command = [*COMMAND, "serve", "--config", str(self._file), "--port", str(self.port)]
        with self.log.open("ab") as log:
            environment = {**_environment(), **self._environment, "CHAOS_SERVER": self.name}
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)

    def send(self, what: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(what)

    def kill(self) -> None:
        assert self._process is not None
        self._is_wanted = False
        self._process.kill()
        self._process.wait(PATIENCE)

    def stop(self) -> int:
        """As an operator does; its exit status."""
        self._is_wanted = False
        self.send(signal.SIGTERM)
        assert self._process is not None
        return self._process.wait(PATIENCE)

    def has_died(self) -> bool:
        """Whether it has ended by itself."""
        return self._is_wanted and self._process is not None and self._process.poll() is not None

    def last_words(self) -> str:
        """The last line that it has written."""
        return (self.log.read_text().splitlines() or [""])[-1]


class Fleet:
    """All servers share one home."""

    def __init__(
        self, servers: Sequence[Server], folder: Path, postgres: Postgres | None = None, dsn: str | None = None
    ) -> None:
        self.servers, self.folder, self.postgres, self.dsn = servers, folder, postgres, dsn
        self.ledger = folder / LEDGER
        self.inferences = folder / INFERENCES
        self.stood_still: list[Span] = []
        """When server processes did."""
        self.faults: list[Span] = []
        """All that went wrong. A process that was killed stays so."""
        self.gave_up: list[str] = []
        """The last words of processes that ended by themselves."""

    @property
    def ports(self) -> list[int]:
        return [server.port for server in self.servers]

    async def ready(self) -> None:
        """Until all answer."""
        end = time.monotonic() + PATIENCE
        for server in self.servers:
            while not await _answers(server.port):
                assert time.monotonic() < end, f"server {server.number} does not answer: {server.last_words()}"
                self.revive()
                await asyncio.sleep(0.05)

    def revive(self) -> None:
        """Start again what has ended by itself, as whoever looks after servers does: one that is started while there is
        no database says so, and ends.
        """
        for server in self.servers:
            if server.has_died():
                self.gave_up.append(server.last_words())
                server.start()

    async def look_after(self) -> None:
        """Until it is cancelled."""
        while True:
            self.revive()
            await asyncio.sleep(0.2)

    async def suffer(self, fault: Fault) -> None:
        """From its beginning to its end."""
        server = self.servers[fault.server]
        name, begin = "" if fault.kind.startswith("database") else server.name, time.time()
        await self._suffer(fault, server)
        ended = math.inf if fault.kind == "kill" else time.time()
        self.faults.append(Span(name, begin, ended))
        if fault.kind == "stop":
            self.stood_still.append(self.faults[-1])

    async def _suffer(self, fault: Fault, server: Server) -> None:
        match fault.kind:
            case "kill":
                server.kill()
                await asyncio.sleep(fault.lasts)
                server.start()
            case "stop":
                server.send(signal.SIGSTOP)
                try:
                    await asyncio.sleep(fault.lasts)
                finally:
                    server.send(signal.SIGCONT)
            case "database pause":
                assert self.postgres is not None
                self.postgres.pause()
                try:
                    await asyncio.sleep(fault.lasts)
                finally:
                    self.postgres.resume()
            case "database kill":
                assert self.postgres is not None
                await asyncio.to_thread(self.postgres.kill)
                await asyncio.sleep(fault.lasts)
                await asyncio.to_thread(self.postgres.start)

    def complaints(self) -> list[str]:
        """Lines of the servers' logs that no fault explains."""
        found = [line for server in self.servers for line in server.log.read_text().splitlines()]
        wrong = [line for line in found if "Traceback" in line or "internal error" in line]
        wrong = [line for line in wrong if not (self.dsn and _NOT_STORED in line)]
        return wrong + [line for line in self.gave_up if not (self.dsn and line.startswith(_NO_DATABASE))]


async def _answers(port: int) -> bool:
    try:
        async with asyncio.timeout(5):
            return (await ask(port, "GET", "/v1/models")).status == 200
    except (OSError, EOFError, TimeoutError):
        return False


@contextmanager
def fleet(home: Home, folder: Path, runs: int, pace: Pace) -> Iterator[Fleet]:
    """One server with SQLite, three with PostgreSQL; `runs` are how many may be made at once, over all of them."""
    with ExitStack() as stack:
        ledger, inferences = folder / LEDGER, folder / INFERENCES
        ledger.touch()
        model = stack.enter_context(_program("chaos.model", "--pace", str(pace.model), "--ledger", str(inferences)))
        tools = stack.enter_context(_program("chaos.tools", "--ledger", str(ledger), "--work", str(pace.work)))
        postgres = stack.enter_context(_postgres()) if home == "postgres" else None
        dsn = None if postgres is None else postgres.fresh_database()
        # Two of three are enough for all; none takes them all.
        settings = _settings(model, tools, at_once=runs if dsn is None else -(-runs // 2), lease=pace.lease)
        settings |= {"data": str(folder)} if dsn is None else {"data": str(folder), "database": dsn}
        servers = [Server(number, folder, settings, pace.work) for number in range(1 if dsn is None else 3)]
        for server in servers:
            server.start()
            stack.callback(server.kill)
        yield Fleet(servers, folder, postgres, dsn)


def _settings(model: str, tools: str, *, at_once: int, lease: float) -> dict[str, Any]:
    return {
        # A process that stands still while it connects has not been refused.
        "backends": [{"name": "teller", "url": model, "timeouts": {"connect": 60.0}}],
        "mcp_servers": [{"label": LABEL, "url": tools, "concurrency": 1000}],
        "tools": {"modules": ["chaos.functions"], "limits": {"concurrency": 1000, "total": 1000}},
        "background": {"at_once": at_once, "queue": 10_000, "lease": lease, "attempts": 100},
        "encryption": {"keys": [_KEY]},
        "log": {"level": "warning"},
    }


_KEY = base64.b64encode(b"k" * 32).decode()


@contextmanager
def _program(module: str, *arguments: str) -> Iterator[str]:
    """One that prints its address in its first line."""
    command = [sys.executable, "-m", module, *arguments]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=_environment())
    assert process.stdout is not None
    try:
        address = process.stdout.readline().decode().strip()
        assert address, f"{module} did not start"
        yield address
    finally:
        process.kill()
        process.communicate()


def _environment() -> dict[str, str]:
    """In which the modules of these tests are found."""
    paths = [str(Path(__file__).parent.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


@contextmanager
def _postgres() -> Iterator[Postgres]:
    server = Postgres(is_durable=True)
    try:
        server.start()
        yield server
    finally:
        server.remove()
