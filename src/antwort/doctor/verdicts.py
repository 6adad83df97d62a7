"""From answers to findings, all but those about tools. Pure."""

from __future__ import annotations

import msgspec

from antwort.api.wire import Plain
from antwort.doctor import advice
from antwort.doctor.answers import Answer, Heard, Speech, hear, named
from antwort.doctor.engines import Facts
from antwort.doctor.findings import UNASKED, Finding, Value
from antwort.doctor.questions import CALL_TOKENS, CITY, COLOUR, FEW_TOKENS, THINKING_TOKENS, Manner

_SHORTEST_RUN = 0.02
"""Seconds between the first and the last token below which a speed means nothing."""
_MARKS = ("<think>", "</think>")


def trouble_with(answer: Answer) -> str:
    """Why there is nothing in an answer to judge; empty where there is something."""
    match answer.fault:
        case "slow":
            return f"no answer within {in_seconds(answer.seconds)}"
        case "unasked":
            return UNASKED
        case "unreachable" | "garbled":
            return answer.reason
        case "cut" if not answer.status:
            return answer.reason
    if answer.is_redirect:
        return f"it redirects to {answer.location or 'an address that it does not say'} (status {answer.status})"
    if answer.is_good:
        return _packing(answer)
    words = answer.problem() or _kind(answer)
    return f"it answers with status {answer.status}: {words}" if words else f"it answers with status {answer.status}"


def _kind(answer: Answer) -> str:
    kind = answer.headers.get("content-type", "").partition(";")[0].strip()
    return answer.quoted(kind)


def _packing(answer: Answer) -> str:
    packing = answer.headers.get("content-encoding", "identity").strip().lower()
    return "" if packing in ("", "identity") else f"its answer is compressed ({answer.quoted(packing)}), unasked"


def _told(answer: Answer) -> Heard | None:
    """What the model said; None where there is nothing in the answer to judge by."""
    if trouble_with(answer) or answer.fault:
        return None
    heard = hear(answer)
    return None if heard.trouble else heard


def is_told(answer: Answer) -> bool:
    return _told(answer) is not None


def about_kind(speech: Speech, configured: Speech | None) -> Finding:
    """`configured`: the kind in the backend's settings, if it is a configured one."""
    seen = "speaks the Responses API" if speech == "responses" else "speaks Chat Completions"
    if speech == configured:
        return Finding(probe="kind", verdict="works", seen=seen)
    remedy = f"configure the backend with `kind: {speech}`: --write records it"
    is_wrong = configured is not None
    return Finding(
        probe="kind",
        verdict="fails" if is_wrong else "works",
        seen=f"{seen} only" if is_wrong else seen,
        remedy=remedy,
        blocks=is_wrong,
        settings={"kind": speech},
    )


def about_models(listing: Answer, models: tuple[str, ...], chosen: str | None) -> Finding:
    if chosen is not None and models and chosen not in models:
        return Finding(
            probe="models",
            verdict="unknown",
            seen=f"{_some(listing, models)}; {named(chosen, listing.secrets)} is not among them",
        )
    if models:
        return Finding(probe="models", verdict="works", seen=_some(listing, models))
    seen = trouble_with(listing) or (
        "its list does not end, or is too long to be read" if listing.fault else _no_list(listing)
    )
    remedy = "name them yourself: `models` of the backend" + ("" if chosen else "; and say --model NAME here")
    return Finding(probe="models", verdict="fails", seen=seen, remedy=remedy, blocks=chosen is None)


def _no_list(listing: Answer) -> str:
    is_list = isinstance(listing.plain(), dict | list)
    return "it lists none" if is_list else f"what is there is no list of models but {_kind(listing) or 'nothing'}"


def _some(listing: Answer, names: tuple[str, ...], most: int = 3) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{len(names)}: {', '.join(named(name, listing.secrets) for name in names[:most])}{more}"


# ---- the streamed text ----


