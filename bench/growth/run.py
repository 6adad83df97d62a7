"""How the CPU of a request grows with what is in it, and with what is stored.

python -m growth.run --out FOLDER [--write]

Starts `antwort serve` with SQLite in front of a backend in another process, and measures the CPU time of the server's
process, all its threads, for requests of growing size. Rounds go through all sizes in turn, and medians are reported.
`--write` puts the figures, the plot and the table into docs.
"""

from __future__ import annotations

import argparse
import http.client
import json
import math
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from growth.backend import MODEL
from growth.plot import Point, Series, draw, table

HERE = Path(__file__).parent
DOCS = HERE.parents[1] / "docs"
RESPONSES = "/v1/responses"
ITEMS = (1, 3, 10, 30, 100, 300, 1000, 3000, 10_000)
TOOLS = (1, 2, 4, 8, 16, 32, 64, 128)
TURNS = (1, 2, 5, 10, 20, 50)
DEPTHS = (1, 2, 5, 10, 20, 50, 100, 200, 500)
BYTES = (1000, 4000, 16_000, 64_000, 250_000, 500_000, 1_000_000, 2_000_000, 5_000_000)
ROWS = (1000, 10_000, 100_000, 300_000, 1_000_000)
SMOKE = 20
"""What the largest size is divided by in a smoke test."""
_CPU_SECONDS = 0.06
"""CPU time that one measurement takes at least, unless it would take too many requests."""
_MOST_REQUESTS = 40
_SETTLE_SECONDS = 0.02
"""Time after an answer, in which the server ends what it does for the request."""


class Server:
    """A process of `antwort serve`, and one kept-alive connection to it."""

    def __init__(self, process: subprocess.Popen[bytes], port: int) -> None:
        self.process = process
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)

    def cpu_seconds(self) -> float:
        """Return the CPU time of all its threads so far."""
        folder = Path(f"/proc/{self.process.pid}")
        try:
            threads = [(each / "schedstat").read_text().split()[0] for each in (folder / "task").iterdir()]
            return sum(map(int, threads)) / 1e9
        except FileNotFoundError:  # a kernel without these statistics, or a thread that ended
            fields = (folder / "stat").read_text().rpartition(") ")[2].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def ask(self, method: str, path: str, body: bytes | None = None) -> bytes:
        self._connection.request(method, path, body, {"content-type": "application/json"})
        answer = self._connection.getresponse()
        read = answer.read()
        if answer.status != 200 or b'"incomplete_details":{' in read:
            raise SystemExit(f"{method} {path}: {answer.status} {read[:500]!r}")
        return read

    def create(self, **fields: Any) -> str:
        """Return the id of a response."""
        return str(json.loads(self.ask("POST", RESPONSES, json.dumps(fields).encode()))["id"])


@contextmanager
def server(folder: Path, backend: int) -> Iterator[Server]:
    port = free_port()
    command = [str(Path(sys.executable).parent / "antwort"), "serve", "--port", str(port), "--data", str(folder)]
    command += ["--backend", f"http://127.0.0.1:{backend}/v1", "--max-turns", "64", "--tools", str(HERE / "tools.py")]
    env = {name: value for name, value in os.environ.items() if not name.startswith("ANTWORT_")}
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, cwd=folder, env=env, stdout=quiet, stderr=quiet) as process:
        try:
            wait_for(port, "/readyz")
            yield Server(process, port)
        finally:
            process.terminate()


@contextmanager
def backend() -> Iterator[int]:
    port = free_port()
    with subprocess.Popen([sys.executable, "-m", "growth.backend", str(port)]) as process:
        try:
            wait_for(port, "/v1/models")
            yield port
        finally:
            process.terminate()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def wait_for(port: int, path: str, seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while True:
        try:
            with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=5)) as connection:
                connection.request("GET", path)
                if connection.getresponse().status == 200:
                    return
        except OSError:
            pass
        if time.monotonic() > until:
            raise SystemExit(f"Nothing answers on port {port}.")
        time.sleep(0.05)


