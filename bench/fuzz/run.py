"""Send a server requests of all kinds: no 500, no hang, every answer as its document says, every stream grammatical.

python -m fuzz.run --count 10000 --seed 0
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from fuzz.backend import HELLO, MODELS, Backstage
from fuzz.by_hand import fuzz_by_hand
from fuzz.by_schema import fuzz_by_schema
from fuzz.server import UNEXPECTED, FuzzServer
from fuzz.tally import Tally

CONSTRAINED = 0.2
"""Of the requests that are made by hand: the share for a backend whose models call tools by a schema."""


def fuzz(count: int, start: int) -> Tally:
    """Send `count` requests, about half of them made of the document."""
    tally = Tally()
    with Backstage() as stage:
        with _serving(stage, "auto", tally) as (server, document):
            stage.play([HELLO])
            fuzz_by_schema(server, document, count // 2, start, tally)
        native = int((count - tally.requests) * (1 - CONSTRAINED))
        with _serving(stage, "native", tally) as (server, document):
            fuzz_by_hand(server, stage, document, native, start, tally)
        with _serving(stage, "constrained", tally) as (server, document):
            fuzz_by_hand(server, stage, document, count - tally.requests, start + 1, tally)
    return tally


class _serving:  # noqa: N801 - used as a context, like a function
    """A server of its own, and the document that it describes itself by. What its log says of defects is counted."""

    def __init__(self, stage: Backstage, tool_calling: str, tally: Tally) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="antwort-fuzz-")
        model = MODELS[0] if tool_calling == "auto" else None
        folder = Path(self._folder.name)
        self._server = FuzzServer(folder, stage.port, tool_calling=tool_calling, default_model=model)
        self._tally = tally

    def __enter__(self) -> tuple[FuzzServer, dict[str, Any]]:
        self._server.__enter__()
        return self._server, json.loads(self._server.send("GET", "/openapi.json").body)

    def __exit__(self, *exc: object) -> None:
        self._server.__exit__(*exc)
        log = self._server.log()
        if UNEXPECTED in log or "Traceback" in log:
            at = max(log.find(UNEXPECTED), log.find("Traceback")) - 200
            self._tally.fail("log", [f"the server's log tells of a defect: {log[max(at, 0) :][:3000]}"], str)
        self._folder.cleanup()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m fuzz.run", description=__doc__)
    parser.add_argument("--count", type=int, default=10_000, help="how many requests (default: 10000)")
    parser.add_argument("--seed", type=int, default=0, help="the same seed makes the same requests")
    chosen = parser.parse_args()
    tally = fuzz(chosen.count, chosen.seed)
    print("\n".join([f"seed {chosen.seed}", *tally.lines()]))
    return 1 if tally.failures else 0


if __name__ == "__main__":
    sys.exit(main())