def about_streaming(answer: Answer) -> Finding:
    if trouble := trouble_with(answer):
        remedy = "without an answer there is nothing that antwort can do"
        return Finding(probe="streaming", verdict="fails", seen=trouble, remedy=remedy, blocks=True)
    heard = hear(answer)
    if answer.fault == "endless":
        seen = "it did not end, in spite of a length limit"
        remedy = "antwort reads on until loop.deadline; look at the backend's own limits"
        return Finding(probe="streaming", verdict="fails", seen=seen, remedy=remedy, blocks=True)
    if heard.trouble:
        remedy = "antwort ends such a response as failed"
        return Finding(probe="streaming", verdict="fails", seen=heard.trouble, remedy=remedy, blocks=True)
    if not answer.is_streamed:
        remedy = "antwort takes it and streams it as one piece"
        return Finding(probe="streaming", verdict="fails", seen="the answer came whole, as JSON", remedy=remedy)
    if not heard.deltas:
        return Finding(probe="streaming", verdict="unknown", seen="the stream came, and the model said nothing")
    ending = "" if heard.is_done else ", without [DONE] at its end"
    return Finding(probe="streaming", verdict="works", seen=f"{_count(heard.deltas, 'piece')}{ending}")


def about_limit(manner: Manner, answer: Answer, *, is_set: bool) -> Finding:
    """`is_set`: the backend's settings say already which field it takes."""
    if not is_told(answer):
        return Finding(probe="length_limit", verdict="unknown", seen="no answer to tell by")
    if manner.limit == "max_tokens" or is_set:
        return Finding(probe="length_limit", verdict="works", seen=f"takes {manner.limit}")
    return Finding(
        probe="length_limit",
        verdict="fails",
        seen="refuses max_tokens, takes max_completion_tokens",
        remedy=f"antwort sends that once `max_tokens_field` says so: {advice.FOR_WRITE}",
        blocks=True,
        settings={"capabilities.max_tokens_field": "max_completion_tokens"},
    )


def about_usage(manner: Manner, answer: Answer, *, is_set: bool) -> Finding:
    heard = _told(answer)
    if heard is None:
        return Finding(probe="stream_usage", verdict="unknown", seen="no answer to tell by")
    if (usage := heard.usage) is not None:
        seen = f"{usage.input_tokens} tokens in, {usage.output_tokens} out"
        return Finding(probe="stream_usage", verdict="works", seen=seen)
    without = "responses have no usage, and token limits are estimated"
    if manner.has_usage or is_set:
        seen = "none came, though it was asked for" if manner.has_usage else "not asked for, as `stream_usage` is off"
        return Finding(probe="stream_usage", verdict="fails", seen=seen, remedy=without)
    return Finding(
        probe="stream_usage",
        verdict="fails",
        seen="refuses stream_options",
        remedy=f"antwort leaves it out once `stream_usage` is off: {advice.FOR_WRITE}; {without}",
        blocks=True,
        settings={"capabilities.stream_usage": False},
    )


def about_first_token(answer: Answer) -> Finding:
    first = hear(answer).first if answer.is_good else None
    if first is None:
        return Finding(probe="first_token", verdict="unknown", seen="no token came")
    return Finding(probe="first_token", verdict="works", seen=in_seconds(first))


def about_speed(answer: Answer) -> Finding:
    heard = hear(answer) if answer.is_good else Heard()
    took = 0.0 if heard.first is None else heard.last - heard.first
    if took < _SHORTEST_RUN:
        return Finding(probe="speed", verdict="unknown", seen="the answer came at once, or not at all")
    tokens = heard.usage.output_tokens if heard.usage is not None else heard.deltas
    about = "" if heard.usage is not None else "about "
    speed = max(tokens - 1, 1) / took
    return Finding(
        probe="speed", verdict="works", seen=f"{about}{speed:.{0 if speed >= 10 else 1}f}, over {tokens} tokens"
    )


