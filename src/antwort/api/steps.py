"""Work in pieces, none of which takes long: whoever drives it may do other work between them."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeAlias, TypeVar

T = TypeVar("T")
Steps: TypeAlias = Generator[None, None, T]
"""What is done up to each `yield`, and at the end the result."""


def at_once(steps: Steps[T]) -> T:
    """Return what the steps lead to, without a pause between them."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: T = end.value
            return found
