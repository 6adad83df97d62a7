"""What was seen of a model's tool calls, for a while."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

from antwort.providers.choices import Kind

Way: TypeAlias = Literal["constrained", "neither"]
"""In which calls come that did not come natively. `neither`: a schema does not help."""

_MOST = 1024
"""Models and kinds of choice that are remembered; names of models may be a client's invention."""


class Learned:
    """It is forgotten in time: backends are set up anew, and what one request met with need not be so for others."""

    def __init__(self, clock: Callable[[], float], lasts: float) -> None:
        self._clock, self._lasts = clock, lasts
        self.ways: dict[tuple[str, Kind], tuple[Way, float]] = {}
        """Each with the time until which it is believed."""

    def way(self, model: str, kind: Kind) -> Way | None:
        """Where calls of one kind are constrained, those that were made before are not understood natively either."""
        if not self.ways:
            return None
        if kind == "none":
            seen = (self._seen(model, other) for other in ("auto", "required", "named", "none"))
            return "constrained" if "constrained" in seen else None
        return self._seen(model, kind)

    def learn(self, model: str, kind: Kind, way: Way) -> None:
        self.ways.pop((model, kind), None)
        if len(self.ways) >= _MOST:
            self.ways.pop(next(iter(self.ways)))
        self.ways[model, kind] = way, self._clock() + self._lasts

    def _seen(self, model: str, kind: Kind) -> Way | None:
        way, until = self.ways.get((model, kind), (None, 0.0))
        return way if self._clock() < until else None
