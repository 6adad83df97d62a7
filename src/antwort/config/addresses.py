"""Addresses: of backends, and the one to listen on."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from antwort.config.problems import CannotStart

_ENDPOINT = "/chat/completions"


def address_problem(address: str) -> str | None:
    """Why no backend can be at this address, in words that repeat nothing that may be a secret.

    White space around it does no harm.
    """
    address = address.strip()
    if "@" in address:  # wherever it stands: what is meant as a password may hold the marks that end a host
        return "must not carry a name or password: give its key as the API key, and write an @ that means itself as %40"
    if any(character.isspace() or not character.isprintable() for character in address):
        return "must not have white space in it"
    try:
        parts = urlsplit(address)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        usable = False
    if usable and parts.path.rstrip("/").endswith(_ENDPOINT):
        return f"must be the base address: leave out {_ENDPOINT} at its end"
    if usable:
        return None
    shown = f"{without_query(address)!r} " if address.isascii() and "%40" not in address else ""
    return f"{shown}is not a URL like http://localhost:8000/v1"


def checked_backend(address: str) -> str:
    """The address, if a backend can be there. Raises `CannotStart`, which repeats nothing that may be a secret."""
    if problem := address_problem(address):
        raise CannotStart(f"The backend's address {problem}.")
    address = address.strip()
    return address if "?" in address else address.rstrip("/")


def without_query(address: str) -> str:
    """What of an address may be shown: some backends take their key in the query."""
    return address.partition("#")[0].partition("?")[0]


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that listens there."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
