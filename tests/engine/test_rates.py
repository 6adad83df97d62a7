"""Tokens for each byte of text, by what is reported."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antwort.engine.context import rates
from antwort.engine.context.rates import Rate, Rates, Report
from antwort.engine.context.text_sizes import Size


def after(*reports: Report) -> Rate:
    rate = Rate(0.29)
    for about, report in enumerate(reports):
        rate.note(about, report)
    return rate


@given(st.lists(st.builds(Report, st.floats(1 / 16, 1), st.floats(0, 1), st.sampled_from("abc"))))
def test_a_rate_stays_one_whatever_is_reported(reports: list[Report]) -> None:
    rate = after(*reports)
    assert 1 / 16 <= rate.likely <= rate.highest <= 1
    assert len(rate.reports) <= rates._REPORTS


def test_before_anything_is_known_there_may_be_a_token_in_each_byte() -> None:
    assert after().highest == 1
    assert after(Report(0.2, 0.5)).highest == 1
    assert after(Report(0.2, 1.0)).highest < 0.3


@pytest.mark.parametrize("rate", [0.07, 0.2, 0.5, 1.0])
def test_what_all_say_is_so(rate: float) -> None:
    assert after(*[Report(rate, 1.0)] * 12).likely == rate


def test_who_talks_a_lot_is_heard_no_more_than_others() -> None:
    prose, digits = [Report(0.2, 1.0, "a")] * 10, [Report(1.0, 1.0, "b")] * 200
    assert after(*prose, *digits).likely <= 0.29
    assert after(*digits, *prose).likely <= 0.29


def test_nobody_pushes_out_what_others_have_told() -> None:
    heard = after(*[Report(0.2, 1.0, "a")] * 3, *[Report(1.0, 1.0, "b")] * 200).reports
    assert sum(report.who == "a" for report in heard) == 3


def test_a_later_report_stands_for_an_earlier_one_of_the_same() -> None:
    rate = after(Report(0.2, 1.0), Report(0.3, 1.0))
    rate.note(1, Report(0.4, 1.0), instead=[0])
    assert [report.rate for report in rate.reports] == [0.4]


def test_of_many_that_have_told_one_thing_each_the_first_is_forgotten() -> None:
    heard = after(*(Report(0.2, 1.0, str(who)) for who in range(rates._REPORTS + 2))).reports
    assert [report.who for report in heard] == [str(who) for who in range(2, rates._REPORTS + 2)]


def test_where_much_is_known_few_reports_are_wanted() -> None:
    made = Rates()
    for about in range(rates._ENOUGH):
        assert made.wants_more()
        made.note(Size(2000), 500, about, "a")
    assert sum(made.wants_more() for _ in range(700)) == 100


@given(st.lists(st.tuples(st.integers(1, 5000), st.floats(0, 1), st.floats(0, 4)), max_size=40))
def test_both_kinds_of_text_keep_rates_that_can_be(texts: list[tuple[int, float, float]]) -> None:
    made = Rates()
    for about, (text, share, rate) in enumerate(texts):
        made.note(Size(text, int(text * share)), round(text * rate), about, "a")
    assert all(1 / 16 <= rate.likely <= rate.highest <= 1 for rate in (made.plain, made.wide))
