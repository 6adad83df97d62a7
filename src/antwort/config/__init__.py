"""What an operator can set about the server."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from antwort.config.problems import CannotStart
from antwort.config.secrets import Secret
from antwort.config.settings import Settings

__all__ = ["CannotStart", "Secret", "Settings", "checked_backend", "read_key", "without_query"]


def checked_backend(address: str) -> str:
    """The address, if a backend can be there. Raises `CannotStart`, which repeats nothing that may be a secret."""
    if "@" in address:  # wherever it stands: what is meant as a password may hold the marks that end a host
        raise CannotStart(
            "The backend's address must not carry a name or password: give its key as the API key, "
            "and write an @ that means itself as %40."
        )
    try:
        parts = urlsplit(address)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        shown = f" {without_query(address)!r}" if address.isascii() and "%40" not in address else ""
        raise CannotStart(f"The backend's address{shown} is not a URL like http://localhost:8000/v1.")
    return address if "?" in address else address.rstrip("/")


def without_query(address: str) -> str:
    """What of an address may be shown: some backends take their key in the query."""
    return address.partition("#")[0].partition("?")[0]


def read_key(environment: str | None, file: str | None) -> Secret | None:
    """The backend's key, from a file or else from the environment. Raises `CannotStart`."""
    if file is None:
        key = (environment or "").strip()
        return _checked_key(key) if key else None
    try:
        key = Path(file).read_text(encoding="utf-8-sig").strip()
    except (OSError, UnicodeDecodeError) as exc:
        raise CannotStart(f"The backend's key cannot be read from {file!r}: {_reason(exc)}.") from exc
    if not key:
        raise CannotStart(f"The backend's key file {file!r} is empty.")
    return _checked_key(key)


def _checked_key(key: str) -> Secret:
    if not (key.isascii() and key.isprintable()):
        raise CannotStart("The backend's key cannot be sent: it must be one line of printable ASCII.")
    return Secret(key)


def _reason(exc: Exception) -> str:
    return (exc.strerror if isinstance(exc, OSError) else None) or "it is not text"
