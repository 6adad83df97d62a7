"""Limit what one key may use in a minute and at once, and how many streams are read again at once."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from time import monotonic
from typing import TypeAlias

from msgspec import Struct

from antwort.api.wire import encode
from antwort.engine.context.compaction import item_size
from antwort.engine.runs.live import RunSummary
from antwort.engine.runs.subscription import Subscription
from antwort.errors import RateLimited, TooManyFollowers
from antwort.identity import Identity
from antwort.server.errors import Headers

Clock: TypeAlias = Callable[[], float]

_MINUTE = 60.0
_ROUNDING = 1e-9
"""Rounding error of a bucket: a request that has waited for `Retry-After` is let in."""
_SLOT_WAIT_SECONDS = 1.0
"""`Retry-After` when all slots are taken: it is not known when one is released."""
_BYTES_PER_TOKEN = 4


class KeyLimits(Struct, frozen=True, kw_only=True):
    """None: any amount."""

    requests_per_minute: int | None = None
    concurrent: int | None = None
    followers: int | None = None
    """None: as many as `concurrent`."""
    tokens_per_minute: int | None = None


class TokenBucket:
    """A token bucket that fills in a minute. It may be overdrawn; then it takes longer to fill."""

    __slots__ = ("_at", "_clock", "_level", "size")

    def __init__(self, size: int, clock: Clock) -> None:
        self.size, self._clock = size, clock
        self._level, self._at = float(size), clock()

    def take(self, amount: float) -> None:
        self._level = self._filled() - amount

    @property
    def left(self) -> int:
        return max(math.floor(self._filled() + _ROUNDING), 0)

    @property
    def wait(self) -> float:
        """Seconds until there is one to take."""
        return self._until(1.0)

    @property
    def reset(self) -> float:
        """Seconds until it is full."""
        return self._until(self.size)

    def _until(self, level: float) -> float:
        missing = level - self._filled()
        return missing * _MINUTE / self.size if missing > _ROUNDING else 0.0

    def _filled(self) -> float:
        now = self._clock()
        self._level = min(self._level + (now - self._at) * self.size / _MINUTE, self.size)
        self._at = now
        return self._level


class Quota:
    """The use of one key."""

    __slots__ = (
        "_followers",
        "_following",
        "_is_limited",
        "_kept",
        "_requests",
        "_returned",
        "_slots",
        "_tokens",
        "_under_way",
    )

    def __init__(self, limits: KeyLimits, clock: Clock) -> None:
        self._requests: TokenBucket | None = None
        self._tokens: TokenBucket | None = None
        self.change(limits, clock)
        self._under_way = self._following = 0
        self._kept: dict[str, bytes] = {}
        """Runs that go on without their clients, by the ids of their responses, with their idempotency keys."""
        self._returned: set[bytes] = set()
        """The idempotency keys of requests that were let in beside the slot of such a run."""

    def change(self, limits: KeyLimits, clock: Clock) -> None:
        """Set other limits. What is in use stays counted; a rate that changes begins with a full minute."""
        self._requests = _bucket(limits.requests_per_minute, clock, self._requests)
        self._tokens = _bucket(limits.tokens_per_minute, clock, self._tokens)
        self._slots = limits.concurrent
        self._followers = limits.concurrent if limits.followers is None else limits.followers
        self._is_limited = limits != KeyLimits()

    @property
    def under_way(self) -> int:
        return self._under_way

    def slot(self, headers: Headers, idempotency_key: bytes = b"") -> AbstractContextManager[None]:
        """Hold a slot for one response until the block is left. Raises `RateLimited`.

        The rate limit headers are added to `headers`, also when the request is refused, which then uses nothing. A
        request that comes back to its run by its idempotency key shares the slot of the run.
        """
        if not self._is_limited:
            return self
        comes_back = idempotency_key not in self._returned and idempotency_key in self._kept.values()
        if not (idempotency_key and comes_back):
            self._admit(headers, self._taken)
            return self
        self._admit(headers, self._taken - 1)
        return self._return(idempotency_key)

    @property
    def _taken(self) -> int:
        """Count the slots that are taken: a run and the request that has come back to it share one."""
        if not self._returned:
            return self._under_way
        return self._under_way - len(self._returned.intersection(self._kept.values()))

    @contextmanager
    def _return(self, idempotency_key: bytes) -> Iterator[None]:
        self._returned.add(idempotency_key)
        try:
            with self:
                yield
        finally:
            self._returned.remove(idempotency_key)

    def keep(self, run: Subscription, idempotency_key: bytes = b"") -> None:
        """Hold a slot for a run without a client until it has ended."""
        if run.response_id not in self._kept:
            self._kept[run.response_id] = idempotency_key
            self._under_way += 1
            run.when_over(partial(self._release, run.response_id))

    def _release(self, response_id: str) -> None:
        del self._kept[response_id]
        self._under_way -= 1

    @contextmanager
    def following(self, headers: Headers) -> Iterator[None]:
        """Hold a slot for reading the stream of a response again; as `slot`, but it does not count as a request."""
        if self._followers is not None and self._following >= self._followers:
            headers += self._headers()
            raise _over(self._followers, "stream", "read again at once", _SLOT_WAIT_SECONDS)
        self._following += 1
        try:
            yield
        finally:
            self._following -= 1

    def _admit(self, headers: Headers, taken: int) -> None:
        refusal = self._refusal(taken)
        if refusal is None and self._requests is not None:
            self._requests.take(1)
        headers += self._headers()
        if refusal is not None:
            raise refusal

    def __enter__(self) -> None:
        self._under_way += 1

    def __exit__(self, *_: object) -> None:
        self._under_way -= 1

    @property
    def has_headers(self) -> bool:
        """Whether answers have rate limit headers."""
        return self._requests is not None or self._tokens is not None

    @property
    def counts_tokens(self) -> bool:
        return self._tokens is not None

    def spend(self, tokens: int) -> None:
        """Take the tokens of a response that has ended. It may overdraw: then the next ones wait."""
        if self._tokens is not None:
            self._tokens.take(tokens)

    def _refusal(self, taken: int) -> RateLimited | None:
        if self._slots is not None and taken >= self._slots:
            return _over(self._slots, "response", "at once", _SLOT_WAIT_SECONDS)
        if self._tokens is not None and (wait := self._tokens.wait):
            return _over(self._tokens.size, "token", "a minute", wait)
        if self._requests is not None and (wait := self._requests.wait):
            return _over(self._requests.size, "request", "a minute", wait)
        return None

    def _headers(self) -> Headers:
        """As OpenAI names them."""
        headers: Headers = []
        for unit, bucket in ((b"requests", self._requests), (b"tokens", self._tokens)):
            if bucket is not None:
                headers.append((b"x-ratelimit-limit-" + unit, b"%d" % bucket.size))
                headers.append((b"x-ratelimit-remaining-" + unit, b"%d" % bucket.left))
                headers.append((b"x-ratelimit-reset-" + unit, duration(bucket.reset).encode()))
        return headers


class Quotas:
    """The use of every key, by its name. Requests without a key are not counted."""

    def __init__(self, limits: Mapping[str, KeyLimits], *, clock: Clock = monotonic) -> None:
        self._clock = clock
        self._by_key = {name: Quota(limit, clock) for name, limit in limits.items()}
        self._unlimited = Quota(KeyLimits(), clock)

    def change(self, limits: Mapping[str, KeyLimits]) -> None:
        """Set the limits of the keys that there are from now on. A key that stays keeps what it has used, and one that
        is gone keeps its limits: connections that were opened with it may still be open.
        """
        for name, limit in limits.items():
            self._by_key.setdefault(name, Quota(limit, self._clock)).change(limit, self._clock)

    def of(self, key: str) -> Quota:
        return self._by_key.get(key, self._unlimited)

    @property
    def have_headers(self) -> bool:
        """Whether answers to any key have rate limit headers."""
        return any(quota.has_headers for quota in self._by_key.values())

    def count(self, ended: RunSummary) -> None:
        """For `Engine(on_end=[…])`: the tokens of a response, to the key it was made for."""
        quota = self.of(ended.plan.identity.key)
        if quota.counts_tokens:
            quota.spend(tokens_of(ended))


class Followers:
    """Limit how many streams of responses are read again at once, in one process. No tenant has more than half of them,
    and none of its subjects more than half of those: none shuts the others out.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: Counter[tuple[str, ...]] = Counter()
        """By all, by tenant, and by tenant and subject."""

    @contextmanager
    def slot(self, identity: Identity) -> Iterator[None]:
        """Hold a slot until the block is left. Raises `TooManyFollowers`."""
        whose: list[tuple[str, ...]] = [(), (identity.tenant,)]
        if identity.owner:  # else it stands for all who do not say who they are
            whose.append((identity.tenant, identity.owner))
        for level, each in enumerate(whose):
            share = max(self._most >> level, 1)
            if self._held[each] >= share:
                raise TooManyFollowers(self._most, share)
        self._held.update(whose)
        try:
            yield
        finally:
            self._held.subtract(whose)
            for each in whose:
                if not self._held[each]:
                    del self._held[each]


