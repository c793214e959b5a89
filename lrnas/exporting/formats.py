"""The formats a network is exported to: how each is written, read back and loaded by others."""

from __future__ import annotations

import copy
import json
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import timm
import torch
from safetensors.torch import save_file
from timm.models import is_model, model_entrypoint
from torch import Tensor, nn

from lrnas.arch.architecture import Architecture
from lrnas.errors import error_line
from lrnas.exporting.onnx import INPUT, make_session, run_session, to_onnx
from lrnas.exporting.sample_inputs import Inputs
from lrnas.exporting.sources import ExportError
from lrnas.layers.fold import Folding
from lrnas.models.paper import named_networks
from lrnas.models.plan import TIMM, canonical_id
from lrnas.profiling.timing import Call

WEIGHTS, CONFIG, ARCHITECTURE = "model.safetensors", "config.json", "architecture.json"
CONFIGURED = ("min_input_size", "interpolation", "crop_pct", "mean", "std", "classifier")
"""What of a model's own timm configuration stays as it is in an exported one."""


@dataclass(frozen=True)
class Network:
    """What is written."""

    model: nn.Module
    """In evaluation, on the CPU."""
    architecture: Architecture
    inputs: Inputs
    folding: Folding | None = None

    def description(self) -> dict[str, Any]:
        """What stands in every file beside the weights."""
        data = {"architecture": self.architecture.to_dict(), **self.inputs.to_dict()}
        return data if self.folding is None else {**data, "folded": asdict(self.folding)}


class Written(Protocol):
    """A network that was read back from what was written."""

    def run(self, images: Tensor) -> Tensor:
        """Its outputs, on the CPU."""

    def caller(self, images: Tensor, device: torch.device, threads: int) -> Call:
        """Runs it on a device, with so many threads of the CPU where these are its own; for measuring."""


@dataclass(frozen=True)
class _Module:
    """Read back as a module."""

    model: nn.Module
    program: torch.export.ExportedProgram | None = None

    def run(self, images: Tensor) -> Tensor:
        with torch.no_grad():
            outputs: Tensor = self.model(images)
        return outputs

    def caller(self, images: Tensor, device: torch.device, threads: int) -> Call:
        if self.program is None:
            there = copy.deepcopy(self.model).to(device)
        else:
            from torch.export.passes import move_to_device_pass

            moved = self.program if device.type == "cpu" else move_to_device_pass(self.program, str(device))
            there = moved.module()
        x = images.to(device)
        return lambda: there(x)


@dataclass(frozen=True)
class _Session:
    """Read back by onnxruntime."""

    file: Path

    def run(self, images: Tensor) -> Tensor:
        return run_session(make_session(self.file, torch.device("cpu")), images)

    def caller(self, images: Tensor, device: torch.device, threads: int) -> Call:
        session, inputs = make_session(self.file, device, threads), {INPUT: images.numpy()}
        return lambda: session.run(None, inputs)


def registered_name(architecture: Architecture) -> str | None:
    """The name by which timm knows a network of ours."""
    if architecture.backbone.startswith(TIMM):
        return None
    wanted = canonical_id(architecture)
    names = (name.replace("-", "_") for name, network in named_networks().items() if canonical_id(network) == wanted)
    ours = (
        name for name in names if is_model(name) and model_entrypoint(name).__module__ == "lrnas.models.timm_registry"
    )
    return next(ours, None)


def _write_timm(network: Network, folder: Path, name: str) -> Written:
    """A folder in the layout of timm and the Hugging Face Hub."""
    model: Any = network.model
    folded = network.folding is not None
    known = None if folded else registered_name(network.architecture)
    arguments: dict[str, Any] = {}
    if known is None:
        arguments["architecture"] = network.architecture.to_dict()
    if network.folding is not None:
        arguments["folded"] = asdict(network.folding)
    told = network.inputs.to_dict()
    classes = told.pop("classes", None)
    own = model.pretrained_cfg
    kept = {key: own[key] for key in CONFIGURED if own.get(key) is not None}
    if told["input_size"][0] == 3 and not folded and own.get("first_conv"):
        kept["first_conv"] = own["first_conv"]  # timm adapts it to other channels, from three alone
    if told["input_size"][0] != 3:
        kept = {key: value for key, value in kept.items() if key not in ("mean", "std", "min_input_size")}
    config = {
        "architecture": known or "lrnas",
        "num_classes": model.num_classes,
        "num_features": model.num_features,
        "model_args": arguments,
        "pretrained_cfg": {"num_classes": model.num_classes, **kept, **told},
        **({"label_names": classes} if classes else {}),
    }
    tensors = {key: value.detach().clone().contiguous() for key, value in model.state_dict().items()}
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt", "lrnas": json.dumps(network.description())})
    (folder / ARCHITECTURE).write_text(network.architecture.to_json(indent=1) + "\n", encoding="utf-8")
    (folder / CONFIG).write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    (folder / WEIGHTS).chmod((folder / CONFIG).stat().st_mode)  # safetensors are for their owner's eyes alone
    return _Module(timm.create_model(f"local-dir:{folder}", pretrained=True).eval())


def _write_onnx(network: Network, folder: Path, name: str) -> Written:
    program = to_onnx(network.model, network.inputs.images)
    program.model.metadata_props["lrnas"] = json.dumps(network.description())
    file = folder / name
    program.save(file)
    return _Session(file)


def _write_torch_export(network: Network, folder: Path, name: str) -> Written:
    two = network.inputs.batch(2)  # of one image, PyTorch would think that it is always one
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # PyTorch's, about PyTorch
            program = torch.export.export(
                network.model, (two,), dynamic_shapes=({0: torch.export.Dim("batch", min=1)},)
            )
            targets = [node.target for node in program.graph.nodes if node.op == "call_function"]
            foreign = sorted({str(target) for target in targets if str(target).startswith("lrnas")})
            assert not foreign, f"operations that are not PyTorch's: {foreign}"
            torch.export.save(program, folder / name, extra_files={"lrnas.json": json.dumps(network.description())})
            loaded = torch.export.load(folder / name)
    except (RuntimeError, ValueError, TypeError) as error:  # of what PyTorch cannot trace
        raise ExportError(f"torch.export cannot trace this network: {error_line(error)}; try --format timm") from None
    return _Module(loaded.module(), loaded)


WRITERS: Mapping[str, Callable[[Network, Path, str], Written]] = {
    "timm": _write_timm,
    "onnx": _write_onnx,
    "torch-export": _write_torch_export,
}
"""By format: write a network into a folder, under a name, and read it back."""
