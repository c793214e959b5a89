"""`lrnas reproduce`: trains a network in full and compares it with published results.

First, parameters and multiply-accumulates are counted, which is exact. Then the network is trained on the data set of
the published result, if it is available. Otherwise, both the network and the paper's baseline of its family are trained
on another data set, so that their accuracies and multiply-accumulates can be compared with each other. Every run writes
one JSON file with everything that is needed to repeat it; a run whose file exists is not trained again.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from lrnas._files import acquire_lock, read_json, write_atomically
from lrnas._messages import logger
from lrnas.arch.backbone_shapes import smallest_input
from lrnas.data.catalog import load_set
from lrnas.data.in_memory import DataSet
from lrnas.data.names import IMAGE_MEMORY, is_in_files, short_name, shown_name
from lrnas.errors import DataError, LrnasError
from lrnas.models.paper import family_table, find_point, get_point
from lrnas.models.plan import has_norms, resolve_backbone, training_size
from lrnas.models.summary import Summary, read_source, summarise
from lrnas.recipes import Recipe, get_recipe, tell_small_batches
from lrnas.training.checkpoint import difference
from lrnas.training.job import Job
from lrnas.training.loop import Report, Result, evaluate
from lrnas.training.progress import download_view, packing_view, telling_interrupts, training_view
from lrnas.training.provenance import provenance
from lrnas.training.seed_stats import OverSeeds


@dataclass(frozen=True, slots=True)
class Measured(OverSeeds):
    """The test accuracies of one network trained with one recipe."""

    name: str
    macs: int
    """Multiply-accumulates at the input size of the training."""
    share: float
    """Multiply-accumulates as a share of the baseline's."""
    accuracies: tuple[float, ...]
    """Accuracies on the test images, one per seed."""
    diverged: int
    """Number of runs that diverged."""
    published: float | None
    """Published accuracy; None if it was measured on other data."""

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), **self.numbers()}


@dataclass(frozen=True, slots=True)
class Reproduction:
    """The result of `reproduce`."""

    summary: Summary
    data: str
    is_published_data: bool
    """Whether the published accuracies were measured on these data."""
    recipe: Recipe
    input_size: int
    """Rows and columns of the network's input."""
    networks: list[Measured]
    """The requested network, then its baseline if that was trained too."""
    files: list[Path]
    """The records of all runs."""
    reused: list[Mapping[str, Any]] = field(default_factory=list)
    """Provenance of the runs whose files existed already, and which were not trained again."""

    def reuse(self) -> str:
        """Return a sentence about the runs that existed already; "" if all runs are new."""
        if not self.reused:
            return ""
        places = dict.fromkeys(
            f"on {facts.get('hardware', 'an unknown machine')} at {str(facts.get('commit', 'an unknown commit'))[:10]}"
            for facts in self.reused
        )
        total = len(self.files)
        runs = f"{len(self.reused)} of {total} {'run' if total == 1 else 'runs'} existed already"
        return f"{runs}, made {' and '.join(places)}; give another --out FOLDER to train again."

    def verdict(self) -> str:
        """Return the comparison as a sentence."""
        network, *baselines = self.networks
        if not network.accuracies:
            return f"{network.name} diverged in every run: try a lower learning rate, --set lr=…"
        if network.published is not None:
            points = 100 * (network.mean - network.published)
            return f"{network.name} is {points:+.2f} points from the published {100 * network.published:.2f} %."
        if not baselines or not baselines[0].accuracies:
            return f"There is nothing to compare {network.name} with."
        points = 100 * (network.mean - baselines[0].mean)
        share = f"{100 * network.share:.1f} % of its MACs"
        return f"{network.name}: {points:+.2f} points against {baselines[0].name}, at {share}."

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


class _Execution(NamedTuple):
    """Options that say where and how runs are executed; they do not change the outcome."""

    device: str
    workers: int
    address: str | None


