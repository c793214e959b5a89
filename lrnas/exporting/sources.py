"""What is to be exported: a checkpoint, a trial of a study, or a network by name with random weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from lrnas.arch.architecture import Architecture
from lrnas.arch.backbone_shapes import BACKBONES
from lrnas.errors import LrnasError, UnknownName, closest
from lrnas.models.build import create_model
from lrnas.models.paper import named_networks
from lrnas.models.plan import TIMM, canonical_id
from lrnas.models.summary import read_source
from lrnas.study.references import StudyNetwork, check_no_study, find_network
from lrnas.training.checkpoint import RECORD, load_checkpoint

DRAWN = "random weights, not trained"


class ExportError(LrnasError):
    """A network that cannot be exported as asked."""


@dataclass(frozen=True)
class Source:
    """A network and where its weights come from."""

    name: str
    """For files and tables."""
    architecture: Architecture
    origin: str
    """Of the weights, in words."""
    weights: Mapping[str, Tensor] | None = None
    """None for weights that are drawn."""
    identity: Mapping[str, Any] = field(default_factory=dict)
    """What the checkpoint says of the run: data, recipe, sizes."""

    def create_model(self, num_classes: int | None = None, in_chans: int | None = None) -> tuple[nn.Module, int]:
        """The network, ready for use on the CPU, and the channels it takes; with weights, these decide."""
        shell = _without_memory(self.architecture)
        if self.weights is None:
            classes = shell.pretrained_cfg["num_classes"] if num_classes is None else num_classes
            channels = in_chans or 3
        else:
            classes, channels = _sizes(shell, self.weights, self.origin)
        for what, own, asked in (("classes", classes, num_classes), ("channels", channels, in_chans)):
            if asked is not None and asked != own:
                raise ExportError(f"{self.name} was trained for {own} {what}; got {asked}; leave that out")
        torch.manual_seed(0)
        model = create_model(self.architecture, classes, channels).eval()
        if self.weights is None:
            return model, channels
        try:
            model.load_state_dict(dict(self.weights))
        except RuntimeError as error:
            first = str(error).splitlines()[1].strip() if "\n" in str(error) else str(error)
            raise ExportError(f"{self.origin} are not of this architecture: {first[:200]}") from None
        return model, channels


def find_source(
    source: str,
    *,
    architecture: str | Path | None = None,
    studies: str | Path = "studies",
    storage: str | None = None,
    fresh: bool = False,
) -> Source:
    """What a source names.

    `architecture` is a JSON file for weights that do not say what they are of; with `fresh`, a network whose weights
    are not there is taken with random weights.
    """
    given = None if architecture is None else Architecture.load(architecture)
    path = Path(source)
    if len(source) < 1000 and path.exists():
        return _from_path(path, given, fresh)
    if given is not None:
        raise ExportError(f"--architecture goes with a file of weights; got {source!r}; leave it out")
    if (found := find_network(source, studies, storage)) is not None:
        return _from_study(found, studies, fresh)
    if source.endswith((".safetensors", ".json")) or "/" in source.removeprefix(TIMM):
        raise ExportError(f"{source} does not exist; give a checkpoint, a network or STUDY:TRIAL")
    try:
        name, network = read_source(source)
    except UnknownName:
        check_no_study(source, studies, storage)
        known = [*named_networks(), *BACKBONES]
        where = " (also: a checkpoint, FILE.json, timm:MODEL or STUDY:TRIAL; `lrnas models` lists networks)"
        raise UnknownName("source", source[:80], known, where) from None
    return Source(name.replace(":", "-"), network, DRAWN)


def _from_path(path: Path, given: Architecture | None, fresh: bool) -> Source:
    if path.is_dir():
        if not (path / RECORD).exists():
            raise ExportError(f"{path} has no {RECORD}; give the folder of a checkpoint, or a file of weights")
        return _from_checkpoint(path, given)
    if path.name == RECORD:
        return _from_checkpoint(path.parent, given)
    if path.suffix == ".safetensors":
        return _from_weights(path, given)
    if path.suffix != ".json":
        raise ExportError(f"weights are read from safetensors, networks from JSON; got {path}; give one of these")
    record = _read_json(path)
    if "identity" not in record:
        return Source(path.stem, Architecture.load(path), DRAWN)
    if (path.with_suffix("") / RECORD).exists():
        return _from_checkpoint(path.with_suffix(""), given)
    if fresh and "architecture" in record:
        network = Architecture.from_dict(record["architecture"], str(path))
        return Source(path.stem, network, DRAWN, identity=record["identity"])
    raise ExportError(
        f"{path} tells of a run whose weights are not in {path.with_suffix('')}; train it again, or add --fresh for "
        "random weights"
    )


def _from_checkpoint(folder: Path, given: Architecture | None) -> Source:
    found = load_checkpoint(folder)
    assert found is not None
    tensors, record = found
    identity = record.get("identity") or {}
    network = given or _architecture_of(folder, record)
    if network is None:
        raise ExportError(
            f"{folder} does not say which architecture its weights are of; give it with --architecture FILE.json, or "
            "name the trial as STUDY:TRIAL"
        )
    weights = {key.removeprefix("model."): value for key, value in tensors.items() if key.startswith("model.")}
    epochs = record.get("epoch", 0)
    origin = f"weights after {epochs} epoch{'s' * (epochs != 1)}, {folder}"
    return Source(folder.resolve().name, network, origin, weights, identity)


def _architecture_of(folder: Path, record: Mapping[str, Any]) -> Architecture | None:
    """As the checkpoint says, or the record of the run beside it, or the named network it must be."""
    if "architecture" in record:
        return Architecture.from_dict(record["architecture"], str(folder / RECORD))
    beside = folder.resolve().with_name(f"{folder.resolve().name}.json")
    if beside.is_file() and "architecture" in (told := _read_json(beside)):
        return Architecture.from_dict(told["architecture"], str(beside))
    wanted = (record.get("identity") or {}).get("architecture")
    return next((network for network in named_networks().values() if canonical_id(network) == wanted), None)


def _from_weights(path: Path, given: Architecture | None) -> Source:
    record = path.with_name(RECORD)
    if given is None and record.exists():
        if _read_json(record).get("tensors") == path.name:
            return _from_checkpoint(path.parent, None)
        raise ExportError(
            f"{record} names other weights than {path.name}; give the folder, or --architecture FILE.json"
        )
    if given is None:
        raise ExportError(f"{path} holds weights without an architecture; give it with --architecture FILE.json")
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise ExportError(f"{path} cannot be read ({error}); give a file of safetensors") from None
    if any(key.startswith("model.") for key in tensors):
        tensors = {key.removeprefix("model."): value for key, value in tensors.items() if key.startswith("model.")}
    return Source(path.stem, given, f"weights of {path}", tensors)


def _from_study(found: StudyNetwork, studies: str | Path, fresh: bool) -> Source:
    from lrnas.study.folder import trial_folder, trials_folder
    from lrnas.study.manifest import CLASSES, DATA_NAME  # with optuna

    record, trial = found.study, found.trial
    name, number, manifest = record.name, trial.number, record.manifest
    label = f"{name}-{number}"
    trials = trials_folder(studies, name)
    folder = trial_folder(trials, number)
    identity = {key: manifest[key] for key in ("data", "image_size", "recipe")}
    identity |= {key: manifest[key] for key in (DATA_NAME, CLASSES) if key in manifest}
    if (folder / RECORD).exists():
        kept = _from_checkpoint(folder, trial.architecture)
        return Source(label, kept.architecture, kept.origin, kept.weights, {**identity, **_known(kept.identity)})
    if fresh:
        return Source(label, trial.architecture, DRAWN, identity=identity)
    numbers = (other.number for other in record.trials())
    there = [str(other) for other in numbers if (trial_folder(trials, other) / RECORD).exists()]
    where = f"; weights are there of {', '.join(there[:12])}{', …' * (len(there) > 12)}" if there else ""
    raise ExportError(
        f"there are no weights of trial {number} of {name}, which is {trial.status} ({folder} is kept of networks "
        f"trained in full){where}; name another, or add --fresh for random weights"
    )


def _known(identity: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in identity.items() if value is not None}


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ExportError(f"{path} cannot be read ({error}); give a JSON file") from None
    return data if isinstance(data, dict) else {}


def _without_memory(architecture: Architecture) -> Any:
    with torch.device("meta"):
        return create_model(architecture)


def _sizes(shell: Any, weights: Mapping[str, Tensor], origin: str) -> tuple[int, int]:
    """Number of classes and channels that weights are for."""
    classifier = shell.get_classifier()
    head = next((f"{name}.weight" for name, module in shell.named_modules() if module is classifier), "")
    first = shell.pretrained_cfg["first_conv"]
    stem = first if isinstance(first, str) else first[0]
    stems = [key for key, value in weights.items() if key.startswith(f"{stem}.") and value.ndim == 4]
    if head not in weights or not stems:
        missing = f"{stem}.weight" if head in weights else head
        raise ExportError(f"{origin} are not of this architecture: no {missing}{closest(missing, weights)}")
    return weights[head].shape[0], weights[stems[0]].shape[1]
