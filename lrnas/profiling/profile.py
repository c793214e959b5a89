"""`lrnas profile`: what layers and networks take on this machine, beside what they cost on paper.

Every network is set beside the dense network it is derived from. Whole networks are measured side by side, and so are
the layers that stand in the same place, forward and as part of a training step: shares of time come from one run.
`check_table` sets whole networks beside what a search takes for their latency, the sum of their layers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lrnas.arch.architecture import Architecture
from lrnas.arch.backbone_shapes import Step
from lrnas.arch.cost import Cost
from lrnas.errors import LrnasError, error_line
from lrnas.models.paper import family_table, named_networks
from lrnas.models.plan import canonical_id, make_plan, native_input_size, native_num_classes, resolve_backbone
from lrnas.profiling.latency_table import DTYPES, REFERENCES, Conditions, Latency, LatencyTable, find_device
from lrnas.profiling.step_modules import Setting, layer_call, network_call, steps_of
from lrnas.profiling.timing import Call, measure
from lrnas.spaces.space import load_space


@dataclass(frozen=True, slots=True)
class LayerTime:
    """A layer with what goes with it (batch norm, ReLU), measured by itself; times in milliseconds for a batch."""

    name: str
    filters: str
    macs: int
    forward: float
    training: float | None
    """Forward and backward."""


@dataclass(frozen=True, slots=True)
class Profiled:
    """A network; times in milliseconds for a batch."""

    name: str
    architecture: Architecture
    baseline: str
    """The name of the network it is derived from; its own if it is that."""
    input_size: int
    cost: Cost
    forward: float
    training: float | None
    """A whole step of SGD."""
    layers: list[LayerTime]

    @property
    def macs(self) -> int:
        return self.cost.macs


@dataclass(frozen=True, slots=True)
class Profile:
    """Networks under one set of conditions, baselines first."""

    conditions: Conditions
    compiled: bool
    networks: list[Profiled]

    def baseline(self, network: Profiled) -> Profiled:
        return next(other for other in self.networks if other.name == network.baseline)

    def shares(self, network: Profiled) -> dict[str, float | None]:
        """Of its baseline's multiply-accumulates and times."""
        base = self.baseline(network)
        trained = network.training is not None and base.training is not None
        return {
            "macs": network.macs / base.macs,
            "forward": network.forward / base.forward,
            "training": network.training / base.training if trained else None,  # type: ignore[operator]
        }

    def to_dict(self) -> dict[str, Any]:
        return {
            "conditions": {**self.conditions.to_dict(), "compiled": self.compiled},
            "networks": [
                {
                    "name": network.name,
                    "id": canonical_id(network.architecture),
                    "baseline": network.baseline,
                    "input": network.input_size,
                    "macs": network.macs,
                    "forward_ms": network.forward,
                    "training_ms": network.training,
                    "share": self.shares(network),
                    "layers": [
                        {
                            "name": layer.name,
                            "filters": layer.filters,
                            "macs": layer.macs,
                            "forward_ms": layer.forward,
                            "training_ms": layer.training,
                        }
                        for layer in network.layers
                    ],
                }
                for network in self.networks
            ],
        }


def baseline_of(architecture: Architecture) -> tuple[str, Architecture]:
    """The dense network that one is derived from: its family's in the paper, else its own backbone, unchanged."""
    backbone, batch_norm = resolve_backbone(architecture)
    if (table := family_table(backbone)) is None:
        return f"{backbone}, dense", dataclasses.replace(architecture, layers={})
    own = named_networks()[table.baseline]
    if batch_norm:
        return f"{table.baseline}, batch norm", dataclasses.replace(own, batch_norm=True)
    return table.baseline, own


