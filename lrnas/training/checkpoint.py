"""Checkpoints: tensors as safetensors, everything else as a small JSON file; never a pickle.

The tensors are written first, to a new file; then the JSON file that names this file is replaced in one step. So if the
program stops in between, the JSON file still names a complete file of tensors.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from lrnas._differences import list_differences
from lrnas._files import open_regular, read_json, write_atomically
from lrnas.arch.architecture import Architecture
from lrnas.errors import LrnasError, error_line
from lrnas.recipes import Recipe

VERSION = 1
RECORD = "checkpoint.json"
SMALL = 50_000_000
"""Size of checkpoints, in bytes, that are written after every epoch."""
WRITE_RATE = 30_000_000
"""Bytes per second that larger checkpoints of one training may take on average."""
Checkpoint = tuple[dict[str, Tensor], dict[str, Any]]
"""Tensors and record of a checkpoint."""


class CheckpointError(LrnasError):
    """A checkpoint that cannot be written, read or used."""


class DamagedCheckpoint(CheckpointError):
    """A checkpoint whose content is incomplete or does not fit the run; training can only start over.

    Args:
        problem: What is wrong with it.
    """

    def __init__(self, problem: str) -> None:
        super().__init__(f"{problem}; delete the folder to start over")
        self.problem = problem


class UnwritableCheckpoint(CheckpointError):
    """A checkpoint that cannot be written, for example because the disk is full."""


def finished_run(folder: Path, epochs: int) -> CheckpointError:
    """The error if a run that is over should go on: its checkpoint has only weights.

    Args:
        folder: The folder of the run.
        epochs: Number of epochs that it has.
    """
    return CheckpointError(
        f"a run can only be given more epochs before it ends; got {folder}, which ended after {epochs}; choose another "
        "folder"
    )


def save_interval(model: nn.Module) -> float:
    """Shortest time between two checkpoints of a training, in seconds: 0 for small models.

    Otherwise, several trainings of large models side by side would wait for the disk more than they train.

    Args:
        model: The model. A checkpoint has its weights, and about as many other numbers, for example the momentum.
    """
    size = 2 * sum(tensor.nbytes for tensor in model.state_dict().values())
    return size / WRITE_RATE if size > SMALL else 0.0


def save_checkpoint(folder: Path, epoch: int, tensors: Mapping[str, Tensor], record: Mapping[str, Any]) -> None:
    """Replace the checkpoint in a folder. If the new one cannot be written, the old one stays.

    Args:
        folder: The folder of the run.
        epoch: Number of epochs trained.
        tensors: Weights as `model.NAME`, and whatever else training needs to continue.
        record: Everything else, as JSON values.

    Raises:
        UnwritableCheckpoint: The new one cannot be written.
    """
    name = f"epoch-{epoch}.safetensors"
    text = json.dumps({"version": VERSION, "epoch": epoch, "tensors": name, **record}, indent=1)
    try:
        with write_atomically(folder / RECORD) as record_part, write_atomically(folder / name) as tensors_part:
            record_part.write_text(text + "\n", encoding="utf-8")
            save_file({key: tensor.detach().cpu().contiguous() for key, tensor in tensors.items()}, tensors_part)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UnwritableCheckpoint(
            f"cannot write a checkpoint to {folder}: {reason}; the previous one is intact: make room and run the same "
            "command again"
        ) from None
    _remove_files(folder, but=(RECORD, name))


def remove_checkpoint(folder: Path) -> None:
    """Remove the checkpoint in a folder, also one that is damaged. Other files stay."""
    _remove_files(folder)


def _remove_files(folder: Path, but: tuple[str, ...] = ()) -> None:
    """Remove the files of checkpoints from a folder, also the temporary ones of a run that was killed."""
    for pattern in (RECORD, f"{RECORD}.*.part", "epoch-*.safetensors", "epoch-*.safetensors.*.part"):
        for file in folder.glob(pattern):
            if file.name not in but:
                file.unlink(missing_ok=True)


def save_model(
    folder: Path, epoch: int, model: nn.Module, tensors: Mapping[str, Tensor], record: Mapping[str, Any]
) -> None:
    """Replace the checkpoint in a folder by a new one with the weights and the architecture of a model.

    Args:
        folder: The folder of the run.
        epoch: Number of epochs trained.
        model: The model.
        tensors: More tensors that training needs to continue.
        record: More JSON values.
    """
    weights = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    save_checkpoint(folder, epoch, {**weights, **tensors}, {**architecture_entry(model), **record})


def load_checkpoint(folder: Path, identity: Mapping[str, Any] | None = None) -> Checkpoint | None:
    """Load the checkpoint in a folder.

    Args:
        folder: The folder of the run.
        identity: Facts about the run (architecture, data, recipe, seed). A checkpoint with other facts raises
            CheckpointError. None accepts any checkpoint.

    Returns:
        The tensors and the record of the checkpoint; None if there is no checkpoint.

    Raises:
        DamagedCheckpoint: Its content cannot be read.
    """
    path = folder / RECORD
    try:
        record = read_json(path)
        if record["version"] > VERSION:
            raise CheckpointError(
                f"{path}: this lrnas reads checkpoints up to version {VERSION}; got {record['version']}; upgrade lrnas"
            )
        for key, kind in (("epoch", int), ("tensors", str), ("identity", dict), ("architecture", dict)):
            if not isinstance(record.get(key, {}), kind):
                raise TypeError(f"its {key} is {repr(record.get(key))[:60]}")
        if identity is not None and (other := difference(record["identity"], identity)):
            raise CheckpointError(f"{folder} holds another run: {other}; choose another folder")
        return load_tensors(folder / Path(record["tensors"]).name), record
    except FileNotFoundError:
        if not path.exists():
            return None
        raise DamagedCheckpoint(f"{path} names a file of tensors that is missing") from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}; repair the disk") from None
    except (ValueError, KeyError, TypeError, AttributeError, SafetensorError) as error:
        raise DamagedCheckpoint(f"{path} cannot be read ({error_line(error)})") from None


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Load a file of tensors. Raises OSError if it is not a regular file, and SafetensorError if it is damaged."""
    open_regular(path).close()  # the library would wait for a pipe
    return load_file(path)


