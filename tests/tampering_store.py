"""A store that breaks streams, for tests of what finds that."""

from __future__ import annotations

from typing import Any

import msgspec

from antwort import Identity, MemoryStore, Response


class TamperingStore(MemoryStore):
    """Empty the output of each response while it is recorded, so that the terminal event contradicts the stream."""

    async def finish(self, identity: Identity, response: Response, *args: Any, **more: Any) -> None:
        msgspec.structs.force_setattr(response, "output", ())
        await super().finish(identity, response, *args, **more)
