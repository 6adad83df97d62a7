"""Every requirement has a test, every mark has a requirement, and the manifest says which is which."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from conformance.manifest import Proofs, faults, read_manifest, read_marks, written
from conformance.marks import marks_of

ROOT = Path(__file__).resolve().parents[2]
MANIFEST = ROOT / "tests" / "conformance" / "requirements.toml"


def test_the_manifest_and_the_marks_agree_and_every_id_is_proven(request: pytest.FixtureRequest) -> None:
    found = faults(read_manifest(MANIFEST), proofs_in(request.session))
    assert not found, "\n".join(found)


def proofs_in(session: pytest.Session) -> Proofs:
    """All marks. A run of all tests has collected them already; one of a few has not."""
    option = session.config.option
    is_chosen = option.keyword or option.markexpr or option.ignore or option.deselect
    is_whole = [Path(each).resolve() for each in session.config.args] == [ROOT / "tests"]
    return marks_of(session.items) if is_whole and not is_chosen else read_marks(ROOT)


def test_every_entry_says_what_it_asks_for() -> None:
    for key, entry in read_manifest(MANIFEST).items():
        assert entry["says"], key
        assert entry.get("later", "put off"), key
        assert entry.keys() <= {"says", "tests", "later"}, key


# ---- what would be a fault ----

SOUND = {"A-1": {"says": "a", "tests": ["t::a"]}, "B-1": {"says": "b", "tests": [], "later": "not yet"}}


@pytest.mark.parametrize(
    ("manifest", "proofs", "fault"),
    [
        (SOUND, {}, "A-1 has no test"),
        (SOUND, {"A-1": ["t::a"], "B-1": ["t::b"]}, "B-1 has a test and is put off for later"),
        (SOUND, {"A-1": ["t::a"], "C-1": ["t::c"]}, "C-1 is not in the manifest, but t::c proves it"),
        (SOUND, {"A-1": ["t::a", "t::b"]}, "A-1 lists other tests than those that carry its mark: run `make manifest`"),
        (
            {"A-1": {"says": "a"}},
            {"A-1": ["t::a"]},
            "A-1 lists other tests than those that carry its mark: run `make manifest`",
        ),
    ],
)
def test_a_disagreement_is_a_fault(
    manifest: dict[str, dict[str, object]], proofs: dict[str, list[str]], fault: str
) -> None:
    assert fault in faults(manifest, proofs)


def test_agreement_is_no_fault() -> None:
    assert faults(SOUND, {"A-1": ["t::a"]}) == []


# ---- reading marks ----

SOURCE = """
import pytest

pytestmark = [pytest.mark.proves("M-1")]


@pytest.mark.proves("A-1", "A-2")
@pytest.mark.parametrize("n", [1, pytest.param(2, marks=pytest.mark.proves("P-1"))])
def test_one(n): ...


class Contract:
    def test_two(self): ...


@pytest.mark.proves("C-1")
class TestThings(Contract):
    pytestmark = pytest.mark.proves("C-2")

    @pytest.mark.proves("A-1")
    def test_three(self): ...
"""


def test_marks_are_read_off_functions_cases_classes_and_modules(tmp_path: Path) -> None:
    project(tmp_path, "test_x", SOURCE)
    one, two, three = (
        f"tests/room/test_x.py::{name}" for name in ("test_one", "TestThings::test_two", "TestThings::test_three")
    )
    assert read_marks(tmp_path) == {
        "M-1": sorted([one, two, three]),
        "A-1": sorted([one, three]),
        "A-2": [one],
        "P-1": [one],
        "C-1": sorted([two, three]),
        "C-2": sorted([two, three]),
    }


def test_tests_that_cannot_be_collected_are_told(tmp_path: Path) -> None:
    project(tmp_path, "test_x", "import nothing_of_that_name\n")
    with pytest.raises(RuntimeError, match="nothing_of_that_name"):
        read_marks(tmp_path)


def project(root: Path, name: str, source: str) -> None:
    """A project with one module of tests."""
    (root / "tests" / "room").mkdir(parents=True)
    (root / "tests" / "room" / f"{name}.py").write_text(source)
    (root / "pytest.ini").write_text("[pytest]\nmarkers = proves(*ids)\n")


# ---- writing the file ----

TEXT = """# A comment stays.

[A-1]
says = "one [with brackets]"
tests = []

[A-2]
says = "two"
tests = [
    "old::test",
]

# Another stays too.
[A-3]
says = "three"
tests = ["old::test"]
later = "not yet"
"""


def test_only_the_lists_of_tests_are_written_anew() -> None:
    new = written(TEXT, {"A-1": ["a::x", "a::y"], "A-2": ["b::x"]})
    assert new.splitlines()[:8] == [
        "# A comment stays.",
        "",
        "[A-1]",
        'says = "one [with brackets]"',
        "tests = [",
        '    "a::x",',
        '    "a::y",',
        "]",
    ]
    assert "# Another stays too.\n[A-3]\n" in new
    assert tomllib.loads(new) == {
        "A-1": {"says": "one [with brackets]", "tests": ["a::x", "a::y"]},
        "A-2": {"says": "two", "tests": ["b::x"]},
        "A-3": {"says": "three", "tests": [], "later": "not yet"},
    }


def test_writing_twice_changes_nothing() -> None:
    proofs = {"A-1": ["a::x"], "A-3": ["c::x", "c::y"]}
    assert written(written(TEXT, proofs), proofs) == written(TEXT, proofs)
