"""Turn answers into findings, with what to do about them; those about tool calls are in `tool_checks`. Pure.

Only flags that the engines document are named.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from antwort.doctor.answers import ApiKind, BackendAnswer, ParsedAnswer, parse_answer, quote_name
from antwort.doctor.engines import Facts
from antwort.doctor.findings import NOT_ASKED, EngineName, Finding, Value, fails, unknown, works
from antwort.doctor.questions import CALL_TOKENS, CITY, COLOUR, FEW_TOKENS, THINKING_TOKENS, RequestStyle
from antwort.providers.errors import overflow_in
from antwort.providers.models import MIN_CONTEXT_TOKENS

FOR_WRITE = "--write records it"
SMALL_CONTEXT_TOKENS = 8192
_MEASURABLE_SECONDS = 0.02
"""Between the first and the last token: with less, a speed means nothing."""
_THINKING = ("<think>", "</think>")
_REASONING_FLAGS: Mapping[EngineName, str] = {
    "vllm": "start vLLM with --reasoning-parser",
    "sglang": "start SGLang with --reasoning-parser",
    "llama.cpp": "start llama.cpp with --reasoning-format deepseek",
}
_CONTEXT_FLAGS: Mapping[EngineName, str] = {
    "vllm": "vLLM takes --max-model-len N",
    "sglang": "SGLang takes --context-length N",
    "llama.cpp": "llama.cpp takes -c N",
    "ollama": "Ollama takes OLLAMA_CONTEXT_LENGTH=N",
}
_IMAGE_FLAGS: Mapping[EngineName, str] = {
    "llama.cpp": "with a model that sees, start llama.cpp with --mmproj FILE",
}


def joined(*parts: str) -> str:
    return "; ".join(part for part in parts if part)


def trouble_with(answer: BackendAnswer) -> str:
    """Return why an answer cannot be judged; empty if it can."""
    match answer.fault:
        case "slow":
            return f"no answer within {in_seconds(answer.seconds)}"
        case "unasked":
            return NOT_ASKED
        case "unreachable" | "garbled":
            return answer.reason
        case "cut" if not answer.status:
            return answer.reason
    if answer.is_redirect:
        return f"it redirects to {answer.location or 'an address that it does not say'} (status {answer.status})"
    if answer.is_good:
        encoding = answer.headers.get("content-encoding", "identity").strip().lower()
        return "" if encoding in ("", "identity") else f"its answer is compressed ({answer.quote(encoding)}), unasked"
    words = answer.problem() or answer.content_type
    return f"it answers with status {answer.status}: {words}" if words else f"it answers with status {answer.status}"


def parsed(answer: BackendAnswer) -> ParsedAnswer | None:
    """Return what the model said; None if the answer cannot be judged."""
    if trouble_with(answer) or answer.fault:
        return None
    answered = parse_answer(answer)
    return None if answered.trouble else answered


def in_seconds(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


# ---- the backend itself ----


def check_kind(kind: ApiKind, configured: ApiKind | None) -> Finding:
    """`configured`: the kind in the settings of a configured backend."""
    seen = "speaks the Responses API" if kind == "responses" else "speaks Chat Completions"
    if kind == configured:
        return works("kind", seen)
    remedy = f"configure the backend with `kind: {kind}`: --write records it"
    if configured is None:
        return works("kind", seen, remedy, {"kind": kind})
    return fails("kind", f"{seen} only", remedy, {"kind": kind}, blocks=True)


def check_models(listing: BackendAnswer, models: tuple[str, ...], chosen: str | None) -> Finding:
    names = ", ".join(quote_name(name, listing.secrets) for name in models[:3])
    listed = f"{len(models)}: {names}{f' and {len(models) - 3} more' if len(models) > 3 else ''}"
    if chosen is not None and models and chosen not in models:
        return unknown("models", f"{listed}; {quote_name(chosen, listing.secrets)} is not among them")
    if models:
        return works("models", listed)
    if listing.fault:
        seen = "its list does not end, or is too long to be read"
    elif isinstance(listing.decoded(), dict | list):
        seen = "it lists none"
    else:
        seen = f"what is there is no list of models but {listing.content_type or 'nothing'}"
    remedy = "name them yourself: `models` of the backend" + ("" if chosen else "; and say --model NAME here")
    return fails("models", trouble_with(listing) or seen, remedy, blocks=chosen is None)


def check_errors(answer: BackendAnswer) -> Finding:
    """Check the answer to a body that is not JSON."""
    if answer.fault or answer.is_busy:
        return unknown("errors", trouble_with(answer) or "its answer broke off")
    if answer.is_good:
        return unknown("errors", f"status {answer.status} for a body that is no JSON")
    if not answer.problem():
        seen = f"status {answer.status} with {answer.content_type or 'nothing'}, no error object"
        return fails("errors", seen, "antwort answers with an error of its own, without the backend's words")
    if answer.status >= 500:
        remedy = "antwort takes what is the client's fault for the backend's, and tries again"
        return fails("errors", f"status {answer.status} for a bad request", remedy)
    return works("errors", f"status {answer.status} with an error object")


# ---- the streamed text ----


def check_streaming(answer: BackendAnswer) -> Finding:
    if trouble := trouble_with(answer):
        return fails("streaming", trouble, "without an answer there is nothing that antwort can do", blocks=True)
    answered = parse_answer(answer)
    if answer.fault == "endless":
        remedy = "antwort reads on until loop.deadline; look at the backend's own limits"
        return fails("streaming", "it did not end, in spite of a length limit", remedy, blocks=True)
    if answered.trouble:
        return fails("streaming", answered.trouble, "antwort ends such a response as failed", blocks=True)
    if not answer.is_streamed:
        return fails("streaming", "the answer came whole, as JSON", "antwort takes it and streams it as one piece")
    if not answered.deltas:
        return unknown("streaming", "the stream came, and the model said nothing")
    pieces = "1 piece" if answered.deltas == 1 else f"{answered.deltas} pieces"
    return works("streaming", pieces if answered.is_done else f"{pieces}, without [DONE] at its end")


def check_limit(style: RequestStyle, answer: BackendAnswer, *, is_set: bool) -> Finding:
    """`is_set`: whether the backend's settings name the field already."""
    if parsed(answer) is None:
        return unknown("length_limit", "no answer to tell by")
    if style.limit == "max_tokens" or is_set:
        return works("length_limit", f"takes {style.limit}")
    return fails(
        "length_limit",
        "refuses max_tokens, takes max_completion_tokens",
        f"antwort sends that once `max_tokens_field` says so: {FOR_WRITE}",
        {"capabilities.max_tokens_field": "max_completion_tokens"},
        blocks=True,
    )


