"""Opaque ids. Nothing may be read out of one but its prefix, and which two belong together (engine/pairs.py)."""

from __future__ import annotations

import os

_BLOCK = 256 * 16
_pool = b""
_at = 0


def _forget() -> None:
    """A forked child must not hand out its parent's ids."""
    global _pool, _at
    _pool, _at = b"", 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def new_id(prefix: str) -> str:
    """128 random bits in hex, from blocks: a call to the kernel for each id would cost more than the rest."""
    global _pool, _at
    if _at >= len(_pool):
        _pool, _at = os.urandom(_BLOCK), 0
    begin, _at = _at, _at + 16
    return f"{prefix}_{_pool[begin:_at].hex()}"
