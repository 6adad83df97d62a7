"""The clients for Node as far as they can be looked at without installing them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from clients.codex import NODE
from clients.records import CLIENTS
from clients.runners import NODE_RUNNERS, RUNNERS


def read(name: str) -> Any:
    return json.loads((NODE / name).read_text(encoding="utf-8"))


def wanted() -> dict[str, str]:
    package = read("package.json")
    return {**package["dependencies"], **package["optionalDependencies"]}


def test_each_client_has_a_runner_and_each_runner_a_column() -> None:
    assert sorted(RUNNERS) == sorted(CLIENTS)


@pytest.mark.parametrize("name", sorted(wanted()))
def test_what_is_wanted_is_what_is_locked(name: str) -> None:
    assert read("package-lock.json")["packages"][f"node_modules/{name}"]["version"] == wanted()[name]


def test_the_lock_says_what_is_fetched_and_not_from_where() -> None:
    packages = {place: each for place, each in read("package-lock.json")["packages"].items() if place}
    assert all(each["integrity"].startswith("sha512-") for each in packages.values())
    assert not any("resolved" in each for each in packages.values())


@pytest.mark.parametrize("program", NODE_RUNNERS.values())
def test_the_program_of_a_runner_is_there(program: str) -> None:
    assert (NODE / program).is_file()
