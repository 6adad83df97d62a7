"""`antwort openapi`."""

from __future__ import annotations

import json

import pytest

from antwort.cli import main
from antwort.config.settings import ServerSettings
from antwort.server.openapi import document


def test_the_document_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["openapi"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert {**printed, "servers": []} == {**json.loads(json.dumps(document())), "servers": []}
    assert [server["url"] for server in printed["servers"]] == [f"http://127.0.0.1:{ServerSettings().port}"]
