"""Reasoning that clients keep for us: given out sealed, and opened when they bring it back. No state is needed here."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

import msgspec

from antwort.api.items import Compaction, InputItem, Reasoning, ReasoningText
from antwort.api.requests import CreateRequest
from antwort.api.wire import UNSET, replace
from antwort.engine.context.compaction_item import Memories
from antwort.engine.loop.item_builders import Seal
from antwort.engine.plan import History
from antwort.errors import InvalidField
from antwort.identity import Identity
from antwort.notes import note
from antwort.storage.base import Link
from antwort.vault import CannotOpen, Vault

_log = logging.getLogger("antwort.engine")

WANTED = "reasoning.encrypted_content"
"""What a request includes to be given it."""
_PURPOSE = "reasoning"
_PROBLEM = (
    "it cannot be opened: it was changed since this server gave it out, or it is somebody else's. Send it as it was "
    "given out, or leave the item away."
)


class Sealed:
    """What one tenant is given sealed, and brings back."""

    def __init__(self, vault: Vault, identity: Identity) -> None:
        self._vault, self._tenant = vault, identity.tenant
        self.memories = Memories(vault, identity.tenant)

    def seal_for(self, request: CreateRequest) -> Seal | None:
        """What seals the reasoning of the response; None where nobody asked for it."""
        return self._seal if WANTED in (request.include or ()) else None

    def _seal(self, text: str) -> str:
        return self._vault.seal(_PURPOSE, self._tenant, text.encode())

    def opened(self, item: InputItem) -> InputItem:
        """The item with the text that is sealed in it, whatever else it says. Raises `CannotOpen`."""
        if not isinstance(item, Reasoning) or item.encrypted_content is UNSET:
            return item
        text = self._vault.open(_PURPOSE, self._tenant, item.encrypted_content).decode()
        return replace(item, content=(ReasoningText(text=text),), encrypted_content=UNSET)

    def opened_input(self, items: Sequence[InputItem], path: str = "input") -> tuple[InputItem, ...]:
        """What a client sends at `path`, readable; its references are not resolved yet. Raises `InvalidField`.

        Of compactions the last must open: it stands for those before it.
        """
        found: list[InputItem] = []
        last = next((item for item in reversed(items) if isinstance(item, Compaction)), None)
        for i, item in enumerate(items):
            try:
                found.append(self.opened(item))
                if isinstance(item, Compaction) and item is last:
                    self.memories.opened(item)
            except CannotOpen as exc:
                place = f"{path}[{i}].encrypted_content"
                raise InvalidField(place, _PROBLEM, code="invalid_encrypted_content") from exc
        return tuple(found)

    def opened_chain(self, chain: Sequence[Link]) -> tuple[Link, ...]:
        """The earlier responses with readable inputs. Of their outputs we have the text ourselves."""
        return tuple(msgspec.structs.replace(link, input=self._readable(link.input)) for link in chain)

    def opened_history(self, history: History, own: Sequence[InputItem]) -> History:
        """The history with the new input in its readable form, `own`, and with what its references stand for."""
        *earlier, new = history.stretches
        pairs = zip(new, (*own, *new[len(own) :]), strict=True)  # runs of calls stand behind what was sent
        last = self._readable(given if isinstance(given, Reasoning) else item for item, given in pairs)
        return msgspec.structs.replace(history, stretches=(*earlier, last))

    def opened_said(self, items: Sequence[InputItem]) -> tuple[InputItem, ...]:
        """The items of a conversation, readable."""
        return self._readable(items)

    def _readable(self, items: Iterable[InputItem]) -> tuple[InputItem, ...]:
        """What was stored and cannot be opened any more goes by what it says in clear, or is left out: the key is
        gone, the conversation goes on.
        """
        found: list[InputItem] = []
        for item in items:
            try:
                found.append(self.opened(item))
            except CannotOpen:
                if _is_said(item):
                    found.append(item)
                else:
                    note(_log, logging.WARNING, "left out stored reasoning: its key is gone", item=item.id)
        return tuple(found)


def _is_said(item: InputItem) -> bool:
    if not isinstance(item, Reasoning):
        return False
    return any(part.text for part in item.content or ()) or any(part.text for part in item.summary)
