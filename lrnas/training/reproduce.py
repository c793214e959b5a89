"""`lrnas reproduce`: a network trained in full and set beside what was published.

Counting comes first and is exact. Then the network is trained on the data of the published number where that is at
hand, and otherwise on another set together with the paper's baseline of its family, so that the comparison (which
accuracy at which share of the multiply-accumulates) still means something. Every run leaves one JSON file with all
it takes to repeat it; a run whose file is there is not trained again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from lrnas._files import write_atomically
from lrnas.arch.backbone_shapes import smallest_input
from lrnas.data.catalog import load_set
from lrnas.data.in_memory import DataSet
from lrnas.data.names import is_stream, short_name
from lrnas.errors import DataError, LrnasError
from lrnas.models.paper import family_table, find_point, get_point
from lrnas.models.plan import resolve_backbone, training_size
from lrnas.models.summary import Summary, read_source, summarise
from lrnas.recipes import Recipe, get_recipe
from lrnas.training.checkpoint import difference
from lrnas.training.job import Job
from lrnas.training.loop import EpochReport, Result, evaluate
from lrnas.training.progress import download_view, training_view
from lrnas.training.provenance import provenance
from lrnas.training.seed_stats import OverSeeds


@dataclass(frozen=True, slots=True)
class Measured(OverSeeds):
    """One network under one recipe, over its seeds."""

    name: str
    macs: int
    """At the input size it was trained at."""
    share: float
    """Of the baseline's multiply-accumulates."""
    accuracies: tuple[float, ...]
    """On the test images, one per seed."""
    diverged: int
    published: float | None

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), **self.numbers()}


@dataclass(frozen=True, slots=True)
class Reproduction:
    """What came of it."""

    summary: Summary
    data: str
    is_published_data: bool
    recipe: Recipe
    input_size: int
    """Rows and columns of the images as networks are given them."""
    networks: list[Measured]
    """The one asked for, then the baseline."""
    files: list[Path]
    reused: list[Mapping[str, Any]] = field(default_factory=list)
    """Where each run comes from that was there already, and was not trained again."""

    def reuse(self) -> str:
        """That, in a sentence; empty where all runs are new."""
        if not self.reused:
            return ""
        places = dict.fromkeys(
            f"on {facts.get('hardware', 'an unknown machine')} at {str(facts.get('commit', 'an unknown commit'))[:10]}"
            for facts in self.reused
        )
        number, total = len(self.reused), len(self.files)
        were = "was" if total == 1 else "were"
        runs = f"{number} of {total} run{'s' * (total != 1)} {were} there already"
        return f"{runs}, made {' and '.join(places)}; --out FOLDER trains anew."

    def verdict(self) -> str:
        """The comparison in a sentence."""
        network = self.networks[0]
        if not network.accuracies:
            return f"{network.name} diverged in every run: try a lower learning rate, --set lr=…"
        if network.published is not None:
            points = 100 * (network.mean - network.published)
            return f"{network.name} is {points:+.2f} points from the published {100 * network.published:.2f} %."
        if len(self.networks) == 1 or not self.networks[1].accuracies:
            return f"{network.name} has nothing to be compared with."
        baseline = self.networks[1]
        points = 100 * (network.mean - baseline.mean)
        return f"{network.name}: {points:+.2f} points against {baseline.name}, at {network.share:.1%} of its MACs."

    def to_dict(self) -> dict[str, Any]:
        return {
            "count": self.summary.to_dict(),
            "data": self.data,
            "is_published_data": self.is_published_data,
            "recipe": self.recipe.to_dict(),
            "input": self.input_size,
            "networks": [network.to_dict() for network in self.networks],
            "verdict": self.verdict(),
            "files": [str(file) for file in self.files],
            "reused": [dict(facts) for facts in self.reused],
        }


def reproduce(
    source: str,
    *,
    data: str | None = None,
    data_dir: str | Path | None = None,
    image_size: int | None = None,
    loaders: int | None = None,
    recipe: str = "paper",
    changes: Mapping[str, Any] | None = None,
    seeds: int = 1,
    out: str | Path = "results/reproduce",
    device: str | None = None,
    compile_model: bool = False,
    workers: int = 1,
    address: str | None = None,
    say: Any = print,
) -> Reproduction:
    """Train a named network, or an architecture from a JSON file, over some seeds and compare."""
    for what, number in (("seeds", seeds), ("workers", workers)):
        if number < 1:
            raise LrnasError(f"the number of {what} is at least 1; got {number}")
    name, architecture = read_source(source)
    summary = summarise(name, architecture)
    backbone, with_norm = resolve_backbone(architecture)
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if image_size is None and data is not None and is_stream(data):
        image_size = training_size([backbone])
    reading = {"image_size": image_size, "loaders": loaders}
    image_set, is_published = _choose_data(summary, data, data_dir, reading, device, backbone, say)
    chosen = get_recipe(
        recipe, backbone, image_set.image_size, len(image_set.train), changes, own_crops=image_set.own_crops
    )
    networks = {name: architecture}
    table = family_table(backbone)
    baseline = table.baseline if table is not None else None
    if baseline is not None and not (is_published and summary.point is not None):
        # in the form of the network: batch norm on one side alone would be compared instead of the filters
        dense = replace(get_point(baseline).architecture, batch_norm=with_norm or None)
        if dense != architecture:
            label = f"{baseline}-bn" if with_norm else baseline
            baseline = f"{label}-dense" if label == name else label
            networks[baseline] = dense
    out = Path(out)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"cannot write to {out}: {error.strerror}; give another --out") from None

    def job(label: str, seed: int) -> Job:
        where = None if data_dir is None else str(data_dir)
        smallest = smallest_input(backbone)
        return Job(networks[label], image_set.name, chosen, seed, smallest, where, image_size, loaders)

    how = _How(recipe, device, workers, address, compile_model)
    measured: list[Measured] = []
    files: list[Path] = []
    reused: list[Mapping[str, Any]] = []
    base_macs = job(baseline if baseline in networks else name, 0).macs(image_set)
    for label in networks:
        runs = []
        for seed in range(seeds):
            files.append(out / f"{label}-{short_name(image_set.name)}-{Path(recipe).stem}-seed{seed}.json")
            if files[-1].exists():
                runs.append(_finished(files[-1], job(label, seed).identity(image_set)))
                reused.append(runs[-1].get("provenance", {}))
            else:
                runs.append(_run(files[-1], label, job(label, seed), image_set, how))
        measured.append(_measured(label, job(label, 0), runs, image_set, base_macs, is_published))
    size = chosen.crop or image_set.image_size
    return Reproduction(summary, image_set.name, is_published, chosen, size, measured, files, reused)


