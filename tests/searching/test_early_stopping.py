"""The rungs of early stopping."""

import pytest

from lrnas.errors import LrnasError
from lrnas.searching.early_stopping import rung_epochs


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
