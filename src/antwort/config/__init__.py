"""The configuration of a server: its settings, and how they are read. The modules are imported when they are needed."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from antwort.config.checks import (
        check,
        check_ready,
        checked_backend,
        is_loopback,
        keys_required,
        without_query,
    )
    from antwort.config.loading import Loaded, load, read
    from antwort.config.problems import BadSettings, CannotStart, Problem
    from antwort.config.secrets import Secret
    from antwort.config.settings import Settings

_HOMES = {
    "checks": ("check", "check_ready", "checked_backend", "is_loopback", "keys_required", "without_query"),
    "loading": ("Loaded", "load", "read"),
    "problems": ("BadSettings", "CannotStart", "Problem"),
    "secrets": ("Secret",),
    "settings": ("Settings",),
}

__all__ = [
    "BadSettings",
    "CannotStart",
    "Loaded",
    "Problem",
    "Secret",
    "Settings",
    "check",
    "check_ready",
    "checked_backend",
    "is_loopback",
    "keys_required",
    "load",
    "read",
    "without_query",
]


def __getattr__(name: str) -> object:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"antwort.config.{home}"), name)
    raise AttributeError(f"module 'antwort.config' has no attribute {name!r}")