class _How(NamedTuple):
    """What does not change the outcome of a run, only how it comes about."""

    recipe_name: str
    device: str
    workers: int
    address: str | None
    compile_model: bool


def _choose_data(
    summary: Summary,
    wanted: str | None,
    data_dir: str | Path | None,
    reading: dict[str, int | None],
    device: str,
    backbone: str,
    say: Any,
) -> tuple[DataSet, bool]:
    smallest = smallest_input(backbone)
    table = family_table(backbone)
    published = table.data if table is not None else None

    def load(name: str) -> DataSet:
        with download_view() as progress:
            return load_set(name, data_dir, min_size=smallest, progress=progress, **reading)

    if wanted is not None:
        return load(wanted), wanted == published
    if device == "cpu":
        if published is not None:
            say(f"{published} is more than a CPU can train on: comparing with the baseline on digits instead")
        return load("digits"), False
    if published == "cifar10":
        return load("cifar10"), True
    say(f"{published or 'the data of its paper'} is not at hand: comparing with the baseline on cifar10 instead")
    return load("cifar10"), False


def _run(file: Path, label: str, job: Job, data: DataSet, how: _How) -> dict[str, Any]:
    """Train and test one job."""
    model = job.create_model(data)
    with training_view(f"{label}, seed {job.seed}") as report:
        result = _train(job, model, data, file.with_suffix(""), how, report)
    accuracy = loss = None
    if result.status == "completed":  # the one look at the test images
        loss, accuracy = evaluate(model, data.test(), data, job.recipe, device=how.device, cache=job.cache)
    record = {
        "network": label,
        "architecture": job.architecture.to_dict(),
        "identity": job.identity(data),
        "recipe_name": how.recipe_name,
        "status": result.status,
        "test_accuracy": accuracy,
        "test_loss": loss,
        "val_accuracy": result.val_accuracy,
        "macs": job.macs(data),
        "workers": how.workers,
        "unreadable_images": len(data.unreadable),
        **_timings(result),
        "provenance": provenance(seed=job.seed, n=1),
        "curve": [asdict(entry) for entry in result.curve],
    }
    _write(file, record)
    return record


def _train(
    job: Job, model: nn.Module, data: DataSet, folder: Path, how: _How, report: Callable[[EpochReport], None]
) -> Result:
    if how.workers == 1:
        return job.run(model, data, folder, how.device, compile_model=how.compile_model, report=report)
    from lrnas.training.multi_gpu import run_on_workers

    started = time.perf_counter()
    status = run_on_workers(
        job,
        folder,
        how.workers,
        use_gpu=how.device.startswith("cuda"),
        address=how.address,
        compile_model=how.compile_model,
        report=report,
    )
    if status == "diverged":
        return Result("diverged", [], time.perf_counter() - started, 0.0, 1)
    result = job.run(model, data, folder, how.device)  # nothing is left to train: this reads what the workers wrote
    result.seconds = time.perf_counter() - started
    return result


def _timings(result: Result) -> dict[str, Any]:
    return {
        "epochs": len(result.curve),
        "seconds": round(sum(entry.seconds for entry in result.curve), 3),  # also of those before a stop
        "start_seconds": round(result.start_seconds, 3),
        "images_per_second": round(result.images_per_second, 1),
        "micro_batches": result.micro_batches,
    }


def _finished(file: Path, identity: dict[str, Any]) -> dict[str, Any]:
    try:
        record: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        before = record["identity"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{file} is no record of a run ({error}); move it away") from None
    if other := difference(before, identity):
        raise DataError(f"{file} holds another run: {other}; give another --out")
    return record


def _write(file: Path, record: dict[str, Any]) -> None:
    try:
        with write_atomically(file) as part:
            part.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise DataError(f"cannot write {file}: {error.strerror}; give another --out") from None


def _measured(
    label: str, job: Job, runs: list[dict[str, Any]], data: DataSet, base_macs: int, is_published: bool
) -> Measured:
    macs = job.macs(data)
    accuracies = tuple(run["test_accuracy"] for run in runs if run["test_accuracy"] is not None)
    point = find_point(job.architecture) if is_published else None
    published = point.published.accuracy if point is not None else None
    return Measured(label, macs, macs / base_macs, accuracies, len(runs) - len(accuracies), published)
