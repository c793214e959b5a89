"""Latency known before training: a table of what single layers take, measured once on a device and kept.

The latency of a network is the sum of its steps (a convolution with batch norm and ReLU, a pool, a part of the head),
times a factor that says how whole networks compare with such sums, in milliseconds for one batch. Every step is
measured the first time it is met and kept in one SQLite file, under all that decides how long it takes: device, type,
batch, versions. The first process that measures a step settles what it takes. Who looks at hundreds of networks to
choose one (a sampler) is given guesses for steps that were not measured: a fit to those that were.
"""

from __future__ import annotations

import json
import os
import platform
import random
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from lrnas import __version__
from lrnas.arch.architecture import Architecture, Mix
from lrnas.arch.backbone_shapes import Step
from lrnas.errors import LrnasError
from lrnas.models.plan import TIMM, canonical_id, make_plan
from lrnas.profiling.step_modules import Setting, layer_call, network_call, steps_of
from lrnas.profiling.threads import num_threads
from lrnas.profiling.timing import measure
from lrnas.spaces.space import SearchSpace

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
TOGETHER = 12
"""Steps that are measured side by side."""
PASSES, ROUNDS, QUANTILE = 2, 12, 0.1
"""Times that a step is measured, samples each time, and which of these counts; in the end the shorter time does. Trials
may run meanwhile, which makes many samples long and none short."""
REFERENCES = 4
"""Named networks that are measured whole, to see how sums of their layers compare."""
FEWEST = 10
"""Steps of a kind that a guess needs."""

Array = npt.NDArray[np.float64]


def find_device(name: str | None) -> torch.device:
    """A device by name; by default the GPU if there is one."""
    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
    except RuntimeError:
        raise LrnasError(f"a device is cpu, cuda or cuda:N; got {name!r}") from None
    if device.type not in ("cpu", "cuda"):
        raise LrnasError(f"times are measured on cpu or cuda; got {name!r}")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise LrnasError(f"this machine has {torch.cuda.device_count()} GPUs that PyTorch can use; got {name!r}")
    return device


def table_file(folder: Path) -> Path:
    """Where the table is kept, in the folder of data sets."""
    return folder / "latency.db"


