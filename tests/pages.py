"""Pages of the documentation, played: what they tell a reader to write is written, what they tell to run is run, and
what they show must be what comes out.

    ```yaml title="antwort.yaml"    a file: it is written
    ```yaml                         part of a configuration: it is read
    ```python                       a program: it is run; a ```text block after it is what it prints
    ```console                      `$ command` and what it prints, in the page's own folder
    ```sh                           how somebody else's program is started: not run, and only of programs named here
    ```json                         must be JSON
    ```text, ```mermaid             nothing to do

In shown output a line `...` stands for any lines, `…` for anything in a line. Ids, times and durations need not be the
same. A command that serves stays until the page, or the next line `$ ^C`, ends it. `$ export NAME=value` holds for the
rest of the page. A command must succeed, unless what is shown is the sentence in which it fails. After the comment
`<!-- words of a model -->` a block shows what a real model said: only the words may differ.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Self

from local_model import keep_in

ROOT = Path(__file__).parent.parent
BIN = Path(sys.executable).parent
NOT_OURS = ("vllm", "ollama", "llama-server", "litellm", "docker", "pip", "git", "python3", "pipx", "uv", "codex")
NOT_RUN = ("make test", "make docs", "make bench", "make check")
"""Commands of ours that a page may show and that are not played: the tests would run themselves."""
SERVERS = ("antwort serve", "python -m antwort.testing.backend", "make serve", "uvicorn ", "python server")
PORTS = (8080, 8000, 8001, 8002, 9464, 11434, 4000)
PATIENCE = 60.0

_FENCE = re.compile(
    r"^(?P<indent> *)```(?P<kind>[a-z]*)(?P<rest>[^\n`]*)\n(?P<body>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL
)
_TITLE = re.compile(r'title="([^"]+)"')
_MASKS = (
    (re.compile(r"\b([a-z]+)_[0-9a-f]{24,32}\b"), r"\1_ID"),
    (re.compile(r"\b17[0-9]{8}\b|\b18[0-9]{8}\b"), "TIME"),
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d([.,]\d+)?Z?"), "TIME"),
    (re.compile(r"\b\d+(\.\d+)? ?ms\b"), "N ms"),
    (re.compile(r"\b\d+\.\d+s\b"), "N s"),
    (re.compile(r"(duration_ms|ms|seconds)(\"?[:=] ?)[0-9.e-]+"), r"\1\2N"),
    (re.compile(r"sk-antwort-[A-Za-z0-9_-]+"), "sk-antwort-KEY"),
    (re.compile(r"\b[0-9a-f]{64}\b"), "HASH"),
    (re.compile(r"\s+$", re.MULTILINE), ""),
)


OF_A_MODEL = "<!-- words of a model -->"
_TEXT = re.compile(r'("(?:text|delta|output|arguments)": ?")(?:[^"\\\n]|\\.)*(")')
_SLOW_LOADING = re.compile(
    r'^\{"time".*"message":"the backend local is (?:back|out of reach: The model is still being loaded;.*)"\}\n',
    re.MULTILINE,
)
"""Lines of the log where the model of a server takes long to load: the last one may come behind what pages show."""


class Block(NamedTuple):
    kind: str
    title: str | None
    body: str
    line: int
    is_of_a_model: bool = False


def blocks(text: str) -> Iterator[Block]:
    for found in _FENCE.finditer(text):
        indent = len(found["indent"])
        body = "".join(line[indent:] if line.strip() else line for line in found["body"].splitlines(keepends=True))
        title = _TITLE.search(found["rest"])
        line = text.count("\n", 0, found.start()) + 1
        is_of_a_model = text[: found.start()].rstrip().endswith(OF_A_MODEL)
        yield Block(found["kind"], title[1] if title else None, body, line, is_of_a_model)


def commands(body: str) -> Iterator[tuple[str, str]]:
    """Each command of a console block, and what it is said to print."""
    command, shown = "", ""
    continues = False
    for line in body.splitlines(keepends=True):
        if continues:
            command += line
            continues = line.rstrip().endswith("\\")
        elif line.startswith("$ "):
            if command:
                yield command, shown
            command, shown = line[2:], ""
            continues = line.rstrip().endswith("\\")
        else:
            shown += line
    yield command, shown


def masked(text: str) -> str:
    for pattern, mask in _MASKS:
        text = pattern.sub(mask, text)
    return text.strip()


def wordless(text: str) -> str:
    """Without what a model may put in other words: texts in JSON, and lines that are no JSON."""
    lines: list[str] = []
    for line in _TEXT.sub(r"\1WORDS\2", text).splitlines():
        is_ours = not line.strip() or line.strip() == "..." or line.strip()[0] in '{}[]"'
        if is_ours or lines[-1:] != ["WORDS"]:
            lines.append(line if is_ours else "WORDS")
    return "\n".join(lines)


def fits(shown: str, printed: str) -> bool:
    """Whether `printed` is what `shown` promises."""
    pattern = ""
    for line in masked(shown).splitlines():
        if line.strip() == "...":
            pattern += r"(?:.*\n)*?"
        else:
            pattern += "[^\n]*".join(re.escape(part) for part in line.split("…")) + r"\n"
    return re.fullmatch(pattern, masked(printed) + "\n" if masked(printed) else "") is not None


class Started:
    """A program that stays, and what it has printed so far."""

    def __init__(self, command: Sequence[str], folder: Path, environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=folder,
            env=environment,
            start_new_session=True,
        )
        self.words = " ".join(command)
        self.is_ours = command[0] == "antwort"
        """Then its exit status is ours to answer for."""
        self.printed = ""
        self.shown = 0
        """How much of it a page has shown already."""
        self._news = threading.Condition()
        self._is_over = False
        self._reading = threading.Thread(target=self._read)
        self._reading.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as out:
            for line in out:
                with self._news:
                    self.printed += line
                    self._news.notify_all()
        with self._news:
            self._is_over = True
            self._news.notify_all()

    def wait_for(self, claim: Callable[[str], bool]) -> None:
        """Until the claim holds for what was printed, or no more can come."""
        with self._news:
            self._news.wait_for(lambda: self._is_over or claim(self.printed), PATIENCE)

    def stop(self) -> int:
        """As Ctrl-C does; the exit status."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGINT)
        try:
            self._process.wait(PATIENCE)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._reading.join()
        return self._process.returncode


