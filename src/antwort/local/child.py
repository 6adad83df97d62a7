"""The process that runs the model: llama.cpp's own HTTP server, on a free loopback port.

It is run as a script and imports nothing of antwort. The first line on its standard input is its `Order`, as JSON; when
the model is loaded it writes its address, a line, to its standard output; all else that is said there is llama.cpp's
log, on the standard error. It ends when its standard input does, which is when antwort ends, however that comes about.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import signal
import sys
from typing import Any, TypedDict

_PR_SET_PDEATHSIG = 1
_CACHE_MIB = 512
"""What prompts that have been read may take up in memory, to be found again."""
_SPARE = 16
"""Threads for questions beside the inferences, and for those whose clients have left without its knowing yet."""
_BATCH = 128
"""Tokens of a prompt that are read in one go. llama.cpp looks only between two goes whether whoever asked is still
there: on a slow machine, with its own 2048, a client that has left keeps the others waiting for a minute. With 128 it
is two seconds, and prompts are read more slowly, by a sixth or so."""


class Order(TypedDict):
    """What is to be run, and how."""

    parent: int
    """The process that it must not outlive."""
    key: str
    """What a request must bring."""
    model: str
    name: str
    template: str | None
    """A chat template, in Jinja; None: the model's own."""
    adapter: str | None
    context: int
    """Tokens for each request."""
    slots: int
    """Requests at once."""
    threads: int
    temperature: float | None
    """Of requests that say nothing of it; None: as llama.cpp has it."""
    longest: int | None
    """Tokens that an answer has at most where the request sets no limit; None: what the context holds."""


def main() -> None:
    line = sys.stdin.buffer.readline()
    if not line:
        return
    order: Order = json.loads(line)
    _end_with(order["parent"])
    output = _take_output()
    server = _serve(order)
    os.write(output, f"{server.listening_address}\n".encode())
    sys.stdin.buffer.read()
    os._exit(0)  # nobody is left to be told anything, and an inference under way may take its time


def _serve(order: Order) -> Any:
    """Load the model and answer for it, as long as what is returned is kept."""
    try:
        return importlib.import_module("xllamacpp").Server(parameters(order))
    except RuntimeError:  # why has been logged
        sys.exit(1)


def _end_with(parent: int) -> None:
    """Loading takes the whole interpreter, so that nothing here would notice the end of the input before it is done:
    on Linux the system sees to it.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it was gone before that
            os._exit(0)


def _take_output() -> int:
    """The standard output, for our own word alone: whatever else is written there goes to the log."""
    own = os.dup(1)
    os.dup2(2, 1)
    return own


def parameters(order: Order) -> Any:
    """The order in llama.cpp's words."""
    llama = importlib.import_module("xllamacpp")
    made = llama.CommonParams()
    made.model.path = order["model"]
    made.model_alias = {order["name"]}
    made.hostnames, made.port = ["127.0.0.1"], 0
    made.api_keys = [order["key"]]
    made.ui = made.endpoint_slots = False
    made.n_parallel, made.n_ctx = order["slots"], order["slots"] * order["context"]
    made.cpuparams.n_threads = made.cpuparams_batch.n_threads = order["threads"]
    made.n_threads_http = order["slots"] + _SPARE
    made.n_batch = made.n_ubatch = _BATCH
    made.cache_ram_mib = _CACHE_MIB
    made.use_jinja = True
    if order["template"] is not None:
        made.chat_template = order["template"]
    if order["adapter"] is not None:
        made.lora_adapters = [llama.CommonAdapterLoraInfo(order["adapter"], 1.0)]
    if order["temperature"] is not None:
        made.sampling.temp = order["temperature"]
    if order["longest"] is not None:
        made.n_predict = order["longest"]
    return made


if __name__ == "__main__":
    main()
