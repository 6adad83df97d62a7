"""Codex CLI in a folder of its own: `codex exec`, set up by `antwort codex --write`."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, Self

NODE = Path(__file__).parent / "node"
PROGRAMS = NODE / "node_modules" / ".bin"
PATIENCE = 60.0
NOWHERE = "http://127.0.0.1:9"
"""A proxy that is not there: Codex is to reach nobody but the server."""
SETTINGS = {
    "sandbox_mode": "danger-full-access",  # a container may have no sandbox of its own to offer
    "approval_policy": "never",
    "model_reasoning_summary": "auto",
    "check_for_update_on_startup": False,
    "features.plugins": False,
    "analytics.enabled": False,
    "model_providers.antwort.request_max_retries": 0,
    "model_providers.antwort.stream_max_retries": 0,
}
"""What is said over and above what `antwort codex` writes."""


def codex_version() -> str:
    package = json.loads((NODE / "package.json").read_text(encoding="utf-8"))
    version = package["dependencies"]["@openai/codex"]
    assert isinstance(version, str)
    return version


class Said(NamedTuple):
    """What `codex exec --json` told."""

    status: int
    events: list[dict[str, Any]]
    errors: str
    """The standard error."""

    def items(self, kind: str) -> Iterator[dict[str, Any]]:
        """The finished items of this type."""
        for event in self.events:
            if event["type"] == "item.completed" and event["item"]["type"] == kind:
                yield event["item"]

    @property
    def answer(self) -> str:
        """The last message; fails where the turn has failed."""
        assert self.status == 0, f"{self.complaint or self.errors}"
        return str(list(self.items("agent_message"))[-1]["text"])

    @property
    def complaint(self) -> str:
        """Why the turn failed, as the user reads it."""
        return "".join(event["error"]["message"] for event in self.events if event["type"] == "turn.failed")

    @property
    def thread(self) -> str:
        return str(next(event["thread_id"] for event in self.events if event["type"] == "thread.started"))


class Codex:
    """Use as a context: a git repository to work in, and a home with settings."""

    def __init__(self, url: str, model: str) -> None:
        self._url, self._model = url, model

    async def __aenter__(self) -> Self:
        self._folder = TemporaryDirectory(prefix="codex-", ignore_cleanup_errors=True)
        self.work = Path(self._folder.name) / "work"
        self._home = Path(self._folder.name) / "home"
        self.work.mkdir()
        self._home.mkdir()
        await self._run("git", "init", "--quiet")
        wanted = ("--url", self._url, "--model", self._model)
        await self._run(sys.executable, "-m", "antwort", "codex", *wanted)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._folder.cleanup()

    async def exec(self, *arguments: str, settings: Mapping[str, object] | None = None) -> Said:
        """`codex exec` to its end; `settings` go over those of the profile."""
        given = {**SETTINGS, **(settings or {})}
        options = [word for name, value in given.items() for word in ("-c", f"{name}={json.dumps(value)}")]
        status, output, errors = await self._run(
            str(PROGRAMS / "codex"), "exec", "--profile", "antwort", *options, "--json", *arguments, check=False
        )
        return Said(status, [json.loads(line) for line in output.splitlines()], errors)

    async def _run(self, *command: str, check: bool = True) -> tuple[int, str, str]:
        process = await asyncio.create_subprocess_exec(
            *command,
            cwd=self.work,
            env=self._environment(),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(PATIENCE):
                output, errors = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        assert process.returncode is not None
        assert not check or process.returncode == 0, errors.decode()
        return process.returncode, output.decode(), errors.decode()

    def _environment(self) -> dict[str, str]:
        home = str(self._home)
        return {
            "PATH": f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}",
            "HOME": home,
            "CODEX_HOME": home,
            "HTTP_PROXY": NOWHERE,
            "HTTPS_PROXY": NOWHERE,
            "NO_PROXY": "127.0.0.1,localhost",
        }
