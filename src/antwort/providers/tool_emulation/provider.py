"""Give one provider tool calls that its models do not have of their own."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from antwort.providers.base import Provider
from antwort.providers.fleet import Fleet
from antwort.providers.member import Member
from antwort.providers.tool_emulation.emulation import ToolCalling, ToolEmulation


class Constrained(Fleet):
    """A provider with tool calls around one without, or with `auto` around one that may have them."""

    def __init__(
        self, provider: Provider, mode: ToolCalling = "auto", *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        emulation = ToolEmulation(mode, provider.capabilities, clock=clock)
        member = Member("backend", provider, emulation=emulation, failures=math.inf, clock=clock)
        super().__init__([member], health=None, clock=clock)