def load_weights(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Put the weights of a checkpoint into a model; raises DamagedCheckpoint if they are not those of such a model."""
    weights = {name.removeprefix("model."): tensor for name, tensor in tensors.items() if name.startswith("model.")}
    wanted = {name: tensor.shape for name, tensor in model.state_dict().items()}
    if {name: tensor.shape for name, tensor in weights.items()} != wanted:
        raise DamagedCheckpoint("a checkpoint must hold the weights of its network; got those of another one")
    model.load_state_dict(weights)


def architecture_entry(model: nn.Module) -> dict[str, Any]:
    """Return the record's entry from which the network can be built again; empty if the model has no architecture."""
    architecture = getattr(model, "architecture", None)
    return {"architecture": architecture.to_dict()} if isinstance(architecture, Architecture) else {}


def recorded_curve(folder: Path) -> list[dict[str, Any]]:
    """Return the epochs recorded in the checkpoint of a folder; an empty list if there is none, or a damaged one."""
    try:
        record = read_json(folder / RECORD)
        return list(record["state"]["curve"])
    except (OSError, ValueError, KeyError, TypeError):
        return []


def difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Describe the first differences between the identities of two runs; "" if there is none.

    Recipe fields that did not exist when a run was recorded have their default values in the comparison, because the
    run was made that way.

    Args:
        before: Identity of the recorded run.
        now: Identity of the new run.
    """
    before, now = (
        {**one, "recipe": Recipe.complete(one["recipe"])} if one.get("recipe") else one for one in (before, now)
    )
    return list_differences(before, now)
