"""Who takes which client through the cases.

A runner is a function that is given the ground and yields lines. One in another language is a program that is told
where things are by its environment (`Ground.environment`) and prints the lines.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from clients import trying
from clients.codex import NODE, PROGRAMS
from clients.ground import Ground
from clients.python import PYTHON_CLIENTS, python_client
from clients.records import Line, read_line
from clients.with_codex import CODEX

Runner: TypeAlias = Callable[[Ground], Iterator[Line]]


def printed(
    command: Sequence[str], ground: Ground, folder: Path, environment: Mapping[str, str] | None = None
) -> Iterator[Line]:
    """The lines that a program prints; what it says on its standard error is shown."""
    told = {**os.environ, **ground.environment(), **(environment or {})}
    with subprocess.Popen(command, cwd=folder, env=told, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for text in process.stdout:
            if text.startswith("{"):
                yield read_line(text)
        if process.wait() != 0:
            raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}")


def _in_python(name: str) -> Runner:
    return lambda ground: trying.lines(python_client(name), ground)


def _in_node(program: str) -> Runner:
    return lambda ground: printed([str(PROGRAMS / "node"), program], ground, NODE)


NODE_RUNNERS = {
    "openai-node": "openai-node.js",
    "@ai-sdk/openai": "ai-sdk-openai.js",
    "@ai-sdk/open-responses": "ai-sdk-open-responses.js",
}
"""Programs in the folder of the Node clients."""
RUNNERS: dict[str, Runner] = {
    **{name: _in_python(name) for name in PYTHON_CLIENTS},
    CODEX.name: lambda ground: trying.lines(CODEX, ground),
    **{client: _in_node(program) for client, program in NODE_RUNNERS.items()},
}
"""By the client's name, in `records.CLIENTS`."""
