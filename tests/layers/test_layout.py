"""The order in which maps and weights are kept in memory."""

import pytest
import torch

from lrnas import Architecture
from lrnas.data.crops import channels_first
from lrnas.layers import layout
from lrnas.models.build import create_model
from lrnas.training.loop import move_model


@pytest.mark.parametrize(("is_x86", "wanted"), [(True, torch.channels_last), (False, torch.contiguous_format)])
def test_networks_and_images_have_the_fastest_layout(
    is_x86: bool, wanted: torch.memory_format, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "IS_X86", is_x86)
    model = create_model(Architecture("nin"), 10)
    move_model(model, torch.device("cpu"))
    weights = [weight for weight in model.parameters() if weight.ndim == 4 and weight.shape[2] > 1]
    images = channels_first(torch.zeros(2, 5, 4, 3))
    assert weights and images.shape == (2, 3, 5, 4)
    assert all(tensor.is_contiguous(memory_format=wanted) for tensor in [*weights, images])


def test_the_layout_by_kind_of_device() -> None:
    assert layout.fastest_layout(torch.device("cuda")) == torch.channels_last
    assert layout.fastest_layout(torch.device("mps")) == torch.contiguous_format
