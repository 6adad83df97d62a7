"""An address as a request may write it, read strictly: one way to read it, and the same for whoever judges it and for
whoever connects. Pure.
"""

from __future__ import annotations

import re
from functools import lru_cache
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from typing import TypeAlias
from urllib.parse import quote

import msgspec

from antwort.net.exchange import HttpFault

Address: TypeAlias = IPv4Address | IPv6Address

LONGEST = 2048
"""Characters of an address."""

_URL = re.compile(r"(https?)://([^/?#]*)([^?#]*)(\?[^#]*)?", re.IGNORECASE)
_PORT = re.compile("[0-9]{1,5}")
_LABEL = re.compile("[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile("0x[0-9a-f]*|[0-9]+")
_IN_PATH = "/:@!$&'()*+,;=~%-._"
_IN_QUERY = _IN_PATH + "?"


class OutOfReach(HttpFault):
    """An address that may not be asked. The text is for whoever named it; it ends a sentence that begins with the
    field, and tells nothing that they could not know.
    """


class Place(msgspec.Struct, frozen=True):
    """Where an address leads: the host as names are asked for, lower case and without a dot at its end."""

    is_secure: bool
    host: str
    port: int
    target: str
    address: Address | None = None
    """Where the host is a number, whichever way it was written."""

    @property
    def origin(self) -> str:
        scheme, usual = ("https", 443) if self.is_secure else ("http", 80)
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{scheme}://{host}" + ("" if self.port == usual else f":{self.port}")

    @property
    def url(self) -> str:
        return self.origin + self.target


@lru_cache(maxsize=256)
def read_place(url: str) -> Place:
    """Raises `OutOfReach`."""
    if len(url) > LONGEST:
        raise OutOfReach(f"longer than {LONGEST} characters.")
    if not url.isprintable() or " " in url or "\\" in url:
        raise OutOfReach("holds a space, a backslash or a character that cannot be printed.")
    if "#" in url:
        raise OutOfReach("must not have a fragment.")
    if (parts := _URL.fullmatch(url)) is None:
        raise OutOfReach("must be an address that begins with https://.")
    scheme, authority, path, query = parts.groups(default="")
    if "@" in authority:
        raise OutOfReach("must not hold credentials; send them as 'authorization' or in 'headers'.")
    is_secure = scheme.lower() == "https"
    written, port = _split(authority)
    host, address = _read_host(written)
    target = quote(path or "/", safe=_IN_PATH) + quote(query, safe=_IN_QUERY)
    return Place(is_secure, host, _read_port(port, is_secure=is_secure), target, address)


def _split(authority: str) -> tuple[str, str | None]:
    """Host and port. A colon without a number behind it is none."""
    if authority.startswith("["):
        host, closed, rest = authority.partition("]")
        if not closed or (rest and not rest.startswith(":")):
            raise OutOfReach("names a host that cannot be one.")
        return host + closed, rest[1:] if rest else None
    host, colon, port = authority.partition(":")
    return host, port if colon else None


def _read_port(port: str | None, *, is_secure: bool) -> int:
    if port is None:
        return 443 if is_secure else 80
    if not _PORT.fullmatch(port) or not 0 < int(port) < 2**16:
        raise OutOfReach("names a port that cannot be one.")
    return int(port)


def _read_host(written: str) -> tuple[str, Address | None]:
    if written.startswith("["):
        try:
            six = IPv6Address(written[1:-1])
        except AddressValueError:
            raise OutOfReach("names a host that cannot be one.") from None
        if six.scope_id is not None:
            raise OutOfReach("must not name a zone.")
        return str(six), six
    host = _as_asked_for(written)
    labels = host.split(".")
    if _NUMBER.fullmatch(labels[-1]):
        four = number_in(labels)
        return str(four), four
    if len(host) > 253 or not all(map(_LABEL.fullmatch, labels)):
        raise OutOfReach("names a host that cannot be one.")
    return host, None


def _as_asked_for(host: str) -> str:
    """A name in any script as names are asked for: full-width digits and dots of other scripts become plain ones."""
    try:
        plain = host if host.isascii() else host.encode("idna").decode("ascii")
    except UnicodeError:
        raise OutOfReach("names a host that cannot be one.") from None
    return plain.lower().removesuffix(".")


def number_in(labels: list[str]) -> IPv4Address:
    """An IPv4 address as the C library reads it: of one to four parts, each decimal, octal or hexadecimal, and the last
    fills what is left. Raises `OutOfReach`.
    """
    try:
        numbers = [_number(label) for label in labels]
        *heads, last = numbers
        if len(heads) > 3 or any(head > 255 for head in heads):
            raise ValueError
        high = int.from_bytes(bytes([*heads, *[0] * (4 - len(heads))]), "big")
        if last >= 256 ** (4 - len(heads)):
            raise ValueError
        return IPv4Address(high + last)
    except ValueError:
        raise OutOfReach("names a host that cannot be one.") from None


def _number(text: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise ValueError(text)
    if text.startswith("0x"):
        return int(text[2:] or "0", 16)
    return int(text, 8 if text.startswith("0") else 10)
