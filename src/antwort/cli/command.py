"""What a command is: a row of the table."""

from __future__ import annotations

from typing import NamedTuple

from antwort.config.flags import Flag


class Command(NamedTuple):
    name: str
    help: str
    """One line, for the list of commands."""
    run: str = ""
    """`module:function`, imported when the command is run."""
    flags: tuple[Flag, ...] = ()
    arguments: tuple[Flag, ...] = ()
    commands: tuple[Command, ...] = ()
    description: str = ""
    examples: str = ""
