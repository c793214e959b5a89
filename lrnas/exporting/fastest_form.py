"""The fastest form of each layer on the machine where the network will run, found by measurement.

A mixed-shape layer has fewer multiply-accumulates than the dense layer it replaces, but it is not faster on every
machine. The forms of each layer (`layers.fold`) are timed side by side at the layer's own input size, and the fastest
is kept. If none is clearly the fastest, it is the form with the fewest multiply-accumulates, as in the deployed form of
the network. Then the whole network with these forms is timed side by side with the network as trained and with the
network whose layers are all dense, and the fastest of them is kept. Everything is measured twice: a form counts as
faster only if the gain is larger than the difference between the two measurements.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lrnas.layers.conv import CompositeConv2d, SeparableConv2d
from lrnas.layers.fold import Folding, dense_form, fold, foldable_layers, merged_form, reason_to_keep, single_form
from lrnas.layers.norms import find_norms
from lrnas.models.count import count_model
from lrnas.profiling.timing import Call, measure

MARGIN = 0.02
"""Another form of the whole network replaces that with the fastest layers if it is faster by more than this share."""
ROUNDS, SAMPLE, LIMIT = 10, 0.005, 0.6
"""Rounds, seconds of a sample, and seconds of all samples of a call, in each of two measurements. Many short samples
are taken, so that at least some of them are not disturbed by other work."""


class Times(NamedTuple):
    """Times of calls that were measured in turns."""

    seconds: dict[str, float]
    noise: float
    """The largest difference between two measurements of one call, as a share of its time."""


Timer = Callable[[Mapping[str, nn.Module], Tensor], Times]
"""A function that measures modules with the same input."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Times of all forms of a layer or network, and the form that was chosen."""

    layer: str
    filters: str
    seconds: dict[str, float]
    chosen: str
    remark: str = ""


@dataclass(frozen=True, slots=True)
class Fusion:
    """A network with folded norms and chosen forms."""

    model: nn.Module
    folding: Folding
    layers: list[Choice] = field(default_factory=list)
    network: Choice | None = None
    """The choice between forms of the whole network; None if there was only one."""

    def __repr__(self) -> str:
        return f"<Fusion: {' '.join(self.lines)}>"

    def table(self) -> list[list[str]]:
        """The forms of all layers as rows of text, times in milliseconds; the first row has the column names."""
        names = list(dict.fromkeys(name for choice in self.layers for name in choice.seconds))
        rows = [["layer", "filters", *names, "chosen", ""]]
        for choice in self.layers:
            times = [f"{1000 * choice.seconds[name]:.3f}" if name in choice.seconds else "–" for name in names]
            rows.append([choice.layer, choice.filters, *times, choice.chosen, choice.remark])
        return rows

    @property
    def lines(self) -> list[str]:
        """How many batch norms were folded, and which form of the whole network was kept, in words."""
        norms = len(self.folding.norms)
        found = [f"{norms} batch norms folded into the convolutions before them."] if norms else []
        if self.network is None:
            return [*found, "Nothing to fold: no batch norm follows a convolution, no layer has mixed shapes."]
        listed = ", ".join(f"{name} {1000 * seconds:.3f} ms" for name, seconds in self.network.seconds.items())
        why = f" ({self.network.remark})" if self.network.remark else ""
        return [*found, f"The whole network: {listed}; kept: {self.network.chosen}{why}."]

    def to_dict(self) -> dict[str, Any]:
        """Folded norms, chosen forms and times, for JSON."""
        network = None if self.network is None else asdict(self.network)
        return {**asdict(self.folding), "layers": [asdict(choice) for choice in self.layers], "network": network}


def choose_forms(model: nn.Module, images: Tensor, time_forms: Timer) -> Fusion:
    """Fold the batch norms of a model and choose the fastest form of every mixed-shape layer.

    Args:
        model: The model, on the CPU; it stays unchanged.
        images: A batch of the size that will be used when the network runs.
        time_forms: Function that measures modules on the device where the network will run.

    Returns:
        A copy of the model with the changes, and all measured times.
    """
    norms = find_norms(model, images[:1])
    base = fold(copy.deepcopy(model), Folding(norms))
    choices = _choose_layers(base, images, time_forms)
    picked = {choice.layer: choice.chosen for choice in choices if choice.chosen in ("dense", "single", "merged")}
    dense = {choice.layer: "dense" for choice in choices if "dense" in choice.seconds}
    if not norms and not dense:
        return Fusion(base, Folding(), choices)
    models = {"as trained": model}
    distinct: dict[str, dict[str, str]] = {}  # forms of layers by name; all but "as trained" have their norms folded
    for name, wanted in (("norms folded" if norms else "as trained", {}), ("fastest layers", picked), ("dense", dense)):
        if wanted not in distinct.values():
            distinct[name] = wanted
            models[name] = fold(copy.deepcopy(base), Folding({}, wanted))
    times = time_forms(models, images)
    preferred = next(name for name, wanted in distinct.items() if wanted == picked)
    chosen, remark = _prefer(preferred, times, max(MARGIN, times.noise))
    network = Choice("whole network", "", times.seconds, chosen, remark)
    if chosen not in distinct:
        return Fusion(copy.deepcopy(model), Folding(), choices, network)
    return Fusion(models[chosen], Folding(norms, distinct[chosen]), choices, network)


