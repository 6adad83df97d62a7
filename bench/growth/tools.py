"""The tool that turns are made of."""

from __future__ import annotations

from antwort import Toolset

growing = Toolset("growing")


@growing.tool
def look(what: str) -> str:
    """Look something up."""
    return f"There is nothing to say of {what}."
