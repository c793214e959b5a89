"""Early stopping: which trials continue at a rung."""

import pytest

from lrnas.errors import LrnasError
from lrnas.searching.early_stopping import is_competitive, rung_epochs


@pytest.mark.parametrize(
    ("first", "epochs", "wanted"),
    [
        (None, 10, (1, 3, 9)),
        (None, 30, (3, 9, 27)),
        (1, 10, (1, 3, 9)),
        (1, 9, (1, 3)),
        (2, 20, (2, 6, 18)),
        (4, 4, ()),
        (1, 1, ()),
    ],
)
def test_rungs(first: int | None, epochs: int, wanted: tuple[int, ...]) -> None:
    assert rung_epochs(first, epochs) == wanted


def test_impossible_rungs() -> None:
    for first in (0, 11):
        with pytest.raises(LrnasError, match=f"between 1 and the number of epochs, 10; got {first}"):
            rung_epochs(first, 10)


def test_a_cheap_network_is_not_stopped_by_expensive_ones() -> None:
    expensive = [(0.9, [100]), (0.91, [110]), (0.92, [120]), (0.93, [130]), (0.94, [140])]
    assert is_competitive(0.5, [50], expensive)
    assert not is_competitive(0.5, [150], expensive)


def test_rivals_cost_no_more_in_any_way() -> None:
    others = [(0.9, [100, 1.0]), (0.9, [90, 2.0]), (0.9, [90, 1.0]), (0.9, [80, 0.5])]
    assert not is_competitive(0.5, [100, 2.0], others)
    assert is_competitive(0.5, [80, 2.0], others)  # one rival
    assert is_competitive(0.5, [100, 0.4], others)  # none


def test_the_best_third_continues() -> None:
    others = [(accuracy / 10, [10]) for accuracy in range(1, 9)]  # 0.1 … 0.8
    assert [is_competitive(a, [10], others) for a in (0.85, 0.75, 0.65, 0.55)] == [True, True, True, False]


def test_all_continue_while_there_are_few() -> None:
    assert is_competitive(0.1, [10], []) and is_competitive(0.1, [10], [(0.9, [10])])
    assert not is_competitive(0.1, [10], [(0.9, [10]), (0.8, [10])])
