"""Send what has failed once more, to a server of its own, after what must have been before.

PYTHONPATH=bench:tests python -m fuzz.again FILE
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fuzz.asked import Asked, from_json, responses
from fuzz.backend import Backstage
from fuzz.judge import Judge
from fuzz.plays import misbehaves
from fuzz.server import Hang, Reply, serving
from fuzz.together import send_together

CREATE = "/v1/responses"
Replies = list[tuple[Asked, Reply | Hang]]


def again(kept: Mapping[str, Any]) -> list[str]:
    """What came of each request, in words; those that are wrong begin with `FAILED`."""
    with Backstage() as stage, serving(stage.port, **kept["server"]) as server:
        judge = Judge(json.loads(server.send("GET", "/openapi.json").body))
        ids: dict[str, str] = {}
        there: dict[str, Any] = {}
        for plain in kept["before"]:
            made = plain["made"]
            [(_, reply)] = _send(server, stage, [_told({**plain, "made": None}, ids)])
            ids |= zip(made, _made(reply), strict=False)
            there |= {f"{CREATE}/{each['id']}": each for each in _responses(reply)}
        first = [_send(server, stage, [_told(plain, ids)])[0] for plain in kept["first"]]
        last = _send(server, stage, [_told(plain, ids) for plain in kept["at once"]])
        lines = [line for asked, reply in [*first, *last] for line in _lines(judge, asked, reply)]
        return [*lines, *_repeat_faults(first, last), *_record_faults(there, last)]


def _told(plain: dict[str, Any], ids: Mapping[str, str]) -> Asked:
    return from_json({name: value for name, value in plain.items() if name != "made"}).told(ids)


def _send(server: Any, stage: Backstage, requests: Sequence[Asked]) -> Replies:
    return [(asked, reply) for asked, reply, _ in send_together(server, stage, requests)]


def _responses(reply: Reply | Hang) -> list[dict[str, Any]]:
    return [] if isinstance(reply, Hang) else [*responses(reply)]


def _made(reply: Reply | Hang) -> list[str]:
    found = _responses(reply)
    return [each for response in found for each in (response["id"], *(item["id"] for item in response["output"]))]


def _repeat_faults(first: Replies, last: Replies) -> Iterator[str]:
    """The same request once more is the same response."""
    ids = [[response["id"] for response in _responses(reply)] for _, reply in (*first, *last)] if first else []
    if any(each != ids[0] for each in ids):
        yield f"FAILED another response: {ids}"


def _record_faults(there: Mapping[str, Any], last: Replies) -> Iterator[str]:
    """What is on record is what was answered."""
    for asked, reply in last:
        if asked.method == "GET" and asked.path in there and _responses(reply) != [there[asked.path]]:
            yield f"FAILED on record: {asked.path} is not {there[asked.path]}"


def _lines(judge: Judge, asked: Asked, reply: Reply | Hang) -> list[str]:
    head = f"{asked.method} {asked.path}"
    if isinstance(reply, Hang):
        return [f"FAILED {head}: no answer: {reply}"]
    may_fail = asked.script is not None and misbehaves(asked.script)
    found = [*judge.all_faults(asked, reply, may_fail=may_fail)]
    return [f"FAILED {head}: {fault}" for fault in found] or [f"{head}: {reply.status} {reply.body[:3000]!r}"]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m fuzz.again", description=__doc__)
    parser.add_argument("file", type=Path, help="what a failure was kept in")
    lines = again(json.loads(parser.parse_args().file.read_text()))
    print("\n".join(lines))
    return 1 if any(line.startswith("FAILED") for line in lines) else 0


if __name__ == "__main__":
    sys.exit(main())
