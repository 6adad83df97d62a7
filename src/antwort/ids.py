"""Opaque random ids. The prefix of an id names the kind of its object."""

from __future__ import annotations

import os

_BYTES = 16
_IDS_PER_READ = 256

_pool: list[str] = []
_take = _pool.pop

# A forked process must not use the ids of its parent.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.clear)


def new_id(prefix: str) -> str:
    """Return an id of 128 random bits. Random bytes are read for many ids at a time, as each read is a system call."""
    try:
        return f"{prefix}_{_take()}"
    except IndexError:
        _pool.extend(os.urandom(_IDS_PER_READ * _BYTES).hex("_", _BYTES).split("_"))
        return new_id(prefix)
