"""Give one provider tool calls that its models do not have of their own."""

from __future__ import annotations

import time
from collections.abc import Callable

from antwort.providers.base import Provider
from antwort.providers.fleet import SingleBackend
from antwort.providers.tool_emulation.emulation import ToolCalling, ToolEmulation


class Constrained(SingleBackend):
    """A provider with tool calls around one without, or with `auto` around one that may have them."""

    def __init__(
        self, provider: Provider, mode: ToolCalling = "auto", *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(provider, emulation=ToolEmulation(mode, provider.capabilities, clock=clock), clock=clock)
