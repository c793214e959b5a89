"""Pictures of filters: effective filters are what the network computes, in the documented order and colours."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from small_studies import make_search
from torch import Tensor, nn

from lrnas.arch.architecture import Allocation, Architecture
from lrnas.cli.main import main
from lrnas.models.build import create_model
from lrnas.reporting.figures.filters import FilterError, FilterSet, mixed_layers, read_filters, to_pictures
from lrnas.training.checkpoint import architecture_entry, save_checkpoint

HALVES = {"vertical": 0.5, "horizontal": 0.5}
NARROW = {name: Allocation(width=0.05) for name in ("cccp1", "cccp2", "cccp3", "cccp4", "cccp5")}
OWN = Architecture(
    "nin",
    {
        "conv1": Allocation.composite(**HALVES, width=0.05, join=0.05),
        "conv2": Allocation("separable", width=0.05),
        "conv3": Allocation.composite(**HALVES, width=0.05),
        **NARROW,
    },
    batch_norm=True,
)
"""A network with a joined layer, a separable layer, and a layer followed by a 1×1 layer."""
SIZE = 32


def trained(architecture: Architecture = OWN, in_chans: int = 3) -> nn.Module:
    """A network in which all norms and biases differ from their initial values."""
    torch.manual_seed(0)
    model = create_model(architecture, 10, in_chans).eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean)  # type: ignore[arg-type]
            nn.init.uniform_(module.running_var, 0.5, 2)  # type: ignore[arg-type]
            nn.init.uniform_(module.weight, 0.5, 2)
        if isinstance(module, nn.Conv2d) and module.bias is not None:
            nn.init.normal_(module.bias)
    return model


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    model = trained()
    tensors = {f"model.{key}": value for key, value in model.state_dict().items()}
    save_checkpoint(tmp_path / "run", 3, tensors, architecture_entry(model))
    return tmp_path / "run"


def images(channels: int = 3) -> Tensor:
    return torch.randn(1, channels, SIZE, SIZE, generator=torch.Generator().manual_seed(1))


def run_layer(model: nn.Module, path: str) -> tuple[Tensor, Tensor]:
    """Input and output of a layer."""
    seen: list[tuple[Tensor, Tensor]] = []
    handle = model.get_submodule(path).register_forward_hook(
        lambda module, inputs, output: seen.append((inputs[0].clone(), output.clone()))
    )
    with torch.no_grad():
        model(images())
    handle.remove()
    return seen[0]


@pytest.mark.parametrize("name", ["conv1", "conv2"])
def test_effective_filters_are_what_the_layer_computes(name: str) -> None:
    """Except for bias and border, a convolution with the effective filters equals the layer."""
    model = trained()
    found = read_filters(model, name, images())
    kernels = found.sets[-1].kernels
    assert not found.sets[-1].learned and all(each.learned for each in found.sets[:-1])
    x, wanted = run_layer(model, found.path)
    difference = wanted - F.conv2d(x, kernels, padding=kernels.shape[2] // 2)
    inside = difference[:, :, 2:-2, 2:-2]
    torch.testing.assert_close(inside, inside.mean((2, 3), keepdim=True).expand_as(inside), atol=1e-4, rtol=0)
    assert wanted.std() > 0.1


def test_3x1_and_1x3_filters_make_crosses() -> None:
    allocation = Allocation.composite(**HALVES, width=0.05, join=0.05)
    model = trained(Architecture("nin_3x3", {"conv1": allocation, **NARROW}))
    found = read_filters(model, None, images())
    assert [(each.label, tuple(each.kernels.shape)) for each in found.sets] == [
        ("3×1", (5, 3, 3, 1)),
        ("1×3", (5, 3, 1, 3)),
        ("effective 3×3", (10, 3, 3, 3)),
    ]
    corners = found.sets[-1].kernels[:, :, ::2, ::2]
    assert not corners.any() and found.sets[-1].kernels.any()


def test_a_cross_computed_by_hand() -> None:
    allocation = Allocation.composite(**HALVES, width=1 / 96, join=1 / 192)
    model = trained(Architecture("nin_3x3", {"conv1": allocation, **NARROW}), in_chans=1)
    layer = model.get_submodule("conv1.conv")
    with torch.no_grad():
        layer.conv3x1.weight.copy_(torch.tensor([1.0, 2, 3]).view(1, 1, 3, 1))  # type: ignore[union-attr]
        layer.conv1x3.weight.copy_(torch.tensor([4.0, 5, 6]).view(1, 1, 1, 3))  # type: ignore[union-attr]
        layer.join.weight.copy_(torch.tensor([10.0, -1]).view(1, 2, 1, 1))  # type: ignore[union-attr]
    effective = read_filters(model, "conv1", images(1)).sets[-1]
    assert effective.kernels.tolist() == [[[[0, 10, 0], [-4, 15, -6], [0, 30, 0]]]]
    pictures = to_pictures(effective, 8)
    assert pictures.values.tolist() == [(np.array([[0, 10, 0], [-4, 15, -6], [0, 30, 0]]) / 30).tolist()]


def test_without_a_join_the_next_1x1_layer_combines_the_filters() -> None:
    """Without the ReLU before it, the output of the 1×1 layer is a convolution with the effective filters."""
    model = trained()
    found = read_filters(model, "conv3", images())
    assert found.sets[-1].remark == "as the 1×1 layer cccp5 combines them, without the ReLU in between"
    kernels = found.sets[-1].kernels
    x, _ = run_layer(model, found.path)
    with torch.no_grad():
        block = model.get_submodule("conv3")
        put_out = block.norm(block.conv(x))  # type: ignore[operator]
        put_out = put_out - block.norm(block.conv(torch.zeros_like(x)))  # type: ignore[operator]
        conv = model.get_submodule("cccp5.conv")
        wanted = F.conv2d(put_out, conv.weight)  # type: ignore[arg-type]
    torch.testing.assert_close(F.conv2d(x, kernels.float(), padding=1), wanted, atol=1e-4, rtol=1e-3)


def test_a_next_layer_that_is_not_1x1_combines_nothing() -> None:
    half = Allocation.composite(**HALVES, width=0.05)
    model = trained(Architecture("vgg11", {"*": half}, pool="max", classifier="linear"))
    found = read_filters(model, None, images())
    assert [each.label for each in found.sets] == ["3×1", "1×3"]
    assert found.remark == "no join or 1×1 layer combines them"


def test_the_strongest_filters_come_first_and_each_is_scaled_by_itself() -> None:
    kernels = torch.tensor([[1.0, 0.5], [0, 0], [-8, 4]]).view(3, 1, 1, 2)
    pictures = to_pictures(FilterSet("1×2", kernels), 2)
    assert pictures.values.tolist() == [[[-1, 0.5]], [[1, 0.5]]]
    assert (pictures.total, pictures.energy) == (3, 1)
    assert to_pictures(FilterSet("1×2", kernels), 8).values[2].tolist() == [[0, 0]]


@pytest.mark.parametrize(
    ("show", "wanted"), [("principal", [[1, -0.5]]), ("mean", [[1, -0.5]]), ("1", [[-1, 0.5]]), ("0", [[1, -0.5]])]
)
def test_ways_to_show_channels(show: str, wanted: list[list[float]]) -> None:
    kernels = torch.tensor([[4.0, -2], [-2, 1]]).view(1, 2, 1, 2)
    pictures = to_pictures(FilterSet("1×2", kernels), 1, show)
    np.testing.assert_allclose(pictures.values[0], wanted, atol=1e-12)


def test_three_channels_are_colours() -> None:
    red = torch.zeros(1, 3, 3, 1)
    red[0, 0, 1] = 2
    pictures = to_pictures(FilterSet("3×1", red), 1)
    assert pictures.is_coloured and pictures.values[0, :, 0].tolist() == [[0, 0, 0], [1, 0, 0], [0, 0, 0]]


@pytest.mark.parametrize(
    ("show", "message"), [("colour", "needs 3 channels"), ("2", "0 to 1; got '2'"), ("x", "got 'x'")]
)
def test_channels_that_cannot_be_shown(show: str, message: str) -> None:
    with pytest.raises(FilterError, match=message):
        to_pictures(FilterSet("1×2", torch.ones(1, 2, 1, 2)), 1, show)


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_the_command_draws_a_checkpoint(
    suffix: str, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "new" / f"filters.{suffix}"
    assert main(["filters", str(checkpoint), "--layer", "conv1", "--out", str(file), "--json"]) == 0
    captured = capsys.readouterr()
    data = json.loads(captured.out)
    assert captured.err == "" and data["trained"] and data["layers"] == ["conv1", "conv2", "conv3"]
    assert [(each["label"], each["drawn"], each["shown_as"]) for each in data["sets"]] == [
        ("5×1", 5, "colour"),
        ("1×5", 5, "colour"),
        ("effective 5×5", 10, "colour"),
    ]
    start = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[suffix]
    assert file.read_bytes().startswith(start) and file.stat().st_size > 5_000
    if suffix == "png":
        assert len(np.unique(np.asarray(Image.open(file).convert("RGB")).reshape(-1, 3), axis=0)) > 100


def test_dollar_signs_in_names_are_plain_text(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    named = checkpoint.rename(tmp_path / "net $a_$ b <script>")
    file = tmp_path / "filters.svg"
    assert main(["filters", str(named), "--out", str(file)]) == 0
    assert ">net $a_$ b &lt;script&gt;, conv1</text>" in file.read_text(encoding="utf-8")
    assert str(named) in capsys.readouterr().out


def test_deeper_and_separable_layers(checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "filters.png"
    assert main(["filters", str(checkpoint), "--layer", "conv2.conv", "--out", str(file), "--show", "mean"]) == 0
    printed = capsys.readouterr().out
    assert "effective 5×5" in printed and "5×1, second" in printed and "principal" in printed
    assert "Layers:   conv1, conv2, conv3" in printed and file.stat().st_size > 5_000


def test_the_title_says_that_weights_are_not_trained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "filters.svg"
    assert main(["filters", "nin-c3-lr", "--out", str(file), "--json"]) == 0
    captured = capsys.readouterr()
    assert not json.loads(captured.out)["trained"]
    assert captured.err == "nin-c3-lr has random weights, not trained\n"


def test_mistakes(checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_search(tmp_path / "s")
    for arguments, message in (
        (["nin"], "got one whose layers are all dense; try vgg-gmp-lr-join\n"),
        (["s:1", "--fresh", "--studies", str(tmp_path)], "got one whose layers are all dense; try s:2\n"),
        ([str(checkpoint), "--layer", "conv9"], "got 'conv9'; known: conv1, conv2, conv3"),
        ([str(checkpoint), "--out", "filters.bmp"], "png, svg, pdf; got 'filters.bmp'"),
        ([str(checkpoint), "--number", "0"], "at least 1; got 0"),
        ([str(tmp_path / "none.json")], "does not exist"),
        ([str(checkpoint), "--out", str(checkpoint / "checkpoint.json" / "a.png")], "cannot write"),
    ):
        assert main(["filters", *arguments]) == 2
        captured = capsys.readouterr()
        assert captured.out == "" and message in captured.err and len(captured.err.splitlines()) <= 2


def test_layers_have_the_names_that_lrnas_count_prints() -> None:
    assert mixed_layers(trained()) == {"conv1": "conv1.conv", "conv2": "conv2.conv", "conv3": "conv3.conv"}
