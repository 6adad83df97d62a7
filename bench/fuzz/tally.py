"""What was asked, and what came of it."""

from __future__ import annotations

import json
import shlex
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from fuzz.asked import Asked, Past, as_json

_MOST = 25


@dataclass(frozen=True)
class Failure:
    kind: str
    fault: str
    command: str
    """For a shell, to repeat it."""


@dataclass
class Tally:
    answers: dict[str, Counter[str]] = field(default_factory=dict)
    """By the kind of the request, how often each status came."""
    bodies: dict[str, set[bytes]] = field(default_factory=dict)
    """By the kind of the request, the digests of the bodies, as they were before ids were filled in."""
    failures: list[Failure] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    server: Mapping[str, Any] = field(default_factory=dict)
    """What the server that is asked just now was made with."""
    past: Past = field(default_factory=Past)
    folder: Path = field(default_factory=lambda: Path(tempfile.gettempdir()) / "antwort-fuzz")
    """Where the requests of failures are kept."""

    @property
    def requests(self) -> int:
        return sum(sum(counted.values()) for counted in self.answers.values())

    @property
    def distinct(self) -> int:
        return len(set[bytes]().union(*self.bodies.values()))

    def count(self, kind: str, status: str, seconds: float, body: bytes | None = None) -> None:
        self.answers.setdefault(kind, Counter())[status] += 1
        self.seconds[kind] = self.seconds.get(kind, 0.0) + seconds
        if body is not None:
            self.bodies.setdefault(kind, set()).add(sha256(body).digest())

    def fail(
        self, asked: Asked, faults: Iterable[str], *, first: Sequence[Asked] = (), beside: Sequence[Asked] = ()
    ) -> None:
        """`first`: what was sent just before, and mattered; `beside`: what was sent at the same time."""
        if found := list(faults):
            at_once = [asked, *(each for each in beside if each is not asked)]
            command = f"{_PYTHON} -m fuzz.again {shlex.quote(str(self._kept(at_once, first)))}"
            self.failures += [Failure(asked.kind, fault, command) for fault in found]

    def fail_alone(self, kind: str, fault: str, command: str) -> None:
        """Something that is wrong with no single request."""
        self.failures.append(Failure(kind, fault, command))

    def _kept(self, at_once: Sequence[Asked], first: Sequence[Asked]) -> Path:
        before = self.past.before([*first, *at_once])
        plain = {
            "server": self.server,
            "before": [{"made": list(ids), **as_json(asked)} for asked, ids in before],
            "first": [as_json(asked) for asked in first],
            "at once": [as_json(asked) for asked in at_once],
        }
        written = json.dumps(plain, indent=1)
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{sha256(written.encode()).hexdigest()[:12]}.json"
        path.write_text(written)
        return path

    def lines(self) -> list[str]:
        widest = max([len(kind) for kind in self.answers] or [8])
        made = [f"{'requests':{widest}}  {'number':>7}  {'bodies':>7}  {'seconds':>7}  answers"]
        for kind, counted in sorted(self.answers.items()):
            statuses = ", ".join(f"{status}: {number}" for status, number in sorted(counted.items()))
            bodies = len(self.bodies[kind]) if kind in self.bodies else "-"
            made.append(f"{kind:{widest}}  {counted.total():>7}  {bodies:>7}  {self.seconds[kind]:>7.1f}  {statuses}")
        total = f"{'all':{widest}}  {self.requests:>7}  {self.distinct:>7}  {sum(self.seconds.values()):>7.1f}"
        made.append(f"{total}  failures: {len(self.failures)}")
        for failure in self.failures[:_MOST]:
            made += ["", f"FAILED {failure.kind}: {failure.fault}", f"  again: {failure.command}"]
        if len(self.failures) > _MOST:
            made.append(f"... and {len(self.failures) - _MOST} more")
        return made


_PYTHON = f"PYTHONPATH=bench:tests {shlex.quote(sys.executable)}"
