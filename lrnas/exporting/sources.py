"""Networks with their weights: a checkpoint, a trial of a study, or a named network with random weights."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from lrnas._files import read_json
from lrnas.arch.architecture import Architecture
from lrnas.arch.backbone_shapes import BACKBONES
from lrnas.errors import LrnasError, UnknownName, closest
from lrnas.models.build import create_model
from lrnas.models.count import auxiliary_heads
from lrnas.models.found import WEIGHTS, find_found
from lrnas.models.paper import named_networks
from lrnas.models.plan import TIMM, names_to_suggest
from lrnas.models.summary import read_source
from lrnas.study.references import StudyNetwork, check_no_study, find_network
from lrnas.training.checkpoint import RECORD, load_checkpoint, load_tensors

if TYPE_CHECKING:
    from lrnas.study.study import Trial

RANDOM = "random weights, not trained"
OFFER = ", or add --fresh for random weights"
STATUS_WORDS = {
    "completed": "they were deleted, or are on another machine",
    "stopped": "it was stopped early",
    "limit": "it was not trained: beyond a limit of the search",
    "duplicate": "it was not trained: the network was known already",
    "diverged": "its loss became infinite",
    "faulty": "its training failed",
    "lost": "its training was lost",
    "running": "it is in training",
    "waiting": "it waits for training",
}
"""Why a trial has no weights, by its status."""


class ExportError(LrnasError):
    """A network that cannot be exported as requested."""


@dataclass(frozen=True)
class Source:
    """A network and its weights."""

    name: str
    """Name for files and tables."""
    architecture: Architecture
    origin: str
    """Description of the weights for messages."""
    weights: Mapping[str, Tensor] | None = None
    """The state dict of the model; None for random weights."""
    identity: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the training run: data, recipe, sizes; empty for random weights."""

    def create_model(self, num_classes: int | None = None, in_chans: int | None = None) -> tuple[nn.Module, int]:
        """Build the network on the CPU, in evaluation mode.

        Args:
            num_classes: Number of classes; trained weights allow only the number they were trained for.
            in_chans: Channels of the images; trained weights allow only the number they were trained for.

        Returns:
            The model, and the channels of its images.
        """
        with torch.device("meta"):
            shell: Any = create_model(self.architecture)
        if self.weights is None:
            classes = shell.pretrained_cfg["num_classes"] if num_classes is None else num_classes
            channels = in_chans or 3
        else:
            classes, channels = _sizes(shell, self.weights, self.origin)
        for what, own, wanted in (("classes", classes, num_classes), ("channels", channels, in_chans)):
            if wanted is not None and wanted != own:
                raise ExportError(f"{self.name} was trained for {own} {what}; got {wanted}; leave that option out")
        torch.manual_seed(0)
        heads = auxiliary_heads(shell)
        has_heads = self.weights is None or any(key.startswith(heads) for key in self.weights)
        options: dict[str, Any] = {"aux_logits": False} if heads and not has_heads else {}
        model = create_model(self.architecture, classes, channels, **options).eval()
        if self.weights is not None:
            try:
                model.load_state_dict(dict(self.weights))
            except RuntimeError as error:
                first = str(error).splitlines()[1].strip() if "\n" in str(error) else str(error)
                raise ExportError(f"{self.origin} do not fit this architecture: {first[:200]}") from None
        return model, channels


