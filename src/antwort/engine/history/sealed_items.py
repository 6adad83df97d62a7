"""Items that clients keep for us: reasoning is given out sealed, and opened when a client brings it back."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from antwort.api.items import Compaction, InputItem, Reasoning, ReasoningText
from antwort.api.requests import CreateRequest
from antwort.api.wire import UNSET, replace
from antwort.engine.context.compaction_item import Memories
from antwort.engine.history.approvals import ApprovalIds
from antwort.engine.history.credentials import Credentials
from antwort.engine.loop.item_builders import Seal
from antwort.errors import InvalidField
from antwort.identity import Identity
from antwort.notes import note
from antwort.storage.base import Link
from antwort.vault import CannotOpen, Vault

_log = logging.getLogger("antwort.engine")

_INCLUDE = "reasoning.encrypted_content"
"""The `include` entry that asks for sealed reasoning."""
_PURPOSE = "reasoning"
_CANNOT_OPEN = (
    "it cannot be opened: it was changed since this server gave it out, or it is somebody else's. Send it as it was "
    "given out, or leave the item away."
)


class SealedItems:
    """Seals and opens what one identity is given and brings back: reasoning, compactions, credentials, approvals."""

    def __init__(self, vault: Vault, identity: Identity) -> None:
        self._vault, self._tenant = vault, identity.tenant
        self.memories = Memories(vault, identity.tenant)
        self.credentials = Credentials(vault, identity)
        self.approval_ids = ApprovalIds(vault, identity)

    def seal_for(self, request: CreateRequest) -> Seal | None:
        """Return what seals the reasoning of the response; None if the request does not ask for it."""
        return self._seal if _INCLUDE in (request.include or ()) else None

    def _seal(self, text: str) -> str:
        return self._vault.seal(_PURPOSE, self._tenant, text.encode())

    def _opened(self, item: InputItem) -> InputItem:
        """Return the item with the text that is sealed in it, whatever else it says. Raises `CannotOpen`."""
        if not isinstance(item, Reasoning) or item.encrypted_content is UNSET:
            return item
        text = self._vault.open(_PURPOSE, self._tenant, item.encrypted_content).decode()
        return replace(item, content=(ReasoningText(text=text),), encrypted_content=UNSET)

    def opened_input(self, items: Sequence[InputItem], path: str = "input") -> tuple[InputItem, ...]:
        """Return the items that a client sends at `path`, opened. Raises `InvalidField`.

        Of compactions the last must open: it stands for those before it.
        """
        found: list[InputItem] = []
        last = next((item for item in reversed(items) if isinstance(item, Compaction)), None)
        for i, item in enumerate(items):
            try:
                found.append(self._opened(item))
                if isinstance(item, Compaction) and item is last:
                    self.memories.opened(item)
            except CannotOpen as exc:
                place = f"{path}[{i}].encrypted_content"
                raise InvalidField(place, _CANNOT_OPEN, code="invalid_encrypted_content") from exc
        return tuple(found)

    def opened_chain(self, chain: Sequence[Link]) -> tuple[Link, ...]:
        """Return the earlier responses with opened inputs. Their outputs are stored with the text."""
        return tuple(replace(link, input=self.opened_stored(link.input)) for link in chain)

    def opened_last(self, items: Sequence[InputItem], own: Sequence[InputItem]) -> tuple[InputItem, ...]:
        """Return the new input opened: `own` is what `opened_input` gave before its references were resolved."""
        pairs = zip(items, (*own, *items[len(own) :]), strict=True)  # runs of calls stand behind what was sent
        return self.opened_stored(given if isinstance(given, Reasoning) else item for item, given in pairs)

    def opened_stored(self, items: Iterable[InputItem]) -> tuple[InputItem, ...]:
        """Return stored items, opened. One that cannot be opened any more counts by its plain text, or is left out: the
        key is gone, and the conversation goes on.
        """
        found: list[InputItem] = []
        for item in items:
            try:
                found.append(self._opened(item))
            except CannotOpen:
                if isinstance(item, Reasoning) and _has_text(item):
                    found.append(item)
                else:
                    note(_log, logging.WARNING, "left out stored reasoning: its key is gone", item=item.id)
        return tuple(found)


def _has_text(item: Reasoning) -> bool:
    return any(part.text for part in item.content or ()) or any(part.text for part in item.summary)
