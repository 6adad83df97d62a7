"""What keeps a server from starting."""

from __future__ import annotations


class CannotStart(Exception):
    """The server cannot start as it is set up; the message is one sentence for the operator, with the fix."""