def _choose_layers(model: nn.Module, images: Tensor, time_forms: Timer) -> list[Choice]:
    layers = foldable_layers(model)
    choices: list[Choice] = []
    known: dict[tuple[object, ...], Times] = {}
    for path, shape in _input_shapes(model, layers, images[:1]).items():
        layer = layers[path]
        forms = _forms(layer)
        shape = torch.Size((shape[0] * len(images), *shape[1:]))
        key = (repr(layer), shape, tuple(forms))  # layers of one kind are measured once
        if len(forms) > 1 and key not in known:
            known[key] = time_forms(forms, torch.randn(shape, generator=torch.Generator().manual_seed(0)))
        times = known.get(key, Times({}, 0.0))
        chosen, remark = _prefer(_cheapest(forms, shape), times, times.noise)
        choices.append(Choice(path, _filters(layer), times.seconds, chosen, reason_to_keep(layer) or remark))
    return choices


def _prefer(preferred: str, times: Times, margin: float) -> tuple[str, str]:
    """The chosen form and a remark.

    The preferred form is chosen unless another is faster by more than a margin; the remark names a form that is faster
    by less.
    """
    seconds = times.seconds
    quickest = min(seconds, key=seconds.__getitem__, default=preferred)
    if quickest == preferred:
        return preferred, ""
    gain = 1 - seconds[quickest] / seconds[preferred]
    if gain > margin:
        return quickest, ""
    return preferred, f"{quickest} is faster by {100 * gain:.1f} %, within noise of {100 * margin:.1f} %"


def torch_timer(device: torch.device, threads: int) -> Timer:
    """A timer that runs modules in PyTorch on a device."""

    def time_forms(forms: Mapping[str, nn.Module], x: Tensor) -> Times:
        x = x.to(device)
        there = {name: copy.deepcopy(form).to(device).eval() for name, form in forms.items()}
        with torch.inference_mode():
            return fastest({name: functools.partial(form, x) for name, form in there.items()}, device, threads)

    return time_forms


def fastest(calls: Mapping[str, Call], device: torch.device, threads: int) -> Times:
    """The shortest time of each call, from two measurements of all calls; other work only makes times longer."""
    options: dict[str, Any] = {"rounds": ROUNDS, "sample": SAMPLE, "limit": LIMIT, "quantile": 0.0, "threads": threads}
    first, second = (measure(list(calls.values()), device, capture=False, **options) for _ in range(2))
    pairs = dict(zip(calls, zip(first, second, strict=True), strict=True))
    noise = max(max(pair) / min(pair) - 1 for pair in pairs.values())
    return Times({name: min(pair) for name, pair in pairs.items()}, noise)


def _forms(layer: nn.Module) -> dict[str, nn.Module]:
    """The forms of a layer by name; the first is the layer itself."""
    own = {CompositeConv2d: "composite", SeparableConv2d: "separable"}
    name = next((name for kind, name in own.items() if isinstance(layer, kind)), "narrow")
    forms = {name: layer, "dense": dense_form(layer), "merged": merged_form(layer)}
    single = single_form(layer)
    if single is not None and _num_weights(single) < _num_weights(forms["dense"]):  # else the same convolution
        forms["single"] = single
    return {name: form for name, form in forms.items() if form is not None}


def _num_weights(module: nn.Module | None) -> int:
    return 0 if module is None else sum(weight.numel() for weight in module.parameters())


def _cheapest(forms: Mapping[str, nn.Module], shape: torch.Size) -> str:
    """The form with the fewest MACs; of several, one convolution rather than the layer itself."""
    own = next(iter(forms))
    macs = {name: count_model(nn.Sequential(form), tuple(shape[1:])).macs for name, form in forms.items()}
    return min(forms, key=lambda name: (macs[name], name == own))


def _filters(layer: nn.Module) -> str:
    """The filters of a layer as text, for example 3x1,32 || 1x3,32 > 1x1,64."""

    def words(conv: nn.Conv2d) -> str:
        return f"{conv.kernel_size[0]}x{conv.kernel_size[1]},{conv.out_channels}"

    if isinstance(layer, CompositeConv2d):
        groups = " || ".join(map(words, layer.group_convs()))
        return groups if layer.join is None else f"{groups} > {words(layer.join)}"
    if isinstance(layer, SeparableConv2d):
        return " > ".join(map(words, layer.halves()))
    assert isinstance(layer, nn.Conv2d)
    return words(layer)


def _input_shapes(model: nn.Module, layers: Mapping[str, nn.Module], images: Tensor) -> dict[str, torch.Size]:
    """The input shape of each layer that is used; for a layer that is used several times, its last input shape."""
    shapes: dict[str, torch.Size] = {}

    def note(path: str, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        shapes[path] = inputs[0].shape

    hooks = [layer.register_forward_pre_hook(functools.partial(note, path)) for path, layer in layers.items()]
    with torch.inference_mode():
        model(images)
    for hook in hooks:
        hook.remove()
    return {path: shapes[path] for path in layers if path in shapes}
