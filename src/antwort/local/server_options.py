"""Check the settings of a model that is run on this machine, and turn them into the options of its subprocess."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

from antwort.local.demo import DEMO_NAME, MAX_TOKENS, TEMPERATURE, TEMPLATE, is_demo, tools_adapter
from antwort.local.llama_server import ServerOptions

_TEMPLATE_LIMIT = 2**20


class CannotRun(ValueError):
    """The model cannot be run. The message is a clause: `the file … is not there`."""


class NotInstalled(CannotRun):
    """llama.cpp is not installed."""

    def __init__(self) -> None:
        super().__init__("llama.cpp is not installed: `pip install 'antwort[demo]'` brings it")


def has_llama() -> bool:
    """Return whether llama.cpp is installed, without loading it."""
    return find_spec("xllamacpp") is not None


def server_options(
    model: Path,
    *,
    name: str | None = None,
    template: Path | None = None,
    adapter: Path | None = None,
    context: int = 4096,
    slots: int = 2,
    threads: int | None = None,
) -> ServerOptions:
    """Return the options for a model, without a key. The parameters are those of `LocalProvider`.

    Raises `CannotRun` for unusable files, and for numbers with which llama.cpp would start and never answer.
    """
    for label, number, least in (("context", context, 256), ("slots", slots, 1), ("threads", threads, 1)):
        if number is not None and number < least:
            raise CannotRun(f"{label} is a whole number of at least {least}, not {number}")
    file = _gguf(model)
    is_demo_model = is_demo(file)
    adapter = adapter or (tools_adapter(file) if is_demo_model else None)
    return ServerOptions(
        parent=os.getpid(),
        key="",
        model=str(file),
        name=name or (DEMO_NAME if is_demo_model else file.stem),
        template=_template(template) if template else TEMPLATE if is_demo_model else None,
        adapter=None if adapter is None else str(_gguf(adapter)),
        context=context,
        slots=slots,
        threads=threads or _default_threads(),
        temperature=TEMPERATURE if is_demo_model else None,
        max_tokens=MAX_TOKENS if is_demo_model else None,
    )


def _default_threads() -> int:
    """Return half of the processors, and at least two: mostly two processors share one core, and threads that share
    a core slow all others down.
    """
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(min(2, processors), processors // 2)


def _gguf(path: Path) -> Path:
    if _read(path, 4) != b"GGUF":
        raise CannotRun(f"{str(path)!r} is not a GGUF file")
    return path.absolute()


def _template(path: Path) -> str:
    content = _read(path, _TEMPLATE_LIMIT + 1)
    if len(content) > _TEMPLATE_LIMIT:
        raise CannotRun(f"{str(path)!r} is too long for a chat template")
    try:
        return content.decode()
    except UnicodeDecodeError as exc:
        raise CannotRun(f"{str(path)!r} is no chat template: it is not UTF-8") from exc


def _read(path: Path, size: int) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(size)
    except FileNotFoundError as exc:
        raise CannotRun(f"there is no file {str(path)!r}") from exc
    except (OSError, ValueError) as exc:  # a ValueError: the path contains a zero byte
        reason = exc.strerror if isinstance(exc, OSError) else "no file has such a name"
        raise CannotRun(f"{str(path)!r} cannot be read: {reason}") from exc
