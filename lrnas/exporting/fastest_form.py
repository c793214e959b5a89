"""Which form of each layer is the fastest where the network is to run: measured, not guessed.

A mixed-shape layer has fewer multiply-accumulates than the dense one it replaces, but not every machine is the faster
for it. Each layer's forms (`layers.fold`) are run beside each other at the layer's own input size, and the fastest is
kept; then the whole network so composed is run beside the one with every layer as trained and the one with every layer
dense, and the fastest of these is kept. Everything is measured twice: what is faster by less than the two differ by is
not called faster.
"""

from __future__ import annotations

import copy
import functools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lrnas.layers.conv import CompositeConv2d, SeparableConv2d
from lrnas.layers.fold import Folding, dense_form, fold, foldable_layers, merged_form, reason_to_keep
from lrnas.layers.norms import find_norms
from lrnas.profiling.threads import num_threads
from lrnas.profiling.timing import Call, measure

MARGIN = 0.02
"""A whole network takes the place of the one of the fastest layers if it is faster by more, and by more than noise."""
ROUNDS, SAMPLE, LIMIT = 10, 0.005, 0.6
"""Of each of two measurements: rounds, the seconds of a sample at least, those of one call at most. Many short samples:
among them are some that nothing disturbed."""


class Times(NamedTuple):
    """Of some calls that took turns."""

    seconds: dict[str, float]
    noise: float
    """The largest difference between two measurements of one call, as a share."""


Timer = Callable[[Mapping[str, nn.Module], Tensor], Times]
"""Measures some modules for the same input."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Forms that were measured and the one that is kept."""

    name: str
    filters: str
    seconds: dict[str, float]
    chosen: str
    remark: str = ""

    def to_dict(self) -> dict[str, Any]:
        return {
            "layer": self.name,
            "filters": self.filters,
            "seconds": self.seconds,
            "chosen": self.chosen,
            "remark": self.remark,
        }


@dataclass(frozen=True, slots=True)
class Fusion:
    """What became of a network."""

    model: nn.Module
    folding: Folding
    layers: list[Choice] = field(default_factory=list)
    network: Choice | None = None
    """The whole of it; None where there was nothing to choose."""


def choose_forms(model: nn.Module, images: Tensor, time_forms: Timer) -> Fusion:
    """A copy of a model with its batch norms folded and every mixed-shape layer in the form that is the fastest.

    The model stays as it is, on the CPU; `images` are as many as are to be taken at a time.
    """
    norms = find_norms(model, images[:1])
    base = fold(copy.deepcopy(model), Folding(norms))
    layers = foldable_layers(base)
    shapes = _input_shapes(base, layers, images[:1])
    choices: list[Choice] = []
    known: dict[tuple[object, ...], Times] = {}
    for path, layer in layers.items():
        if path not in shapes:  # it takes no part
            continue
        forms = _forms(layer)
        own = next(iter(forms))
        shape = torch.Size((shapes[path][0] * len(images), *shapes[path][1:]))
        key = (repr(layer), shape, tuple(forms))  # layers of one kind are measured once
        if len(forms) > 1 and key not in known:
            known[key] = time_forms(forms, torch.randn(shape, generator=torch.Generator().manual_seed(0)))
        times = known.get(key, Times({}, 0.0))
        chosen, remark = _prefer(own, times, times.noise)
        choices.append(Choice(path, _filters(layer), times.seconds, chosen, reason_to_keep(layer) or remark))
    picked = {choice.name: choice.chosen for choice in choices if choice.chosen in ("dense", "merged")}
    dense = {choice.name: "dense" for choice in choices if "dense" in choice.seconds}
    if not norms and not dense:
        return Fusion(base, Folding(), choices)
    models = {"as trained": model}
    distinct: dict[str, dict[str, str]] = {}
    """By name: the forms of layers; all but the one as trained have their norms folded."""
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


def _prefer(own: str, times: Times, margin: float) -> tuple[str, str]:
    """One's own, or what is faster by more than a margin; and, where something is faster by less, that it is."""
    seconds = times.seconds
    quickest = min(seconds, key=seconds.__getitem__, default=own)
    if quickest == own:
        return own, ""
    gain = 1 - seconds[quickest] / seconds[own]
    if gain > margin:
        return quickest, ""
    return own, f"{quickest} is faster by {100 * gain:.1f} %, within noise of {100 * margin:.1f} %"


def torch_timer(device: torch.device, threads: int) -> Timer:
    """Times in PyTorch, on a device."""

    def time_forms(forms: Mapping[str, nn.Module], x: Tensor) -> Times:
        x = x.to(device)
        there = {name: copy.deepcopy(form).to(device).eval() for name, form in forms.items()}
        with torch.inference_mode():
            return fastest({name: functools.partial(form, x) for name, form in there.items()}, device, threads)

    return time_forms


def fastest(calls: Mapping[str, Call], device: torch.device, threads: int) -> Times:
    """Seconds of each call where nothing disturbs it: the least of some rounds; with so many threads of the CPU.

    With one, all work is done in this thread, whose own clock stands still while others have the core.
    """
    clock = time.thread_time if threads == 1 and device.type == "cpu" else time.perf_counter
    with num_threads(threads):
        first, second = (
            measure(
                list(calls.values()),
                device,
                rounds=ROUNDS,
                sample=SAMPLE,
                limit=LIMIT,
                quantile=0.0,
                clock=clock,
                capture=False,
            )
            for _ in range(2)
        )
    least = [min(pair) for pair in zip(first, second, strict=True)]
    noise = max(max(pair) / min(pair) - 1 for pair in zip(first, second, strict=True))
    return Times(dict(zip(calls, least, strict=True)), noise)


def _forms(layer: nn.Module) -> dict[str, nn.Module]:
    """A layer as it is, first, and in its other forms."""
    own = {CompositeConv2d: "composite", SeparableConv2d: "separable"}
    name = next((name for kind, name in own.items() if isinstance(layer, kind)), "narrow")
    forms = {name: layer, "dense": dense_form(layer), "merged": merged_form(layer)}
    return {name: form for name, form in forms.items() if form is not None}


def _filters(layer: nn.Module) -> str:
    if isinstance(layer, CompositeConv2d):
        groups = " || ".join(f"{group.shape},{group.num}" for group in layer.filters)
        return groups if layer.join is None else f"{groups} > 1x1,{layer.out_channels}"
    if isinstance(layer, SeparableConv2d):
        return " > ".join(f"{half.kernel_size[0]}x{half.kernel_size[1]},{half.out_channels}" for half in layer.halves())
    assert isinstance(layer, nn.Conv2d)
    return f"{layer.kernel_size[0]}x{layer.kernel_size[1]},{layer.out_channels}"


def _input_shapes(model: nn.Module, layers: Mapping[str, nn.Module], images: Tensor) -> dict[str, torch.Size]:
    """What each layer is given for one image; of a layer used several times, the last."""
    shapes: dict[str, torch.Size] = {}
    handles = []
    for path, layer in layers.items():

        def note(module: nn.Module, inputs: tuple[Tensor, ...], path: str = path) -> None:
            shapes[path] = inputs[0].shape

        handles.append(layer.register_forward_pre_hook(note))
    with torch.inference_mode():
        model(images)
    for handle in handles:
        handle.remove()
    return shapes
