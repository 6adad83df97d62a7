"""Whether all was kept: what clients saw, what is stored and what the tools have written down, held against each other.
Pure.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import pairwise
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec

from antwort.api.events import UNSENT, CallBegun, CallEnded, OutputItemDone, ResponseCreated, StreamEvent
from antwort.api.items import FunctionCall, FunctionCallOutput, McpCall, Message
from antwort.api.responses import Response
from antwort.api.wire import replace
from antwort.engine.loop.fold import Run, fold
from antwort.testing import GrammarError, StreamChecker
from antwort.testing.frames import read_event
from chaos.client import ENDS, UNDER_WAY, Seen, Told
from chaos.fleet import Span
from chaos.followups import Chain
from chaos.ledger import Execution, Inference
from chaos.story import CLIENTS, UNSAFE, Scene, calls_of, last_words, place_in, story_of

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
    "call of a finished turn run again",
    "finished call left out of the record",
    "call of a paused turn run twice",
    "declined call run",
]
RULES: tuple[Rule, ...] = Rule.__args__  # type: ignore[attr-defined]  # the names of a Literal
_AWAKE = 5.0
"""Seconds in which a process that stood still may begin what it had in hand, before it hears that others have it."""

STORE_CODES = ("storage_error", "storage_unavailable")


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


class Foreground(NamedTuple):
    """The stories that took several responses, and what else is known of them."""

    chains: Sequence[Chain] = ()
    inferences: Sequence[Inference] = ()
    faults: Sequence[Span] = ()
    """All that went wrong."""


NOTHING = Foreground()


def judge(
    runs: Sequence[Told],
    executions: Sequence[Execution],
    stood_still: Sequence[Span],
    foreground: Foreground = NOTHING,
) -> Verdict:
    counts: Counter[str] = Counter()
    breaches: list[Breach] = []
    items: dict[str, tuple[McpCall, float | None]] = {}
    for told in runs:
        breaches += _judge_run(told, counts, items)
    chained = {chain.story for chain in foreground.chains}
    background = [each for each in executions if _story(each) not in chained]
    breaches += _judge_calls(background, items, stood_still, counts)
    of_story = defaultdict[int, list[Execution]](list)
    for each in executions:
        of_story[_story(each)].append(each)
    for chain in foreground.chains:
        breaches += _judge_chain(chain, of_story[chain.story], foreground, stood_still, counts)
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
    yield from _judge_telling(told.story, "story", final, answered)


def _judge_telling(story: int, scene: Scene, final: Response, answered: AbstractSet[str]) -> Iterator[Breach]:
    for call in calls_of(story, scene):
        if call.place not in answered:
            yield Breach("call of the story left out", story, f"{final.id}: {call.place}")
    last = final.output[-1] if final.output else None
    said = "".join(part.text for part in last.content if hasattr(part, "text")) if isinstance(last, Message) else ""
    if said != "".join(last_words(story)):
        yield Breach("call of the story left out", story, f"{final.id} ends with {last}")


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
        repeats = by_key.get(key, [])[call.output is None :]
        yield from _judge_repeats(key, repeats, done, stood_still, counts)


def _judge_unsafe(by_place: Mapping[str, list[Execution]]) -> Iterator[Breach]:
    """Whatever they were called by: what was paid was paid."""
    for place, runs in by_place.items():
        if len(runs) > 1 and runs[0].kind == "pay":
            yield Breach("unsafe call run twice", _story(runs[0]), f"{place}: {runs}")


def _judge_call(call: McpCall, runs: Sequence[Execution], counts: Counter[str]) -> Iterator[Breach]:
    """A result on record is that of a run that the tool knows, of this very call."""
    if call.output is None:
        if call.error_text is not None:
            counts[f"error: {call.error_text}"] += 1
        return
    counts["results on record"] += 1
    came = [each for each in runs if each.run == call.output]
    if not came or came[0].ended is None or came[0].place != place_in(call.arguments):
        yield Breach("result that no tool has given", story_of(place_in(call.arguments)), f"{call} of {runs}")


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
    return story_of(each.place)


# ---- stories of several responses ----


def _judge_chain(
    chain: Chain,
    executions: Sequence[Execution],
    foreground: Foreground,
    stood_still: Sequence[Span],
    counts: Counter[str],
) -> Iterator[Breach]:
    counts[_CHAINS[chain.scene]] += 1
    counts["connections broken off or refused"] += chain.breaks.total()
    counts["calls run"] += len(executions)
    for trouble in chain.troubles:
        yield Breach("told something wrong", chain.story, trouble)
    finals = [msgspec.json.decode(body, type=Response) for body in chain.final.values()]
    if chain.is_given_up:
        counts["loops whose id was lost with the connection"] += 1
    elif not chain.is_done and not chain.troubles:
        yield Breach("lost", chain.story, "it did not come to its end")
    for response_id in chain.streams.keys() - chain.final.keys():
        yield Breach("lost", chain.story, f"{response_id}: nothing is known of it")
    for final in finals:
        if final.status in UNDER_WAY:
            yield Breach("lost", chain.story, f"{final.id}: {final.status}")
        yield from _judge_seen(chain.story, chain.streams[final.id], final)
    results = dict(_results(finals))
    yield from _judge_results(results, executions)
    inferences = [each for each in foreground.inferences if each.story == chain.story]
    if chain.scene == "loop":
        yield from _judge_loop(chain, finals, results, counts)
        yield from _judge_finished(executions, inferences, results, stood_still, counts)
        if not chain.is_given_up:
            yield from _judge_record(chain, inferences, results)
    else:
        yield from _judge_pause(chain, finals, executions, counts)
        yield from _judge_once(chain, executions, inferences, foreground.faults, counts)


_CHAINS: Mapping[Scene, str] = {"loop": "loops in the foreground", "pause": "paused turns"}


def _judge_seen(story: int, seen: Sequence[Seen], final: Response) -> Iterator[Breach]:
    """What was seen of a stream, as far as it came. One that could not be stored says so, and nothing else."""
    checker = StreamChecker()
    try:
        for event, of_stream in zip(_read(seen), seen, strict=True):
            checker.feed(of_stream.number, event)
        ended = checker.finish() if seen and seen[-1].type in ENDS else final
        if ended != final and not (ended.error is not None and ended.error.code in STORE_CODES):
            yield Breach("fold differs from what is stored", story, final.id)
    except GrammarError as fault:
        yield Breach("stream against the grammar", story, f"{final.id}: {fault}")


def _results(finals: Iterable[Response]) -> Iterator[tuple[tuple[str, str], str]]:
    """The results on record, by place and text, each with the id of the first response that shows it."""
    finals = list(finals)
    calls = [item for final in finals for item in final.output if isinstance(item, FunctionCall)]
    places = {call.call_id: place_in(call.arguments) for call in calls}
    for final in reversed(finals):
        for item in final.output:
            if isinstance(item, McpCall) and item.output is not None:
                yield (place_in(item.arguments), item.output), final.id
            elif isinstance(item, FunctionCallOutput) and isinstance(item.output, str):
                yield (places.get(item.call_id, ""), item.output), final.id


def _judge_results(results: Iterable[tuple[str, str]], executions: Sequence[Execution]) -> Iterator[Breach]:
    given = {(each.place, each.run) for each in executions if each.ended is not None}
    for place, text in results:
        if text.startswith(_RUN) and (place, text) not in given:
            yield Breach("result that no tool has given", story_of(place), f"{text} at {place}")


_RUN = "run_"
"""How the result of a tool that ran to its end begins; what else stands for a result was written by the server."""


def _judge_loop(
    chain: Chain, finals: Sequence[Response], results: Iterable[tuple[str, str]], counts: Counter[str]
) -> Iterator[Breach]:
    """Each response of a loop but the last was cut. All calls of the story are on record in one of them."""
    for final in finals[:-1] if chain.is_done else finals:
        counts["loops cut"] += 1
        counts["results shown by loops that were cut"] += sum(of == final.id for of in dict(_results([final])).values())
        if final.status not in ("failed", "cancelled"):
            yield Breach("ended as it should not", chain.story, f"{final.id}: {final.status}")
    if not chain.is_done or not finals:
        return
    last = finals[-1]
    if last.status != "completed":
        yield Breach("ended as it should not", chain.story, f"{last.id}: {last.status} {last.error}")
        return
    errors = {place_in(item.arguments) for final in finals for item in _mcp_calls(final) if item.status == "failed"}
    yield from _judge_telling(chain.story, chain.scene, last, {place for place, _ in results} | errors)


def _judge_finished(
    executions: Sequence[Execution],
    inferences: Sequence[Inference],
    results: Mapping[tuple[str, str], str],
    stood_still: Sequence[Span],
    counts: Counter[str],
) -> Iterator[Breach]:
    """A turn is finished when the model is asked again: from then on, none of its calls begins. The calls of a turn
    that was cut may be made again, since the model does not know of them.
    """
    told = dict[str, float]()
    for inference in inferences:
        for place in inference.results:
            told[place] = min(inference.at, told.get(place, inference.at))
    for place, runs in _by_place(executions).items():
        finished = told.get(place, math.inf)
        for each in runs:
            if each.begun <= finished:
                continue
            if _was_asleep(each, finished, stood_still):
                counts["calls of a process that had stood still"] += 1
                continue
            shown = [text for at, text in results if at == place]
            late = f"{place} ({each.kind}), {each.begun - finished:.2f} s after the model was told; on record: {shown}"
            yield Breach("call of a finished turn run again", story_of(place), late)
        counts["calls of cut turns made again"] += sum(each.begun <= finished for each in runs[1:])
    for key, number in Counter(each.key for each in executions if each.kind in UNSAFE).items():
        if number > 1:
            yield Breach("unsafe call run twice", _story(executions[0]), f"{number} times by the key {key}")


def _by_place(executions: Iterable[Execution]) -> dict[str, list[Execution]]:
    found = defaultdict[str, list[Execution]](list)
    for each in executions:
        found[each.place].append(each)
    return found


def _judge_record(
    chain: Chain, inferences: Iterable[Inference], results: Mapping[tuple[str, str], str]
) -> Iterator[Breach]:
    """What the model was told is on record: it was before the model was asked."""
    told = {item for inference in inferences for item in inference.results.items() if item[1].startswith(_RUN)}
    for place, text in sorted(told - results.keys()):
        yield Breach("finished call left out of the record", chain.story, f"{text} at {place}")


def _judge_pause(
    chain: Chain, finals: Sequence[Response], executions: Sequence[Execution], counts: Counter[str]
) -> Iterator[Breach]:
    for final in finals:
        wanted = ("requires_action",) if final.id == chain.paused else ("completed", "failed", "cancelled")
        if final.status not in wanted and final.status not in UNDER_WAY:
            yield Breach("ended as it should not", chain.story, f"{final.id}: {final.status} {final.error}")
        is_follow_up = isinstance(final.previous_response_id, str)
        counts["follow-ups of paused turns"] += is_follow_up
    if chain.is_declined:
        counts["calls declined"] += sum(call.kind != CLIENTS for call in calls_of(chain.story, chain.scene))
        for each in executions:
            text = f"{each.place} ({each.kind}) after {', '.join(chain.plan[0])}"
            yield Breach("declined call run", chain.story, text)


def _judge_once(
    chain: Chain,
    executions: Sequence[Execution],
    inferences: Sequence[Inference],
    faults: Sequence[Span],
    counts: Counter[str],
) -> Iterator[Breach]:
    """A call of a paused turn runs once over all follow-ups. One that may be repeated runs again only if the outcome of
    the run before was lost.
    """
    by_place = _by_place(executions)
    if set(chain.plan[0]) == {"result"} and not chain.breaks:  # nothing kept them from running
        for call in calls_of(chain.story, chain.scene):
            if call.kind != CLIENTS and call.place not in by_place:
                yield Breach("call of the story left out", chain.story, f"{call.place} ({call.kind}) never ran")
    for place, runs in by_place.items():
        counts["calls of paused turns run"] += 1
        for before, each in pairwise(runs):
            known = min((of.at for of in inferences if of.results.get(place) == before.run), default=math.inf)
            if each.kind not in UNSAFE and known >= each.begun and _may_be_lost(before, each.begun, chain, faults):
                counts["calls of paused turns run again, of tools that may be"] += 1
                continue
            text = (
                f"{place} ({each.kind}) by {before.server} and {each.server}, {each.begun - before.begun:.2f} s later"
            )
            yield Breach("call of a paused turn run twice", chain.story, text)


def _may_be_lost(run: Execution, at: float, chain: Chain, faults: Iterable[Span]) -> bool:
    """Whether something was wrong with a run, or with its server, before that time; or its client may have left."""
    if run.ended is None or any("hasty" in moves for moves in chain.plan):
        return True
    return any(fault.server in ("", run.server) and fault.begin <= at and fault.end >= run.begun for fault in faults)