@dataclass(frozen=True, slots=True)
class Conditions:
    """All but the layer that decides how long it takes."""

    device: str
    """cpu or cuda."""
    hardware: str
    dtype: str
    batch: int
    threads: int
    """Of the CPU; 0 on a GPU."""
    kernels: bool
    """Whether the fused ones may be used."""
    versions: str
    """Of PyTorch and lrnas."""

    @classmethod
    def here(cls, device: torch.device, batch: int, dtype: str | None = None, threads: int | None = None) -> Conditions:
        """Those of this process."""
        on_gpu = device.type == "cuda"
        # named, so that what was measured there before one thread was held to one is not met again
        library = " with ACL" if not on_gpu and torch.backends.mkldnn.is_acl_available() else ""
        if batch < 1:
            raise LrnasError(f"a batch has at least one image; got {batch}")
        dtype = dtype or ("bf16" if on_gpu else "fp32")
        if dtype not in DTYPES:
            raise LrnasError(f"a type is one of {', '.join(DTYPES)}; got {dtype!r}")
        return cls(
            device.type,
            torch.cuda.get_device_name(device) if on_gpu else _processor(),
            dtype,
            batch,
            0 if on_gpu else threads or torch.get_num_threads(),
            on_gpu and os.environ.get("LRNAS_KERNELS") != "off",
            f"torch {torch.__version__}{library}, lrnas {__version__}",
        )

    def in_force(self) -> AbstractContextManager[None]:
        """With as many threads."""
        return num_threads(self.threads or torch.get_num_threads())

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
    """What steps take under some conditions, in seconds. See the module."""

    def __init__(self, conditions: Conditions, file: Path, device: torch.device | None = None) -> None:
        self.conditions = conditions
        self.file = file
        self.setting = Setting(device or torch.device(conditions.device), DTYPES[conditions.dtype], conditions.batch)
        self._name = json.dumps(conditions.to_dict(), sort_keys=True)
        self._known = self._load()
        self._steps: dict[str, Step] = {}
        """Those met so far that have been measured, for guesses."""
        self._fits: dict[tuple[object, ...], Array | None] = {}

    def seconds(self, steps: Sequence[Step]) -> list[float]:
        """What each takes; what is missing is measured now."""
        missing = {step.key: step for step in steps if step.key not in self._known}
        names = list(missing)
        found: dict[str, float] = {}
        for _ in range(PASSES):
            for i in range(0, len(names), TOGETHER):
                some = names[i : i + TOGETHER]
                calls = [layer_call(missing[name], self.setting) for name in some]
                for name, seconds in zip(some, self.time(calls), strict=True):
                    found[name] = min(seconds, found.get(name, seconds))
        if found:
            self.keep(found)
        for step in steps:
            if step.key not in self._steps:
                self._steps[step.key] = step
                self._fits.clear()
        return [self._known[step.key] for step in steps]

    def time(self, calls: Sequence[Callable[[], object]]) -> list[float]:
        """Calls side by side, under the conditions of the table."""
        # with one thread all work is done in this one: its own clock stands still while others have the core
        clock = time.thread_time if self.conditions.threads == 1 else time.perf_counter
        place = self.setting.device
        with self.conditions.in_force():
            return measure(calls, place, rounds=ROUNDS, sample=0.001, limit=0.5, quantile=QUANTILE, clock=clock)

    def number(self, key: str, make: Callable[[], float]) -> float:
        """Any other number that is measured once."""
        if key not in self._known:
            self.keep({key: make()})
        return self._known[key]

    def guesses(self, steps: Sequence[Step]) -> list[float]:
        """What each takes, or would take by those that were measured; nothing is measured that can be guessed."""
        found = []
        for step in steps:
            if (known := self._known.get(step.key)) is not None:
                found.append(known)
                continue
            fit = self._fit(step)
            found.append(self.seconds([step])[0] if fit is None else float(_features(step) @ fit))
        return found

    def _fit(self, step: Step) -> Array | None:
        """Seconds by features, from the steps of its kind; None where there are too few."""
        kind = _kind(step)
        if kind not in self._fits:
            alike = [other for other in self._steps.values() if _kind(other) == kind]
            self._fits[kind] = None
            if len(alike) >= FEWEST:
                taken = np.array([self._known[other.key] for other in alike])
                self._fits[kind] = _fit(np.array([_features(other) for other in alike]), taken)
        return self._fits[kind]

    # --- the file

    def keep(self, found: Mapping[str, float]) -> None:
        """Write what was measured; what another process wrote meanwhile stands."""
        rows = [(self._name, key, seconds) for key, seconds in found.items()]
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


def _kind(step: Step) -> tuple[object, ...]:
    """Steps for which time goes by the same rule: kernels, strides and maps are the same, widths differ."""
    kind = (step.kind, step.input[1:], step.output[1:])
    if step.settings and isinstance(mix := step.settings[0], Mix):
        return *kind, mix.kind, mix.second is not None, *step.settings[1:]
    return kind if step.kind == "concat" else (*kind, *step.settings)


def _features(step: Step) -> Array:
    """What time grows with: convolutions, multiply-accumulates, values that are read and written, weights."""
    mix = step.settings[0] if step.settings else None
    parts = len(mix.groups) + (mix.second is not None) if isinstance(mix, Mix) else 1
    read, written = float(np.prod(step.input)), float(np.prod(step.output))
    return np.array([1.0, parts, step.macs, parts * read, written, step.params], dtype=np.float64)


def _fit(features: Array, seconds: Array) -> Array:
    """Least squares of relative errors, no coefficient below zero: those that would be are left out, one by one."""
    scaled = features / seconds[:, None]
    size = np.abs(scaled).max(axis=0) + 1e-300
    used = list(range(features.shape[1]))
    while True:
        found = np.linalg.lstsq(scaled[:, used] / size[used], np.ones(len(seconds)), rcond=1e-10)[0]
        if found.min() >= 0 or len(used) == 1:
            break
        used.pop(int(np.argmin(found)))
    all_found: Array = np.zeros(features.shape[1])
    all_found[used] = np.maximum(found, 0) / size[used]
    return all_found


