"""What the wire between a client and the server keeps, and that it changes nothing."""

from __future__ import annotations

import http.client
import json
from urllib.parse import urlsplit

from clients.model import running
from clients.watched import watching

UPGRADE = {"upgrade": "WebSocket", "connection": "Upgrade", "sec-websocket-key": "x", "sec-websocket-version": "13"}


def test_each_request_is_kept_and_answered() -> None:
    with running() as model, watching(model.url) as wire:
        connection = http.client.HTTPConnection(urlsplit(wire.url).netloc)
        body = json.dumps({"model": "scripted", "messages": [{"role": "user", "content": "case:plain Hi"}]})
        for _ in range(2):
            connection.request("POST", "/v1/chat/completions", body)
            assert b"You said: Hi" in connection.getresponse().read()
        connection.request("GET", "/v1/models", headers=UPGRADE)
        assert connection.getresponse().read()
        connection.close()
        assert wire.asked == [*["POST /v1/chat/completions"] * 2, "UPGRADE /v1/models"]
        assert wire.count("GET /v1/models") == 0
