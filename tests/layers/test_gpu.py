"""The form in which a GPU computes a composite layer with a join."""

import pytest
import torch

from lrnas.layers.conv import CompositeConv2d
from lrnas.layers.gpu import Form, best_form


@pytest.mark.parametrize(
    ("channels", "outputs", "shares", "pools", "wanted"),
    [  # layers of two VGG networks; results/README.md has their times on an H200
        (3, 64, (1, 1, 0), True, Form.JOINED),
        (64, 128, (1, 1, 0), True, Form.JOINED),
        (128, 256, (1, 1, 0), False, Form.JOINED),
        (512, 512, (1, 1, 0), True, Form.APART),
        (64, 128, (3, 3, 2), True, Form.JOINED),
        (128, 256, (3, 3, 2), False, Form.LIBRARY),
        (256, 512, (3, 3, 2), False, Form.LIBRARY),
        (512, 512, (3, 3, 2), True, Form.APART),
        (1024, 1024, (3, 3, 2), False, Form.APART),
    ],
)
def test_the_faster_form(channels: int, outputs: int, shares: tuple[int, ...], pools: bool, wanted: Form) -> None:
    filters = {
        shape: outputs * share // sum(shares) for shape, share in zip(((3, 1), (1, 3), (3, 3)), shares, strict=True)
    }
    composite = CompositeConv2d(channels, filters, 3, padding=1, join=outputs, device="meta")
    few = Form.JOINED if channels == 3 else Form.APART
    with torch.no_grad():
        assert best_form(composite, 128 * 28 * 28, pools) is wanted
        assert best_form(composite, 49, pools) is few  # joining the weights takes time in every batch
    assert best_form(composite, 128 * 28 * 28, pools) is few