@dataclass(frozen=True, slots=True)
class Latency:
    """The latency of networks for images of one size, in milliseconds for a batch."""

    table: LatencyTable
    input_size: int
    num_classes: int
    in_chans: int = 3
    factor: float = 1.0
    """Of whole networks to the sums of their steps."""

    def of(self, architecture: Architecture) -> float:
        """By the table; steps that it does not have are measured now."""
        return self._total(architecture, self.table.seconds)

    def guess(self, architecture: Architecture) -> float:
        """By the table, and by what is like its steps."""
        return self._total(architecture, self.table.guesses)

    def _total(self, architecture: Architecture, seconds: Callable[[Sequence[Step]], list[float]]) -> float:
        total = sum(seconds(self.steps(architecture)))
        if architecture.backbone.startswith(TIMM):
            total += self._rest(architecture)
        return 1000 * self.factor * total

    def steps(self, architecture: Architecture) -> list[Step]:
        return steps_of(architecture, self.input_size, self.num_classes, self.in_chans)

    def _rest(self, architecture: Architecture) -> float:
        """What a model of timm takes beside the layers that can change: they stand in it as they came, once."""
        plan = make_plan(architecture, self.input_size, self.num_classes, self.in_chans, check_fit=False)
        if plan.choices is not None:  # a VGG of ours under timm's name
            return 0.0
        plain = Architecture(plan.backbone)
        key = f"rest of {plan.backbone}, {self.in_chans}x{self.input_size}x{self.input_size}, {self.num_classes}"

        def find() -> float:
            whole, steps = self._compared(plain)
            return max(0.0, whole - steps)

        return self.table.number(key, find)

    def whole(self, architectures: Sequence[Architecture]) -> list[float]:
        """Whole networks, measured side by side now, in milliseconds."""
        setting = self.table.setting
        calls = [
            network_call(network, self.input_size, self.num_classes, setting, self.in_chans)
            for network in architectures
        ]
        return [1000 * seconds for seconds in self.table.time(calls)]

    def calibrated(self, architectures: Sequence[Architecture]) -> Latency:
        """With the factor that some networks have, by their median; measured once."""
        names = sorted(canonical_id(network) for network in architectures)
        shape = f"{self.in_chans}x{self.input_size}x{self.input_size}, {self.num_classes}"

        def find() -> float:
            pairs = [self._compared(network) for network in architectures]
            return float(np.median([whole / steps for whole, steps in pairs]))

        # of timm's models the steps are not all there is, and the rest is what is left over
        ours = architectures and not any(network.backbone.startswith(TIMM) for network in architectures)
        factor = self.table.number(f"factor of {', '.join(names)} at {shape}", find) if ours else 1.0
        return Latency(self.table, self.input_size, self.num_classes, self.in_chans, factor)

    def some_networks(self, space: SearchSpace, number: int, seed: int = 0) -> list[Architecture]:
        """Points of a space at random, the same ones every time; those that make no network at this size are left out.

        There may be fewer than asked for.
        """
        chance = random.Random(seed)
        found: list[Architecture] = []
        for _ in range(100 * number):
            if len(found) == number:
                break
            with suppress(LrnasError):
                network = space.architecture(space.draw(chance))
                self.steps(network)
                found.append(network)
        return found

    def _compared(self, architecture: Architecture) -> tuple[float, float]:
        """Seconds of a whole network and of the sum of its steps, all measured side by side."""
        steps, setting = self.steps(architecture), self.table.setting
        unlike = {step.key: step for step in steps}
        whole = network_call(architecture, self.input_size, self.num_classes, setting, self.in_chans)
        total, *parts = self.table.time([whole, *(layer_call(step, setting) for step in unlike.values())])
        times = dict(zip(unlike, parts, strict=True))
        return total, sum(times[step.key] for step in steps)

    def prepare(self, architectures: Iterable[Architecture], seconds: float) -> int:
        """Measure the steps of networks while there is time, for guesses later on; how many there was time for."""
        started, number = time.monotonic(), 0
        for network in architectures:
            if time.monotonic() - started > seconds:
                break
            self.table.seconds(self.steps(network))
            number += 1
        return number
