"""`antwort openapi`."""

from __future__ import annotations

import json

import pytest

from antwort.cli import main
from antwort.transport.openapi.document import document


def test_the_document_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["openapi"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(document()))
