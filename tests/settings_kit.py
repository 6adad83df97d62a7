"""Settings as tests need them."""

from __future__ import annotations

from pathlib import Path

from antwort.config import Settings
from antwort.config.settings import BackendSettings, TimeoutSettings


def in_front_of(*urls: str, data: Path | None = None, connect: float = TimeoutSettings().connect) -> Settings:
    """A server in front of these backends, named `b0`, `b1`, …; without a data folder it keeps things in memory."""
    timeouts = TimeoutSettings(connect=connect)
    backends = tuple(BackendSettings(name=f"b{at}", url=url, timeouts=timeouts) for at, url in enumerate(urls))
    return Settings(backends=backends, data=None if data is None else str(data), memory=data is None)
