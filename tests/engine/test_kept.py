"""What is kept in memory for keys, and which of it goes first."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from antwort.engine.kept import Kept, Name


def name(owner: str, number: int) -> Name:
    return ("acme", owner, f"key-{number}")


def shrink(held: Kept) -> list[Name]:
    gone = []
    while (surplus := held.surplus()) is not None:
        held.remove(surplus)
        gone.append(surplus)
    return gone


def test_whoever_has_most_gives_up_the_oldest() -> None:
    held = Kept(max_count=4)
    held.add(name("ann", 0), 1)
    for number in range(20):
        held.add(name("bob", number), 1)
        shrink(held)
    assert name("ann", 0) in held
    assert [number for number in range(20) if name("bob", number) in held] == [17, 18, 19]


def test_the_same_goes_for_how_large_they_are() -> None:
    held = Kept(max_bytes=100)
    for number in range(3):
        held.add(name("ann", number), 10)
    held.add(name("bob", 0), 60)
    held.add(name("bob", 1), 20)
    assert shrink(held) == [name("bob", 0)]
    assert (len(held), held.size) == (4, 50)


def test_one_alone_may_have_it_all() -> None:
    held = Kept(max_count=3)
    for number in range(4):
        held.add(name("ann", number), 1)
    assert shrink(held) == [name("ann", 0)]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 5), st.integers(0, 50)), max_size=40))
def test_it_counts_right_whatever_comes_and_goes(steps: list[tuple[str, int, int]]) -> None:
    held, there = Kept(), dict[Name, int]()
    for owner, number, size in steps:
        if name(owner, number) in there:
            held.remove(name(owner, number))
            del there[name(owner, number)]
        else:
            held.add(name(owner, number), size)
            there[name(owner, number)] = size
        held.remove(("acme", "nobody", "key"))
        assert (len(held), held.size) == (len(there), sum(there.values()))
        assert all(each in held for each in there)
