"""Script that runs a model with llama.cpp's own HTTP server, on a free loopback port.

It imports nothing of antwort. The first line of its standard input is its `ServerOptions`, as JSON. When the model is
loaded, it writes its address, one line, to its standard output. llama.cpp's log goes to the standard error. It exits
when its standard input is closed, so it never outlives antwort.
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
"""Memory for prompts that have been read, so that they are not read again."""
_SPARE_THREADS = 16
"""HTTP threads beside those of inferences: for health checks, and for clients that have disconnected."""
_BATCH_TOKENS = 128
"""Tokens of a prompt that are read at once. llama.cpp checks only between two batches whether the client has
disconnected: on a slow machine, a batch of 2048 (its default) takes a minute, one of 128 two seconds. Prompts are read
a sixth more slowly."""


class ServerOptions(TypedDict):
    """What llama.cpp runs, and how."""

    parent: int
    """The process that it must not outlive."""
    key: str
    """The API key that requests must have."""
    model: str
    name: str
    template: str | None
    """A chat template, in Jinja. None: the model's own."""
    adapter: str | None
    context: int
    """Tokens per request."""
    slots: int
    """Requests at once."""
    threads: int
    temperature: float | None
    """For requests that do not set one. None: llama.cpp's default."""
    max_tokens: int | None
    """Limit of an answer whose request has none. None: the context."""


def main() -> None:
    line = sys.stdin.buffer.readline()
    if not line:
        return
    options: ServerOptions = json.loads(line)
    # While the model is loading, Python code does not run: on Linux, the kernel ends this process with its parent.
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != options["parent"]:  # it ended before that
            os._exit(0)
    output = os.dup(1)
    os.dup2(2, 1)  # only the address goes to the standard output
    try:
        server = importlib.import_module("xllamacpp").Server(parameters(options))
    except RuntimeError:  # the reason is in the log
        sys.exit(1)
    os.write(output, f"{server.listening_address}\n".encode())
    sys.stdin.buffer.read()
    os._exit(0)  # without waiting for inferences


def parameters(options: ServerOptions) -> Any:
    """Convert the options to llama.cpp's parameters."""
    llama = importlib.import_module("xllamacpp")
    made = llama.CommonParams()
    made.model.path = options["model"]
    made.model_alias = {options["name"]}
    made.hostnames, made.port = ["127.0.0.1"], 0
    made.api_keys = [options["key"]]
    made.ui = made.endpoint_slots = False
    made.n_parallel, made.n_ctx = options["slots"], options["slots"] * options["context"]
    made.cpuparams.n_threads = made.cpuparams_batch.n_threads = options["threads"]
    made.n_threads_http = options["slots"] + _SPARE_THREADS
    made.n_batch = made.n_ubatch = _BATCH_TOKENS
    made.cache_ram_mib = _CACHE_MIB
    made.use_jinja = True
    if options["template"] is not None:
        made.chat_template = options["template"]
    if options["adapter"] is not None:
        made.lora_adapters = [llama.CommonAdapterLoraInfo(options["adapter"], 1.0)]
    if options["temperature"] is not None:
        made.sampling.temp = options["temperature"]
    if options["max_tokens"] is not None:
        made.n_predict = options["max_tokens"]
    return made


if __name__ == "__main__":
    main()
