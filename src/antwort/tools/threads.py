"""Run blocking functions in daemon threads."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def run_in_thread(function: Callable[[], T], name: str) -> T:
    """Return or raise what `function` does. When cancelled, abandon the thread."""
    return await start_thread(function, name)


def start_thread(function: Callable[[], T], name: str) -> asyncio.Future[T]:
    """Start `function` in a thread, with the context variables of this task.

    Each call has a thread of its own: in a pool, functions that hang would in time leave no thread for the others. It
    is a daemon, so it holds up neither the server nor its end.
    """
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()

    def work() -> None:
        try:
            value = context.run(function)
        except BaseException as error:
            post(loop, _fail, outcome, error)
        else:
            post(loop, _settle, outcome, value)

    threading.Thread(target=work, name=name, daemon=True).start()
    return outcome


def post(loop: asyncio.AbstractEventLoop, function: Callable[..., object], *args: object) -> None:
    """Call `function` on the loop from any thread. The loop of an abandoned thread may be closed: then do nothing."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(function, *args)


def _settle(outcome: asyncio.Future[T], value: T) -> None:
    if not outcome.done():
        outcome.set_result(value)


def _fail(outcome: asyncio.Future[T], error: BaseException) -> None:
    if outcome.done():
        return
    if isinstance(error, StopIteration):  # a future refuses it: it would end the coroutine that awaits
        error = RuntimeError("The function raised StopIteration.")
    outcome.set_exception(error)
