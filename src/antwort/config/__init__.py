"""What an operator can set about the server, and how it is read. The parts are imported when they are asked for."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from antwort.config.addresses import checked_backend, is_loopback, without_query
    from antwort.config.checks import check, check_ready, keys_required
    from antwort.config.problems import BadSettings, CannotStart, Problem
    from antwort.config.reading import Loaded, load, read
    from antwort.config.secrets import Secret
    from antwort.config.settings import Settings

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

_HOMES = {
    "addresses": ("checked_backend", "is_loopback", "without_query"),
    "checks": ("check", "check_ready", "keys_required"),
    "problems": ("BadSettings", "CannotStart", "Problem"),
    "reading": ("Loaded", "load", "read"),
    "secrets": ("Secret",),
    "settings": ("Settings",),
}


def __getattr__(name: str) -> object:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"antwort.config.{home}"), name)
    raise AttributeError(f"module 'antwort.config' has no attribute {name!r}")