# ---- what is asked ----


class Case(NamedTuple):
    panel: str
    series: str
    size: int
    server: Server
    method: str
    paths: Sequence[str]
    """One after the other."""
    body: bytes | None = None


def request(**fields: Any) -> bytes:
    return json.dumps({"model": MODEL, **fields}).encode()


def message(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def function(number: int) -> dict[str, Any]:
    fields = {f"field_{at}": {"type": "string", "description": f"The value number {at}."} for at in range(4)}
    schema = {"type": "object", "properties": fields, "required": ["field_0"]}
    return {"type": "function", "name": f"tool_{number}", "description": "Do something.", "parameters": schema}


def request_cases(it: Server, share: int) -> Iterator[Case]:
    """Yield the requests of growing size. `share`: what the largest sizes are divided by."""

    def post(panel: str, series: str, size: int, **fields: Any) -> Case:
        return Case(panel, series, size, it, "POST", (RESPONSES,), request(**fields))

    for n in up_to(ITEMS, share):
        yield post("input items", "stored", n, input=[message(f"Say {at}.") for at in range(n)])
    for n in up_to(TOOLS, share):
        yield post("tools", "stored", n, input="Hi", tools=[function(at) for at in range(n)])
    served = [{"type": "mcp", "server_label": "growing", "require_approval": "never"}]
    for n in up_to(TURNS, share):
        yield post("turns", "stored", n, input="Hi", instructions=f"turns={n}", tools=served)
    chain: list[str] = []
    depths = up_to(DEPTHS, share)
    while len(chain) < depths[-1]:
        parent = {"previous_response_id": chain[-1]} if chain else {}
        chain.append(it.create(model=MODEL, input=f"Say {len(chain)}.", **parent))
    for n in depths:
        yield post("chain depth", "not stored", n, input="Hi", previous_response_id=chain[n - 1], store=False)
    for n in up_to(BYTES, share):
        yield post("text, bytes", "input", n, input=("word " * (n // 5 + 1))[:n])
        yield post("text, bytes", "streamed output", n, input="Hi", instructions=f"text={n}", stream=True)


def row_cases(size: int, it: Server, ids: Sequence[str]) -> Iterator[Case]:
    panel = "stored responses"
    yield Case(panel, "GET by id", size, it, "GET", [f"{RESPONSES}/{each}" for each in ids])
    yield Case(panel, "GET list", size, it, "GET", (f"{RESPONSES}?limit=20",))
    yield Case(panel, "POST, stored", size, it, "POST", (RESPONSES,), request(input="Hi"))


def up_to(sizes: Sequence[int], share: int) -> list[int]:
    return [size for size in sizes if size <= max(sizes[-1] // share, sizes[1])]


# ---- rows ----


def fill(database: Path, rows: int) -> list[str]:
    """Copy the only stored response of a database until there are `rows`, and return the ids of some of them."""
    number = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :last)"
    ids = "SELECT i, 'resp_' || lower(hex(randomblob(16))) AS id FROM n"
    with closing(sqlite3.connect(database, isolation_level=None)) as db:
        (response,) = db.execute("SELECT id FROM responses").fetchone()
        for pragma in ("journal_mode = OFF", "synchronous = OFF", "cache_size = -400000", "foreign_keys = OFF"):
            db.execute(f"PRAGMA {pragma}")
        db.execute("BEGIN")
        db.execute(f"CREATE TEMP TABLE made AS {number} {ids}", {"last": rows - 1})
        changed = {
            "responses": {
                "key": "key + i",
                "id": "made.id",
                "thread_key": "key + i",
                "created_at": "created_at - :last + i",
                "body": "CAST(replace(CAST(body AS TEXT), :response, made.id) AS BLOB)",
            },
            "items": {"key": "key + 2 * i", "id": "t.id || i", "response_key": "response_key + i"},
            "turns": {"response_key": "response_key + i"},
        }
        for name, new in changed.items():
            columns = [row[1] for row in db.execute(f"PRAGMA table_info({name})")]
            values = ", ".join(new.get(column, f"t.{column}") for column in columns)
            names = ", ".join(columns)
            copy = f"INSERT INTO {name} ({names}) SELECT {values} FROM {name} t JOIN made ORDER BY i"
            db.execute(copy, {"last": rows - 1, "response": response})
        db.execute("COMMIT")
        some = "SELECT id FROM made WHERE i % max(1, :rows / 40) = 0 ORDER BY random()"
        found = [each for (each,) in db.execute(some, {"rows": rows})]
        db.execute("PRAGMA journal_mode = WAL")
    return found


# ---- measuring ----


class Measured(NamedTuple):
    requests: int
    cpu: float
    wall: float


def measure(case: Case, requests: int) -> Measured:
    """Return the seconds that each of so many requests takes."""
    it, paths = case.server, case.paths
    cpu, began = it.cpu_seconds(), time.perf_counter()
    for at in range(requests):
        it.ask(case.method, paths[at % len(paths)], case.body)
    wall = time.perf_counter() - began
    time.sleep(_SETTLE_SECONDS)
    return Measured(requests, (it.cpu_seconds() - cpu) / requests, wall / requests)


def measure_all(cases: Sequence[Case], rounds: int) -> list[Series]:
    """Measure each case once in each round, after one round that is not counted."""
    for case in cases:  # what is made at the first use is not counted
        measure(case, 1)
    first = [measure(case, 2) for case in cases]
    counts = [min(_MOST_REQUESTS, max(1, math.ceil(_CPU_SECONDS / max(each.cpu, 1e-5)))) for each in first]
    found: list[list[Measured]] = [[] for _ in cases]
    for number in range(rounds):
        for at, case in enumerate(cases):
            found[at].append(measure(case, counts[at]))
        print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
    series: dict[tuple[str, str], list[Point]] = {}
    for case, times in zip(cases, found, strict=True):
        cpu, wall = median(each.cpu for each in times), median(each.wall for each in times)
        point = Point(case.size, round(cpu * 1000, 4), round(wall * 1000, 4))
        series.setdefault((case.panel, case.series), []).append(point)
    return [Series(panel, name, tuple(points)) for (panel, name), points in series.items()]


def run(rounds: int, share: int, folder: Path) -> list[Series]:
    rows = up_to(ROWS, share)
    with backend() as port:
        template = folder / "template"
        template.mkdir()
        with server(template, port) as it:
            it.create(model=MODEL, input="Hi")
        (folder / "requests").mkdir()
        with server(folder / "requests", port) as it:
            cases = [*request_cases(it, share)]
            found = measure_all(cases, rounds)
        with ExitStack() as running:
            cases = []
            for size in rows:
                data = folder / str(size)
                shutil.copytree(template, data)
                ids = fill(data / "antwort.db", size)
                cases += row_cases(size, running.enter_context(server(data, port)), ids)
            return found + measure_all(cases, rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="the folder for growth.json and growth.svg")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--write", action="store_true", help="put both, and the table, into docs as well")
    parser.add_argument("--smoke", action="store_true", help=f"a {SMOKE}th of each size")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="growth-") as folder:
        found = run(given.rounds, SMOKE if given.smoke else 1, Path(folder))
    folders = [given.out, *([DOCS / "assets"] if given.write else [])]
    for each in folders:
        each.mkdir(parents=True, exist_ok=True)
        lines = [json.dumps(series._asdict()) for series in found]
        (each / "growth.json").write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")
        (each / "growth.svg").write_text(draw(found), encoding="utf-8")
    print(table(found))
    if given.write:
        page = DOCS / "performance.md"
        before, _, rest = page.read_text(encoding="utf-8").partition("<!-- made by bench/growth -->\n")
        _, _, after = rest.partition("<!-- end -->")
        text = f"{before}<!-- made by bench/growth -->\n\n{table(found)}\n\n<!-- end -->{after}"
        page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