def find_source(
    source: str | Path | Trial,
    *,
    architecture: str | Path | None = None,
    studies: str | Path = "studies",
    storage: str | None = None,
    fresh: bool | None = False,
) -> Source:
    """Find a network and its weights.

    Args:
        source: A trial, a checkpoint (folder or file), STUDY:TRIAL, a named network, FILE.json or timm:MODEL.
        architecture: JSON file with the architecture, for a file of weights that does not contain it.
        studies: Folder of the studies.
        storage: URL of the studies' database, if they are not in that folder.
        fresh: Use random weights if the weights of a run were not kept; None: no, and errors do not offer it.

    Returns:
        The network.
    """
    given = None if architecture is None else Architecture.load(architecture)
    if not isinstance(source, str | Path):
        return _from_study(StudyNetwork(source.study, source), source.study.where.folder, fresh)
    path, source = Path(source), str(source)
    if len(source) < 1000 and path.exists():
        if path.is_dir() and not (path / RECORD).exists():  # a study can have the name of the folder of its images
            check_no_study(source, studies, storage)
        return _from_path(path, given, fresh)
    if given is not None:
        raise ExportError(f"--architecture needs a file of weights as the source; got {source!r}; leave it out")
    if (found := find_network(source, studies, storage)) is not None:
        return _from_study(found, studies, fresh)
    if source.endswith((".safetensors", ".json")) or "/" in source.removeprefix(TIMM):
        raise ExportError(f"{source} does not exist; give a checkpoint, a network or STUDY:TRIAL")
    if (own := find_found(source)) is not None:
        weights = _model_weights(load_tensors(own.weights))
        identity = {"data": own.data, "pretrained_cfg": own.config}
        return Source(own.name, own.architecture, "weights of a search", weights, identity)
    try:
        name, network = read_source(source)
    except UnknownName:
        check_no_study(source, studies, storage)
        known = names_to_suggest(source, [*named_networks(), *BACKBONES])
        where = " (also: a checkpoint, FILE.json, timm:MODEL or STUDY:TRIAL; `lrnas models` lists networks)"
        raise UnknownName("source", source[:80], known, where) from None
    return Source(name.replace(":", "-"), network, RANDOM)


def _from_path(path: Path, given: Architecture | None, fresh: bool | None) -> Source:
    if path.is_dir() and not (path / RECORD).exists() and (path / WEIGHTS).exists():
        return dataclasses.replace(_from_weights(path / WEIGHTS, given), name=path.resolve().name)
    if path.is_dir() or path.name == RECORD:
        return _from_checkpoint(path if path.is_dir() else path.parent, given)
    if path.suffix == ".safetensors":
        return _from_weights(path, given)
    if path.suffix != ".json":
        raise ExportError(f"weights must be safetensors and networks JSON; got {path}; give a file of this kind")
    record = _read_json(path)
    if "identity" not in record:
        return Source(path.stem, Architecture.load(path), RANDOM)
    if (path.with_suffix("") / RECORD).exists():
        return _from_checkpoint(path.with_suffix(""), given)
    if fresh and "architecture" in record:
        network = Architecture.from_dict(record["architecture"], str(path))
        return Source(path.stem, network, RANDOM, identity=record["identity"])
    raise ExportError(
        f"{path} is the record of a run whose weights are not in {path.with_suffix('')}; train it again"
        f"{OFFER if fresh is False else ''}"
    )


def _from_checkpoint(folder: Path, given: Architecture | None) -> Source:
    found = load_checkpoint(folder)
    if found is None:
        raise ExportError(f"{folder} has no {RECORD}; give the folder of a checkpoint, or a file of weights")
    tensors, record = found
    if given is None and "architecture" not in record:
        raise ExportError(
            f"{folder} does not contain the architecture of its weights; give it with --architecture FILE.json, or "
            "name the trial as STUDY:TRIAL"
        )
    network = given or Architecture.from_dict(record["architecture"], str(folder / RECORD))
    epochs = record["epoch"]
    origin = f"weights after {epochs} epoch{'s' * (epochs != 1)}, {folder}"
    return Source(folder.resolve().name, network, origin, _model_weights(tensors), record.get("identity") or {})


def _from_weights(path: Path, given: Architecture | None) -> Source:
    record = path.with_name(RECORD)
    if given is None:
        if record.exists() and _read_json(record).get("tensors") == path.name:
            return _from_checkpoint(path.parent, None)
        return _from_export(path)
    try:
        return Source(path.stem, given, f"weights of {path}", _model_weights(load_tensors(path)))
    except (OSError, SafetensorError) as error:
        raise ExportError(f"{path} cannot be read ({error}); give a file of safetensors") from None


