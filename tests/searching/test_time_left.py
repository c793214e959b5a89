"""How long is left: by what networks cost, not by how many there are."""

import pytest

from lrnas.searching.time_left import ENOUGH, Work, seconds_left


def took(work: Work) -> float:
    """Of a machine that needs a second for any epoch and one more for a million multiply-accumulates."""
    return work.epochs * (1 + work.macs / 1e6)


DEAR = [Work(55_000_000, 3), Work(40_000_000, 3), Work(30_000_000, 3)]
CHEAP = [Work(2_000_000, 3), Work(7_000_000, 1), Work(14_000_000, 2.5)]


def test_dear_networks_first_do_not_make_cheap_ones_long() -> None:
    left = seconds_left([(work, took(work)) for work in DEAR], CHEAP, pace=1.0)
    assert left == pytest.approx(sum(map(took, CHEAP)))
    assert left < sum(map(took, DEAR)) / 3  # by their pace it would be three times that
    assert seconds_left([(work, took(work)) for work in DEAR], CHEAP, pace=4.0) == pytest.approx(left / 4)


def test_an_epoch_takes_no_less_than_nothing() -> None:
    falling = [(Work(1_000_000, 1), 3.0), (Work(2_000_000, 1), 2.0), (Work(3_000_000, 1), 1.0)]
    assert seconds_left(falling, [Work(9_000_000, 2)], 1.0) == pytest.approx(4.0)
    steep = [(Work(1_000_000, 1), 0.1), (Work(2_000_000, 1), 2.0), (Work(3_000_000, 1), 6.0)]
    found = seconds_left(steep, [Work(0, 1)], 1.0)
    assert found == pytest.approx(0.0)
    same = [(Work(5, 1), 2.0)] * ENOUGH
    assert seconds_left(same, [Work(5, 3)], 1.0) == pytest.approx(6.0)


def test_nothing_is_said_before_some_have_ended() -> None:
    few = [(work, took(work)) for work in DEAR[: ENOUGH - 1]]
    assert seconds_left(few, CHEAP, 1.0) is None
    assert seconds_left([*few, (Work(5, 0), 0.0)], CHEAP, 1.0) is None  # a network that was never trained
    assert seconds_left([(work, took(work)) for work in DEAR], CHEAP, 0.0) is None
