"""Send a server requests of all kinds: no 500, no hang, every answer as its document says, every stream grammatical.

python -m fuzz.run --count 10000 --seed 0

The same count and seed make the same requests, but for the ids that servers give out. Of requests that are sent at
the same time, which one comes first is nobody's to say: their answers, and whether a failure shows, may differ.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fuzz.backend import HELLO, MODELS, Backstage
from fuzz.by_hand import fuzz_by_hand
from fuzz.by_schema import fuzz_by_schema
from fuzz.by_socket import fuzz_by_socket
from fuzz.server import UNEXPECTED, FuzzServer, serving
from fuzz.tally import Tally

CONSTRAINED, KEYED, SOCKETS = 0.2, 0.3, 0.1
"""Of the requests that are made by hand: the share for a backend whose models call tools by a schema, for a server with
API keys, where several are under way at once, and of what is done on WebSockets.
"""


def fuzz(count: int, start: int) -> Tally:
    """Send `count` requests, about half of them made of the document."""
    tally = Tally()
    again = f"make fuzz COUNT={count} SEED={start}"
    with Backstage() as stage:
        with _asked(stage, tally, again, tool_calling="auto", default_model=MODELS[0]) as (server, document):
            stage.play([HELLO])
            fuzz_by_schema(server, stage, document, count // 2, start, tally)
        left = count - tally.requests
        with _asked(stage, tally, again, tool_calling="native") as (server, document):
            fuzz_by_hand(server, stage, document, int(left * (1 - CONSTRAINED - KEYED - SOCKETS)), start, tally)
            fuzz_by_socket(server, stage, document, int(left * SOCKETS), start, tally)
        with _asked(stage, tally, again, tool_calling="constrained") as (server, document):
            fuzz_by_hand(server, stage, document, int(left * CONSTRAINED), start + 1, tally)
        with _asked(stage, tally, again, tool_calling="native", has_keys=True) as (server, document):
            fuzz_by_hand(server, stage, document, count - tally.requests, start + 2, tally, has_keys=True)
    return tally


@contextmanager
def _asked(
    stage: Backstage,
    tally: Tally,
    again: str,
    *,
    tool_calling: str,
    default_model: str | None = None,
    has_keys: bool = False,
) -> Iterator[tuple[FuzzServer, dict[str, Any]]]:
    """A server of its own, and the document that it describes itself by. What its log says of defects is counted."""
    made = {"tool_calling": tool_calling, "default_model": default_model, "has_keys": has_keys}
    tally.server = made
    with serving(stage.port, tool_calling=tool_calling, default_model=default_model, has_keys=has_keys) as server:
        yield server, json.loads(server.send("GET", "/openapi.json").body)
    log = server.log()
    if UNEXPECTED in log or "Traceback" in log:
        at = max(log.find(UNEXPECTED), log.find("Traceback")) - 200
        tally.fail_alone("log", f"the server's log tells of a defect: {log[max(at, 0) :][:3000]}", again)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m fuzz.run", description=__doc__)
    parser.add_argument("--count", type=int, default=10_000, help="how many requests (default: 10000)")
    parser.add_argument("--seed", type=int, default=0, help="the same seed makes the same requests")
    chosen = parser.parse_args()
    tally = fuzz(chosen.count, chosen.seed)
    print("\n".join([f"seed {chosen.seed}", *tally.lines()]))
    if tally.failures:  # what was deleted or cancelled before is not part of a repeat
        print(
            f"\nOne that passes when it is repeated needs all of it: make fuzz COUNT={chosen.count} SEED={chosen.seed}"
        )
    return 1 if tally.failures else 0


if __name__ == "__main__":
    sys.exit(main())
