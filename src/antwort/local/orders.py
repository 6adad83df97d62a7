"""What the model's process is told to do: the operator's word, or else what suits the model."""

from __future__ import annotations

import os
from pathlib import Path

from antwort.local import files, traits
from antwort.local.child import Order
from antwort.local.demo import DEMO_NAME
from antwort.local.files import CannotRun


def make_order(
    model: Path,
    *,
    name: str | None = None,
    template: Path | None = None,
    adapter: Path | None = None,
    context: int = 4096,
    slots: int = 2,
    threads: int | None = None,
) -> Order:
    """As `LocalProvider` takes them; the key is left empty. Raises `CannotRun` for files that are not what they should
    be, and for numbers that no model runs with.
    """
    _check(context=context, slots=slots, threads=threads)
    file = files.gguf(model)
    is_demo = traits.is_demo(file)
    adapter = adapter or (traits.tools_adapter() if is_demo else None)
    return Order(
        parent=os.getpid(),
        key="",
        model=str(file),
        name=name or (DEMO_NAME if is_demo else file.stem),
        template=files.template(template) if template else traits.TEMPLATE if is_demo else None,
        adapter=None if adapter is None else str(files.gguf(adapter)),
        context=context,
        slots=slots,
        threads=threads or _usual_threads(),
        temperature=traits.TEMPERATURE if is_demo else None,
        longest=traits.LONGEST_ANSWER if is_demo else None,
    )


_LEAST = {"context": 256}


def _check(**numbers: int | None) -> None:
    """llama.cpp takes them all, and with some of them never answers."""
    for name, number in numbers.items():
        least = _LEAST.get(name, 1)
        if number is not None and number < least:
            raise CannotRun(f"{name} is a whole number of at least {least}, not {number}")


def _usual_threads() -> int:
    """Threads wait for each other at every step: more than there are cores to themselves make all of them slow. Two
    processors are one core, mostly.
    """
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(min(2, processors), processors // 2)
