"""Checkpoints: tensors as safetensors, everything else as a small JSON; never a pickle, never half of one.

The tensors go first, under a name of their own; then the JSON that names them takes its place in one step. Whatever
happens in between, the JSON on disk names tensors that are whole.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from lrnas._files import write_atomically
from lrnas.arch.architecture import Architecture
from lrnas.errors import LrnasError
from lrnas.recipes import Recipe

VERSION = 1
RECORD = "checkpoint.json"


class CheckpointError(LrnasError):
    """A checkpoint that cannot be written, read or used."""


def save_checkpoint(folder: Path, epoch: int, tensors: Mapping[str, Tensor], record: Mapping[str, Any]) -> None:
    """Put a checkpoint in the place of the last one, which survives if this one cannot be written."""
    name = f"epoch-{epoch}.safetensors"
    text = json.dumps({"version": VERSION, "epoch": epoch, "tensors": name, **record}, indent=1)
    try:
        with write_atomically(folder / RECORD) as record_part, write_atomically(folder / name) as tensors_part:
            record_part.write_text(text + "\n", encoding="utf-8")
            save_file({key: tensor.detach().cpu().contiguous() for key, tensor in tensors.items()}, tensors_part)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise CheckpointError(
            f"cannot write a checkpoint to {folder}: {reason}; the one before is intact: make room and run the same "
            "command again"
        ) from None
    for old in folder.glob("epoch-*.safetensors*"):  # also the temporary file of a run that was killed
        if old.name != name:
            old.unlink(missing_ok=True)


def load_checkpoint(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """The tensors and the record of the last checkpoint; None where there is none."""
    path = folder / RECORD
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if record["version"] > VERSION:
            raise CheckpointError(
                f"{path}: this lrnas reads checkpoints up to version {VERSION}; got {record['version']}; upgrade lrnas"
            )
        return load_file(folder / record["tensors"]), record
    except FileNotFoundError:
        if not path.exists():
            return None
        raise CheckpointError(f"{path} names tensors that are not there; remove the folder to start anew") from None
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}); remove the folder to start anew") from None


def described(model: nn.Module) -> dict[str, Any]:
    """What a record says of a network, so that nothing but the checkpoint is needed to build it again."""
    architecture = getattr(model, "architecture", None)
    return {"architecture": architecture.to_dict()} if isinstance(architecture, Architecture) else {}


def drop_momentum(folder: Path) -> None:
    """Keep the weights alone of a run that is over: half the size."""
    found = load_checkpoint(folder)
    if found is not None:
        tensors, record = found
        kept = {name: tensor for name, tensor in tensors.items() if name.startswith("model.")}
        rest = {key: value for key, value in record.items() if key not in ("version", "epoch", "tensors")}
        save_checkpoint(folder, record["epoch"], kept, rest)


def recorded_curve(folder: Path) -> list[dict[str, Any]]:
    """The epochs that the checkpoint in a folder tells of; none where there is no checkpoint."""
    try:
        record: dict[str, Any] = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    curve: list[dict[str, Any]] = record["state"]["curve"]
    return curve


def difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """What is not the same in the identities of two runs, in words; "" where nothing is.

    A record may be older than a field: it then has the field's default, which is how things were.
    """
    for key in sorted(before.keys() | now.keys()):
        old, new = before.get(key), now.get(key)
        if key == "recipe" and isinstance(old, Mapping) and isinstance(new, Mapping):
            old, new = Recipe.complete(old), Recipe.complete(new)
            other = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
            if other:
                listed = ", ".join(f"{name} {old.get(name)!r}, not {new.get(name)!r}" for name in other)
                return f"its recipe has {listed}"
        elif old != new:
            return f"its {key} is {old!r}, not {new!r}"
    return ""
