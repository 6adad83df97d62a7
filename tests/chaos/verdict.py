"""Whether all was kept: what clients saw, what is stored and what the tools have written down, held against each other.
Pure.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec

from antwort.api.events import UNSENT, CallBegun, CallEnded, OutputItemDone, ResponseCreated, StreamEvent
from antwort.api.items import McpCall, Message
from antwort.api.responses import Response
from antwort.api.wire import UNSET, replace
from antwort.engine.draft import Run, fold
from antwort.testing import GrammarError, StreamChecker
from antwort.testing.frames import read_event
from chaos.client import UNDER_WAY, Seen, Told
from chaos.fleet import Span
from chaos.ledger import Execution
from chaos.story import TURNS, last_words, place_in, turn_of

Rule: TypeAlias = Literal[
    "lost",
    "ended as it should not",
    "told something wrong",
    "gap in the numbers",
    "event seen twice",
    "replay differs from what was seen",
    "replay from the middle differs",
    "stream against the grammar",
    "fold differs from what is stored",
    "log differs from the stream",
    "call begun on record after its end",
    "call of the story left out",
    "unsafe call run twice",
    "finished call run again",
    "call run that is not on record",
    "result that no tool has given",
]
RULES: tuple[Rule, ...] = Rule.__args__  # type: ignore[attr-defined]  # the names of a Literal
_AWAKE = 5.0
"""Seconds in which a process that stood still may begin what it had in hand, before it hears that others have it."""


class Breach(NamedTuple):
    rule: Rule
    story: int
    text: str

    def __str__(self) -> str:
        return f"{self.rule}: story {self.story}: {self.text}"


class Verdict(msgspec.Struct, kw_only=True):
    breaches: list[Breach]
    counts: Counter[str]

    def examples(self, of_each: int = 3) -> list[Breach]:
        """Some of each rule that was broken."""
        found: list[Breach] = []
        for rule in RULES:
            found += [breach for breach in self.breaches if breach.rule == rule][:of_each]
        return found

    @property
    def is_good(self) -> bool:
        return not self.breaches


def judge(runs: Sequence[Told], executions: Sequence[Execution], stood_still: Sequence[Span]) -> Verdict:
    counts: Counter[str] = Counter()
    breaches: list[Breach] = []
    items: dict[str, tuple[McpCall, float | None]] = {}
    for told in runs:
        breaches += _judge_run(told, counts, items)
    breaches += _judge_calls(executions, items, stood_still, counts)
    return Verdict(breaches=breaches, counts=counts)


# ---- one run ----


def _judge_run(told: Told, counts: Counter[str], items: dict[str, tuple[McpCall, float | None]]) -> Iterator[Breach]:
    counts["runs"] += 1
    counts["connections broken off or refused"] += told.breaks.total()
    for trouble in told.troubles:
        yield Breach("told something wrong", told.story, trouble)
    final = _response(told.final)
    if final is None or final.status in UNDER_WAY or not told.replay:
        yield Breach("lost", told.story, f"{told.response_id}: {final.status if final else 'nothing is known of it'}")
        return
    counts[final.status] += 1
    counts["events"] += len(told.replay)
    if final.status != "completed" and not (final.status == "cancelled" and told.has_asked):
        yield Breach("ended as it should not", told.story, f"{final.id}: {final.status} {final.error}")
    yield from _judge_numbers(told)
    yield from _judge_stream(told, final)
    yield from _judge_log(told, final)
    yield from _judge_story(told, final)
    items.update(_calls(final, told))
    if final.status == "completed":
        counts["items broken off and made anew"] += sum(item.status == "incomplete" for item in final.output)


def _judge_numbers(told: Told) -> Iterator[Breach]:
    for seen in (told.seen, told.replay):
        if (numbers := [event.number for event in seen]) == list(range(len(numbers))):
            continue
        twice = [number for number, times in Counter(numbers).items() if times > 1]
        rule: Rule = "event seen twice" if twice else "gap in the numbers"
        yield Breach(rule, told.story, f"{told.response_id}: {twice or numbers}")
    if told.seen and _same(told.seen) != _same(told.replay):
        yield Breach("replay differs from what was seen", told.story, f"{told.response_id}: {_differing(told)}")
    if told.rest is not None and _same(told.rest[1]) != _same(told.replay[told.rest[0] + 1 :]):
        yield Breach("replay from the middle differs", told.story, f"{told.response_id}, after {told.rest[0]}")


def _same(events: Iterable[Seen]) -> list[tuple[int, Any]]:
    return [(event.number, msgspec.json.decode(event.data)) for event in events]


def _differing(told: Told) -> str:
    for seen, again in zip(told.seen, told.replay, strict=False):
        if msgspec.json.decode(seen.data) != msgspec.json.decode(again.data):
            return f"{seen.data!r} and then {again.data!r}"
    return f"{len(told.seen)} events and then {len(told.replay)}"


def _judge_stream(told: Told, final: Response) -> Iterator[Breach]:
    events = _read(told.replay)
    checker = StreamChecker(takeover=True)
    try:
        for event, seen in zip(events, told.replay, strict=True):
            checker.feed(seen.number, event)
        ended = checker.finish()
    except GrammarError as fault:
        yield Breach("stream against the grammar", told.story, f"{final.id}: {fault}")
        return
    if ended != final:
        yield Breach("fold differs from what is stored", told.story, final.id)


def _judge_log(told: Told, final: Response) -> Iterator[Breach]:
    """Marks included, which tell what the turns took. The last event carries the whole itself: the others come to the
    same without it.
    """
    sent = [event for event in told.log if not isinstance(event, UNSENT)]
    if sent != _read(told.replay):
        yield Breach("log differs from the stream", told.story, f"{final.id}: {len(sent)} events")
        return
    created = sent[0]
    assert isinstance(created, ResponseCreated)
    folded = fold(Run(created.response), told.log[:-1]).response
    if replace(folded, **_outcome(final)) != final:
        yield Breach("fold differs from what is stored", told.story, f"{final.id}: {folded}")
    ended = set[str]()
    for event in told.log:
        if isinstance(event, CallBegun | CallEnded) and event.call_id in ended:
            yield Breach("call begun on record after its end", told.story, f"{final.id}: {event}")
        if isinstance(event, CallEnded):
            ended.add(event.call_id)


def _read(events: Iterable[Seen]) -> list[StreamEvent]:
    return [read_event(msgspec.json.decode(event.data))[1] for event in events]


def _outcome(final: Response) -> dict[str, Any]:
    names = ("status", "error", "incomplete_details", "completed_at")
    return {name: getattr(final, name) for name in names}


def _judge_story(told: Told, final: Response) -> Iterator[Breach]:
    """A run that has completed has told the whole story, each call with a result or an error."""
    if final.status != "completed":
        return
    answered = {place_in(call.arguments) for call in _mcp_calls(final) if call.status in ("completed", "failed")}
    for at in range(TURNS):
        for call in turn_of(told.story, at).calls:
            if call.place not in answered:
                yield Breach("call of the story left out", told.story, f"{final.id}: {call.place}")
    last = final.output[-1]
    said = "".join(part.text for part in last.content if hasattr(part, "text")) if isinstance(last, Message) else ""
    if said != "".join(last_words(told.story)):
        yield Breach("call of the story left out", told.story, f"{final.id} ends with {last}")


# ---- calls ----


def _response(body: bytes | None) -> Response | None:
    return None if body is None else msgspec.json.decode(body, type=Response)


def _mcp_calls(final: Response) -> list[McpCall]:
    return [item for item in final.output if isinstance(item, McpCall)]


def _calls(final: Response, told: Told) -> Iterator[tuple[str, tuple[McpCall, float | None]]]:
    """By their keys, each with the time by which a client knew that it was done."""
    done = dict(_done_at(told.seen))
    for call in _mcp_calls(final):
        if isinstance(call.call_id, str):
            yield call.call_id, (call, done.get(call.id))


def _done_at(seen: Iterable[Seen]) -> Iterator[tuple[str, float]]:
    for event in seen:
        if event.type == "response.output_item.done":
            done = msgspec.json.decode(event.data, type=OutputItemDone)
            yield done.item.id, event.at


def _judge_calls(
    executions: Sequence[Execution],
    items: Mapping[str, tuple[McpCall, float | None]],
    stood_still: Sequence[Span],
    counts: Counter[str],
) -> Iterator[Breach]:
    counts["calls run"] += len(executions)
    by_key, by_place = defaultdict[str, list[Execution]](list), defaultdict[str, list[Execution]](list)
    for each in executions:
        by_key[each.key].append(each)
        by_place[each.place].append(each)
    yield from _judge_unsafe(by_place)
    for key, runs in by_key.items():
        counts["calls run again"] += len(runs) - 1
        if key not in items:
            yield Breach("call run that is not on record", _story(runs[0]), f"{key!r} at {runs[0].place}")
    for key, (call, done) in items.items():
        yield from _judge_call(call, by_key.get(key, []), counts)
        # Where the end is an error, nobody knows whether it has run: it may be on its way to the tool still, once.
        repeats = by_key.get(key, [])[call.output is UNSET :]
        yield from _judge_repeats(key, repeats, done, stood_still, counts)


def _judge_unsafe(by_place: Mapping[str, list[Execution]]) -> Iterator[Breach]:
    """Whatever they were called by: what was paid was paid."""
    for place, runs in by_place.items():
        if len(runs) > 1 and runs[0].kind == "pay":
            yield Breach("unsafe call run twice", _story(runs[0]), f"{place}: {runs}")


def _judge_call(call: McpCall, runs: Sequence[Execution], counts: Counter[str]) -> Iterator[Breach]:
    """A result on record is that of a run that the tool knows, of this very call."""
    if call.output is UNSET:
        if call.error_text is not None:
            counts[f"error: {call.error_text}"] += 1
        return
    counts["results on record"] += 1
    came = [each for each in runs if each.run == call.output]
    if not came or came[0].ended is None or came[0].place != place_in(call.arguments):
        place = place_in(call.arguments)
        yield Breach("result that no tool has given", int(place.partition(".")[0]), f"{call} of {runs}")


def _judge_repeats(
    key: str, runs: Sequence[Execution], done: float | None, stood_still: Sequence[Span], counts: Counter[str]
) -> Iterator[Breach]:
    """Nothing begins when its end was told already. A process that stood still between its decision to run a call and
    the call itself cannot know: that is why only calls that may be repeated are taken over.
    """
    for each in runs:
        if done is None or each.begun <= done:
            continue
        if each.kind != "pay" and _was_asleep(each, done, stood_still):
            counts["calls of a process that had stood still"] += 1
        else:
            yield Breach(
                "finished call run again", _story(each), f"{key} at {each.place}, {each.begun - done:.2f} s later"
            )


def _was_asleep(each: Execution, done: float, stood_still: Sequence[Span]) -> bool:
    return any(
        span.server == each.server and span.begin <= done and span.end <= each.begun <= span.end + _AWAKE
        for span in stood_still
    )


def _story(each: Execution) -> int:
    return int(each.place.partition(".")[0])
