"""What was asked, and what came of it."""

from __future__ import annotations

import shlex
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

_MOST = 25
_LONG = 4000


@dataclass(frozen=True)
class Failure:
    kind: str
    fault: str
    command: str
    """For a shell, to repeat it."""
    backend: str = ""
    """What the backend was told to do."""


@dataclass
class Tally:
    answers: dict[str, Counter[str]] = field(default_factory=dict)
    """By the kind of the request, how often each status came."""
    failures: list[Failure] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def requests(self) -> int:
        return sum(sum(counted.values()) for counted in self.answers.values())

    def count(self, kind: str, status: str, seconds: float) -> None:
        self.answers.setdefault(kind, Counter())[status] += 1
        self.seconds[kind] = self.seconds.get(kind, 0.0) + seconds

    def fail(self, kind: str, faults: Iterable[str], command: Callable[[], str], backend: str = "") -> None:
        if found := list(faults):
            again = command()
            self.failures += [Failure(kind, fault, again, backend) for fault in found]

    def lines(self) -> list[str]:
        widest = max([len(kind) for kind in self.answers] or [0])
        made = [f"{'requests':{widest}}  {'number':>7}  {'seconds':>7}  answers"]
        for kind, counted in sorted(self.answers.items()):
            statuses = ", ".join(f"{status}: {number}" for status, number in sorted(counted.items()))
            made.append(f"{kind:{widest}}  {counted.total():>7}  {self.seconds[kind]:>7.1f}  {statuses}")
        total = sum(self.seconds.values())
        made.append(f"{'all':{widest}}  {self.requests:>7}  {total:>7.1f}  failures: {len(self.failures)}")
        for failure in self.failures[:_MOST]:
            made += ["", f"FAILED {failure.kind}: {failure.fault}", f"  {failure.command}"]
            made += [f"  backend: {failure.backend}"] if failure.backend else []
        if len(self.failures) > _MOST:
            made.append(f"... and {len(self.failures) - _MOST} more")
        return made


def curl(method: str, url: str, body: bytes | None, headers: Mapping[str, str] | None = None) -> str:
    """The request as a command. A body that a shell cannot be given comes as escapes; a long one, in a file."""
    words = ["curl", "-sS", "-X", method, shlex.quote(url)]
    for name, value in (headers or {}).items():
        words += ["-H", shlex.quote(f"{name}: {value}")]
    if body is not None:
        given = _quoted(body) if len(body) <= _LONG else f"@{_kept(body)}"
        words += ["-H 'content-type: application/json'", "--data-binary", given]
    return " ".join(words)


def _kept(body: bytes) -> Path:
    path = Path(tempfile.gettempdir()) / f"antwort-fuzz-{sha256(body).hexdigest()[:12]}.json"
    path.write_bytes(body)
    return path


def _quoted(body: bytes) -> str:
    text = body.decode("latin-1")
    if text.isascii() and text.isprintable():
        return shlex.quote(text)
    escaped = "".join(c if c.isascii() and c.isprintable() and c not in "'\\" else f"\\x{ord(c):02x}" for c in text)
    return f"$'{escaped}'"
