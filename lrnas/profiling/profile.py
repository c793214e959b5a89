"""Measured times of networks and their layers on this machine, beside their multiply-accumulates.

Every network is compared with the dense network it is derived from (its baseline). Whole networks are measured side by
side, and so are layers at the same position, in a forward pass and in a training step. So both sides of a comparison
come from the same run. `check_table` compares measured times of whole networks with the latency that a search uses,
which is computed from a table of layers.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import torch

from lrnas._arguments import checked, is_a, short_repr
from lrnas._field_docs import in_help
from lrnas._messages import logger, show_messages
from lrnas._notebook import NotebookView
from lrnas.arch.architecture import Architecture
from lrnas.arch.backbone_shapes import Step
from lrnas.errors import InvalidArgument, LrnasError, UnknownName, first_line
from lrnas.models.found import find_found
from lrnas.models.paper import family_table, named_networks
from lrnas.models.plan import built_id, make_plan, native_input_size, native_num_classes, resolve_backbone
from lrnas.models.summary import read_source
from lrnas.profiling.latency_table import DTYPES, REFERENCES, Conditions, Latency, LatencyTable
from lrnas.profiling.step_modules import Setting, layer_call, network_call, steps_of
from lrnas.profiling.timing import Call, OtherWork, find_device, measure, pick_threads
from lrnas.spaces.space import load_space
from lrnas.study.references import StudyNetwork, check_no_study, find_network

if TYPE_CHECKING:
    from lrnas.study.study import Study, Trial

Named: TypeAlias = "str | Trial | Architecture | tuple[str, Architecture]"
"""A network that can be measured."""


BUSY = 0.2
"""Number of CPU cores used by other programs above which times should be measured again."""
UNSTEADY = 0.5
"""Spread above which times say nothing."""
DISTURBED = 2.0
"""Ratio of the sum of layers to the time of their network above which times of layers say nothing."""
REPETITIONS = 3
"""How often whole networks are measured, each time as a median over rounds."""
ABOUT_LAYERS = (
    "The sum of layers is not the time of the network: each layer is measured alone, again and again, with its data in "
    "the cache; and timm's models have more than the layers shown."
)
"""Line for tables of layers."""


@in_help
@dataclass(frozen=True, slots=True)
class LayerTime:
    """A layer with the batch norm and ReLU after it, measured by itself; times in milliseconds per batch."""

    name: str
    """Name of the layer."""
    filters: str
    """Its filters, or its kind if it is no convolution."""
    macs: int
    """Multiply-accumulates for one image."""
    forward: float
    """Time of a forward pass."""
    training: float | None
    """Time of forward and backward pass; None if it was not measured."""


@in_help
@dataclass(frozen=True, slots=True)
class Profiled:
    """A measured network; times in milliseconds per batch."""

    name: str
    """Name of the network, or its canonical id."""
    architecture: Architecture
    """The network as data."""
    baseline: str
    """The name of the network it is compared with; its own name for a baseline."""
    input_size: int
    """Rows and columns of the images."""
    macs: int
    """Multiply-accumulates for one image."""
    forward: float
    """Time of a forward pass."""
    training: float | None
    """Time of a step of SGD; None if it was not measured."""
    layers: list[LayerTime]
    """Times of its layers; empty if they were not measured."""
    spread: float = 0.0
    """Largest difference of a repetition from these times, as a share of the time."""


@in_help
@dataclass(frozen=True, slots=True)
class Profile(NotebookView):
    """Networks measured under the same conditions, baselines first."""

    conditions: Conditions
    """Device, number format, batch and threads."""
    compiled: bool
    """Whether networks and layers were compiled with torch.compile."""
    networks: list[Profiled]
    """The networks with their times, baselines first."""
    busy_cores: float | None = None
    """Number of CPU cores that other programs used on average during the measurements; None if unknown."""

    def __repr__(self) -> str:
        names = ", ".join(repr(network.name) for network in self.networks)
        return f"<Profile of {names} for {self._images} on {self.conditions}>"

    def __str__(self) -> str:
        head, *rows = self.table()
        widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in (head, *rows)]
        return "\n".join([f"{self.title}:", *lines, *(line for line in self.lines if line != ABOUT_LAYERS)])

    @property
    def title(self) -> str:
        """What was measured, and on what."""
        return f"Times for a batch of {self._images} on {self.conditions}{', compiled' if self.compiled else ''}"

    @property
    def _sizes(self) -> list[int]:
        return sorted({network.input_size for network in self.networks})

    @property
    def _images(self) -> str:
        return f"images of {' or '.join(f'{size}×{size}' for size in self._sizes)} pixels"

    def table(self) -> list[list[str]]:
        """The times of whole networks as rows of text; the first row has the names of the columns.

        The sizes of images are a column if networks were measured at different ones.
        """
        trained = any(network.training is not None for network in self.networks)
        several = len(self._sizes) > 1
        rows = [["network", *["images"] * several, *time_columns(trained), "compared with"]]
        for network in self.networks:
            base, size = self.baseline(network), f"{network.input_size}×{network.input_size}"
            cells = [*[size] * several, *time_cells(network, base, trained)]
            rows.append([network.name, *cells, "" if base is network else base.name])
        return rows

    def baseline(self, network: Profiled) -> Profiled:
        """The network that a network is compared with."""
        return next(other for other in self.networks if other.name == network.baseline)

    def shares(self, network: Profiled) -> dict[str, float | None]:
        """Multiply-accumulates and times relative to those of the baseline."""
        base = self.baseline(network)
        trained = network.training is not None and base.training is not None
        return {
            "macs": network.macs / base.macs,
            "forward": network.forward / base.forward,
            "training": network.training / base.training if trained else None,  # type: ignore[operator]
        }

    @property
    def lines(self) -> list[str]:
        """How the times were measured and how sure they are, in words."""
        spread = max(network.spread for network in self.networks)
        found = [
            f"Times are medians over rounds that measure all networks, repeated {REPETITIONS} times; repetitions of "
            f"whole networks differ from the times shown by at most {100 * spread:.1f} %. MACs are for one image."
        ]
        if spread > UNSTEADY:
            threads = ", or with --threads 1" if self.conditions.threads > 1 else ""
            found.insert(0, f"These times say nothing, because they differ too much: measure again{threads}.")
        if any(network.layers for network in self.networks):
            found.append(ABOUT_LAYERS)
            sums = [sum(layer.forward for layer in network.layers) / network.forward for network in self.networks]
            if self.conditions.device == "cpu" and max(sums) > DISTURBED:
                longer = f"Together, layers take {max(sums):.1f} times as long as their network"
                found.append(f"{longer}: other programs disturbed their measurement; measure again.")
        if self.busy_cores is not None:
            busy = f"Other programs used {self.busy_cores:.1f} of {os.cpu_count()} CPU cores meanwhile"
            found.append(f"{busy}{': measure again when they are idle.' if self.busy_cores > BUSY else '.'}")
        return found

    def to_dict(self) -> dict[str, Any]:
        """All numbers, for JSON."""
        return {
            "conditions": {**self.conditions.to_dict(), "compiled": self.compiled, "busy_cores": self.busy_cores},
            "networks": [
                {
                    "name": network.name,
                    "id": built_id(network.architecture),
                    "baseline": network.baseline,
                    "input": network.input_size,
                    **_numbers(network),
                    "spread": network.spread,
                    "share": self.shares(network),
                    "layers": [
                        {"name": layer.name, "filters": layer.filters, **_numbers(layer)} for layer in network.layers
                    ],
                }
                for network in self.networks
            ],
        }


def time_columns(trained: bool) -> list[str]:
    """Names of the columns of `time_cells`."""
    names = ["MACs", "share of MACs", "forward", "share of forward time"]
    return [*names, *(["training", "share of training time"] if trained else [])]


def time_cells(own: LayerTime | Profiled, base: LayerTime | Profiled | None, trained: bool) -> list[str]:
    """MACs and times, each followed by its ratio to those of the network that it is compared with."""
    cells = []
    for name in ("macs", "forward", *(("training",) if trained else ())):
        value, other = getattr(own, name), getattr(base, name, None)
        shown = f"{value:,}" if name == "macs" else "–" if value is None else f"{value:.3f} ms"
        cells += [shown, f"{value / other:.3f}" if value is not None and other else "–"]
    return cells


def _numbers(measured: LayerTime | Profiled) -> dict[str, float | None]:
    return {"macs": measured.macs, "forward_ms": measured.forward, "training_ms": measured.training}


def baseline_of(architecture: Architecture) -> tuple[str, Architecture]:
    """The name and architecture of the dense network that a network is derived from.

    This is the baseline of its family in the paper, or its own backbone with dense layers.
    """
    backbone, batch_norm = resolve_backbone(architecture)
    if (table := family_table(backbone)) is None:
        return f"{backbone}, dense", dataclasses.replace(architecture, layers={})
    own = named_networks()[table.baseline]
    if batch_norm:
        return f"{table.baseline}, batch norm", dataclasses.replace(own, batch_norm=True)
    return table.baseline, own


@checked
def profile(
    networks: Named | Sequence[Named],
    *,
    device: str | torch.device | None = None,
    batch: int | None = None,
    input: int | None = None,  # noqa: A002  # the option's name
    channels: int | None = None,
    classes: int | None = None,
    dtype: str | None = None,
    threads: int | None = None,
    compile: bool = False,  # noqa: A002  # the option's name
    baseline: Named | None = None,
    training: bool = True,
    layers: bool = True,
    studies: str | Path = "studies",
    storage: str | None = None,
) -> Profile:
    """Measure the time of networks and their layers, and of the baseline of each, on a device of this machine.

    Args:
        networks: One network or several: a trial, an architecture, a pair of a name and an architecture, or text: a
            name from `lrnas models`, a backbone, an architecture FILE.json, timm:MODEL or STUDY:TRIAL.
        device: cpu, cuda or cuda:N; None for the GPU if there is one.
        batch: Images in a batch; None for 128 on a GPU and 8 on a CPU.
        input: Rows and columns of the images; None for those in training, else the paper's.
        channels: Channels of the images; None for those in training, else 3.
        classes: Number of classes; None for those in training, else the paper's.
        dtype: bf16, fp16 or fp32; None for bf16 on a GPU and fp32 on a CPU.
        threads: CPU threads; None for PyTorch's number, or for one if forward passes are faster with it.
        compile: Use torch.compile for networks, baselines and layers.
        baseline: Network to compare all others with; None for the dense network of each one's family.
        training: Measure training steps too.
        layers: Measure single layers too.
        studies: Folder that holds the studies, for STUDY:TRIAL.
        storage: Database URL, or journal:FILE, that holds the study; None for the file in its folder.

    Returns:
        The times of all networks and baselines.
    """
    show_messages()
    several = networks if isinstance(networks, Sequence) and not _is_one(networks) else [networks]
    if not several:
        raise InvalidArgument("at least one network is needed to measure times; got none; give a name, or a trial")
    found = [_find(network, studies, storage) for network in several]
    wanted = None if baseline is None else _find(baseline, studies, storage)
    found_shapes = [each.shape for each in (*found, wanted) if each is not None and each.shape is not None]
    size = _common("input", input, [shape.size for shape in found_shapes])
    channels = _common("channels", channels, [shape.channels for shape in found_shapes]) or 3
    classes = _common("classes", classes, [shape.num_classes for shape in found_shapes])
    place = find_device(device)
    batch = (128 if place.type == "cuda" else 8) if batch is None else batch
    conditions = Conditions.here(place, batch, dtype, threads)
    setting = Setting(place, DTYPES[conditions.dtype], batch, compile)
    rows = _with_baselines([each[:2] for each in found], None if wanted is None else wanted[:2])
    shapes: list[tuple[Architecture, int, int, int]] = []
    for _, network, _ in rows:
        backbone = resolve_backbone(network)[0]
        shape = (
            native_input_size(backbone) if size is None else size,
            native_num_classes(backbone) if classes is None else classes,
            channels,
        )
        shapes.append((network, *shape))
    costs = [make_plan(*shape).cost for shape in shapes]

    def make_calls(is_training: bool) -> list[Call]:
        return [network_call(*shape[:3], setting, channels, training=is_training) for shape in shapes]

    def time_networks(calls: list[Call]) -> list[tuple[float, float]]:
        """The median of all repetitions, and the largest difference from it, as a share of it."""
        repeated = np.array([_milliseconds(calls, place, conditions.threads) for _ in range(REPETITIONS)])
        medians = np.median(repeated, axis=0)
        return list(zip(medians.tolist(), (np.abs(repeated - medians).max(axis=0) / medians).tolist(), strict=True))

    others = OtherWork()

    # torch.compile's own limit on compilations of one kind of module is lower than the number of layers
    many_compilations = torch._dynamo.config.patch(recompile_limit=10_000, accumulated_recompile_limit=10_000)
    with _explained_errors(), many_compilations:
        calls = make_calls(False)
        if place.type == "cpu" and threads is None:
            conditions = dataclasses.replace(conditions, threads=pick_threads(calls, place))
        logger.info(f"measuring {len(rows)} network{'s' * (len(rows) != 1)} on {conditions}")
        forward = time_networks(calls)
        del calls  # the memory of a GPU is for the training steps
        trained = time_networks(make_calls(True)) if training else [(None, 0.0)] * len(rows)
        steps = [steps_of(*shape) if layers else [] for shape in shapes]
        times = _time_layers(steps, setting, conditions.threads, training)
    measured = []
    for i, (name, network, base) in enumerate(rows):
        (whole, spread), (step, step_spread) = forward[i], trained[i]
        known = (name, network, base, shapes[i][1], costs[i].macs, whole, step, times[i], max(spread, step_spread))
        measured.append(Profiled(*known))
    return Profile(conditions, compile, measured, others.cores())


class _Shape(NamedTuple):
    """Size and channels of images, and the number of classes, that a network was trained for."""

    size: int
    channels: int
    num_classes: int


class _Found(NamedTuple):
    """A network to measure, and what it was trained for; None if it was not trained."""

    name: str
    network: Architecture
    shape: _Shape | None


def _is_one(networks: Any) -> bool:
    """Whether an argument is one network, and not a sequence of networks."""
    return isinstance(networks, str) or (
        isinstance(networks, tuple) and len(networks) == 2 and isinstance(networks[1], Architecture)
    )


def _find(source: Any, studies: str | Path, storage: str | None) -> _Found:
    if isinstance(source, tuple) and _is_one(source):
        return _Found(source[0], source[1], None)
    if isinstance(source, Architecture):
        return _Found(built_id(source), source, None)
    if not isinstance(source, str) and not is_a("Trial", source):
        raise InvalidArgument(
            f"a network is a trial, an Architecture, text, or a name and an Architecture; got {short_repr(source)}; "
            "give for example study.best(), or STUDY:best"
        )
    is_trial = not isinstance(source, str)
    found = StudyNetwork(source.study, source) if is_trial else find_network(source, studies, storage)
    if found is not None:
        return _Found(found.name, found.trial.architecture, _shape_of(found.study))
    if (own := find_found(source)) is not None:
        channels, size, _ = own.config["input_size"]
        return _Found(own.name, own.architecture, _Shape(size, channels, own.config["num_classes"]))
    try:
        return _Found(*read_source(source), None)
    except UnknownName:
        check_no_study(source, studies, storage)
        raise


def _shape_of(study: Study) -> _Shape:
    shape = study.image_shape
    return _Shape(shape.size, shape.channels, shape.num_classes)


def _common(option: str, given: int | None, found: Sequence[int]) -> int | None:
    """A number that is given, else that of the networks' trainings, which must be the same for all of them."""
    if given is None and len(numbers := sorted(set(found))) > 1:
        raise LrnasError(
            f"networks are measured as they were trained; got networks of {option} {' and '.join(map(str, numbers))}; "
            f"give --{option}"
        )
    return given if given is not None or not found else found[0]


