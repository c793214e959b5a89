"""Mixed-shape layers that start near the convolutions they replace."""

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from timm.layers import Conv2dSame
from torch import Tensor, nn

from lrnas import Allocation, convert
from lrnas.arch.architecture import FilterGroup
from lrnas.errors import ConversionError
from lrnas.layers.conv import CompositeConv2d
from lrnas.layers.fold import dense_form
from lrnas.models import pretrained
from lrnas.models.convert import mix_at, replace_conv

GROUPS = Allocation.composite(vertical=0.5, horizontal=0.5)
MIXED = Allocation.composite(vertical=0.25, horizontal=0.25, square=0.5)
JOIN = Allocation.composite(vertical=0.5, horizontal=0.5, join=1)
NARROW = Allocation.composite(vertical=0.5, horizontal=0.5, width=0.5, join=1)
WIDE = Allocation.composite(vertical=0.5, horizontal=0.5, width=4, join=1)
SEPARABLE = Allocation("separable")
LARGE = Allocation("composite", (FilterGroup("5x1", 0.5), FilterGroup("1x5", 0.5)))
FORMS = {"groups": GROUPS, "mixed": MIXED, "wide join": WIDE, "separable": SEPARABLE}
GEOMETRIES: dict[str, tuple[type[nn.Conv2d], dict[str, Any]]] = {
    "padded": (nn.Conv2d, {"padding": 1, "bias": False}),
    "bias and stride": (nn.Conv2d, {"padding": (0, 1), "stride": (1, 2)}),
    "dilated": (nn.Conv2d, {"padding": "same", "dilation": 2}),
    "reflected": (nn.Conv2d, {"padding": 1, "padding_mode": "reflect"}),
    "tf_same": (Conv2dSame, {"stride": 2}),
}


def smooth_images(number: int, channels: int = 4, size: int = 12, seed: int = 0) -> Tensor:
    """Images in which neighbours are alike, with a mean that is not 0."""
    noise = torch.randn(number, channels, size + 4, size + 4, generator=torch.Generator().manual_seed(seed))
    return F.avg_pool2d(noise, 5, stride=1) * 5 + 1


def error_of(new: nn.Module, old: nn.Module, x: Tensor) -> float:
    """The mean squared difference of two outputs, as a share of the variance of the second."""
    with torch.no_grad():
        wanted = old(x)
        return float((new(x) - wanted).square().mean() / wanted.var())


def conv_of_form(kind: type[nn.Conv2d], geometry: dict[str, Any], allocation: Allocation, kernel: int = 3) -> nn.Conv2d:
    """A convolution that is exactly a mixed-shape layer with random weights."""
    conv = kind(4, 8, kernel, **geometry)
    layer = replace_conv(conv, "", mix_at("", conv, allocation))
    for name, values in layer.named_parameters():
        nn.init.normal_(values, std=0.0 if name == "conv1x3.bias" and allocation.form == "separable" else 1.0)
    found = dense_form(layer)
    assert found is not None
    conv.weight.data.copy_(found.weight.data)
    if conv.bias is not None:
        assert found.bias is not None
        conv.bias.data.copy_(found.bias.data)
    return conv


@pytest.mark.parametrize("images", [0, 64])
@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize("form", FORMS)
def test_a_layer_that_can_be_the_old_one_is(form: str, geometry: str, images: int) -> None:
    torch.manual_seed(0)
    old = conv_of_form(*GEOMETRIES[geometry], FORMS[form])
    calibration = [smooth_images(images)] if images else []
    report = convert(copy.deepcopy(old), FORMS[form], init="pretrained", calibration=calibration)
    assert error_of(report.model, old, torch.randn(4, 4, 11, 11)) < 1e-8
    assert report.errors[""] == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("form", ["groups", "mixed", "wide join"])
