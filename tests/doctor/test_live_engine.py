"""A real engine with a real model, if a small one: the shape of the findings, whatever the model says."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from antwort.api.wire import decode
from antwort.doctor.findings import PROBES, Report
from doctor_kit import by_probe, verdicts
from live_server import start
from local_model import keep_in

PATIENCE = 300.0


@pytest.mark.xdist_group("model")
async def test_the_model_that_antwort_runs_by_itself_is_fit_for_it(demo_model: Path, tmp_path: Path) -> None:
    keep_in(tmp_path, demo_model)
    process = await start("doctor", "--json", environment={"ANTWORT_DATA": str(tmp_path), "ANTWORT_LOCAL_THREADS": "1"})
    async with asyncio.timeout(PATIENCE):
        output, errors = await process.communicate()
    assert (process.returncode, errors) == (0, b"")
    [found] = decode(output, Report).backends
    told = verdicts(found)
    assert list(told) == [probe for probe in PROBES if probe != "kind"]
    assert (found.name, found.outcome, found.engine.name) == ("local", "fine", "llama.cpp")
    for probe in (
        "reachable",
        "models",
        "streaming",
        "length_limit",
        "stream_usage",
        "json_schema",
        "token_counts",
        "errors",
    ):
        assert told[probe] == "works", probe
    assert {told[f"tools.{choice}"] for choice in ("auto", "required", "named", "parallel")} == {"fails"}
    assert (told["images"], told["context_length"], told["first_token"]) == ("fails", "works", "works")
    assert found.settings == {}  # antwort knows it already
    assert "`local.context` gives it more" in by_probe(found)["context_length"].remedy
