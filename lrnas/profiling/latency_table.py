"""Latency of a network before training: a table of measured layers.

The latency of a network, in milliseconds per batch, is the sum of the times of its steps (a convolution with batch norm
and ReLU, a pool, a part of the head), multiplied by a factor, because a whole network does not take exactly as long as
its steps together. Every step is measured when it first occurs and stored in an SQLite file, together with everything
that its time depends on: device, type, batch, versions. If several processes measure the same step, the first stored
time is kept. A sampler that looks at hundreds of candidates uses estimates for steps that were not measured; they come
from a fit to the measured steps.
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import random
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from lrnas import __version__, _quantities
from lrnas.arch.architecture import Architecture, Mix
from lrnas.arch.backbone_shapes import Step
from lrnas.errors import LrnasError
from lrnas.layers.layout import fastest_layout
from lrnas.models.plan import TIMM, built_id, make_plan
from lrnas.profiling.step_modules import Setting, layer_call, network_call, steps_of
from lrnas.profiling.timing import Call, measure
from lrnas.spaces.space import SearchSpace

DTYPES = dict(zip(_quantities.DTYPES, (torch.bfloat16, torch.float16, torch.float32), strict=True))
TOGETHER = 12
"""Number of steps that are measured side by side."""
PASSES, ROUNDS, QUANTILE = 2, 12, 0.1
"""Each step is measured in two passes of 12 samples. The time of a pass is a low quantile of its samples, and the
shorter of the two times is stored, because trials that run at the same time make samples longer, never shorter. On a
CPU, the time of the pass in which the clock layer was faster is stored."""
CLOCK = "clock layer"
"""Key of the time of a fixed layer, which is measured beside all others on a CPU. A CPU is not always equally fast, for
example if other machines share it. So every time is divided by the ratio of the layer's time then to the stored one."""
REFERENCES = 4
"""Number of named networks that are measured as a whole to find the factor."""
FEWEST = 10
"""Number of measured steps of a kind that an estimate needs."""

Array = npt.NDArray[np.float64]


def table_file(folder: Path) -> Path:
    """The file of the table in the folder of data sets."""
    return folder / "latency.db"


@dataclass(frozen=True, slots=True)
class Conditions:
    """Everything that the time of a step depends on, except the step."""

    device: str
    """cpu or cuda."""
    hardware: str
    dtype: str
    batch: int
    threads: int
    """CPU threads; 0 on a GPU."""
    kernels: bool
    """Whether the fused kernels may be used."""
    versions: str
    """Versions of PyTorch and lrnas; on a CPU also the layout of maps, if it is not PyTorch's."""

    @classmethod
    def here(cls, device: torch.device, batch: int, dtype: str | None = None, threads: int | None = None) -> Conditions:
        """The conditions of this process.

        Args:
            device: A device of this machine.
            batch: Images in a batch.
            dtype: bf16, fp16 or fp32; None for bf16 on a GPU and fp32 on a CPU.
            threads: CPU threads; None for PyTorch's number.
        """
        on_gpu = device.type == "cuda"
        library = " with ACL" if not on_gpu and torch.backends.mkldnn.is_acl_available() else ""
        if batch < 1:
            raise LrnasError(f"a batch must have at least one image; got {batch}; give a larger number")
        if threads is not None and threads < 1:
            raise LrnasError(f"the number of threads must be at least 1; got {threads}; give a larger number")
        _quantities.check_dtype(dtype)
        dtype = dtype or ("bf16" if on_gpu else "fp32")
        hardware = torch.cuda.get_device_name(device) if on_gpu else _processor()
        threads = 0 if on_gpu else threads or torch.get_num_threads()
        kernels = on_gpu and os.environ.get("LRNAS_KERNELS") != "off"
        layout = ", channels last" if not on_gpu and fastest_layout(device) == torch.channels_last else ""
        versions = f"torch {torch.__version__}{library}, lrnas {__version__}{layout}"
        return cls(device.type, hardware, dtype, batch, threads, kernels, versions)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        threads = f", {self.threads} thread{'s' * (self.threads > 1)}" if self.threads else ""
        return f"{self.hardware}, {self.dtype}, batch {self.batch}{threads}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.lower().startswith("model name")]
    return f"{models[0] if models else platform.machine()}, {os.cpu_count()} cores"