@telling_interrupts("training")
def reproduce(
    source: str,
    *,
    data: str | None = None,
    data_dir: str | Path | None = None,
    image_size: int | None = None,
    image_memory: float = IMAGE_MEMORY,
    pack: str | None = None,
    recipe: str = "paper",
    changes: Mapping[str, Any] | None = None,
    seeds: int = 1,
    out: str | Path = "results/reproduce",
    device: str | None = None,
    workers: int = 1,
    address: str | None = None,
) -> Reproduction:
    """Train a network in full over several seeds, and compare it with its published accuracy or its baseline.

    Args:
        source: Name of a network, a JSON file with an architecture, or timm:MODEL.
        data: Name of the data set (default: cifar10 with a GPU, digits without).
        data_dir: Where data sets are kept (default: $LRNAS_DATA or ~/.cache/lrnas).
        image_size: Rows and columns of images read from files (default: the usual size for the backbone).
        image_memory: Largest share of a GPU's memory for images from files.
        pack: How images from files are packed: pixels or jpeg (default: as the pack that exists, else as pixels, or as
            jpeg if the disk has no room for pixels).
        recipe: Name of the recipe, or a TOML file.
        changes: Fields of the recipe to change.
        seeds: Number of seeds, from 0 on.
        out: Folder for the records and checkpoints of the runs.
        device: Where to train (default: a GPU if there is one).
        workers: Number of workers that train one network together.
        address: Address of a Ray cluster for the workers (default: this machine).

    Returns:
        The accuracies of the network and of its baseline, and the files with all records.
    """
    for what, number in (("seeds", seeds), ("workers", workers)):
        if number < 1:
            raise LrnasError(f"the number of {what} must be at least 1; got {number}; give a larger one")
    study, _, trial = source.partition(":")
    if trial.isdigit():
        raise LrnasError(
            f"`lrnas reproduce` trains networks by name or from a file; got {source}, a network of a study; use "
            f"`lrnas retrain {study} --trials {trial}`"
        )
    name, architecture = read_source(source)
    summary = summarise(name, architecture)
    backbone, with_norm = resolve_backbone(architecture)
    table = family_table(backbone)
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    data = data or _default_data(table.data if table is not None else None, device)
    is_published = table is not None and data == table.data
    if image_size is None and is_in_files(data):
        image_size = training_size([backbone])
    smallest = smallest_input(backbone)
    with download_view() as progress:
        image_set = load_set(
            data,
            data_dir,
            min_size=smallest,
            image_size=image_size,
            image_memory=image_memory,
            pack=pack,
            progress=progress,
        )
    size, number, own_crops = image_set.image_size, len(image_set.train), image_set.own_crops
    if summary.point is None:  # counts of the paper's networks are those of the paper
        summary = summarise(name, architecture, size, image_set.num_classes, image_set.channels)
    norms = has_norms(backbone, with_norm)
    make_recipe = partial(get_recipe, recipe, backbone, size, changes=changes, norms=norms, own_crops=own_crops)
    chosen = make_recipe(num_images=number)
    networks = {name: architecture}
    if table is not None and not (is_published and summary.point is not None):
        # the baseline has batch norm if the network has: otherwise the comparison would show the effect of batch norm
        dense = replace(get_point(table.baseline).architecture, batch_norm=with_norm or None)
        label = f"{table.baseline}-bn" if with_norm else table.baseline
        if dense != architecture:
            networks[f"{label}-dense" if label == name else label] = dense
    out = Path(out)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"cannot write to {out}: {error.strerror}; give another --out") from None

    where = (smallest, data_dir, image_size, image_memory, pack)
    jobs = {
        label: Job(network, image_set.name, chosen, 0, *where, data_identity=image_set.identity)
        for label, network in networks.items()
    }
    base_macs = [*jobs.values()][-1].macs(image_set)
    record_files = {
        (label, seed): out / f"{label}-{short_name(image_set.name)}-{Path(recipe).stem}-seed{seed}.json"
        for label in jobs
        for seed in range(seeds)
    }
    with packing_view() as progress:
        image_set.prepare(progress)
    if new := list(dict.fromkeys(label for (label, _), file in record_files.items() if not file.exists())):
        usual = make_recipe(num_images=sys.maxsize)
        for remark in (*image_set.remarks(), *tell_small_batches(chosen, usual, number)):
            logger.info(remark)
        pixels, epochs = chosen.crop or size, f"{chosen.epochs} epoch{'s' * (chosen.epochs != 1)}"
        logger.info(
            f"training {' and '.join(new)} on {image_set.counts[0]:,} images of {image_set.name}, {pixels}×{pixels} "
            f"pixels: recipe {Path(recipe).stem}, {epochs} at most, {seeds} seed{'s' * (seeds != 1)}"
        )
    execution = _Execution(device, workers, address)
    measured: list[Measured] = []
    files: list[Path] = []
    reused: list[Mapping[str, Any]] = []
    for label, job in jobs.items():
        accuracies = []
        for seed in range(seeds):
            run = replace(job, seed=seed)
            file = record_files[label, seed]
            files.append(file)
            with _locked(file, f"{label}, seed {seed}"):  # the baseline is a part of several comparisons
                if file.exists():
                    record = _read_record(file, run.identity(image_set))
                    reused.append(record.get("provenance", {}))
                else:
                    record = {"network": label, "recipe_name": recipe, **_run(label, run, image_set, file, execution)}
                    _write_record(file, record)
            accuracies.append(record["test_accuracy"])
        tested = tuple(accuracy for accuracy in accuracies if accuracy is not None)
        point = find_point(job.architecture) if is_published else None
        published = point.published.accuracy if point is not None else None
        macs = job.macs(image_set)
        measured.append(Measured(label, macs, macs / base_macs, tested, seeds - len(tested), published))
    size = chosen.crop or image_set.image_size
    return Reproduction(summary, image_set.name, is_published, chosen, size, measured, files, reused)


