"""Opaque ids. The prefix of an id has a meaning; engine/history/calls.py tells which two belong together."""

from __future__ import annotations

import os

_BYTES = 16
_AT_ONCE = 256

_pool: list[str] = []
_take = _pool.pop

# A forked child must not hand out its parent's ids.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.clear)


def new_id(prefix: str) -> str:
    """128 random bits in hex, many at a time: a call to the kernel for each id would cost more than the rest."""
    try:
        return f"{prefix}_{_take()}"
    except IndexError:
        _pool.extend(os.urandom(_AT_ONCE * _BYTES).hex("_", _BYTES).split("_"))
        return new_id(prefix)
