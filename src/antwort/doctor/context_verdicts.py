"""How much fits into the context of a backend's models, and what follows for its settings. Pure."""

from __future__ import annotations

from antwort.doctor import advice
from antwort.doctor.answers import Answer
from antwort.doctor.engines import Facts
from antwort.doctor.findings import Finding, Value
from antwort.providers.errors import overflow_in
from antwort.providers.models import MIN_CONTEXT_TOKENS

SMALL_CONTEXT = 8192


def about_context(
    facts: Facts, refusal: Answer | None, *, is_ours: bool = False, given: int | None = None, models: int = 1
) -> Finding:
    """`refusal`: the answer to a question for more than any context holds, where it had to be asked. `given`: what is
    set, which holds for all its `models`.
    """
    size, origin = facts.context, facts.context_origin
    if not is_believed(size) and refusal is not None and not refusal.is_good:
        overflow = overflow_in(refusal.problem())
        size, origin = (overflow and overflow.limit) or size, "an error"
    if size is None or not is_believed(size):
        remedy = "" if is_ours else advice.about_unknown_context(given)
        seen = "it does not say" if size is None else f"{size} tokens, by {origin}, which cannot be: that is ignored"
        return Finding(probe="context_length", verdict="unknown", seen=seen, remedy=remedy)
    seen, is_told = f"{size} tokens, by {origin}", origin == facts.context_origin and facts.tells_context
    is_wanted = not is_ours and models == 1 and (given > size if given else not is_told)
    settings: dict[str, Value] = {"capabilities.context_length": size} if is_wanted else {}
    if given is not None and given > size:
        remedy = advice.about_wrong_context(given, models)
        return Finding(probe="context_length", verdict="fails", seen=seen, remedy=remedy, settings=settings)
    little = advice.about_context(facts.engine.name, is_ours=is_ours) if size < SMALL_CONTEXT else ""
    remedy = advice.joined(advice.WRITE_CONTEXT if is_wanted else "", little)
    return Finding(probe="context_length", verdict="works", seen=seen, remedy=remedy, settings=settings)


def is_believed(size: int | None) -> bool:
    """Whether a server goes by it."""
    return size is not None and size >= MIN_CONTEXT_TOKENS


def about_counts(counted: int | None) -> Finding:
    if counted is None:
        seen, remedy = "it has no tokenizer that can be asked", "antwort estimates, and learns from the usage"
        return Finding(probe="token_counts", verdict="unknown", seen=seen, remedy=remedy)
    return Finding(probe="token_counts", verdict="works", seen=f"{counted} tokens, by its own tokenizer")