def _with_baselines(
    networks: Sequence[tuple[str, Architecture]], baseline: tuple[str, Architecture] | None
) -> list[tuple[str, Architecture, str]]:
    """Rows of name, architecture and name of the baseline: every network once, baselines first."""
    given = {built_id(network): (name, network) for name, network in networks}
    baselines: dict[str, tuple[str, Architecture]] = {}
    baseline_names = {}
    for identity, (_, network) in given.items():
        base = baseline or baseline_of(network)
        base_identity = built_id(base[1])
        baselines[base_identity] = given.get(base_identity, base)
        baseline_names[identity] = baselines[base_identity][0]
    rows = [(*row, row[0]) for row in baselines.values()]
    return rows + [(*row, baseline_names[identity]) for identity, row in given.items() if identity not in baselines]


def _milliseconds(calls: list[Call], device: torch.device, threads: int) -> list[float]:
    return [1000 * seconds for seconds in measure(calls, device, threads=threads)] if calls else []


def _time_layers(steps: list[list[Step]], setting: Setting, threads: int, training: bool) -> list[list[LayerTime]]:
    """Times of the steps of several networks; steps with the same name are measured together."""
    firsts = {own[0].key for own in steps if own}
    names = list(dict.fromkeys(step.name for own in steps for step in own))
    times: dict[str, tuple[float, float | None]] = {}
    if names:
        logger.info(f"measuring {sum(map(len, steps))} layers in {len(names)} places")
    for name in names:
        new = {step.key: step for own in steps for step in own if step.name == name and step.key not in times}
        forward = _milliseconds([layer_call(step, setting) for step in new.values()], setting.device, threads)
        trained: Sequence[float | None] = [None] * len(new)
        if training:
            calls = [layer_call(step, setting, training=True, is_first=key in firsts) for key, step in new.items()]
            trained = _milliseconds(calls, setting.device, threads)
        times |= dict(zip(new, zip(forward, trained, strict=True), strict=True))
    return [[LayerTime(step.name, _filters(step), step.macs, *times[step.key]) for step in own] for own in steps]


