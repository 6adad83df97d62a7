"""Processes that behave as the one of a model does, without a model."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from antwort.local.demo import DEMO, demo_path
from antwort.local.llama_server import ServerOptions
from antwort.local.process import ModelProcess

_SCRIPT = """
import json, os, sys, time
order = json.loads(sys.stdin.buffer.readline())
for step in sys.argv[1:]:
    verb, _, word = step.partition("=")
    if verb == "log":
        os.write(2, word.encode("utf-8", "surrogateescape"))
    elif verb == "ready":
        os.write(1, word.encode("utf-8", "surrogateescape") + b"\\n")
    elif verb == "exit":
        os._exit(int(word))
    elif verb == "wait":
        sys.stdin.buffer.read()
    elif verb == "deaf":
        time.sleep(3600)
"""
ADDRESS = "http://127.0.0.1:9"
GOOD = (f"ready={ADDRESS}", "wait")
BROKEN = ("log=0.00.001 I srv init: loading\n0.00.002 E gguf_init: failed to read header\nE more\n", "exit=3")
SLOW = ("wait",)

OPTIONS = ServerOptions(
    parent=0,
    key="hush",
    model="m.gguf",
    name="m",
    template=None,
    adapter=None,
    context=512,
    slots=1,
    threads=1,
    temperature=None,
    max_tokens=None,
)


async def begin(*steps: str, options: ServerOptions = OPTIONS) -> ModelProcess:
    """A process that takes these steps: `log=TEXT`, `ready=ADDRESS`, `exit=STATUS`, `wait` for its input to end, and
    `deaf`, which does not."""
    return await ModelProcess.start(options, (sys.executable, "-S", "-c", _SCRIPT, *steps))


class Lives:
    """Begins one process after the other; each takes the next steps, and the last ones are taken again and again."""

    def __init__(self, *scripts: Sequence[str]) -> None:
        self._scripts = list(scripts)
        self.begun: list[ModelProcess] = []

    async def __call__(self, options: ServerOptions = OPTIONS) -> ModelProcess:
        steps = self._scripts.pop(0) if len(self._scripts) > 1 else self._scripts[0]
        self.begun.append(await begin(*steps, options=options))
        return self.begun[-1]


def gguf_file(path: Path) -> Path:
    """A file that begins as a model does."""
    path.write_bytes(b"GGUF\x03\x00\x00\x00")
    return path


def demo_file(data_folder: Path) -> Path:
    """Write a file that has the name and the size of the demo model, without its content: it takes no space."""
    path = demo_path(data_folder)
    path.parent.mkdir(parents=True)
    gguf_file(path)
    os.truncate(path, DEMO.size)
    return path
