"""What the commands do."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from rich.table import Table
from rich.text import Text

from antwort.chat.client import ChatFault
from antwort.chat.commands import COMMANDS, KEYS, Typed, unknown
from antwort.chat.conversation import Conversation
from antwort.chat.home import Home
from antwort.chat.screen import Screen
from antwort.chat.scrub import in_one_line, scrub
from antwort.chat.transcript import save, transcript, usual_name
from antwort.chat.waiting import Interrupts, awaited


class Orders:
    def __init__(self, screen: Screen, home: Home, conversation: Conversation, interrupts: Interrupts) -> None:
        self._screen, self._home, self._conversation = screen, home, conversation
        self._interrupts = interrupts

    async def obey(self, typed: Typed) -> bool:
        """Whether the chat goes on."""
        match typed.name:
            case "/quit":
                return False
            case "/help":
                self._help()
            case "/new":
                self._conversation.begin_anew()
                self._screen.say("A new conversation.")
            case "/model":
                await self._model(typed.rest)
            case "/tools":
                await self._tools(typed.rest.split())
            case "/system":
                self._system(typed.rest)
            case "/save":
                self._save(typed.rest, overwrite=typed.is_forced)
            case _:
                self._screen.say(unknown(in_one_line(typed.name, 40)), "yellow")
        return True

    def _help(self) -> None:
        table = _columns()
        for command in COMMANDS:
            table.add_row(Text(command.usage), Text(command.about, style="dim"))
        table.add_row()
        for key, about in KEYS:
            table.add_row(Text(key), Text(about, style="dim"))
        self._screen.show(table, indent=2)

    async def _look(self) -> bool:
        """Whether the server has told what there is."""
        try:
            is_told = await self._interrupts.run(awaited(self._screen, self._home.look))
        except ChatFault as fault:
            self._screen.say(str(fault), "red")
            return False
        if not is_told:
            self._screen.say("cancelled", "yellow")
        return is_told

    # ---- models ----

    async def _model(self, name: str) -> None:
        if name:
            await self._switch_model(name)
        elif await self._look():
            self._list_models()

    async def _switch_model(self, name: str) -> None:
        if await self._look():
            known = name in self._home.models
            self._conversation.model = name
            hint = "" if known else " The server does not list it, and may not have it."
            self._screen.say(f"Talking to {name} from now on.{hint}", "dim" if known else "yellow")

    def _list_models(self) -> None:
        if not self._home.models:
            self._screen.say("The server lists no models.")
        for model in self._home.models:
            is_chosen = model == self._conversation.model
            mark = self._screen.glyphs.ran if is_chosen else " "
            self._screen.show(Text.assemble((f"{mark} ", "green"), scrub(model)), indent=2)

    # ---- tools ----

    async def _tools(self, words: list[str]) -> None:
        match words:
            case []:
                if await self._look():
                    self._list_tools()
            case [label, "on" | "off" as switch]:
                await self._switch_tools(label, on=switch == "on")
            case _:
                self._screen.say("Say `/tools`, or `/tools LABEL on`, or `/tools LABEL off`.", "yellow")

    async def _switch_tools(self, label: str, *, on: bool) -> None:
        if on and not await self._may_be_there(label):
            return
        self._conversation.switch(label, on=on)
        self._screen.say(f"The tools of {label} are {'on' if on else 'off'}.")

    async def _may_be_there(self, label: str) -> bool:
        """A server that lists none may have it all the same: it says so in the next turn."""
        if not await self._look():
            return False
        labels = [toolset.label for toolset in self._home.toolsets]
        if labels and label not in labels:
            self._screen.say(f"The server has no tools labelled {label!r}; it has {', '.join(labels)}.", "yellow")
            return False
        return True

    def _list_tools(self) -> None:
        chosen = self._conversation.labels
        known = {toolset.label: toolset.names for toolset in self._home.toolsets}
        labels = list(dict.fromkeys([*known, *chosen]))
        if not labels:
            self._screen.say("The server names no tools. `/tools LABEL on` tries a label that you know.")
            return
        table = _columns()
        for label in labels:
            switch = Text("on", style="green") if label in chosen else Text("off", style="dim")
            table.add_row(Text(scrub(label), style="bold"), switch, Text(scrub(", ".join(known.get(label, ())))))
        self._screen.show(table, indent=2)

    # ---- the rest ----

    def _system(self, text: str) -> None:
        if text:
            self._conversation.system = "" if text == "-" else text
        system = self._conversation.system
        self._screen.say(f"The model is told first: {system}" if system else "The model is told nothing first.")

    def _save(self, name: str, *, overwrite: bool) -> None:
        if not self._conversation.turns:
            self._screen.say("There is nothing to save yet.", "yellow")
            return
        now = datetime.now().astimezone()
        text = transcript(self._conversation.turns, self._conversation.model or "the server's model", now)
        name = name or usual_name(now)
        try:
            save(file := Path(name).expanduser(), text, overwrite=overwrite)
        except FileExistsError:
            self._screen.say(f"{name} is there already; `/save! {name}` overwrites it.", "yellow")
        except (OSError, RuntimeError, ValueError) as exc:
            said = getattr(exc, "strerror", None) or "there is no such place"
            self._screen.say(f"Cannot write {name}: {said}.", "red")
        else:
            self._screen.say(f"Saved to {file}.")


def _columns() -> Table:
    return Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
