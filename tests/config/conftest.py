"""An operator with a folder of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from config_kit import Operator


@pytest.fixture
def operator(tmp_path: Path) -> Operator:
    return Operator(tmp_path)
