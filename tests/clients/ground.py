"""What clients are tried on: the scripted model, and `antwort serve` in front of it as a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from clients.bared import baring
from clients.model import ScriptedModel, running

PATIENCE = 30.0
MODEL = "scripted"
KNOWN_MODEL = "gpt-5.5"
"""A model by a name that some clients know: they send and ask for more."""
ITEM_MODEL = "gpt-6-sol"
"""A model for which Codex declares its tools in an item of the input."""
SMALL_MODEL = "small"
"""A model whose context is soon full."""
HERE = Path(__file__).parent


class Ground(NamedTuple):
    url: str
    """Of the server, up to `/responses`."""
    bare_url: str
    """The same, behind a proxy that takes the reasoning in clear out of what is asked: see `bared.py`."""
    backend: ScriptedModel
    folder: Path
    """The server's own: data, settings, log."""

    def environment(self) -> dict[str, str]:
        """What a runner in another language is told."""
        requests = f"{self.backend.url.removesuffix('/v1')}/requests"
        return {
            "ANTWORT_URL": self.url,
            "ANTWORT_BARE_URL": self.bare_url,
            "ANTWORT_MODEL": MODEL,
            "ANTWORT_KNOWN_MODEL": KNOWN_MODEL,
            "ANTWORT_SMALL_MODEL": SMALL_MODEL,
            "BACKEND_REQUESTS": requests,
            "OPENAI_API_KEY": "none",
        }

    def faults(self) -> list[str]:
        """What must not happen, whatever a client does: a history that makes no sense to an engine, a fault of ours."""
        malformed = [request for request in self.backend.seen() if request["code"] == "malformed"]
        log = (self.folder / "server.log").read_text(encoding="utf-8").splitlines()
        return [json.dumps(request) for request in malformed] + [line for line in log if "Traceback" in line]


def settings(backend: str) -> dict[str, object]:
    """As they are by default, but for one try only, a breaker that stays shut, and short intervals; and with tools."""
    return {
        "backends": [{"name": "model", "url": backend, "breaker": {"failures": 100_000}}],
        "routing": {"retry": {"attempts": 1}},
        "loop": {"progress_interval": 0.3},
        "tools": {"modules": [str(HERE / "workshop.py")], "entry_points": False},
        "log": {"format": "json"},
    }


def defaults(backend: str) -> dict[str, object]:
    """Nothing is said but what there is no default for."""
    return {"backends": [{"name": "model", "url": backend}]}


@contextlib.contextmanager
def started(folder: Path, made: Callable[[str], dict[str, object]] = settings) -> Iterator[Ground]:
    """The model and the server, both on free ports; ended when the block is left."""
    folder.mkdir(exist_ok=True)
    with running() as backend:
        config = folder / "antwort.yaml"
        config.write_text(json.dumps(made(backend.url)), encoding="utf-8")  # JSON is YAML
        with serving(config, folder) as url, baring(url) as bare_url:
            yield Ground(url, bare_url, backend, folder)


@contextlib.contextmanager
def serving(config: Path, folder: Path) -> Iterator[str]:
    """`antwort serve` with these settings; its address. What it logs is in `server.log`."""
    command = [sys.executable, "-m", "antwort", "serve", "--port", "0"]
    options = ["--config", str(config), "--data", str(folder / "data")]
    with (
        (folder / "server.log").open("wb") as log,
        subprocess.Popen(
            [*command, *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={name: value for name, value in os.environ.items() if not name.startswith("ANTWORT_")},
        ) as process,
    ):
        try:
            yield _address(process, folder)
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=PATIENCE)
            process.kill()


def _address(process: subprocess.Popen[str], folder: Path) -> str:
    assert process.stdout is not None
    found = None
    for line in process.stdout:
        found = found or re.search(r"listens on (http://\S+)", line)
        if line.startswith("  try "):
            break
    if found is None:
        raise RuntimeError(f"the server did not start: {(folder / 'server.log').read_text(encoding='utf-8')}")
    return f"{found[1]}/v1"
