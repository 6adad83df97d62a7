"""The processes that are measured, and what the system knows of them."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PATIENCE = 30.0
_KIB = 1024
_ESTABLISHED, _CLOSE_WAIT = "01", "08"
_GAUGES = ("antwort_runs_live", "antwort_streams_open", "antwort_websockets_open", "http_server_active_requests")


class State(NamedTuple):
    """A process at one moment."""

    pss: int
    """Bytes of memory, with its share of what it has in common with others."""
    rss: int
    fds: int
    """Open files, connections to the backend that are kept for the next request among them."""
    clients: int
    """Connections of clients that the system still has."""
    cpu: float
    """Seconds of a core that it has used."""


def raise_limit(wanted: int) -> None:
    """Let this process, and those that it starts, have so many files open. Raises `SystemExit` where it may not."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard not in (-1, resource.RLIM_INFINITY) and hard < wanted:
        raise SystemExit(f"{wanted} open files are needed, and the system's limit is {hard} (ulimit -Hn).")
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def clients_at(port: int, table: str) -> int:
    """How many connections to this port are not closed on its side, by the system's table of them."""
    rows = [line.split() for line in table.splitlines()[1:]]
    return sum(row[1].endswith(f":{port:04X}") and row[3] in (_ESTABLISHED, _CLOSE_WAIT) for row in rows)


class Server(NamedTuple):
    port: int
    pid: int

    def state(self) -> State:
        rollup = Path(f"/proc/{self.pid}/smaps_rollup").read_text()
        sizes = {name: int(size) * _KIB for name, size in re.findall(r"^(Pss|Rss): +(\d+) kB", rollup, re.MULTILINE)}
        fds = len(os.listdir(f"/proc/{self.pid}/fd"))
        clients = clients_at(self.port, Path("/proc/net/tcp").read_text())
        times = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        cpu = sum(map(int, times)) / os.sysconf("SC_CLK_TCK")
        return State(sizes["Pss"], sizes["Rss"], fds, clients, cpu)

    def gauges(self) -> dict[str, float]:
        """What the server itself says is under way."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=PATIENCE) as reply:
            lines = reply.read().decode().splitlines()
        pairs = [line.split(" ") for line in lines if line.startswith(_GAUGES)]
        return {name: float(value) for name, value in pairs}


@contextlib.contextmanager
def mock(program: Path) -> Iterator[str]:
    """The backend, on core 1; its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with _started([str(program), "-addr", f"127.0.0.1:{port}"], core=1, stdout=subprocess.DEVNULL):
        _until_it_listens(port)
        yield f"http://127.0.0.1:{port}/v1"


def _until_it_listens(port: int) -> None:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.02)
    raise SystemExit("the mock backend does not listen")


@contextlib.contextmanager
def serving(backend: str) -> Iterator[Server]:
    """`antwort serve` on core 0, with default settings but for its log."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        command = [sys.executable, "-m", "antwort", "serve", "--port", "0", "--backend", backend, "--data", folder]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ANTWORT_")}
        with (
            log.open("wb") as kept,
            _started(
                command,
                core=0,
                stdout=subprocess.PIPE,
                stderr=kept,
                env={**environment, "ANTWORT_LOG_LEVEL": "warning"},
            ) as process,
        ):
            yield Server(_port(process, log), process.pid)


@contextlib.contextmanager
def _started(command: list[str], *, core: int, **more: object) -> Iterator[subprocess.Popen[bytes]]:
    process: subprocess.Popen[bytes] = subprocess.Popen(command, **more)  # type: ignore[call-overload] # what it takes
    with contextlib.suppress(OSError, AttributeError):  # one core, or a system that has no such thing
        os.sched_setaffinity(process.pid, {core})
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _port(process: subprocess.Popen[bytes], log: Path) -> int:
    assert process.stdout is not None
    port = None
    for line in process.stdout:
        if found := re.search(rb"listens on http://\S+?:(\d+)$", line.strip()):
            port = int(found[1])
        if line.startswith(b"  try ") and port is not None:
            return port
    raise SystemExit(f"the server did not start:\n{log.read_text()}")
