"""Who a request is made for. It travels with the run into every lookup, record and tool."""

from __future__ import annotations

from contextvars import ContextVar

import msgspec

TENANT: ContextVar[str] = ContextVar("tenant", default="default")
"""The tenant that the current task works for; without a run, that of those who did not say who they are."""


class Identity(msgspec.Struct, frozen=True):
    """Records are found within `tenant` and `owner` only: the rest says what may be used, not whose it is."""

    tenant: str = "default"
    owner: str = ""
    models: tuple[str, ...] | None = None
    """The models that may be used, by the names that requests ask for; one that ends in `*` stands for all that begin
    so. None: all."""
    key: str = ""
    """The name of the API key it came by, for the log."""

    def is_same(self, other: Identity) -> bool:
        """Whether the records of the one are those of the other."""
        return self.tenant == other.tenant and self.owner == other.owner

    def may_use(self, model: str) -> bool:
        return self.models is None or any(_fits(model, pattern) for pattern in self.models)


def _fits(name: str, pattern: str) -> bool:
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


ANONYMOUS = Identity()