def profile(
    networks: Sequence[tuple[str, Architecture]],
    *,
    device: str | None = None,
    batch: int | None = None,
    input_size: int | None = None,
    in_chans: int | None = None,
    num_classes: int | None = None,
    dtype: str | None = None,
    threads: int | None = None,
    compile_networks: bool = False,
    baseline: tuple[str, Architecture] | None = None,
    training: bool = True,
    layers: bool = True,
    say: Callable[[str], None] = lambda line: None,
) -> Profile:
    """Measure networks, and the baseline of each, on a device of this machine."""
    found = find_device(device)
    batch = (128 if found.type == "cuda" else 8) if batch is None else batch
    conditions = Conditions.here(found, batch, dtype, threads)
    setting = Setting(found, DTYPES[conditions.dtype], batch, compile_networks)
    rows = _with_baselines(networks, baseline)
    measured = _Measurement(setting, [row[1] for row in rows], input_size, num_classes, in_chans or 3)
    say(f"measuring {len(rows)} networks on {conditions}")
    with conditions.in_force():
        forward = measured.networks(training=False)
        trained = measured.networks(training=True) if training else [None] * len(rows)
        times = measured.layers(training, say) if layers else [[] for _ in rows]
    return Profile(
        conditions,
        compile_networks,
        [
            Profiled(name, network, base, measured.sizes[i], measured.costs[i], forward[i], trained[i], times[i])
            for i, (name, network, base) in enumerate(rows)
        ],
    )


def _with_baselines(
    networks: Sequence[tuple[str, Architecture]], baseline: tuple[str, Architecture] | None
) -> list[tuple[str, Architecture, str]]:
    """Names, networks and the names of their baselines, each network once, baselines first."""
    given = {canonical_id(network): (name, network) for name, network in networks}
    first: dict[str, tuple[str, Architecture]] = {}
    found = {}
    for identity, (_, network) in given.items():
        base = baseline or baseline_of(network)
        own = canonical_id(base[1])
        first[own] = given.get(own, base)
        found[identity] = first[own][0]
    rows = [(*row, row[0]) for row in first.values()]
    return rows + [(*row, found[identity]) for identity, row in given.items() if identity not in first]


class _Measurement:
    """Of several networks, side by side."""

    def __init__(
        self,
        setting: Setting,
        networks: list[Architecture],
        input_size: int | None,
        num_classes: int | None,
        in_chans: int,
    ) -> None:
        self.setting = setting
        self.in_chans = in_chans
        self.architectures = networks
        backbones = [resolve_backbone(network)[0] for network in networks]
        self.sizes = [input_size or native_input_size(backbone) for backbone in backbones]
        self.classes = [num_classes or native_num_classes(backbone) for backbone in backbones]
        shapes = zip(networks, self.sizes, self.classes, strict=True)
        self.costs = [
            make_plan(network, size, classes, in_chans, check_fit=False).cost for network, size, classes in shapes
        ]

    def networks(self, training: bool) -> list[float]:
        """Milliseconds of each."""

        def make() -> list[Call]:
            return [
                network_call(network, size, classes, self.setting, self.in_chans, training=training)
                for network, size, classes in zip(self.architectures, self.sizes, self.classes, strict=True)
            ]

        return self._time(make)

    def layers(self, training: bool, say: Callable[[str], None]) -> list[list[LayerTime]]:
        """Of each network; those with the same name are measured together."""
        steps = [
            steps_of(network, size, classes, self.in_chans)
            for network, size, classes in zip(self.architectures, self.sizes, self.classes, strict=True)
        ]
        firsts = {own[0].key for own in steps if own}
        names = list(dict.fromkeys(step.name for own in steps for step in own))
        times: dict[str, tuple[float, float | None]] = {}
        say(f"measuring {sum(map(len, steps))} layers in {len(names)} places")
        for name in names:
            new = {step.key: step for own in steps for step in own if step.name == name and step.key not in times}
            forward = self._time(lambda new=new: [layer_call(step, self.setting) for step in new.values()])  # type: ignore[misc]
            trained: Sequence[float | None] = [None] * len(new)
            if training:
                trained = self._time(
                    lambda new=new: [  # type: ignore[misc]
                        layer_call(step, self.setting, training=True, is_first=key in firsts)
                        for key, step in new.items()
                    ]
                )
            times |= dict(zip(new, zip(forward, trained, strict=True), strict=True))
        return [[_layer_time(step, *times[step.key]) for step in own] for own in steps]

    def _time(self, make: Callable[[], list[Call]]) -> list[float]:
        with _explained(), _many_compilations():
            calls = make()
            return [1000 * seconds for seconds in measure(calls, self.setting.device)] if calls else []


