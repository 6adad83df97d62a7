"""llama.cpp with a model and a template, run as antwort runs it, for as long as it is asked."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from antwort.local.llama_server import ServerOptions
from antwort.local.process import COMMAND

NAME = "demo"
_CONTEXT = 8192

HERMES = """{%- if tools %}<|im_start|>system
{% if messages[0]['role'] == 'system' %}{{ messages[0]['content'] + '\\n\\n' }}{% endif %}\
You are a function calling assistant. You may call one or more functions to help with the user's question.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}</tools>

For each function call, return a JSON object with the function name and its arguments within <tool_call></tool_call> \
XML tags:
<tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call><|im_end|>
{% endif %}{% for message in messages %}{% if message['role'] == 'tool' %}<|im_start|>user
<tool_response>
{{ message['content'] }}
</tool_response><|im_end|>
{% elif message['role'] == 'assistant' and message['tool_calls'] %}<|im_start|>assistant
{% for call in message['tool_calls'] %}<tool_call>
{"name": "{{ call['function']['name'] }}", "arguments": {{ call['function']['arguments'] | tojson }}}
</tool_call>
{% endfor %}<|im_end|>
{% elif not (tools and loop.first and message['role'] == 'system') %}<|im_start|>{{ message['role'] }}
{{ message['content'] }}<|im_end|>
{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
"""Tools in the usual way of ChatML models; llama.cpp reads the calls back."""


class Engine(NamedTuple):
    """One that answers. `base` ends in `/v1`."""

    base: str
    key: str

    def ask(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """One chat completion; its first choice's message."""
        headers = {"content-type": "application/json", "authorization": f"Bearer {self.key}"}
        request = urllib.request.Request(f"{self.base}/chat/completions", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=600) as reply:
            message: dict[str, Any] = json.load(reply)["choices"][0]["message"]
        return message


@contextmanager
def running(model: Path, template: str, adapter: Path | None = None, threads: int = 1) -> Iterator[Engine]:
    """The engine, from when it is ready. One thread: two wait for each other where the machine has other work."""
    options = _options(model, template, adapter, threads)
    with subprocess.Popen(
        COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            child.stdin.write(json.dumps(options) + "\n")
            child.stdin.flush()
            address = child.stdout.readline().strip()
            if not address:
                raise RuntimeError(f"llama.cpp does not start with {model}")
            yield Engine(f"{address}/v1", options["key"])
        finally:
            child.kill()


def _options(model: Path, template: str, adapter: Path | None, threads: int) -> ServerOptions:
    return {
        "parent": os.getpid(),
        "key": secrets.token_hex(16),
        "model": str(model),
        "name": NAME,
        "template": template,
        "adapter": str(adapter) if adapter else None,
        "context": _CONTEXT,
        "slots": 1,
        "threads": threads,
        "temperature": None,
        "max_tokens": None,
    }
