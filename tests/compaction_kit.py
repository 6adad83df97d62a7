"""What the tests of compaction share: something to sum up, and a look into what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from antwort.api.compactions import CompactedResponse
from antwort.api.items import Compaction, Message
from antwort.api.wire import to_plain
from antwort.engine.engine import Engine
from antwort.engine.memory import Memories, Memory
from antwort.engine.recap import recap_of
from antwort.identity import ANONYMOUS
from antwort.testing import answer, say, tokens

TALK: list[dict[str, Any]] = [
    {"role": "user", "content": "My name is Ada."},
    {"role": "assistant", "content": "Hello Ada."},
    {"role": "user", "content": "I like tea."},
    {"role": "assistant", "content": "Noted."},
]
TRIGGER = {"type": "compaction_trigger"}
SUMMED = answer(say("Ada likes tea."), usage=tokens(30, 4))
RECAP = recap_of("Ada likes tea.")


def output_of(window: CompactedResponse) -> list[dict[str, Any]]:
    plain: list[dict[str, Any]] = to_plain(window)["output"]
    return plain


def inside(engine: Engine, item: Compaction, tenant: str = ANONYMOUS.tenant) -> Memory:
    return Memories(engine._open_vault, tenant).opened(item)


def texts(items: Sequence[object]) -> list[str]:
    return ["".join(getattr(part, "text", "") for part in item.content) for item in items if isinstance(item, Message)]


def always(size: int) -> Any:
    return lambda _: size


def output_like(item: object) -> dict[str, Any]:
    plain: dict[str, Any] = to_plain(item)
    return plain


def kinds_of(window: CompactedResponse) -> list[str]:
    return [item["type"] for item in output_of(window)]


def threshold(tokens_: int | None) -> dict[str, Any]:
    return {"type": "compaction", "compact_threshold": tokens_}