class LatencyTable:
    """Times of steps under the same conditions, in seconds, stored in a file.

    Args:
        conditions: The conditions of all measurements.
        file: The SQLite file, which several processes may use.
        device: The device; None for the default device of the kind in `conditions`.
    """

    def __init__(self, conditions: Conditions, file: Path, device: torch.device | None = None) -> None:
        self.conditions = conditions
        self.file = file
        self.setting = Setting(device or torch.device(conditions.device), DTYPES[conditions.dtype], conditions.batch)
        self._name = json.dumps(conditions.to_dict(), sort_keys=True)
        self._known = self._load()
        self._steps: dict[str, Step] = {}
        """Measured steps that occurred in this process, for estimates."""
        self._fits: dict[tuple[object, ...], Array | None] = {}

    def seconds(self, steps: Sequence[Step]) -> list[float]:
        """The time of each step; missing times are measured now."""
        missing = {step.key: step for step in steps if step.key not in self._known}
        names = list(missing)
        measured: dict[str, tuple[float, float]] = {}
        for _ in range(PASSES):
            for i in range(0, len(names), TOGETHER):
                some = names[i : i + TOGETHER]
                times, slowness = self._time([layer_call(missing[name], self.setting) for name in some])
                for name, seconds in zip(some, times, strict=True):
                    found = (slowness, seconds / slowness)
                    measured[name] = min(found, measured.get(name, found))
        if measured:
            self.store({name: seconds for name, (_, seconds) in measured.items()})
        if new := {step.key: step for step in steps if step.key not in self._steps}:
            self._steps |= new
            self._fits.clear()
        return [self._known[step.key] for step in steps]

    def time(self, calls: Sequence[Call]) -> list[float]:
        """Measure calls side by side under the conditions of the table."""
        times, slowness = self._time(calls)
        return [seconds / slowness for seconds in times]

    def _time(self, calls: Sequence[Call]) -> tuple[list[float], float]:
        """The times of calls, and the ratio of the time of the clock layer to the stored one, which is 1 on a GPU."""
        device, threads = self.setting.device, self.conditions.threads
        clocks = [_clock_call(self.setting)] if device.type == "cpu" else []
        settings: dict[str, Any] = {"sample": 0.001, "limit": 0.5, "quantile": QUANTILE, "threads": threads}
        times = measure([*calls, *clocks], device, rounds=ROUNDS, **settings)
        if not clocks:
            return times, 1.0
        return times[:-1], times[-1] / self.number(CLOCK, lambda: times[-1])

    def number(self, key: str, compute: Callable[[], float]) -> float:
        """A number stored in the table that is not the time of a step; it is computed now if it is missing."""
        if key not in self._known:
            self.store({key: compute()})
        return self._known[key]

    def estimates(self, steps: Sequence[Step]) -> list[float]:
        """The time of each step if it is known, else an estimate. Steps that cannot be estimated are measured now."""
        times = []
        for step in steps:
            seconds = self._known.get(step.key)
            if seconds is None:
                fit = self._fit(step)
                seconds = self.seconds([step])[0] if fit is None else float(_features(step) @ fit)
            times.append(seconds)
        return times

    def _fit(self, step: Step) -> Array | None:
        """Seconds per feature, fitted to the measured steps of the same kind; None if there are too few."""
        kind = _kind(step)
        if kind not in self._fits:
            alike = [other for other in self._steps.values() if _kind(other) == kind]
            self._fits[kind] = None
            if len(alike) >= FEWEST:
                seconds = np.array([self._known[other.key] for other in alike])
                self._fits[kind] = _fit(np.array([_features(other) for other in alike]), seconds)
        return self._fits[kind]

    def store(self, measured: Mapping[str, float]) -> None:
        """Write new times to the file; times that another process wrote before are kept."""
        rows = [(self._name, key, seconds) for key, seconds in measured.items()]
        try:
            with closing(self._connect()) as connection, connection:
                connection.executemany("INSERT OR IGNORE INTO times VALUES (?, ?, ?)", rows)
        except sqlite3.Error as error:
            raise LrnasError(f"cannot write {self.file}: {error}; choose a folder with $LRNAS_DATA") from None
        self._known = self._load()

    def _load(self) -> dict[str, float]:
        try:
            with closing(self._connect()) as connection, connection:
                connection.execute(
                    "CREATE TABLE IF NOT EXISTS times"
                    " (conditions TEXT, step TEXT, seconds REAL, PRIMARY KEY (conditions, step))"
                )
                rows = connection.execute("SELECT step, seconds FROM times WHERE conditions = ?", (self._name,))
                return dict(rows.fetchall())
        except (sqlite3.Error, OSError) as error:
            raise LrnasError(f"cannot read {self.file}: {error}; choose a folder with $LRNAS_DATA") from None

    def _connect(self) -> sqlite3.Connection:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        return sqlite3.connect(self.file, timeout=60)


