"""The tree of settings: described, bounded, and complete."""

from __future__ import annotations

import pytest
from msgspec.inspect import FloatType, IntType, StructType

from antwort.api.wire import UNSET
from antwort.config import Settings
from antwort.config.flags import BY_PATH, FLAGS
from antwort.config.loading import read
from antwort.config.schema import all_leaves, default_of, description, fields, in_words, leaves, root, without_none
from antwort.config.settings import CapabilitySettings
from antwort.providers.base import Capabilities


@pytest.mark.parametrize("leaf", all_leaves(), ids=lambda leaf: leaf.path)
def test_every_setting_has_a_description_that_is_a_sentence(leaf: object) -> None:
    from antwort.config.schema import Leaf

    assert isinstance(leaf, Leaf)
    text = description(leaf.owner, leaf.field.name)
    assert text.endswith("."), f"{leaf.path}: {text!r}"


def tables(struct: StructType) -> list[StructType]:
    inner = [field.type for field in struct.fields if isinstance(field.type, StructType)]
    return [struct, *(below for each in inner for below in tables(each))]


def test_every_table_of_settings_has_a_description() -> None:
    owners = {leaf.owner for leaf in all_leaves()}
    assert {owner.__name__ for owner in owners if not (owner.__doc__ or "").strip().endswith(".")} == set()
    for table in tables(root()):
        for field in table.fields:
            assert description(table.cls, field.name), field.name


@pytest.mark.parametrize(
    "path", [leaf.path for leaf in all_leaves() if isinstance(without_none(leaf.field.type), IntType | FloatType)]
)
def test_every_number_has_a_least_value(path: str) -> None:
    [leaf] = [leaf for leaf in all_leaves() if leaf.path == path]
    assert any(word in in_words(leaf.field.type) for word in ("from", "at least", "more than"))


def test_every_default_is_a_value_that_could_be_given() -> None:
    """What the settings default to passes the checks that a file's values pass."""
    from antwort.config.shown import plain

    given = {path: plain(default_of(leaf.field)) for path, leaf in leaves().items() if not leaf.is_secret}
    assert read({"config": "/dev/null"}, environment={}, overrides=given).settings == Settings()


# ---- flags ----


def test_every_flag_sets_a_setting_there_is_and_offers_its_choices() -> None:
    for flag in FLAGS:
        if flag.path:
            kind = leaves()[flag.path].kind
            if flag.choices:
                assert sorted(flag.choices) == sorted(getattr(kind, "values", ()))
    assert len(BY_PATH) == len({flag.path for flag in FLAGS if flag.path})
    assert BY_PATH["default_model"] == "--model"


def test_a_default_that_a_flags_help_names_is_the_default() -> None:
    for flag in FLAGS:
        said = flag.help.partition("(default: ")[2].rstrip(")").partition(",")[0]
        if flag.path and said and not said.startswith("the "):
            default = default_of(leaves()[flag.path].field)
            assert said == (f"{default:g}" if isinstance(default, float) else str(default))


# ---- what the rules of the loop and of the protocol call a setting ----

NAMED = {
    "loop.max_turns": 10,  # FR-015
    "loop.deadline": 600.0,  # FR-014
    "loop.mixed_turns": "pause",  # mixed turns
    "limits.input_items": 10_000,  # CP-040
    "limits.part_bytes": 10 * 2**20,  # CP-040
    "limits.tools": 128,  # CP-040
    "server.body_limit": 64 * 2**20,  # TR-005
    "server.drain": 10.0,  # TR-022
    "loop.refused_calls": "mcp_call",  # ruling 1: how refused and unknown calls show
    "default_model": None,  # ruling 4
    "loop.hold_back": 2.0,  # ruling 8
    "loop.keepalive": "comment",  # ruling 10
    "loop.strict": False,  # ruling 12, and the standard's own names
    "loop.requires_action": "status",  # how a response says that the client must act; approvals, too
    "loop.unknown_tools": "drop",  # tools of a type that nobody here runs
    "backends[].capabilities.allowed_tools": UNSET,  # FR-008; unset: as backends of the kind
    "backends[].capabilities.vision": UNSET,  # EN-012
    "backends[].capabilities.reasoning_field": UNSET,  # EN-021
}
CHOICES = {
    "loop.mixed_turns": {"pause", "execute"},
    "loop.refused_calls": {"mcp_call", "function_call"},
    "loop.keepalive": {"comment", "in_progress"},
    "loop.requires_action": {"status", "event", "completed"},
    "loop.unknown_tools": {"drop", "refuse"},
}


@pytest.mark.proves("FR-014", "FR-015", "CP-040")
@pytest.mark.parametrize(("path", "default"), NAMED.items())
def test_what_the_rules_call_a_setting_is_one_with_the_default_they_name(path: str, default: object) -> None:
    [leaf] = [leaf for leaf in all_leaves() if leaf.path == path]
    assert default_of(leaf.field) == default


def test_what_is_not_said_of_a_backend_s_capabilities_is_as_the_rules_name_it() -> None:
    usual = CapabilitySettings().over(Capabilities())
    assert (usual.allowed_tools, usual.vision, usual.reasoning_field) == (False, True, "reasoning_content")


@pytest.mark.parametrize(("path", "choices"), CHOICES.items())
def test_what_the_rules_let_an_operator_choose_can_be_chosen(path: str, choices: set[str]) -> None:
    for choice in choices:
        settings: object = read({"config": "/dev/null"}, environment={}, overrides={path: choice}).settings
        for part in path.split("."):
            settings = getattr(settings, part)
        assert settings == choice


def test_the_engine_is_told_every_setting_of_the_loop() -> None:
    settings = read(
        {"config": "/dev/null"}, environment={}, overrides={"loop.max_turns": 3, "limits.tools": 2}
    ).settings
    engine = settings.engine()
    assert (engine.max_turns, engine.limits.tools) == (3, 2)
    loop = fields(root())["loop"].type
    assert isinstance(loop, StructType)
    assert {field.name for field in loop.fields} <= set(engine.__struct_fields__)
