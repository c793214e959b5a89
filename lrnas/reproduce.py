"""`lrnas reproduce`: a network trained in full and set beside what was published.

Counting comes first and is exact. Then the network is trained on the data of the published number where that is at
hand, and otherwise on another set together with the paper's baseline of its family, so that the comparison (which
accuracy at which share of the multiply-accumulates) still means something. Every run leaves one JSON file with all
it takes to repeat it; a run whose file is there is not trained again.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from lrnas.arch import Architecture
from lrnas.build import create_model
from lrnas.data import ImageSet, data_folder, load_set
from lrnas.errors import DataError, LrnasError
from lrnas.plan import canonical_id, make_plan, resolve_backbone
from lrnas.points import family_table, find_point, get_point
from lrnas.progress import DownloadView, training_view
from lrnas.provenance import provenance
from lrnas.recipes import Recipe, get_recipe
from lrnas.summary import Summary, read_source, summarise
from lrnas.train import Result, evaluate, train

__all__ = ["Measured", "Reproduction", "reproduce"]

SMALLEST_INPUT = {"nin": 8, "nin_3x3": 8}
"""Images smaller than this are enlarged; 32 for the other backbones."""


@dataclass(frozen=True, slots=True)
class Measured:
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

    @property
    def mean(self) -> float:
        return statistics.mean(self.accuracies) if self.accuracies else float("nan")

    @property
    def deviation(self) -> float | None:
        return statistics.stdev(self.accuracies) if len(self.accuracies) > 1 else None

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "mean": self.mean, "sd": self.deviation, "n": len(self.accuracies)}


@dataclass(frozen=True, slots=True)
class Reproduction:
    """What came of it."""

    summary: Summary
    data: str
    is_published_data: bool
    recipe: Recipe
    networks: list[Measured]
    """The one asked for, then the baseline."""
    files: list[Path]

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
            "networks": [network.to_dict() for network in self.networks],
            "verdict": self.verdict(),
            "files": [str(file) for file in self.files],
        }


def reproduce(
    source: str,
    *,
    data: str | None = None,
    data_dir: str | Path | None = None,
    recipe: str = "paper",
    changes: Mapping[str, Any] | None = None,
    seeds: int = 1,
    out: str | Path = "results/reproduce",
    device: str | None = None,
    compile_model: bool = False,
    say: Any = print,
) -> Reproduction:
    """Train a named network, or an architecture from a JSON file, over some seeds and compare."""
    if seeds < 1:
        raise LrnasError(f"the number of seeds is at least 1; got {seeds}")
    name, architecture = read_source(source)
    summary = summarise(name, architecture)
    backbone, _ = resolve_backbone(architecture)
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    image_set, is_published = _choose_data(summary, data, data_dir, device, backbone, say)
    chosen = get_recipe(recipe, backbone, image_set.image_size, len(image_set.train), changes)
    networks = {name: architecture}
    table = family_table(backbone)
    baseline = table.baseline if table is not None else None
    if baseline is not None and not (is_published and summary.point is not None):
        networks.setdefault(baseline, get_point(baseline).architecture)
    out = Path(out)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"cannot write to {out}: {error.strerror}; give another --out") from None
    measured: list[Measured] = []
    files: list[Path] = []
    base_macs = _macs(networks.get(baseline or name, architecture), image_set, chosen)
    for label, network in networks.items():
        runs = []
        for seed in range(seeds):
            file = out / f"{label}-{image_set.name}-{Path(recipe).stem}-seed{seed}.json"
            runs.append(
                _run(
                    file, label, network, image_set, recipe, chosen, seed, device, data_folder(data_dir), compile_model
                )
            )
            files.append(file)
        measured.append(_measured(label, network, runs, image_set, chosen, base_macs, is_published))
    return Reproduction(summary, image_set.name, is_published, chosen, measured, files)


def _choose_data(
    summary: Summary, wanted: str | None, data_dir: str | Path | None, device: str, backbone: str, say: Any
) -> tuple[ImageSet, bool]:
    smallest = SMALLEST_INPUT.get(backbone, 32)
    table = family_table(backbone)
    published = table.data if table is not None else None

    def load(name: str) -> ImageSet:
        return load_set(name, data_dir, min_size=smallest, progress=DownloadView())

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


def _macs(architecture: Architecture, data: ImageSet, recipe: Recipe) -> int:
    size = recipe.crop or data.image_size
    return make_plan(architecture, size, data.num_classes, data.channels, check_fit=False).cost.macs


def _run(
    file: Path,
    label: str,
    architecture: Architecture,
    data: ImageSet,
    recipe_name: str,
    recipe: Recipe,
    seed: int,
    device: str,
    cache: Path,
    compile_model: bool,
) -> dict[str, Any]:
    identity = {
        "architecture": canonical_id(architecture),
        "data": data.name,
        "image_size": data.image_size,
        "recipe": recipe.to_dict(),
        "seed": seed,
    }
    if file.exists():
        return _finished(file, identity)
    torch.manual_seed(seed)
    model = create_model(
        architecture,
        data.num_classes,
        data.channels,
        init=recipe.init,  # type: ignore[arg-type]  # checked by the recipe
        drop_rate=recipe.drop_rate,
    )
    with training_view(f"{label}, seed {seed}") as report:
        result = train(
            model,
            data,
            recipe,
            seed=seed,
            device=device,
            folder=file.with_suffix(""),
            identity=identity,
            cache=cache,
            compile_model=compile_model,
            report=report,
        )
    accuracy = loss = None
    if result.status == "completed":  # the one look at the test images
        loss, accuracy = evaluate(model, data.test(), data, recipe, device=device, cache=cache)
    record = {
        "network": label,
        "architecture": architecture.to_dict(),
        "identity": identity,
        "recipe_name": recipe_name,
        "status": result.status,
        "test_accuracy": accuracy,
        "test_loss": loss,
        "val_accuracy": result.val_accuracy,
        "macs": _macs(architecture, data, recipe),
        **_timings(result),
        "provenance": provenance(seed=seed, n=1),
        "curve": [asdict(entry) for entry in result.curve],
    }
    _write(file, record)
    return record


def _timings(result: Result) -> dict[str, Any]:
    return {
        "epochs": len(result.curve),
        "seconds": round(result.seconds, 3),
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
    for key, value in identity.items():
        if before.get(key) != value:
            raise DataError(
                f"{file} holds another run: its {key} is {before.get(key)!r}, not {value!r}; give another --out"
            )
    return record


def _write(file: Path, record: dict[str, Any]) -> None:
    part = file.with_suffix(".part")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        part.replace(file)
    except OSError as error:
        raise DataError(f"cannot write {file}: {error.strerror}; give another --out") from None


def _measured(
    label: str,
    architecture: Architecture,
    runs: list[dict[str, Any]],
    data: ImageSet,
    recipe: Recipe,
    base_macs: int,
    is_published: bool,
) -> Measured:
    macs = _macs(architecture, data, recipe)
    accuracies = tuple(run["test_accuracy"] for run in runs if run["test_accuracy"] is not None)
    point = find_point(architecture) if is_published else None
    published = point.published.accuracy if point is not None else None
    return Measured(label, macs, macs / base_macs, accuracies, len(runs) - len(accuracies), published)
