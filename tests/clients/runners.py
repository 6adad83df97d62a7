"""Who takes which client through the cases, and which version that is.

A runner is a function that is given the ground and yields lines. One in another language is a program that is told
where things are by its environment (`Ground.environment`) and prints the lines.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TypeAlias

from clients import trying
from clients.codex import NODE, PROGRAMS
from clients.ground import Ground
from clients.python import PYTHON_CLIENTS, python_client
from clients.records import Line, read_line
from clients.with_codex_long import CODEX

Runner: TypeAlias = Callable[[Ground, Sequence[str]], Iterator[Line]]
"""Given the ground, and which cases; none stands for all."""


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
    return lambda ground, cases: trying.lines(python_client(name), ground, cases)


def _in_node(program: str) -> Runner:
    command = [str(PROGRAMS / "node"), program]
    return lambda ground, cases: printed([*command, *([",".join(cases)] if cases else [])], ground, NODE)


NODE_RUNNERS = {
    "openai-node": "openai-node.js",
    "@ai-sdk/openai": "ai-sdk-openai.js",
    "@ai-sdk/open-responses": "ai-sdk-open-responses.js",
}
"""Programs in the folder of the Node clients."""
RUNNERS: dict[str, Runner] = {
    **{name: _in_python(name) for name in PYTHON_CLIENTS},
    CODEX.name: lambda ground, cases: trying.lines(CODEX, ground, cases),
    **{client: _in_node(program) for client, program in NODE_RUNNERS.items()},
}
"""By the client's name, in `records.CLIENTS`."""

PACKAGES = {
    "openai-python": "openai",
    "openai-node": "openai",
    "openai-agents": "openai-agents",
    "langchain-openai": "langchain-openai",
    "pydantic-ai": "pydantic-ai-slim",
    "@ai-sdk/openai": "@ai-sdk/openai",
    "@ai-sdk/open-responses": "@ai-sdk/open-responses",
    "codex": "@openai/codex",
}


def version_of(client: str) -> str:
    """The version that is to be tried: the one installed here, or the one that npm is to install."""
    if client in PYTHON_CLIENTS:
        return version(PACKAGES[client])
    wanted = json.loads((NODE / "package.json").read_text(encoding="utf-8"))["dependencies"]
    return str(wanted[PACKAGES[client]])