def _from_export(path: Path) -> Source:
    """Weights that lrnas has exported, with their architecture and how images are prepared."""
    try:
        with safe_open(path, "pt") as file:
            description = json.loads((file.metadata() or {}).get("lrnas", "{}"))
        weights = _model_weights(load_tensors(path))
    except (OSError, SafetensorError, ValueError) as error:
        raise ExportError(f"{path} cannot be read ({error}); give a file of safetensors") from None
    if not isinstance(description, dict) or "architecture" not in description:
        raise ExportError(f"{path} contains weights without an architecture; give it with --architecture FILE.json")
    if "folded" in description:
        raise ExportError(
            f"{path} was exported with --fuse, so its layers are not those of the architecture; load it with "
            f'timm.create_model("local-dir:{path.parent}", pretrained=True)'
        )
    network = Architecture.from_dict(description.pop("architecture"), str(path))
    config = description | {"label_names": description.pop("classes", ())}
    return Source(path.stem, network, f"weights of {path}", weights, {"pretrained_cfg": config})


def _model_weights(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of the model, from a checkpoint (which also contains other tensors) or from a file of weights."""
    own = {key.removeprefix("model."): value for key, value in tensors.items() if key.startswith("model.")}
    return own or dict(tensors)


def _from_study(found: StudyNetwork, studies: str | Path, fresh: bool | None) -> Source:
    from lrnas.study.folder import trial_folder, trials_folder
    from lrnas.study.levels import read_level
    from lrnas.study.manifest import CLASSES, DATA_NAME  # with optuna

    study, trial = found.study, found.trial
    trials = trials_folder(studies, study.name)
    folder = trial_folder(trials, trial.number)
    keys = ("data", "image_size", "recipe", DATA_NAME, CLASSES)
    identity = {key: study.manifest[key] for key in keys if key in study.manifest} | {"images": study.images}
    if trial.status == "completed" and (folder / RECORD).exists():  # others may have weights of some epochs
        source = _from_checkpoint(folder, trial.architecture)
        known = {key: value for key, value in source.identity.items() if value is not None}
        return dataclasses.replace(source, name=found.label, identity={**identity, **known})
    if fresh:
        return Source(found.label, trial.architecture, RANDOM, identity=identity)
    completed = [other.number for other in study.trials if other.status == "completed"]
    own = {number for number in completed if (trial_folder(trials, number) / RECORD).exists()}
    finals = [] if "@" in study.name else read_level(study)
    full = {final.trial for final in finals if final.accuracies and final.trial is not None}
    there = [str(number) for number in sorted(own | full)]
    where = f"; weights exist for {', '.join(there[:12])}{', …' * (len(there) > 12)}" if there else ""
    kind = "run" if "@" in study.name else "trial"
    raise ExportError(
        f"{kind} {trial.number} of {study.name} has no weights ({STATUS_WORDS[trial.status]}); only networks whose "
        f"training was completed have them{where}; name another {kind}{OFFER if fresh is False else ''}"
    )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data = read_json(path)
    except (OSError, ValueError) as error:
        raise ExportError(f"{path} cannot be read ({error}); give a JSON file") from None
    return data if isinstance(data, dict) else {}


def _sizes(shell: Any, weights: Mapping[str, Tensor], origin: str) -> tuple[int, int]:
    """The number of classes and channels that weights were trained for."""
    config, own = shell.pretrained_cfg, shell.state_dict()
    parts = (config["classifier"], config["first_conv"])
    classifier, stem = (part if isinstance(part, str) else part[0] for part in parts)
    head = f"{classifier}.weight"
    stems = [key for key, value in weights.items() if key.startswith(f"{stem}.") and value.ndim == 4 and key in own]
    if head not in weights or not stems:
        missing = f"{stem}.weight" if head in weights else head
        raise ExportError(f"{origin} do not fit this architecture: no {missing}{closest(missing, weights)}")
    # a stem may read several pixels as channels
    return weights[head].shape[0], weights[stems[0]].shape[1] * config["input_size"][0] // own[stems[0]].shape[1]