def _clock_call(setting: Setting) -> Call:
    conv, image = nn.Conv2d(64, 64, 3, padding=1, dtype=setting.dtype), torch.randn(1, 64, 16, 16, dtype=setting.dtype)

    def call() -> object:
        with torch.inference_mode():
            return conv(image)

    return call


def _kind(step: Step) -> tuple[object, ...]:
    """Key of the steps that are fitted together: they share kernels, strides and map sizes, but not widths."""
    kind = (step.kind, step.input[1:], step.output[1:])
    if step.settings and isinstance(mix := step.settings[0], Mix):
        return *kind, mix.kind, mix.second is not None, *step.settings[1:]
    return kind if step.kind == "concat" else (*kind, *step.settings)


def _features(step: Step) -> Array:
    """Numbers that the time of a step depends on: convolutions, MACs, values read, values written, weights."""
    mix = step.settings[0] if step.settings else None
    parts = len(mix.groups) + (mix.second is not None) if isinstance(mix, Mix) else 1
    read, written = float(np.prod(step.input)), float(np.prod(step.output))
    return np.array([1.0, parts, step.macs, parts * read, written, step.params], dtype=np.float64)


def _fit(features: Array, seconds: Array) -> Array:
    """Non-negative coefficients that minimise the squares of relative errors."""
    from scipy.optimize import nnls  # only searches need it, and their extra installs it

    scaled = features / seconds[:, None]
    size = np.abs(scaled).max(axis=0) + 1e-300
    # a small penalty: features can be collinear, and then the smallest coefficients extrapolate best
    ridge = 1e-5 * np.eye(features.shape[1])
    wanted = np.append(np.ones(len(seconds)), np.zeros(len(ridge)))
    coefficients: Array = nnls(np.vstack([scaled / size, ridge]), wanted)[0] / size
    return coefficients