def check_usage(style: RequestStyle, answer: BackendAnswer, *, is_set: bool) -> Finding:
    if (answered := parsed(answer)) is None:
        return unknown("stream_usage", "no answer to tell by")
    if (usage := answered.usage) is not None:
        return works("stream_usage", f"{usage.input_tokens} tokens in, {usage.output_tokens} out")
    without = "responses have no usage, and token limits are estimated"
    if style.has_usage:
        return fails("stream_usage", "none came, though it was asked for", without)
    if is_set:
        return fails("stream_usage", "not asked for, as `stream_usage` is off", without)
    return fails(
        "stream_usage",
        "refuses stream_options",
        f"antwort leaves it out once `stream_usage` is off: {FOR_WRITE}; {without}",
        {"capabilities.stream_usage": False},
        blocks=True,
    )


def check_first_token(answer: BackendAnswer) -> Finding:
    first = parse_answer(answer).first if answer.is_good else None
    return unknown("first_token", "no token came") if first is None else works("first_token", in_seconds(first))


def check_speed(answer: BackendAnswer) -> Finding:
    answered = parse_answer(answer) if answer.is_good else ParsedAnswer()
    seconds = 0.0 if answered.first is None else answered.last - answered.first
    if seconds < _MEASURABLE_SECONDS:
        return unknown("speed", "the answer came at once, or not at all")
    tokens = answered.usage.output_tokens if answered.usage is not None else answered.deltas
    about = "" if answered.usage is not None else "about "
    speed = max(tokens - 1, 1) / seconds
    return works("speed", f"{about}{speed:.{0 if speed >= 10 else 1}f}, over {tokens} tokens")


def tokens_for_calls(answer: BackendAnswer, facts: Facts) -> int:
    """Return the length limit for tool calls, by the model's first answer."""
    if facts.offers_tools is False:
        return FEW_TOKENS
    answered = parse_answer(answer) if answer.is_good else ParsedAnswer()
    return THINKING_TOKENS if answered.reasoning or _THINKING[0] in answered.text else CALL_TOKENS


# ---- schema, reasoning, images ----


def check_schema(answer: BackendAnswer) -> Finding:
    trouble = trouble_with(answer)
    if answer.is_missing:
        return unknown("json_schema", trouble)
    remedy = "what clients ask to be held to a schema is not, and tool calls cannot be constrained"
    if trouble:
        return fails("json_schema", trouble, remedy)
    answered = parse_answer(answer)
    try:
        decoded = msgspec.json.decode(answered.text)
    except (ValueError, RecursionError):
        decoded = None
    has_fields = isinstance(decoded, dict) and decoded.keys() == CITY["properties"].keys()
    if has_fields and all(isinstance(value, str) for value in decoded.values()):
        return works("json_schema", answered.quote(answered.text))
    is_torn = answered.is_cut and (not answered.text or answered.text.lstrip().startswith("{"))
    if answered.trouble or is_torn:
        return unknown("json_schema", answered.trouble or "the answer was cut off by its length limit")
    ignored = f"the schema is ignored: {answered.quote(answered.text)!r}"
    return fails("json_schema", ignored if answered.text else "the answer was empty", remedy)


