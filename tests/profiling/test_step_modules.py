"""Steps of a plan as modules: the same shapes as in the network, forward and backward."""

import pytest
import torch

from lrnas.layers.conv import make_conv
from lrnas.models.build import create_model
from lrnas.models.plan import make_plan
from lrnas.models.summary import read_source
from lrnas.profiling.step_modules import Setting, layer_call, network_call, steps_of

NETWORKS = {
    "vgg-gmp-lr-join": 32,
    "vgg-gmp-sf": 32,
    "vgg-11": 32,
    "vgg-gmp-lr-lde": 64,
    "nin-c3-lr": 16,
    "googlenet-lr": 64,
    "timm:resnet18": 64,
}
CPU = Setting(torch.device("cpu"), torch.float32, 2)


@pytest.mark.parametrize(("name", "size"), NETWORKS.items())
def test_steps_have_the_map_sizes_of_the_network(name: str, size: int) -> None:
    _, architecture = read_source(name)
    plan = make_plan(architecture, size, 10)
    model = create_model(architecture, 10, device="meta").eval()
    met: dict[str, list[tuple[torch.Size, torch.Size]]] = {}

    def note(path: str, inputs: tuple[torch.Tensor], output: torch.Tensor) -> None:
        met.setdefault(path, []).append((inputs[0].shape[1:], output.shape[1:]))

    for conv in plan.convs:
        model.get_submodule(conv.path).register_forward_hook(
            lambda _, inputs, output, path=conv.name: note(path, inputs, output)
        )
    model(torch.empty(1, 3, size, size, device="meta"))
    steps: dict[str, list[tuple[torch.Size, torch.Size]]] = {}
    for step in steps_of(architecture, size, 10):
        if step.kind in ("conv", "bare conv"):
            steps.setdefault(step.name, []).append((torch.Size(step.input), torch.Size(step.output)))
    assert steps == met


@pytest.mark.parametrize("name", ["vgg-gmp-lr-join", "vgg-11", "nin-c3-lr", "googlenet-lr"])
def test_steps_have_all_multiply_accumulates(name: str) -> None:
    _, architecture = read_source(name)
    plan = make_plan(architecture)
    assert sum(step.macs for step in plan.steps if step.role != "auxiliary") == plan.cost.macs
    assert sum(step.macs for step in plan.steps) == sum(layer.macs for layer in plan.cost.layers)


@pytest.mark.parametrize("name", ["vgg-gmp-lr-join", "nin-c3-lr", "googlenet-lr", "timm:resnet18"])
def test_every_step_runs(name: str) -> None:
    _, architecture = read_source(name)
    first: dict[str, bool] = {}
    for step in steps_of(architecture, 64, 10):
        if step.kind not in first or step.kind == "bare conv":
            first[step.kind] = True
            out = layer_call(step, CPU)()
            assert isinstance(out, torch.Tensor) and tuple(out.shape) == (2, *step.output)
    for step in steps_of(architecture, 64, 10, training=True)[:3]:
        x, *weights = layer_call(step, CPU, training=True)()
        assert tuple(x.shape) == (2, *step.input) and all(weight.isfinite().all() for weight in weights)


def test_steps_have_the_same_key_only_if_they_are_equal() -> None:
    steps = {step.name: step for step in steps_of(read_source("nin")[1], 32, 10)}
    assert steps["cccp3"].key == steps["cccp4"].key != steps["cccp5"].key  # cccp5 has another map size
    normed = {step.name: step for step in steps_of(read_source("vgg11-bn-gmp")[1], 32, 10)}
    plain = {step.name: step for step in steps_of(read_source("vgg-gmp")[1], 32, 10)}
    assert normed["conv1_1"].key != plain["conv1_1"].key and normed["pool1"].key == plain["pool1"].key


def test_whole_networks_run() -> None:
    _, architecture = read_source("googlenet-lr")
    out = network_call(architecture, 32, 10, CPU)()
    assert isinstance(out, torch.Tensor) and out.shape == (2, 10)
    loss = network_call(architecture, 32, 10, CPU, training=True)()
    assert isinstance(loss, torch.Tensor) and loss.isfinite()
    half = Setting(torch.device("cpu"), torch.bfloat16, 2)
    out = network_call(read_source("nin-c3-lr")[1], 16, 10, half)()
    assert isinstance(out, torch.Tensor) and out.dtype == torch.bfloat16
    assert network_call(read_source("nin-c3-lr")[1], 16, 10, half, training=True)().isfinite()  # type: ignore[attr-defined]


def test_a_step_is_the_layer_of_the_network() -> None:
    """It has the same class and the same filters."""
    _, architecture = read_source("vgg-gmp-lr-join")
    step = steps_of(architecture, 32, 10)[0]
    model = create_model(architecture, 10)
    conv = make_conv(3, step.settings[0], 3, 1, 1)  # type: ignore[arg-type]
    assert repr(conv) == repr(model.get_submodule("features.0"))
