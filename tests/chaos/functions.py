"""Functions that a server of the chaos suite runs for requests that declare them. They write down each call, as the
tools of `tools.py` do, in a file that outlives the server.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

from antwort import ToolContext, tool
from antwort.ids import new_id
from chaos.ledger import Ledger, Line, line_of

__all__ = ["look", "order"]

LEDGER, SERVER, WORK = "CHAOS_LEDGER", "CHAOS_SERVER", "CHAOS_WORK"
"""The environment says where the ledger is, which server process this is, and how long a call takes on the average."""

_ledger = Ledger(Path(os.environ[LEDGER]))


@tool(read_only=True)
def look(place: str, context: ToolContext) -> str:
    """Look, and change nothing."""
    return _run("look", place, context)


@tool
def order(place: str, context: ToolContext) -> str:
    """Order: what is ordered twice comes twice."""
    return _run("order", place, context)


def _run(name: str, place: str, context: ToolContext) -> str:
    line = Line("begun", new_id("run"), name, place, context.idempotency_key, os.environ[SERVER], time.time())
    _ledger.write(line)
    time.sleep(float(os.environ[WORK]) * random.Random(place).uniform(0.2, 1.8))
    _ledger.write(line_of("ended", line))
    return line.run
