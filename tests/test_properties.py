"""Properties that are worked out once."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from antwort.properties import kept_property

worked: list[str] = []


class Named(msgspec.Struct, frozen=True, dict=True):
    name: str

    @kept_property
    def length(self) -> int:
        """Of the name."""
        worked.append(self.name)
        return len(self.name)


def test_it_is_worked_out_once() -> None:
    worked.clear()
    ada = Named("ada")
    assert (ada.length, ada.length, worked) == (3, 3, ["ada"])


def test_a_value_that_is_made_of_another_works_it_out_for_itself() -> None:
    ada = Named("ada")
    assert ada.length == 3
    assert replace(ada, name="charles").length == 7


def test_what_is_kept_makes_no_difference_between_two_values() -> None:
    one, other = Named("ada"), Named("ada")
    assert one.length
    assert (one == other, hash(one) == hash(other), repr(one) == repr(other)) == (True, True, True)


def test_of_the_class_it_is_itself() -> None:
    assert isinstance(Named.length, kept_property)
    assert Named.length.__doc__ == "Of the name."
