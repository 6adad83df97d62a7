"""The commands that can be typed instead of words for the model, and what they do."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from rich.table import Table
from rich.text import Text

from antwort.chat.client import ChatError
from antwort.chat.conversation import ChatConversation, default_name, save, transcript
from antwort.chat.formatting import one_line, sanitize
from antwort.chat.screen import Interrupts, Screen
from antwort.chat.server import ChatServer
from antwort.suggestions import did_you_mean, nearest


class ChatCommand(NamedTuple):
    name: str
    usage: str
    about: str


COMMANDS = (
    ChatCommand("/help", "/help", "this list"),
    ChatCommand("/new", "/new", "begin a new conversation"),
    ChatCommand("/model", "/model [NAME]", "list the models, or talk to another"),
    ChatCommand("/tools", "/tools [LABEL on|off]", "list the tools, or switch a set of them"),
    ChatCommand("/system", "/system [TEXT]", "show or set what the model is told first; `/system -` for nothing"),
    ChatCommand("/save", "/save [FILE]", "write a transcript; `/save! FILE` overwrites"),
    ChatCommand("/quit", "/quit", "end (or Ctrl-D)"),
)
KEYS = (
    ("Enter", "send"),
    ("Alt-Enter, or \\ Enter", "a new line"),
    ("Ctrl-C", "cancel the answer, or clear the line"),
    ("Up, Ctrl-R", "what was asked before"),
)
_NAMES = tuple(command.name for command in COMMANDS)
_ALIASES = {"/exit": "/quit", "/q": "/quit", "/?": "/help", "/models": "/model", "/clear": "/new", "/reset": "/new"}


class TypedCommand(NamedTuple):
    name: str
    rest: str = ""
    is_forced: bool = False
    """Whether the name ends with an exclamation mark."""


def parse(line: str) -> TypedCommand | None:
    """Return the command in a line, known or not. A line that begins with a space is for the model."""
    if not line.startswith("/") or "\n" in line.strip():
        return None
    word, _, rest = line.strip().partition(" ")
    name = word.removesuffix("!").lower()
    return TypedCommand(_ALIASES.get(name, name), rest.strip(), word.endswith("!"))


def unknown(name: str) -> str:
    hint = did_you_mean(nearest(name, _NAMES)) or "/help lists what there is."
    return f"There is no command {name}; {hint}"


def completions(before: str, models: Sequence[str], labels: Sequence[str]) -> list[str]:
    """Return what the last word of a command may become."""
    if not before.startswith("/") or "\n" in before:
        return []
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
            return []
    return [word for word in choice if word.startswith(last)]


class CommandRunner:
    def __init__(
        self, screen: Screen, server: ChatServer, conversation: ChatConversation, interrupts: Interrupts
    ) -> None:
        self._screen, self._server, self._conversation = screen, server, conversation
        self._interrupts = interrupts

    async def run(self, command: TypedCommand) -> bool:
        """Run a command. Return whether the chat goes on."""
        match command.name:
            case "/quit":
                return False
            case "/help":
                self._help()
            case "/new":
                self._conversation.clear()
                self._screen.say("A new conversation.")
            case "/model":
                await self._model(command.rest)
            case "/tools":
                await self._tools(command.rest.split())
            case "/system":
                if command.rest:
                    self._conversation.system = "" if command.rest == "-" else command.rest
                system = self._conversation.system
                self._screen.say(f"The model is told first: {system}" if system else "The model is told nothing first.")
            case "/save":
                self._save(command.rest, overwrite=command.is_forced)
            case _:
                self._screen.say(unknown(one_line(command.name, 40)), "yellow")
        return True

    def _help(self) -> None:
        table = _columns()
        for command in COMMANDS:
            table.add_row(Text(command.usage), Text(command.about, style="dim"))
        table.add_row()
        for key, about in KEYS:
            table.add_row(Text(key), Text(about, style="dim"))
        self._screen.show(table, indent=2)

    async def _refresh(self) -> bool:
        """Ask the server for its models and tools. Return whether it answered."""
        try:
            has_ended = await self._interrupts.run(self._screen.wait(self._server.refresh))
        except ChatError as error:
            self._screen.say(str(error), "red")
            return False
        if not has_ended:
            self._screen.say("cancelled", "yellow")
        return has_ended

    async def _model(self, name: str) -> None:
        if not await self._refresh():
            return
        if name:
            is_listed = name in self._server.models
            self._conversation.model = name
            hint = "" if is_listed else " The server does not list it, and may not have it."
            self._screen.say(f"Talking to {name} from now on.{hint}", "dim" if is_listed else "yellow")
            return
        if not self._server.models:
            self._screen.say("The server lists no models.")
        for model in self._server.models:
            mark = self._screen.glyphs.ran if model == self._conversation.model else " "
            self._screen.show(Text.assemble((f"{mark} ", "green"), sanitize(model)), indent=2)

    async def _tools(self, words: list[str]) -> None:
        match words:
            case []:
                if await self._refresh():
                    self._list_tools()
            case [label, "on" | "off" as switch]:
                if switch == "on":
                    if not await self._refresh():
                        return
                    labels = list(self._server.tools)
                    if labels and label not in labels:  # a server that lists none may have it nevertheless
                        listed = f"it has {', '.join(labels)}."
                        self._screen.say(f"The server has no tools labelled {label!r}; {listed}", "yellow")
                        return
                self._conversation.switch(label, on=switch == "on")
                self._screen.say(f"The tools of {label} are {switch}.")
            case _:
                self._screen.say("Say `/tools`, or `/tools LABEL on`, or `/tools LABEL off`.", "yellow")

    def _list_tools(self) -> None:
        chosen, known = self._conversation.labels, self._server.tools
        labels = list(dict.fromkeys([*known, *chosen]))
        if not labels:
            self._screen.say("The server names no tools. `/tools LABEL on` tries a label that you know.")
            return
        table = _columns()
        for label in labels:
            switch = Text("on", style="green") if label in chosen else Text("off", style="dim")
            names = ", ".join(known.get(label, ()))
            table.add_row(Text(sanitize(label), style="bold"), switch, Text(sanitize(names)))
        self._screen.show(table, indent=2)

    def _save(self, name: str, *, overwrite: bool) -> None:
        if not self._conversation.turns:
            self._screen.say("There is nothing to save yet.", "yellow")
            return
        now = datetime.now().astimezone()
        text = transcript(self._conversation.turns, self._conversation.model or "the server's model", now)
        name = name or default_name(now)
        try:
            save(file := Path(name).expanduser(), text, overwrite=overwrite)
        except FileExistsError:
            self._screen.say(f"{name} is there already; `/save! {name}` overwrites it.", "yellow")
        except (OSError, RuntimeError, ValueError) as exc:
            reason = getattr(exc, "strerror", None) or "there is no such place"
            self._screen.say(f"Cannot write {name}: {reason}.", "red")
        else:
            self._screen.say(f"Saved to {file}.")


def _columns() -> Table:
    return Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
