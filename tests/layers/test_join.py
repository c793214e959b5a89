"""Groups and join as one convolution, against the two of them."""

import pytest
import torch
import torch.nn.functional as F

from lrnas.layers.conv import CompositeConv2d
from lrnas.layers.join import Form, best_form, join, joined_bias


@pytest.mark.parametrize(
    ("filters", "window", "geometry", "taps"),
    [
        ({(3, 1): 4, (1, 3): 5}, 3, {"padding": 1}, (1, 3, 4, 5, 7)),
        ({(3, 1): 4, (1, 3): 5, (3, 3): 2}, 3, {"padding": 1}, tuple(range(9))),
        ({(5, 1): 3, (1, 3): 3}, 5, {"padding": 2, "dilation": 2}, (1, 4, 6, 7, 8, 10, 13)),
        ({(1, 3): 3}, 3, {"padding": 1, "stride": 2}, (0, 1, 2)),
    ],
)
def test_it_computes_the_same(
    filters: dict[tuple[int, int], int], window: int, geometry: dict[str, int], taps: tuple[int, ...]
) -> None:
    torch.manual_seed(0)
    composite = CompositeConv2d(6, filters, window, join=7, **geometry).double()
    x = torch.randn(2, 6, 11, 9).double()
    joined = join(composite)
    assert composite.join is not None
    assert joined.taps == taps
    (above, below), (left, right) = joined.margins
    stride, dilation = composite.stride, composite.dilation
    bias = joined_bias(composite, {"bias": composite.join.bias})
    out = F.conv2d(F.pad(x, (left, right, above, below)), joined.weight, bias, stride, 0, dilation)
    torch.testing.assert_close(out, composite(x))
    looked_at = joined.weight.flatten(2).abs().sum((0, 1)).nonzero().flatten()
    assert tuple(looked_at.tolist()) == taps


def test_a_bias_that_is_scaled_later_is_scaled_as_a_whole() -> None:
    torch.manual_seed(0)
    composite = CompositeConv2d(6, {(3, 1): 4, (1, 3): 5}, 3, padding=1, join=7)
    scale, shift, x = torch.randn(7), torch.randn(7), torch.randn(1, 6, 5, 5)
    assert composite.join is not None and composite.join.bias is not None
    bias = joined_bias(composite, {"scale": scale, "bias": shift + scale * composite.join.bias})
    assert bias is not None
    ours = F.conv2d(x, join(composite).weight, None, padding=1) * scale[:, None, None] + bias[:, None, None]
    theirs = composite(x) * scale[:, None, None] + shift[:, None, None]
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("channels", "outputs", "shares", "pools", "wanted"),
    [  # the layers of two VGG networks; what each takes on an H200 is in results/README.md
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
        assert best_form(composite, 49, pools) is few  # the weights are joined for every batch
    assert best_form(composite, 128 * 28 * 28, pools) is few
