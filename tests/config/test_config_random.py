"""Whatever stands in the file, the environment or the flags: settings, or a sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from antwort.config import CannotStart, read
from antwort.config.loading import variables
from antwort.config.schema import all_leaves

NAMES = sorted(
    {part.removesuffix("[]") for leaf in all_leaves() for part in leaf.path.split(".")} | {"env", "file", "<<"}
)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["a", "auto", "http://a"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
    max_leaves=12,
)
QUICK = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def is_settings_or_a_sentence(flags: dict[str, object], environment: dict[str, str]) -> None:
    """Any other exception fails the test."""
    try:
        outcome = type(read(flags, environment=environment).settings)
    except CannotStart as fault:
        said = str(fault)
    else:
        said = f"{outcome.__name__}."
    assert said.rstrip(")").endswith((".", "?"))


@QUICK
@given(st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=6))
def test_any_tree_in_the_file(tmp_path: Path, tree: dict[str, Any]) -> None:
    (tmp_path / "antwort.yaml").write_text(json.dumps(tree))
    is_settings_or_a_sentence({"config": str(tmp_path / "antwort.yaml")}, {})


@QUICK
@given(st.binary(max_size=200) | st.text(max_size=100).map(lambda text: text.encode(errors="replace")))
def test_any_bytes_in_the_file(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "antwort.yaml").write_bytes(data)
    is_settings_or_a_sentence({"config": str(tmp_path / "antwort.yaml")}, {})


@QUICK
@given(
    st.dictionaries(
        st.sampled_from([name for name in variables() if name != "ANTWORT_CONFIG"]),
        st.text(st.characters(exclude_characters="\0"), max_size=20) | VALUES.map(json.dumps),
        max_size=3,
    ),
    st.lists(st.text(max_size=20) | st.sampled_from(NAMES).map(lambda name: f"{name}=[{{"), max_size=2),
)
def test_any_text_in_the_environment_and_the_flags(environment: dict[str, str], given: list[str]) -> None:
    is_settings_or_a_sentence({"config": "/dev/null", "set": given, "backend": given}, environment)