@pytest.mark.parametrize("kernel", [4, 5, 7, 11])
def test_a_layer_with_large_filters_that_can_be_the_old_one_is(form: str, kernel: int) -> None:
    torch.manual_seed(0)
    old = conv_of_form(nn.Conv2d, {"padding": kernel // 2}, FORMS[form], kernel)
    new = convert(copy.deepcopy(old), FORMS[form], init="pretrained").model
    assert error_of(new, old, torch.randn(4, 4, 15, 15)) < 1e-8


def test_filters_and_join_are_found_together(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    old = conv_of_form(nn.Conv2d, {"padding": 1}, NARROW)
    few, groups = (convert(copy.deepcopy(old), form, init="pretrained").errors[""] for form in (NARROW, GROUPS))
    assert 2 * few < groups
    monkeypatch.setattr(pretrained, "SWEEPS", 300)
    monkeypatch.setattr(pretrained, "TOLERANCE", 0.0)
    new = convert(copy.deepcopy(old), NARROW, init="pretrained").model
    assert error_of(new, old, torch.randn(4, 4, 11, 11)) < 1e-8


@pytest.mark.parametrize(
    ("allocation", "geometry"),
    [(form, geometry) for form in (GROUPS, MIXED) for geometry in GEOMETRIES]
    + [(LARGE, geometry) for geometry in ("padded", "bias and stride", "dilated")],  # larger filters need zeros around
)
def test_no_other_filters_are_better(allocation: Allocation, geometry: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, settings = GEOMETRIES[geometry]
    monkeypatch.setattr(pretrained, "NOISE", 1e-9)
    torch.manual_seed(0)
    old, x = kind(4, 8, 3, **settings).double(), smooth_images(64).double()
    new = convert(copy.deepcopy(old), allocation, init="pretrained", calibration=[x[:32], x[32:]]).model
    loss = (new(x) - old(x)).square().mean()
    gradients = torch.autograd.grad(loss, list(new.parameters()))
    assert loss > 1e-3
    assert max(float(gradient.abs().max()) for gradient in gradients) < 1e-5


@pytest.mark.parametrize("allocation", [JOIN, NARROW, SEPARABLE])
def test_no_other_second_convolution_is_better(allocation: Allocation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pretrained, "NOISE", 1e-9)
    monkeypatch.setattr(pretrained, "SWEEPS", 100)  # with one sweep, the gradients are ten times as large as allowed
    monkeypatch.setattr(pretrained, "TOLERANCE", 0.0)
    torch.manual_seed(0)
    settings = Allocation("separable", middle=0.5) if allocation is SEPARABLE else allocation
    old, x = nn.Conv2d(4, 8, 3, padding=1).double(), smooth_images(64).double()
    new = convert(copy.deepcopy(old), settings, init="pretrained", calibration=[x]).model
    loss = (new(x) - old(x)).square().mean()
    second = new.join if isinstance(new, CompositeConv2d) else new.get_submodule("conv3x1")
    assert second is not None and loss > 1e-4
    assert max(float(g.abs().max()) for g in torch.autograd.grad(loss, list(second.parameters()))) < 4e-4


def test_images_and_joins_make_it_better_than_random() -> None:
    torch.manual_seed(0)
    old, x = nn.Conv2d(8, 16, 3, padding=1), smooth_images(64, 8)
    unseen = smooth_images(64, 8, seed=1)

    def error(allocation: Allocation, **settings: Any) -> float:
        return error_of(convert(copy.deepcopy(old), allocation, **settings).model, old, unseen)

    random = error(GROUPS)
    groups, join = (error(form, init="pretrained") for form in (GROUPS, JOIN))
    fitted, fitted_join = (error(form, init="pretrained", calibration=[x]) for form in (GROUPS, JOIN))
    assert fitted_join < fitted < groups < random
    assert fitted_join < join < groups


class Net(nn.Module):
    """Convolutions with a norm, a shared layer, in-place activations, and a layer that never runs."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(4, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.unused = nn.Conv2d(8, 8, 3, padding=1)
        self.last = nn.Conv2d(8, 6, 3, padding=1)
        self.shared = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(inplace=True), nn.Dropout(0.5))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.shared(self.shared(self.first(x))))


def trained_net() -> Net:
    """A network whose norms have statistics, as after a training."""
    torch.manual_seed(0)
    net = Net()
    for _ in range(30):
        net(smooth_images(64))
    return net.eval()


def test_layers_correct_the_errors_of_those_before_them() -> None:
    old, x, unseen = trained_net(), smooth_images(128), smooth_images(64, seed=1)
    errors = {}
    for name, settings in {
        "random": {},
        "smooth noise": {"init": "pretrained"},
        "images": {"init": "pretrained", "calibration": [(x[:64], "labels"), [x[64:]]]},
    }.items():
        new = convert(copy.deepcopy(old), MIXED, **settings).model  # type: ignore[arg-type]
        errors[name] = error_of(new, old, unseen)
    assert errors["images"] < errors["smooth noise"] < 0.5 * errors["random"]
    # fitted alone, each layer gets the old inputs, which it will not get in the new network
    alone = convert(copy.deepcopy(old), MIXED, init="pretrained", calibration=[x]).model
    for path in ("shared.0", "last"):
        single = convert(copy.deepcopy(old), {path: MIXED}, init="pretrained", calibration=[x]).model
        alone.set_submodule(path, single.get_submodule(path))
    assert errors["images"] < error_of(alone, old, unseen)


def test_the_rest_of_the_model_stays_as_it_was() -> None:
    net = trained_net()
    net.shared.train()
    before = copy.deepcopy(net)
    images = smooth_images(64, seed=2)
    report = convert(net, GROUPS, init="pretrained", calibration=[images])
    assert [module.training for module in (net, net.first[1], net.shared, net.last)] == [False, False, True, False]
    assert not any(module._forward_hooks for module in net.modules())
    assert net.first[1].momentum == before.first[1].momentum == 0.1
    assert torch.equal(net.first[1].weight, before.first[1].weight)
    with torch.no_grad():
        wanted = net.first[0](images)
    assert torch.allclose(net.first[1].running_mean, wanted.mean((0, 2, 3)), atol=1e-5)
    assert torch.allclose(net.first[1].running_var, wanted.transpose(0, 1).flatten(1).var(1), rtol=1e-4)
    assert all(parameter.requires_grad for parameter in net.parameters())
    text = str(report)
    assert text.startswith("4 convolutions replaced, which approximate the old ones, 0 left as they were")
    assert f"  last: 3x1,3 || 1x3,3, error {report.errors['last']:.3f}" in text
    # a layer that does not run is fitted to noise
    alone = convert(copy.deepcopy(before.unused), GROUPS, init="pretrained")
    assert report.errors["unused"] == alone.errors[""]
    assert report.errors["last"] != convert(before, GROUPS, init="pretrained").errors["last"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize("allocation", [GROUPS, JOIN, SEPARABLE])
def test_other_types_of_numbers(allocation: Allocation, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    conv = nn.Conv2d(4, 8, 3, padding=1).to(dtype).to(memory_format=torch.channels_last)
    x = smooth_images(16).to(dtype)
    new = convert(copy.deepcopy(conv), allocation, init="pretrained", calibration=[x]).model
    assert {parameter.dtype for parameter in new.parameters()} == {dtype}
    assert error_of(new, conv, x) < 0.5


def test_a_layer_whose_inputs_are_zero() -> None:
    conv = nn.Conv2d(4, 8, 3, padding=1)
    for allocation in (GROUPS, JOIN, SEPARABLE):
        new = convert(copy.deepcopy(conv), allocation, init="pretrained", calibration=[torch.zeros(2, 4, 5, 5)]).model
        assert error_of(new, conv, torch.randn(8, 4, 9, 9)) < 1


@pytest.mark.parametrize("value", [3.3, 1000.0])
@pytest.mark.parametrize("allocation", [GROUPS, JOIN, SEPARABLE])
def test_a_layer_whose_inputs_are_constant(allocation: Allocation, value: float) -> None:
    torch.manual_seed(0)
    conv, x = nn.Conv2d(4, 8, 3), torch.full((8, 4, 12, 12), value)
    report = convert(copy.deepcopy(conv), allocation, init="pretrained", calibration=[x])
    assert 0 <= report.errors[""] < 0.1
    with torch.no_grad():
        assert torch.allclose(report.model(x), conv(x), rtol=1e-3)


def test_norms_that_do_not_run_keep_their_statistics() -> None:
    class Branch(Net):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm2d(8)  # of a second head, say, that only some calls use

    torch.manual_seed(0)
    net = Branch()
    net.norm(2 * torch.randn(16, 8, 4, 4) + 1)
    before = copy.deepcopy(net)
    convert(net.eval(), GROUPS, init="pretrained", calibration=[smooth_images(16)])
    assert all(torch.equal(now, old) for now, old in zip(net.norm.buffers(), before.norm.buffers(), strict=True))
    assert not torch.equal(net.first[1].running_mean, before.first[1].running_mean)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"init": "pretraned"}, "init must be one of pretrained, composite, fan_in, fan_out, default; got 'pretraned'"),
        ({"calibration": [torch.zeros(2, 4, 8, 8)]}, "calibration needs init=\"pretrained\"; got init='composite'"),
        ({"init": "pretrained", "calibration": [{"x": 1}]}, "a calibration batch must be at least 2 images"),
        ({"init": "pretrained", "calibration": torch.zeros(2, 4, 8, 8)}, "got (4, 8, 8) torch.float32"),
        ({"init": "pretrained", "calibration": [torch.zeros(2, 4, 8, 8).byte()]}, "torch.uint8"),
    ],
)
def test_refusals(settings: dict[str, Any], message: str) -> None:
    net = Net()
    with pytest.raises(ConversionError) as caught:
        convert(net, GROUPS, **settings)
    assert message in str(caught.value)
    assert type(net.last) is nn.Conv2d


def state_of(net: nn.Module) -> list[Any]:
    """Everything that an error must not change."""
    modules = [(path, type(module), module.training) for path, module in net.named_modules()]
    momenta = [module.momentum for module in net.modules() if isinstance(module, nn.BatchNorm2d)]
    return [modules, momenta, {name: values.tolist() for name, values in net.state_dict().items()}]


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ([(2, 3, 8, 8)], "the model must run on the calibration images; got (2, 3, 8, 8), for which it fails with"),
        ([(2, 4, 8, 8), (2, 1, 8, 8)], "must have the same shape; got (4, 8, 8) and (1, 8, 8)"),
    ],
)
def test_images_that_do_not_fit_change_nothing(shapes: list[tuple[int, ...]], message: str) -> None:
    net = trained_net()
    before = state_of(net)
    with pytest.raises(ConversionError) as caught:
        convert(net, GROUPS, init="pretrained", calibration=[torch.ones(shape) for shape in shapes])
    assert message in str(caught.value)
    assert state_of(net) == before


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_error_during_the_fit_changes_nothing(error: type[BaseException]) -> None:
    net = trained_net()
    net.register_module("again", net.shared)  # a layer with two paths
    runs = 0

    def fail(*_: Any) -> None:
        nonlocal runs
        runs += 1
        if runs == 4:  # after the first layers were fitted
            raise error

    net.register_forward_pre_hook(fail)
    before, originals = state_of(net), dict(net.named_modules(remove_duplicate=False))
    with pytest.raises(error):
        convert(net, GROUPS, init="pretrained", calibration=[smooth_images(8)])
    assert runs == 4
    assert state_of(net) == before
    assert dict(net.named_modules(remove_duplicate=False)) == originals


def test_a_fit_to_images_says_what_it_does(capsys: pytest.CaptureFixture[str]) -> None:
    convert(Net(), GROUPS, init="pretrained")
    assert capsys.readouterr().err == ""
    net = convert(Net(), GROUPS, init="pretrained", calibration=[smooth_images(8)]).model
    told = "fitting 4 new layers to 8 images, one after another; this can take minutes\n"
    assert capsys.readouterr().err == told
    assert not convert(net, init="pretrained", calibration=[smooth_images(8)]).replaced
    assert capsys.readouterr().err == ""


def test_batches_are_read_only_if_they_are_used() -> None:
    read: list[int] = []
    batches = (read.append(i) or torch.zeros(2, 4, 8, 8) for i in range(9))  # type: ignore[func-returns-value]
    with pytest.raises(ConversionError, match="calibration needs init"):
        convert(Net(), GROUPS, calibration=batches)
    assert read == [0]


def test_a_model_without_weights_has_nothing_to_replace() -> None:
    assert convert(nn.ReLU(), init="pretrained").replaced == {}


def test_a_model_without_memory_has_nothing_to_start_from() -> None:
    with torch.device("meta"):
        net = Net()
    with pytest.raises(ConversionError, match="needs weights"):
        convert(net, GROUPS, init="pretrained")
