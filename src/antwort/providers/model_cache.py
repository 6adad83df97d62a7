"""Cache values by model, bounded also in the length of the names: a client chooses them."""

from __future__ import annotations

from typing import TypeVar

from antwort.caching import Cache

K = TypeVar("K", bound=str | tuple[str, str])
V = TypeVar("V")

MAX_TRACKED_MODELS = 256
MAX_MODEL_NAME_CHARS = 256
"""Nothing is cached for a longer name."""


class ModelCache(Cache[K, V]):
    """A cache whose keys are models, or begin with one."""

    __slots__ = ()

    def __init__(self, max_entries: int = MAX_TRACKED_MODELS) -> None:
        super().__init__(max_entries)

    def put(self, key: K, value: V, size: int = 0) -> None:
        if len(key if isinstance(key, str) else key[0]) <= MAX_MODEL_NAME_CHARS:
            super().put(key, value, size)