def _layer_time(step: Step, forward: float, training: float | None) -> LayerTime:
    filters = str(step.settings[0]) if step.kind in ("conv", "bare conv") else step.kind
    return LayerTime(step.name, filters, step.macs, forward, training)


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except torch.OutOfMemoryError:
        raise LrnasError("the device has too little memory for these networks side by side; lower --batch") from None
    except (RuntimeError, ValueError) as error:
        hint = "; give a larger --batch" if "more than 1 value per channel" in str(error) else ""
        raise LrnasError(f"a network cannot be run like this: {error_line(error)}{hint}") from None


@contextmanager
def _many_compilations() -> Iterator[None]:
    """torch.compile gives up on a kind of module after a few of them; here there is one for every layer."""
    import torch._dynamo.config as config

    with config.patch(recompile_limit=10_000, accumulated_recompile_limit=10_000):
        yield


@dataclass(frozen=True, slots=True)
class Check:
    """How well sums of layers tell what whole networks take; milliseconds for a batch."""

    conditions: Conditions
    space: str
    input_size: int
    factor: float
    rows: list[tuple[str, int, float, float]]
    """Name, multiply-accumulates, by the table and measured."""

    @property
    def errors(self) -> list[float]:
        return [table / whole - 1 for _, _, table, whole in self.rows]

    @property
    def mean_error(self) -> float:
        return float(np.mean(np.abs(self.errors)))

    @property
    def rank_agreement(self) -> float:
        """Kendall's tau: 1 where the table has the networks in the order of their times."""
        table, whole = (np.array([row[column] for row in self.rows]) for column in (2, 3))
        signs = np.sign(np.subtract.outer(table, table)) * np.sign(np.subtract.outer(whole, whole))
        number = len(self.rows)
        return float(signs.sum() / (number * (number - 1))) if number > 1 else 1.0

    def to_dict(self) -> dict[str, Any]:
        names = ("name", "macs", "table_ms", "measured_ms")
        return {
            "conditions": self.conditions.to_dict(),
            "space": self.space,
            "input": self.input_size,
            "factor": self.factor,
            "mean_absolute_error": self.mean_error,
            "largest_error": max(self.errors, key=abs),
            "kendall_tau": self.rank_agreement,
            "networks": [dict(zip(names, row, strict=True)) for row in self.rows],
        }


def check_table(
    space: str,
    *,
    number: int = 12,
    device: str | None = None,
    batch: int | None = None,
    input_size: int | None = None,
    in_chans: int | None = None,
    num_classes: int | None = None,
    dtype: str | None = None,
    threads: int | None = None,
    file: Path,
    seed: int = 1,
) -> Check:
    """Set networks of a space, at random, beside what the table of layers says of them."""
    found = load_space(space, batch_norm=None if space.startswith("timm:") else True)
    place = find_device(device)
    table = LatencyTable(Conditions.here(place, 1 if batch is None else batch, dtype, threads), file, place)
    size, classes = input_size or native_input_size(found.backbones[0]), num_classes or 10
    plain = Latency(table, size, classes, in_chans or 3)
    named = [*found.points.values(), *found.seeds.values()][:REFERENCES]
    networks = plain.some_networks(found, number, seed)
    with _explained():
        latency = plain.calibrated(named)
        predicted = [latency.of(network) for network in networks]
        whole = [time for i in range(0, number, REFERENCES) for time in latency.whole(networks[i : i + REFERENCES])]
    macs = [make_plan(network, size, classes, in_chans or 3, check_fit=False).cost.macs for network in networks]
    names = [canonical_id(network) for network in networks]
    rows = list(zip(names, macs, predicted, whole, strict=True))
    return Check(table.conditions, found.name, size, latency.factor, rows)
