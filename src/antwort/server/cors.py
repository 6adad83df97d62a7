"""Which web pages may use the API from a browser (CORS, as the Fetch standard has it). Decisions only; no I/O."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from antwort.server.errors import Headers

METHODS = b"GET, HEAD, POST, DELETE"
_TOKEN = re.compile(rb"[a-z0-9!#$%&'*+.^_`|~-]{1,128}")
_MOST_NAMES = 100

ALLOWED = frozenset(
    {
        b"accept",
        b"accept-language",
        b"antwort-on-disconnect",
        b"api-key",
        b"authorization",
        b"cache-control",
        b"content-language",
        b"content-type",
        b"idempotency-key",
        b"last-event-id",
        b"traceparent",
        b"tracestate",
        b"user-agent",
        b"x-api-key",
        b"x-client-request-id",
        b"x-request-id",
        b"x-requested-with",
    }
)
"""Request headers that pages may send, besides those with one of these beginnings: what OpenAI's clients send."""
ALLOWED_BEGINNINGS = (b"openai-", b"x-stainless-")
EXPOSED = b", ".join(
    [
        b"x-request-id",
        b"antwort-warning",
        b"idempotent-replayed",
        b"retry-after",
        b"retry-after-ms",
        b"x-should-retry",
        *[
            b"x-ratelimit-%b-%b" % (what, unit)
            for unit in (b"requests", b"tokens")
            for what in (b"limit", b"remaining", b"reset")
        ],
    ]
)
"""Response headers that pages may read."""


class Cors:
    """Origins are compared as browsers write them: in lower case, without a path."""

    def __init__(
        self,
        origins: Iterable[str],
        *,
        headers: Iterable[str] = (),
        credentials: bool = False,
        max_age: int = 600,
    ) -> None:
        """`*` among the origins or headers stands for all. Raises `ValueError` for credentials from everywhere."""
        self._origins = frozenset(origin.lower().encode() for origin in origins)
        self._names = ALLOWED | {name.lower().encode() for name in headers}
        self._credentials, self._max_age = credentials, max_age
        if credentials and b"*" in self._origins:
            raise ValueError("credentials cannot be allowed from everywhere")

    def preflight(self, origin: bytes | None, method: bytes | None, names: bytes = b"") -> Headers | None:
        """The answer to a browser that asks before it asks; None when there is no such question, or no such page.

        A method or header that is not in the answer is refused by the browser, which then says which one it is.
        """
        if origin is None or method is None or not self.allows(origin):
            return None
        headers = [
            *self._origin(origin),
            (b"access-control-allow-methods", METHODS),
            (b"access-control-max-age", b"%d" % self._max_age),
            (b"vary", b"access-control-request-method, access-control-request-headers"),
        ]
        if allowed := self._allowed(names):
            headers.append((b"access-control-allow-headers", b", ".join(allowed)))
        return headers

    def headers(self, origin: bytes | None) -> Headers:
        """Return the headers of any answer, also of errors. A page that may not read it is told nothing."""
        if origin is None or not self.allows(origin):
            return self._vary()
        return [*self._origin(origin), (b"access-control-expose-headers", EXPOSED)]

    def allows(self, origin: bytes) -> bool:
        """Return whether pages from there may use the API."""
        return b"*" in self._origins or origin in self._origins

    def _origin(self, origin: bytes) -> Headers:
        everywhere = b"*" in self._origins
        headers = [(b"access-control-allow-origin", b"*" if everywhere else origin), *self._vary()]
        if self._credentials:
            headers.append((b"access-control-allow-credentials", b"true"))
        return headers

    def _vary(self) -> Headers:
        """An answer that depends on who asks must not be kept for another; also the one to a page that is refused."""
        return [] if b"*" in self._origins else [(b"vary", b"origin")]

    def _allowed(self, names: bytes) -> Collection[bytes]:
        """Of the headers that a page wants to send, those it may. They are named one by one: `*` would not stand for
        `authorization`, nor for anything where credentials are sent.
        """
        wanted = [name.strip().lower() for name in names.split(b",")[:_MOST_NAMES]]
        return [name for name in wanted if _TOKEN.fullmatch(name) and self._may_send(name)]

    def _may_send(self, name: bytes) -> bool:
        return name in self._names or name.startswith(ALLOWED_BEGINNINGS) or b"*" in self._names