def in_seconds(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def tokens_for_calls(answer: Answer, facts: Facts) -> int:
    """How long the answers that a call is looked for in may get, by what the model's first answer was like."""
    heard = hear(answer) if answer.is_good else Heard()
    if facts.offers_tools is False:
        return FEW_TOKENS
    return THINKING_TOKENS if heard.reasoning or _MARKS[0] in heard.text else CALL_TOKENS


# ---- schema, reasoning, images ----


def about_schema(answer: Answer) -> Finding:
    if answer.is_missing:
        return Finding(probe="json_schema", verdict="unknown", seen=trouble_with(answer))
    remedy = "what clients ask to be held to a schema is not, and tool calls cannot be constrained"
    if trouble := trouble_with(answer):
        return Finding(probe="json_schema", verdict="fails", seen=trouble, remedy=remedy)
    heard = hear(answer)
    if _fits(heard.text):
        return Finding(probe="json_schema", verdict="works", seen=heard.quoted(heard.text))
    is_torn = heard.is_cut and (not heard.text or heard.text.lstrip().startswith("{"))
    if heard.trouble or is_torn:
        seen = heard.trouble or "the answer was cut off by its length limit"
        return Finding(probe="json_schema", verdict="unknown", seen=seen)
    seen = f"the schema is ignored: {heard.quoted(heard.text)!r}" if heard.text else "the answer was empty"
    return Finding(probe="json_schema", verdict="fails", seen=seen, remedy=remedy)


def _fits(text: str) -> bool:
    """Whether the text is what `CITY` describes."""
    try:
        told = msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return False
    names: Plain = CITY["properties"]
    return isinstance(told, dict) and told.keys() == names.keys() and all(isinstance(v, str) for v in told.values())


def about_reasoning(answers: tuple[Answer, ...], facts: Facts, in_force: str | None) -> Finding:
    """`in_force`: the field that antwort sends reasoning back in."""
    heard = [hear(answer) for answer in answers if answer.is_good]
    field = next((each.reasoning_field for each in heard if each.reasoning_field), "")
    if field:
        settings: dict[str, Value] = {} if field == in_force else {"capabilities.reasoning_field": field}
        remedy = f"antwort sends it back in {in_force}: {advice.FOR_WRITE}" if settings else ""
        return Finding(probe="reasoning_field", verdict="works", seen=field, remedy=remedy, settings=settings)
    if any(each.reasoning for each in heard):
        return Finding(probe="reasoning_field", verdict="works", seen="items of the type reasoning")
    if any(mark in each.text for each in heard for mark in _MARKS):
        remedy = advice.about_reasoning(facts.engine.name)
        seen = "the thoughts come inside the text, as <think>"
        return Finding(probe="reasoning_field", verdict="fails", seen=seen, remedy=remedy)
    return Finding(probe="reasoning_field", verdict="unknown", seen="the model did not think aloud")


def about_images(answer: Answer, facts: Facts, *, is_off: bool, models: int = 1) -> Finding:
    """`is_off`: `vision` is set so already. `models`: of how many it holds."""
    trouble = trouble_with(answer)
    if answer.is_missing and not _speaks_of_images(answer):
        if facts.sees is not False:
            return Finding(probe="images", verdict="unknown", seen=trouble)
        trouble = ""
    if trouble or facts.sees is False:
        return Finding(
            probe="images",
            verdict="fails",
            seen=trouble or "it says of itself that it takes none",
            remedy=advice.about_images(facts.engine.name, is_off=is_off, models=models),
            settings={"capabilities.vision": False} if models == 1 else {},
        )
    heard = hear(answer)
    if heard.trouble:
        return Finding(probe="images", verdict="unknown", seen=heard.trouble)
    if COLOUR in heard.text.lower():
        return Finding(probe="images", verdict="works", seen="it saw the colour of a picture")
    seen = "it took a picture, and said nothing that shows that it saw it"
    return Finding(probe="images", verdict="unknown", seen=seen)


def _speaks_of_images(answer: Answer) -> bool:
    """llama.cpp refuses images as if it had failed."""
    return answer.status == 500 and "image input is not supported" in answer.problem().lower()


# ---- errors ----


def about_errors(answer: Answer) -> Finding:
    """The answer to a body that is no JSON."""
    if answer.fault:
        return Finding(probe="errors", verdict="unknown", seen=trouble_with(answer) or "its answer broke off")
    if answer.is_busy:
        return Finding(probe="errors", verdict="unknown", seen=trouble_with(answer))
    own = "antwort answers with an error of its own, without the backend's words"
    if answer.is_good:
        return Finding(probe="errors", verdict="unknown", seen=f"status {answer.status} for a body that is no JSON")
    if not answer.problem():
        kind = _kind(answer) or "nothing"
        return Finding(
            probe="errors", verdict="fails", seen=f"status {answer.status} with {kind}, no error object", remedy=own
        )
    if answer.status >= 500:
        remedy = "antwort takes what is the client's fault for the backend's, and tries again"
        return Finding(probe="errors", verdict="fails", seen=f"status {answer.status} for a bad request", remedy=remedy)
    return Finding(probe="errors", verdict="works", seen=f"status {answer.status} with an error object")
