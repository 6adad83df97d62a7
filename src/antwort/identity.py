"""The identity that a request is made for. It is part of every lookup, record and tool call of its run."""

from __future__ import annotations

from contextvars import ContextVar

import msgspec

TENANT: ContextVar[str] = ContextVar("tenant", default="default")
"""The tenant that the current task works for; by default, that of anonymous requests."""


class Identity(msgspec.Struct, frozen=True):
    """A client of the server. Only `tenant` and `owner` decide which records it can see."""

    tenant: str = "default"
    owner: str = ""
    models: tuple[str, ...] | None = None
    """The models that may be used, by the names in requests; `*` at the end of a name matches any ending. None: all."""
    key: str = ""
    """The name of the API key of the request, for the log."""

    def is_same(self, other: Identity) -> bool:
        """Return whether both identities see the same records."""
        return self.tenant == other.tenant and self.owner == other.owner

    def may_use(self, model: str) -> bool:
        """Return whether requests may name this model."""
        return self.models is None or any(_fits(model, pattern) for pattern in self.models)


def _fits(name: str, pattern: str) -> bool:
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


ANONYMOUS = Identity()
