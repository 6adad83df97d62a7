"""Who a request is made for. It travels with the run into every lookup, record and tool."""

from __future__ import annotations

import msgspec


class Identity(msgspec.Struct, frozen=True):
    """Records are found within `tenant` and `owner` only."""

    tenant: str = "default"
    owner: str = ""


ANONYMOUS = Identity()
