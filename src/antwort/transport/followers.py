"""How many may read streams of responses again at once, in one process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from antwort.errors import TooManyFollowers
from antwort.identity import Identity


class Followers:
    """Places for those who read along. No tenant has more than half of them, and none of its subjects more than half of
    those: nobody shuts the others out.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: Counter[tuple[str, ...]] = Counter()
        """By all, by tenant, and by tenant and subject."""

    @contextmanager
    def place(self, identity: Identity) -> Iterator[None]:
        """One, until the block is left. Raises `TooManyFollowers`."""
        whose: list[tuple[str, ...]] = [(), (identity.tenant,)]
        if identity.owner:  # else it stands for all who do not say who they are
            whose.append((identity.tenant, identity.owner))
        for level, each in enumerate(whose):
            share = max(self._most >> level, 1)
            if self._held[each] >= share:
                raise TooManyFollowers(self._most, share)
        self._held.update(whose)
        try:
            yield
        finally:
            self._held.subtract(whose)
            for each in whose:
                if not self._held[each]:
                    del self._held[each]
