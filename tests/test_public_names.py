"""What `from antwort import …` gives, and what it does not load."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

import antwort


@pytest.mark.parametrize("name", [name for name in antwort.__all__ if name != "__version__"])
def test_every_public_name_is_the_one_of_its_home(name: str) -> None:
    assert getattr(antwort, name) is getattr(import_module(antwort._HOMES[name]), name)


def test_the_names_that_are_told_are_those_that_are_there() -> None:
    assert sorted(antwort._HOMES) == sorted(name for name in antwort.__all__ if name != "__version__")
    assert dir(antwort) == sorted(antwort.__all__)
    with pytest.raises(AttributeError, match="'antwort' has no attribute 'nonsense'"):
        _ = antwort.nonsense


def test_importing_the_package_loads_none_of_its_parts() -> None:
    program = "import sys, antwort; print(sorted(name for name in sys.modules if name.startswith('antwort.')))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "['antwort.version']\n"


def test_an_engine_is_to_be_had_without_the_server_and_the_database() -> None:
    program = "import sys; from antwort import Engine, Toolset, ChatProvider; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    assert not {"uvicorn", "sqlalchemy", "alembic", "yaml", "prometheus_client", "platformdirs"} & set(loaded)