@dataclass(frozen=True, slots=True)
class Latency:
    """Latency of networks for images of one size, in milliseconds per batch."""

    table: LatencyTable
    input_size: int
    num_classes: int
    in_chans: int = 3
    factor: float = 1.0
    """Ratio of the time of a whole network to the sum of its steps."""

    def of(self, architecture: Architecture) -> float:
        """The latency of a network, computed from the table; missing steps are measured now."""
        return self._total(architecture, self.table.seconds)

    def guess(self, architecture: Architecture) -> float:
        """The latency of a network, computed from the table, with estimates for missing steps."""
        return self._total(architecture, self.table.estimates)

    def _total(self, architecture: Architecture, seconds: Callable[[Sequence[Step]], list[float]]) -> float:
        total = sum(seconds(self.steps(architecture)))
        if architecture.backbone.startswith(TIMM):
            total += self._rest(architecture)
        return 1000 * self.factor * total

    def steps(self, architecture: Architecture) -> list[Step]:
        """The steps of a network."""
        return steps_of(architecture, self.input_size, self.num_classes, self.in_chans)

    def _rest(self, architecture: Architecture) -> float:
        """Seconds that a timm model takes in addition to the layers that can change.

        They are measured on the plain model. They shrink with the number of values that all layers write.
        """
        size = (self.input_size, self.num_classes, self.in_chans)
        plan, stride = make_plan(architecture, *size), architecture.stem_stride
        if plan.choices is not None:  # one of our VGGs under timm's name
            return 0.0
        plain = Architecture(plan.backbone, stem_stride=stride)

        def compute() -> float:
            whole, steps = self._compare(plain)
            return max(0.0, whole - steps)

        stem = "" if stride is None else f" with stem stride {stride}"
        rest = self.table.number(f"rest of {plan.backbone}{stem}, {self._shape}", compute)
        return rest * plan.cost.num_values / make_plan(plain, *size).cost.num_values

    @property
    def _shape(self) -> str:
        return f"{self.in_chans}x{self.input_size}x{self.input_size}, {self.num_classes}"

    def measure(self, architectures: Sequence[Architecture]) -> list[float]:
        """Milliseconds of whole networks, measured now and side by side."""
        return [1000 * seconds for seconds in self.table.time([self._network_call(each) for each in architectures])]

    def _network_call(self, architecture: Architecture) -> Call:
        return network_call(architecture, self.input_size, self.num_classes, self.table.setting, self.in_chans)

    def calibrated(self, architectures: Sequence[Architecture]) -> Latency:
        """A copy whose factor is the median over the given networks, which are measured as a whole.

        The factor is stored in the table and computed only once. It is 1 for timm models: the time that their steps do
        not cover is measured as one more step.
        """
        if not architectures or any(network.backbone.startswith(TIMM) for network in architectures):
            return dataclasses.replace(self, factor=1.0)

        def compute() -> float:
            pairs = [self._compare(network) for network in architectures]
            return float(np.median([whole / steps for whole, steps in pairs]))

        names = sorted(built_id(network) for network in architectures)
        factor = self.table.number(f"factor of {', '.join(names)} at {self._shape}", compute)
        return dataclasses.replace(self, factor=factor)

    def some_networks(self, space: SearchSpace, number: int, seed: int = 0) -> list[Architecture]:
        """Random networks of a space; the same seed gives the same networks.

        Points that are not valid networks at this image size are skipped, so there may be fewer than requested.
        """
        generator = random.Random(seed)
        networks: list[Architecture] = []
        for _ in range(100 * number):
            if len(networks) == number:
                break
            with suppress(LrnasError):
                network = space.architecture(space.draw(generator))
                self.steps(network)
                networks.append(network)
        return networks

    def _compare(self, architecture: Architecture) -> tuple[float, float]:
        """Seconds of a whole network and of the sum of its steps, measured side by side."""
        steps = self.steps(architecture)
        distinct = {step.key: step for step in steps}
        layers = [layer_call(step, self.table.setting) for step in distinct.values()]
        whole, *parts = self.table.time([self._network_call(architecture), *layers])
        times = dict(zip(distinct, parts, strict=True))
        return whole, sum(times[step.key] for step in steps)

    def prepare(self, architectures: Iterable[Architecture], seconds: float) -> int:
        """Measure the steps of networks until the time is over, as a basis for estimates.

        Args:
            architectures: The networks.
            seconds: Time after which no further network is begun.

        Returns:
            The number of networks that were measured.
        """
        started, number = time.monotonic(), 0
        for network in architectures:
            if time.monotonic() - started > seconds:
                break
            self.table.seconds(self.steps(network))
            number += 1
        return number