class Page:
    """One page and the folder it is played in. Use as a context: what it started is ended with it."""

    def __init__(self, path: Path, folder: Path, model: Path | None = None) -> None:
        """`model` is the demo model: the reader has fetched it already."""
        self._path, self._folder = path, folder
        if model is not None:
            keep_in(folder / "home" / ".local" / "share" / "antwort", model)
        self._ports = dict(zip(PORTS, _free_ports(len(PORTS)), strict=True))
        self._serving: list[Started] = []
        self._printed: str | None = None
        self._exported: dict[str, str] = {}
        self._is_of_a_model = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """All are stopped, also when one does not end as it should."""
        with contextlib.ExitStack() as stack:
            for started in self._serving:
                stack.callback(self._stop, where=started.words)

    def play(self) -> int:
        """How many blocks there were. Raises `AssertionError` where the page does not tell the truth."""
        count = 0
        for block in blocks(self._path.read_text(encoding="utf-8")):
            count += 1
            self._play(block)
        return count

    def _play(self, block: Block) -> None:
        where = f"{self._path.name}:{block.line}"
        printed, self._printed = self._printed, None
        self._is_of_a_model = block.is_of_a_model
        match block:
            case Block(title=str(title)):
                self._write(title, block.body)
            case Block("text"):
                if printed is not None:
                    self._check(block.body, printed, where)
            case Block("python"):
                program = [str(BIN / "python"), "-W", "error", "-c", self._real(block.body)]
                self._printed = self._run(program, where)
            case Block("console"):
                for command, shown in commands(block.body):
                    self._command(command.strip(), shown, where)
            case _:
                self._look_at(block, where)

    def _look_at(self, block: Block, where: str) -> None:
        """What is not run is held against what it should be."""
        match block.kind:
            case "yaml":
                self._read_settings(block.body, where)
            case "json":
                json.loads(block.body)
            case "sh":
                for line in block.body.replace("\\\n", " ").splitlines():
                    is_theirs = not line.strip() or line.split()[0] in NOT_OURS
                    assert is_theirs, f"{where}: {line!r} is ours, so it must be run"
            case kind:
                assert kind == "mermaid", f"{where}: nobody knows how to play {kind!r}"

    # ---- files and settings ----

    def _write(self, title: str, body: str) -> None:
        file = self._folder / title
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(self._real(body), encoding="utf-8")

    def _read_settings(self, body: str, where: str) -> None:
        file = self._folder / "part.yaml"
        file.write_text(self._real(body), encoding="utf-8")
        file.chmod(0o600)
        somebody = [] if "backends:" in body or "scripted:" in body else ["--scripted"]  # answers for a part
        self._run([str(BIN / "antwort"), "config", "check", *somebody, "--config", str(file)], where)
        file.unlink()

    # ---- commands ----

    def _command(self, command: str, shown: str, where: str) -> None:
        if command == "^C":
            self._stop(shown, where)
        elif command.startswith("export "):
            name, _, value = command.removeprefix("export ").partition("=")
            self._exported[name] = " ".join(shlex.split(value))
        elif command.startswith(SERVERS) and not _fails(shown):
            self._serve(command, shown, where)
        elif command not in NOT_RUN:
            self._finish(command, shown, f"{where}: {command}")

    def _finish(self, command: str, shown: str, where: str) -> None:
        """Run a command to its end."""
        done = subprocess.run(
            ["bash", "-c", self._real(command)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=ROOT if command.startswith(("make ", "source ")) else self._folder,
            env=self._environment(),
            timeout=PATIENCE,
            check=False,
        )
        self._check(shown, done.stdout.decode(), where)
        assert (done.returncode != 0) == _fails(shown), f"{where} ends with {done.returncode}"

    def _serve(self, command: str, shown: str, where: str) -> None:
        """Start it, and wait until it has said all that it is shown to say."""
        environment = self._environment()
        if "--port" not in command and "port:" not in self._configuration():
            environment["ANTWORT_SERVER_PORT"] = str(self._ports[8080])
        folder = ROOT if command.startswith("make") else self._folder
        environment["ANTWORT_LOCAL_THREADS"] = "1"  # where much runs at once, threads that wait for each other are slow
        started = Started(shlex.split(self._real(command)), folder, environment)
        self._serving.append(started)
        started.wait_for(lambda printed: fits(shown, self._shown(printed)))
        self._check(shown, started.printed, f"{where}: {command}")
        started.shown = len(started.printed)

    def _stop(self, shown: str = "", where: str = "") -> None:
        started = self._serving.pop()
        status = started.stop()
        last = started.printed[started.shown :]
        if shown.strip():
            self._check(shown, last, where)
        assert "Traceback" not in last, f"{where}: {last}"
        assert status == 0 or not started.is_ours, f"{where}: the server ends with {status}:\n{last}"

    def _run(self, command: Sequence[str], where: str) -> str:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            cwd=self._folder,
            env=self._environment(),
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0, f"{where} fails:\n{done.stdout}{done.stderr}"
        assert not done.stderr, f"{where} complains:\n{done.stderr}"
        return done.stdout

    def _check(self, shown: str, printed: str, where: str) -> None:
        printed = self._shown(printed)
        if self._is_of_a_model:
            shown, printed = wordless(shown), wordless(printed)
        assert fits(shown, printed), f"{where} shows\n{shown}\nbut this comes out:\n{printed}"

    # ---- the reader's machine ----

    def _environment(self) -> dict[str, str]:
        home = self._folder / "home"
        home.mkdir(exist_ok=True)
        tools = [str(BIN), *([] if shutil.which("curl") else [str(ROOT / "tests" / "bin")])]
        kept = {name: os.environ[name] for name in ("LANG", "TMPDIR", "SYSTEMROOT") if name in os.environ}
        path = os.pathsep.join([*tools, os.environ["PATH"]])
        return {
            **kept,
            "PATH": path,
            "HOME": str(home),
            "PYTHONPATH": ".",
            "PYTHONUNBUFFERED": "1",
            "COLUMNS": "100",
            **self._exported,
        }

    def _configuration(self) -> str:
        file = self._folder / "antwort.yaml"
        return file.read_text(encoding="utf-8") if file.exists() else ""

    def _real(self, text: str) -> str:
        """What the page shows, with ports that are free."""
        for shown, real in self._ports.items():
            text = re.sub(rf"(?<![0-9.]){shown}(?![0-9])", str(real), text)
        return text

    def _shown(self, text: str) -> str:
        """What came out, as the page would show it, whether a model was quick to load or not."""
        text = _SLOW_LOADING.sub("", text)
        for shown, real in self._ports.items():
            text = re.sub(rf"(?<![0-9]){real}(?![0-9])", str(shown), text)
        return text.replace(str(self._folder / "home"), "/home/me").replace(str(self._folder), "/home/me/antwort")


def _fails(shown: str) -> bool:
    """A warning has something behind it that is said in another voice."""
    return bool(shown) and shown.splitlines()[-1].startswith("antwort: ")


def _free_ports(count: int) -> list[int]:
    """Of four digits, like those that pages show: another length would move what is set in columns.

    Pages that are played side by side, each by a worker of its own, take them from different ranges.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    first = 5000 + 400 * (worker % 7)
    ports = []
    with contextlib.ExitStack() as held:
        for port in random.sample(range(first, first + 400), 400):
            with contextlib.suppress(OSError):
                held.enter_context(socket.create_server(("127.0.0.1", port)))
                ports.append(port)
            if len(ports) == count:
                return ports
    raise AssertionError("too few ports are free")