def check_reasoning(answers: tuple[BackendAnswer, ...], facts: Facts, in_force: str | None) -> Finding:
    """`in_force`: the field in which antwort sends reasoning back."""
    answered = [parse_answer(answer) for answer in answers if answer.is_good]
    field = next((each.reasoning_field for each in answered if each.reasoning_field), "")
    if field:
        settings: dict[str, Value] = {} if field == in_force else {"capabilities.reasoning_field": field}
        remedy = f"antwort sends it back in {in_force}: {FOR_WRITE}" if settings else ""
        return works("reasoning_field", field, remedy, settings)
    if any(each.reasoning for each in answered):
        return works("reasoning_field", "items of the type reasoning")
    if any(mark in each.text for each in answered for mark in _THINKING):
        flag = _REASONING_FLAGS.get(facts.engine.name, "")
        remedy = joined("antwort passes the thoughts on as text", flag)
        return fails("reasoning_field", "the thoughts come inside the text, as <think>", remedy)
    return unknown("reasoning_field", "the model did not think aloud")


def check_images(answer: BackendAnswer, facts: Facts, *, is_off: bool, models: int = 1) -> Finding:
    """`is_off`: whether `vision` is set so already, `models`: for how many models it is set."""
    trouble = trouble_with(answer)
    # llama.cpp refuses images with a status that looks temporary.
    is_refused = answer.status == 500 and "image input is not supported" in answer.problem().lower()
    if answer.is_missing and not is_refused:
        if facts.sees is not False:
            return unknown("images", trouble)
        trouble = ""
    if trouble or facts.sees is False:
        if is_off:
            remedy = "antwort refuses images for it, as `vision` is off"
        elif models > 1:
            remedy = f"set `vision` off if none of its {models} models takes images: it holds for all of them"
        else:
            once = f"antwort refuses images for it once `vision` is off: {FOR_WRITE}"
            remedy = joined(once, _IMAGE_FLAGS.get(facts.engine.name, ""))
        settings: Mapping[str, Value] = {"capabilities.vision": False} if models == 1 else {}
        return fails("images", trouble or "it says of itself that it takes none", remedy, settings)
    answered = parse_answer(answer)
    if answered.trouble:
        return unknown("images", answered.trouble)
    if COLOUR in answered.text.lower():
        return works("images", "it saw the colour of a picture")
    return unknown("images", "it took a picture, and said nothing that shows that it saw it")


# ---- the context ----


def check_context(
    facts: Facts, refusal: BackendAnswer | None, *, is_local: bool = False, given: int | None = None, models: int = 1
) -> Finding:
    """`refusal`: the answer to a request for more than any context holds, if one was necessary. `is_local`: antwort
    runs the model by itself. `given`: the configured length, which holds for all `models`.
    """
    size, origin = facts.context, facts.context_origin
    if not is_plausible(size) and refusal is not None and not refusal.is_good:
        overflow = overflow_in(refusal.problem())
        size, origin = (overflow and overflow.limit) or size, "an error"
    if size is None or not is_plausible(size):
        remedy = "set `context_length` if you know it: antwort then keeps to it"
        if given is not None:
            remedy = f"antwort goes by the {given} that are set"
        seen = "it does not say" if size is None else f"{size} tokens, by {origin}, which cannot be: that is ignored"
        return unknown("context_length", seen, "" if is_local else remedy)
    seen = f"{size} tokens, by {origin}"
    is_found_by_servers = origin == facts.context_origin and facts.tells_context
    is_wanted = not is_local and models == 1 and (given > size if given else not is_found_by_servers)
    settings: dict[str, Value] = {"capabilities.context_length": size} if is_wanted else {}
    if given is not None and given > size:
        more = f"{given} are set, which is more: antwort sends what does not fit"
        return fails("context_length", seen, joined(more, "--write corrects it" if models == 1 else ""), settings)
    set_it = f"antwort keeps to it from the start once `context_length` is set: {FOR_WRITE}" if is_wanted else ""
    flag = "`local.context` gives it more" if is_local else _CONTEXT_FLAGS.get(facts.engine.name, "")
    little = joined("that is little for tools and long talks", flag) if size < SMALL_CONTEXT_TOKENS else ""
    return works("context_length", seen, joined(set_it, little), settings)


def is_plausible(size: int | None) -> bool:
    """Return whether a server uses such a context length."""
    return size is not None and size >= MIN_CONTEXT_TOKENS


def check_counts(counted: int | None) -> Finding:
    if counted is None:
        seen, remedy = "it has no tokenizer that can be asked", "antwort estimates, and learns from the usage"
        return unknown("token_counts", seen, remedy)
    return works("token_counts", f"{counted} tokens, by its own tokenizer")
