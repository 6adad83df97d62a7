"""What the proxy takes out of a request, and what it leaves."""

from __future__ import annotations

import json
import urllib.request

from clients.bared import bared, baring
from clients.model import running

THOUGHT = {"type": "reasoning", "id": "rs_1", "encrypted_content": "xyz"}


def test_of_reasoning_only_the_seal_is_left() -> None:
    words = {
        "content": [{"type": "reasoning_text", "text": "Hm."}],
        "summary": [{"type": "summary_text", "text": "Hm."}],
    }
    asked = {"model": "m", "input": [{"role": "user", "content": "Hi"}, {**THOUGHT, **words}]}
    assert json.loads(bared(json.dumps(asked).encode())) == {
        "model": "m",
        "input": [{"role": "user", "content": "Hi"}, {**THOUGHT, "summary": []}],
    }


def test_what_is_no_list_of_items_stays_as_it_is() -> None:
    for body in (b"", b"[1]", b'{"input": "Hi"}'):
        assert bared(body) == body


def test_the_answer_is_passed_on() -> None:
    with running() as model, baring(model.url) as url, urllib.request.urlopen(f"{url}/models") as direct:
        assert [each["id"] for each in json.load(direct)["data"]] == list(model.models)