@contextmanager
def _locked(file: Path, what: str) -> Iterator[None]:
    """Context in which no other process trains the run of a record, unless the disk has no locks.

    If the record exists, nothing is locked.
    """
    lock = None
    if not file.exists():
        with suppress(OSError, NotImplementedError):
            lock = acquire_lock(file.with_suffix(".lock"), f"another process trains {what}: waiting for it")
    try:
        yield
    finally:
        if lock is not None:
            lock.release()
    if lock is not None:
        with suppress(OSError):
            file.with_suffix(".lock").unlink()  # others that wait for it find the record


def _default_data(published: str | None, device: str) -> str:
    """Return the data set to train on; log a message if it is not the published one."""
    if device == "cpu":
        if published is not None:
            logger.info("training on %s takes too long on a CPU: comparing with the baseline on digits", published)
        return "digits"
    if published != "cifar10":
        missing = published or "the data set of its paper"
        logger.info("%s is not available here: comparing with the baseline on cifar10", missing)
    return "cifar10"


def _run(label: str, job: Job, data: DataSet, file: Path, execution: _Execution) -> dict[str, Any]:
    """Train and test one job, and return its record."""
    model = job.create_model(data)
    with training_view(f"{label}, seed {job.seed}") as report:
        result = _train(job, model, data, file.with_suffix(""), execution, report)
    accuracy = loss = None
    if result.status == "completed":  # the test images are used only here
        loss, accuracy = evaluate(model, data.test(), data, job.recipe, device=execution.device, cache=job.cache)
    return {
        "architecture": job.architecture.to_dict(),
        "identity": job.identity(data),
        "data_name": shown_name(data.name),
        "status": result.status,
        "test_accuracy": accuracy,
        "test_loss": loss,
        "val_accuracy": result.val_accuracy,
        "macs": job.macs(data),
        "workers": execution.workers,
        "unreadable_images": data.num_unreadable,
        "epochs": len(result.curve),
        "seconds": round(sum(entry.seconds for entry in result.curve), 3),  # including epochs before a stop
        "start_seconds": round(result.start_seconds, 3),
        "images_per_second": round(result.images_per_second, 1),
        "micro_batches": result.micro_batches,
        "provenance": provenance(seed=job.seed, n=1),
        "curve": [asdict(entry) for entry in result.curve],
    }


def _train(job: Job, model: nn.Module, data: DataSet, folder: Path, execution: _Execution, report: Report) -> Result:
    device, workers, address = execution
    if workers == 1:
        return job.run(model, data, folder, device, report=report)
    from lrnas.training.multi_gpu import run_on_workers

    use_gpu = device.startswith("cuda")
    if run_on_workers(job, folder, workers, use_gpu=use_gpu, address=address, report=report) == "diverged":
        return Result("diverged", [], 0.0, 1)
    return job.run(model, data, folder, device)  # the training is complete: this only reads the workers' checkpoint


def _read_record(file: Path, identity: dict[str, Any]) -> dict[str, Any]:
    try:
        record: dict[str, Any] = read_json(file)
        before = record["identity"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{file} is not the record of a run ({error}); move it away") from None
    if other := difference(before, identity):
        raise DataError(f"{file} holds another run: {other}; give another --out")
    return record


def _write_record(file: Path, record: dict[str, Any]) -> None:
    try:
        with write_atomically(file) as part:
            part.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise DataError(f"cannot write {file}: {error.strerror}; give another --out") from None
