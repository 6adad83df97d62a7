"""What a request brings to log in to a server: which headers it may have sent, and how they are written. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from antwort.api.tools import McpTool
from antwort.api.wire import UNSET
from antwort.errors import InvalidField

MOST = 32
"""Headers of one declaration."""
LONGEST = 8 * 1024
"""Characters of a header's name and value."""
LONGEST_ALL = 32 * 1024
"""Of all of them."""

_NEVER = (
    # HTTP's own, and what only means something between two neighbours
    *("connection", "expect", "host", "http2-settings", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"),
    *("accept", "accept-encoding", "content-*", "proxy-*", "range", "user-agent", "via"),
    # the protocol's own
    *("last-event-id", "mcp-*"),
)
_NAME = re.compile("[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile("[!-~]([ -~]*[!-~])?")
_SCHEME = re.compile("(bearer|basic|dpop) +[!-~]", re.IGNORECASE)


class HeaderRules:
    """Names in any case; one that ends in `*` stands for all that begin so. What is denied goes before."""

    def __init__(self, allow: Sequence[str] = ("*",), deny: Sequence[str] = ()) -> None:
        self._allow = tuple(name.lower() for name in allow)
        self._deny = (*_NEVER, *(name.lower() for name in deny))

    def check(self, declared: McpTool) -> dict[str, str]:
        """The headers to send for the declaration: its `headers`, and its `authorization` as one of them. Raises
        `InvalidField`, naming a field of the declaration; no message repeats a value.
        """
        headers = {} if declared.headers is UNSET else declared.headers
        self._check_size(headers)
        for name, value in headers.items():
            self._check_header(name, value)
        if len({name.lower() for name in headers}) < len(headers):
            raise InvalidField("headers", "a header is there twice.")
        if declared.authorization is UNSET:
            return dict(headers)
        if any(name.lower() == "authorization" for name in headers):
            raise InvalidField("authorization", "is in 'headers', too. Send one of them.")
        if not self._lets("Authorization"):
            raise InvalidField("authorization", "may not be sent to a server.")
        return {**headers, "Authorization": _authorization(declared.authorization)}

    def _lets(self, name: str) -> bool:
        return _is_among(name, self._allow) and not _is_among(name, self._deny)

    def _check_size(self, headers: Mapping[str, str]) -> None:
        if len(headers) > MOST:
            raise InvalidField("headers", f"{len(headers)} headers; at most {MOST} are allowed.")
        if sum(len(name) + len(value) for name, value in headers.items()) > LONGEST_ALL:
            raise InvalidField("headers", f"longer than {LONGEST_ALL} characters together.")

    def _check_header(self, name: str, value: str) -> None:
        if not _NAME.fullmatch(name) or len(name) > 256:
            raise InvalidField("headers", "a name is not one that a header can have.")
        where = f"headers.{name}"
        if not self._lets(name):
            raise InvalidField(where, "this header may not be sent to a server.")
        if len(value) > LONGEST:
            raise InvalidField(where, f"longer than {LONGEST} characters.")
        if value and not _VALUE.fullmatch(value):
            raise InvalidField(where, "only printable ASCII, without spaces around it, can be sent.")


def _authorization(token: str) -> str:
    """A token is sent as a bearer's; what says itself what it is, as it is."""
    if len(token) > LONGEST:
        raise InvalidField("authorization", f"longer than {LONGEST} characters.")
    if not _VALUE.fullmatch(token):
        raise InvalidField("authorization", "only printable ASCII, without spaces around it, can be sent.")
    return token if _SCHEME.match(token) else f"Bearer {token}"


def _is_among(name: str, patterns: Iterable[str]) -> bool:
    name = name.lower()
    return any(name.startswith(text[:-1]) if text.endswith("*") else name == text for text in patterns)