def _filters(step: Step) -> str:
    if step.kind == "head":
        return "dense"  # as in `lrnas count`
    return str(step.settings[0]) if step.kind in ("conv", "bare conv") else step.kind


@contextmanager
def _explained_errors() -> Iterator[None]:
    try:
        yield
    except torch.OutOfMemoryError:
        raise LrnasError("the device has too little memory to measure these networks together; lower --batch") from None
    except (RuntimeError, ValueError) as error:
        hint = "; give a larger --batch" if "more than 1 value per channel" in str(error) else ""
        raise LrnasError(f"a network cannot be run with these settings: {first_line(error)}{hint}") from None


@dataclass(frozen=True, slots=True)
class Check:
    """Comparison of the latency table with whole networks; milliseconds per batch."""

    conditions: Conditions
    space: str
    input_size: int
    factor: float
    rows: list[tuple[str, int, float, float]]
    """Name, multiply-accumulates, time computed from the table, measured time."""

    @property
    def errors(self) -> list[float]:
        """Relative errors of the table."""
        return [table / whole - 1 for _, _, table, whole in self.rows]

    @property
    def mean_error(self) -> float:
        """Mean absolute value of the relative errors."""
        return float(np.mean(np.abs(self.errors)))

    @property
    def rank_agreement(self) -> float:
        """Kendall's tau between table and measurement: 1 if both order the networks in the same way."""
        table, whole = (np.array([row[column] for row in self.rows]) for column in (2, 3))
        signs = np.sign(np.subtract.outer(table, table)) * np.sign(np.subtract.outer(whole, whole))
        number = len(self.rows)
        return float(signs.sum() / (number * (number - 1))) if number > 1 else 1.0

    def to_dict(self) -> dict[str, Any]:
        """All numbers, for JSON."""
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
    device: str | torch.device | None = None,
    batch: int | None = None,
    input: int | None = None,  # noqa: A002  # the option's name
    channels: int | None = None,
    classes: int | None = None,
    dtype: str | None = None,
    threads: int | None = None,
    file: Path,
    seed: int = 1,
) -> Check:
    """Compare the latency table with random networks of a space that are measured as a whole.

    Args:
        space: Name or file of a search space, or timm:MODEL.
        number: Number of networks.
        device: cpu, cuda or cuda:N; None for the GPU if there is one.
        batch: Images in a batch; None for 1.
        input: Rows and columns of the images; None for the size in the paper.
        channels: Channels of the images; None for 3.
        classes: Number of classes; None for 10.
        dtype: bf16, fp16 or fp32; None for bf16 on a GPU and fp32 on a CPU.
        threads: CPU threads; None for PyTorch's number.
        file: The file of the table; missing layers are measured and added.
        seed: Seed for the choice of networks.

    Returns:
        Times computed from the table and measured times of all networks.
    """
    found = load_space(space, batch_norm=None if space.startswith("timm:") else True)
    place = find_device(device)
    table = LatencyTable(Conditions.here(place, 1 if batch is None else batch, dtype, threads), file, place)
    shape = (input or native_input_size(found.backbones[0]), classes or 10, channels or 3)
    latency = Latency(table, *shape)
    networks = latency.some_networks(found, number, seed)
    with _explained_errors():
        latency = latency.calibrated([*found.points.values(), *found.uniform.values()][:REFERENCES])
        predicted = [latency.of(network) for network in networks]
        whole = [time for i in range(0, number, REFERENCES) for time in latency.measure(networks[i : i + REFERENCES])]
    macs = [make_plan(network, *shape).cost.macs for network in networks]
    rows = list(zip(map(built_id, networks), macs, predicted, whole, strict=True))
    return Check(table.conditions, found.name, shape[0], latency.factor, rows)
