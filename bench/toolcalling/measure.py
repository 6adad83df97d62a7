"""Ask all the questions, one after another, and add up the verdicts."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from toolcalling.data import KINDS, Question
from toolcalling.engine import running
from toolcalling.judge import Judge, Verdict
from toolcalling.modes import Mode, Reply

from antwort.providers.base import ChatTool


class Asked(NamedTuple):
    question: Question
    reply: Reply
    verdict: Verdict
    seconds: float


class Score(NamedTuple):
    """Shares from 0 to 1."""

    tools: float
    arguments: float
    valid: float
    """Of the calls; 1 where there is none."""
    by_kind: dict[str, float]
    """Right tools, of the questions of a kind."""
    calls: int
    cut: int
    seconds: float
    """For a question, on average."""


def measure(
    mode: Mode, questions: Sequence[Question], tools: Sequence[ChatTool], model: Path, adapter: Path | None = None
) -> list[Asked]:
    """One mode, with an engine of its own."""
    judge = Judge(tools)
    asked: list[Asked] = []
    with running(model, mode.template, adapter) as engine:
        for question in questions:
            begun = time.perf_counter()
            reply = mode.ask(engine, tools, question.ask)
            seconds = time.perf_counter() - begun
            asked.append(Asked(question, reply, judge.judge(question, reply.calls), seconds))
            _tell(f"{len(asked)}/{len(questions)}")
    _tell("")
    return asked


def _tell(progress: str) -> None:
    if sys.stderr.isatty():
        print(f"\r{progress:12}\r", end="", file=sys.stderr, flush=True)


def score(asked: Sequence[Asked]) -> Score:
    calls = sum(one.verdict.calls for one in asked)
    kinds = {kind: [one.verdict.tools for one in asked if one.question.kind == kind] for kind in KINDS}
    return Score(
        tools=share(one.verdict.tools for one in asked),
        arguments=share(one.verdict.arguments for one in asked),
        valid=sum(one.verdict.valid for one in asked) / calls if calls else 1.0,
        by_kind={kind: share(right) for kind, right in kinds.items()},
        calls=calls,
        cut=sum(one.verdict.cut for one in asked),
        seconds=sum(one.seconds for one in asked) / max(1, len(asked)),
    )


def share(right: Iterable[bool]) -> float:
    told = list(right)
    return sum(told) / len(told) if told else 1.0


def record(asked: Sequence[Asked]) -> list[dict[str, Any]]:
    """Each question, what came, and what was held of it: for a JSON file."""
    return [
        {
            "id": one.question.id,
            "ask": one.question.ask,
            "kind": one.question.kind,
            "expected": [{call.name: dict(call.arguments)} for call in one.question.calls],
            "came": [{call.name: call.arguments} for call in one.reply.calls],
            "raw": one.reply.raw,
            "right_tools": one.verdict.tools,
            "right_arguments": one.verdict.arguments,
            "valid_calls": one.verdict.valid,
            "cut_off": one.verdict.cut,
            "seconds": round(one.seconds, 3),
        }
        for one in asked
    ]


def table(title: str, scores: dict[str, Score]) -> str:
    """The scores as Markdown, a line each."""
    head = [
        title,
        "right tools",
        "right arguments too",
        "valid calls",
        *(f"{kind}: right tools" for kind in KINDS),
        "s/question",
    ]
    lines = [head, ["---"] + ["--:"] * (len(head) - 1), *(_line(name, one) for name, one in scores.items())]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _line(name: str, one: Score) -> list[str]:
    valid = f"{one.valid:.0%} of {one.calls}" if one.calls else "no calls"
    valid += f", {one.cut} cut off" if one.cut else ""
    kinds = [f"{one.by_kind[kind]:.0%}" for kind in KINDS]
    return [name, f"{one.tools:.0%}", f"{one.arguments:.0%}", valid, *kinds, f"{one.seconds:.1f}"]