def duration(seconds: float) -> str:
    """Rounded up to a millisecond, as OpenAI writes it: `120ms`, `8.64s`, `6m0s`."""
    milliseconds = _milliseconds(seconds)
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, rest = divmod(milliseconds, 60_000)
    return f"{minutes}m{rest / 1000:g}s" if minutes else f"{rest / 1000:g}s"


def _milliseconds(seconds: float) -> int:
    return math.ceil(round(seconds * 1000, 6))


def _bucket(size: int | None, clock: Clock, old: TokenBucket | None) -> TokenBucket | None:
    if old is not None and old.size == size:
        return old
    return None if size is None else TokenBucket(size, clock)


def _over(size: int, what: str, span: str, wait: float) -> RateLimited:
    """Some clients read the wait out of the message, and know nothing but seconds."""
    limit = f"{size} {what if size == 1 else f'{what}s'} {span}"
    seconds = f"{_milliseconds(wait) / 1000:.3f}".rstrip("0").rstrip(".")
    return RateLimited(f"This API key may use {limit}. Please try again in {seconds}s.", retry_after=wait)


def tokens_of(ended: RunSummary) -> int:
    """Return how many tokens a response has cost: as the backend has reported, and estimated where it has not. A client
    that leaves before the end has used them, too.
    """
    usage, response = ended.response.usage, ended.response
    reported = 0 if usage is None else usage.input_tokens + usage.output_tokens
    if not ended.untold:
        return reported
    # The input is sent with each inference; the output is counted once.
    sent = len(encode(response.tools)) + len((response.instructions or "").encode())
    sent += sum(item_size(item) for stretch in ended.plan.history.stretches for item in stretch)
    output = sum(item_size(item) for item in response.output)
    return reported + math.ceil((sent * ended.untold + output) / _BYTES_PER_TOKEN)
