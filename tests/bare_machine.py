"""A machine that has nothing of antwort on it, for commands that run in the test's own process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def forget_this_machine(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Neither its variables nor its files count; the terminal is 80 columns wide."""
    for name in list(os.environ):
        if name.startswith("ANTWORT_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder / "nowhere"))
    monkeypatch.setenv("COLUMNS", "80")
