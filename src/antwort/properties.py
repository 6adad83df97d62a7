"""Properties that are worked out once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar, overload

T = TypeVar("T")


class kept_property(Generic[T]):  # noqa: N801 - used as `property` is
    """As `functools.cached_property`, at a quarter of what that takes the first time: most of what is kept is little,
    and asked for within one request. It is for what is the same whenever it is worked out, as nobody waits for another
    who does so at the same time.
    """

    def __init__(self, work: Callable[[Any], T]) -> None:
        self._work, self._name = work, work.__name__
        self.__doc__ = work.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...

    @overload
    def __get__(self, instance: object, owner: type) -> T: ...

    def __get__(self, instance: object | None, owner: type) -> Self | T:
        if instance is None:
            return self
        value = instance.__dict__[self._name] = self._work(instance)  # from now on this is what is found
        return value
