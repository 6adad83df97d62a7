"""Settings put into a configuration file: what was there stays, to the letter."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from antwort.doctor.editing import CannotEdit, edited

FIELDS = {"tool_calling": "constrained", "capabilities": {"vision": False}}
FRESH = {"name": "gpu1", "url": "http://gpu1:8000/v1", **FIELDS}

COMMENTED = """\
# The servers of the lab.
default_model: qwen3   # the only one

backends:
  # The large one.
  - name: gpu0
    url: http://gpu0:8000/v1
    api_key: {env: GPU0_KEY}   # from the vault

  - name: gpu1   # the small one
    url: http://gpu1:8000/v1
    timeouts:
      idle: 30

# Who may come in.
auth:
  required: never
"""


def test_new_settings_stand_at_the_end_of_the_backends_entry() -> None:
    assert edited(COMMENTED, "gpu1", FIELDS, FRESH) == COMMENTED.replace(
        "      idle: 30\n", "      idle: 30\n    tool_calling: constrained\n    capabilities:\n      vision: false\n"
    )


def test_an_entry_between_others_is_changed_alone() -> None:
    assert edited(COMMENTED, "gpu0", FIELDS, FRESH) == COMMENTED.replace(
        "# from the vault\n",
        "# from the vault\n    tool_calling: constrained\n    capabilities:\n      vision: false\n",
    )


def test_a_backend_that_is_not_there_becomes_the_last_one() -> None:
    new = edited(COMMENTED, "gpu2", FIELDS, {**FRESH, "name": "gpu2"})
    assert new == COMMENTED.replace(
        "      idle: 30\n",
        "      idle: 30\n  - name: gpu2\n    url: http://gpu1:8000/v1\n    tool_calling: constrained\n"
        "    capabilities:\n      vision: false\n",
    )


WHOLE = """\
backends:
  - name: gpu1
    url: http://gpu1:8000/v1
    tool_calling: constrained
    capabilities:
      vision: false
"""


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", WHOLE),
        ("# nothing yet\n", f"# nothing yet\n{WHOLE}"),
        ("memory: true", f"memory: true\n\n{WHOLE}"),
        (
            "memory: true\nbackends: []  # none\n",
            f"memory: true\n{WHOLE.replace('backends:', 'backends:   # none', 1)}",
        ),
        ("backends:\n", WHOLE),
        ("backends:\nmemory: true\n", f"{WHOLE}memory: true\n"),
        ("backends: ~\n", WHOLE.replace("backends:", "backends: ", 1)),
    ],
)
def test_a_file_without_backends_gets_the_list(before: str, after: str) -> None:
    assert edited(before, "gpu1", FIELDS, FRESH) == after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("tool_calling: auto  # for now", "tool_calling: constrained  # for now"),
        ("tool_calling: 'auto'", "tool_calling: constrained"),
        ("tool_calling: constrained", "tool_calling: constrained"),
    ],
)
def test_a_value_is_replaced_where_it_stands(before: str, after: str) -> None:
    text = f"backends:\n- name: gpu1\n  {before}\n  url: http://x/v1\n"
    new = edited(text, "gpu1", {"tool_calling": "constrained"}, FRESH)
    assert new == text.replace(before, after)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("capabilities: {files: true}", "capabilities: {files: true, vision: false}"),
        ("capabilities: {vision: true, files: true}", "capabilities: {vision: false, files: true}"),
        ("capabilities:\n      files: true # yes", "capabilities:\n      files: true # yes\n      vision: false"),
        ("capabilities:\n        vision: on", "capabilities:\n        vision: false"),
        ("capabilities: {}", "capabilities: \n      vision: false"),
        ("capabilities:", "capabilities:\n      vision: false"),
    ],
)
def test_capabilities_are_changed_in_the_way_they_are_written(before: str, after: str) -> None:
    text = f"backends:\n  - name: gpu1\n    {before}\n    url: http://x/v1\n"
    assert edited(text, "gpu1", {"capabilities": {"vision": False}}, FRESH) == text.replace(before, after)


def test_braces_over_several_lines_and_texts_of_several_lines_are_not_broken_up() -> None:
    for last in ("headers: {\n      X: a\n    }\n", "prefix: |\n      a\n      b\n", "models: [\n      a]  # all\n"):
        text = f"backends:\n  - name: gpu1\n    url: http://x/v1\n    {last}"
        assert edited(text, "gpu1", {"tool_calling": "auto"}, FRESH) == f"{text}    tool_calling: auto\n"


def test_the_files_own_line_ends_and_byte_order_mark_are_kept() -> None:
    text = "\ufeffbackends:\r\n  - name: gpu1\r\n    url: http://x/v1"
    new = edited(text, "gpu1", FIELDS, FRESH)
    assert new == f"{text}\r\n    tool_calling: constrained\r\n    capabilities:\r\n      vision: false\r\n"


@pytest.mark.parametrize(
    "text",
    [
        "{backends: [{name: gpu1, url: http://x/v1}]}",
        "backends: [{name: gpu1, url: http://x/v1}]",
        "backends:\n  - {name: gpu1, url: http://x/v1}",
        "backends:\n  - name: gpu1\n    tool_calling: [auto]",
        "backends:\n  - name: gpu1\n    capabilities: text",
        "x: &x\n  name: gpu1\n  capabilities: &c {vision: true}\ny: *x\nbackends:\n  - *x\n",
        "memory: true\n...\n",
        "- a\n- b\n",
    ],
)
def test_what_cannot_be_changed_safely_is_left_alone(text: str) -> None:
    with pytest.raises(CannotEdit):
        edited(text, "gpu1", FIELDS, FRESH)


NAMES = st.sampled_from(["gpu0", "gpu1", "gpu2"])
COMMENTS = st.sampled_from(["", "  # yes", '  # it\'s: "odd" {'])
LINES = st.sampled_from(
    ["", "# alone", "    # indented", "    prefix: 'a # b'", '    headers: {X: "1"}', "    weight: 2"]
)


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(NAMES, COMMENTS, st.lists(LINES, max_size=4, unique=True)), max_size=3, unique_by=lambda e: e[0]
    ),
    NAMES,
)
def test_whatever_stands_around_it_only_the_entry_changes(entries: list[tuple[str, str, list[str]]], name: str) -> None:
    blocks = [
        f"  - name: {each}{comment}\n    url: http://{each}/v1\n" + "".join(f"{line}\n" for line in lines)
        for each, comment, lines in entries
    ]
    text = "backends:\n" + "".join(blocks) + "memory: true # end\n"
    new = edited(text, name, FIELDS, {**FRESH, "name": name})
    kept = [line for line in new.splitlines() if line in text.splitlines()]
    assert kept == text.splitlines()  # every old line is there, in its order
    entry = next(entry for entry in yaml.safe_load(new)["backends"] if entry["name"] == name)
    assert entry["capabilities"] == {"vision": False}
    assert edited(new, name, FIELDS, FRESH) == new
