"""Opaque ids. The prefix of an id names the kind of its object.

The rest is a time of 48 bits and 80 random bits, as in a UUID of version 7: ids that are made one after the other stand
side by side in the indexes of a database. Purely random ids would touch a page of their own each, and take a third of
the CPU of a stored response.
"""

from __future__ import annotations

import os
import time

_RANDOM_BYTES = 10
_IDS_PER_READ = 256

_pool: list[str] = []
_take = _pool.pop

# A forked process must not use the ids of its parent.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.clear)


def new_id(prefix: str) -> str:
    """Return a new id. Random bytes are read for many ids at a time, as each read is a system call; these ids share the
    time of the read.
    """
    try:
        return f"{prefix}_{_take()}"
    except IndexError:
        begin = f"{time.time_ns() // 1_000_000:012x}"
        random = os.urandom(_IDS_PER_READ * _RANDOM_BYTES).hex("_", _RANDOM_BYTES).split("_")
        _pool.extend([begin + each for each in random])
        return new_id(prefix)
