"""Where `configure` was: it is in `antwort.telemetry.logs`."""

from __future__ import annotations

from antwort.telemetry.logs import configure

__all__ = ["configure"]
