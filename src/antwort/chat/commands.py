"""What can be typed besides words for the model. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from antwort.suggestions import did_you_mean, nearest


class Command(NamedTuple):
    name: str
    usage: str
    about: str


COMMANDS = (
    Command("/help", "/help", "this list"),
    Command("/new", "/new", "begin a new conversation"),
    Command("/model", "/model [NAME]", "list the models, or talk to another"),
    Command("/tools", "/tools [LABEL on|off]", "list the tools, or switch a set of them"),
    Command("/system", "/system [TEXT]", "show or set what the model is told first; `/system -` for nothing"),
    Command("/save", "/save [FILE]", "write a transcript; `/save! FILE` overwrites"),
    Command("/quit", "/quit", "end (or Ctrl-D)"),
)
KEYS = (
    ("Enter", "send"),
    ("Alt-Enter, or \\ Enter", "a new line"),
    ("Ctrl-C", "cancel the answer, or clear the line"),
    ("Up, Ctrl-R", "what was asked before"),
)
_NAMES = tuple(command.name for command in COMMANDS)
_OTHERS = {"/exit": "/quit", "/q": "/quit", "/?": "/help", "/models": "/model", "/clear": "/new", "/reset": "/new"}


class Typed(NamedTuple):
    name: str
    rest: str = ""
    is_forced: bool = False
    """Whether an exclamation mark stands behind the name."""


def parse(line: str) -> Typed | None:
    """The command in a line, known or not; None where the line is for the model, as is one that begins with a blank."""
    if not line.startswith("/") or "\n" in line.strip():
        return None
    word, _, rest = line.strip().partition(" ")
    name = word.removesuffix("!").lower()
    return Typed(_OTHERS.get(name, name), rest.strip(), word.endswith("!"))


def unknown(name: str) -> str:
    hint = did_you_mean(nearest(name, _NAMES)) or "/help lists what there is."
    return f"There is no command {name}; {hint}"


def completions(before: str, models: Sequence[str], labels: Sequence[str]) -> Iterable[str]:
    """What may stand in the place of the last word of what is typed so far."""
    if not before.startswith("/") or "\n" in before:
        return ()
    *earlier, last = before.split(" ")
    match earlier:
        case []:
            choice: Sequence[str] = _NAMES
        case ["/model"]:
            choice = models
        case ["/tools"]:
            choice = labels
        case ["/tools", _]:
            choice = ("on", "off")
        case _:
            return ()
    return [word for word in choice if word.startswith(last)]
