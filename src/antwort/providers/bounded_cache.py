"""Keep values by model name within bounds: a client chooses the names, and they may be as long as a request."""

from __future__ import annotations

from typing import Any

MAX_TRACKED_MODELS = 256
MAX_MODEL_NAME_CHARS = 256
"""Nothing is kept for a longer name."""


def remember(
    cache: dict[Any, Any], key: str | tuple[str, str], value: object, *, max_entries: int = MAX_TRACKED_MODELS
) -> None:
    """Put a value last, and drop the first if there are too many. `key` is a model, or begins with one."""
    if len(key if isinstance(key, str) else key[0]) > MAX_MODEL_NAME_CHARS:
        return
    cache.pop(key, None)
    cache[key] = value
    if len(cache) > max_entries:
        del cache[next(iter(cache))]
