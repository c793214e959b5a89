"""The formats of exported networks: how each is written and read back."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import timm
import torch
from safetensors.torch import save_file
from timm.models import is_model, model_entrypoint
from torch import Tensor, nn

from lrnas.arch.architecture import Architecture
from lrnas.errors import error_line
from lrnas.exporting.onnx import ANY_BATCH, INPUT, batch_of_two, make_session, quiet, run_session, to_onnx
from lrnas.exporting.sample_inputs import Inputs
from lrnas.exporting.sources import ExportError
from lrnas.layers.conv import CompositeConv2d, SeparableConv2d
from lrnas.layers.fold import Folding
from lrnas.models.count import auxiliary_heads
from lrnas.models.found import CONFIG, WEIGHTS
from lrnas.models.paper import named_networks
from lrnas.models.plan import TIMM, built_id
from lrnas.profiling.timing import Call

ARCHITECTURE = "architecture.json"
CONFIGURED = ("min_input_size", "interpolation", "crop_pct", "mean", "std", "classifier")
"""Entries of a model's timm configuration that an exported network keeps."""


@dataclass(frozen=True)
class Network:
    """A network to write."""

    model: nn.Module
    """In evaluation mode, on the CPU."""
    architecture: Architecture
    inputs: Inputs
    folding: Folding | None = None

    def description(self) -> dict[str, Any]:
        """Information that every format stores beside the weights."""
        data = {"architecture": self.architecture.to_dict(), **self.inputs.to_dict()}
        return data if self.folding is None else {**data, "folded": asdict(self.folding)}


class Written(NamedTuple):
    """A network that was read back from the written files."""

    run: Callable[[Tensor], Tensor]
    """Computes outputs on the CPU."""
    make_call: Callable[[Tensor, torch.device, int], Call]
    """Makes a call for timing, from images, a device and a number of CPU threads."""


def _written_module(model: nn.Module, move: Callable[[torch.device], nn.Module]) -> Written:
    def run(images: Tensor) -> Tensor:
        with torch.no_grad():
            outputs: Tensor = model(images)
        return outputs

    def make_call(images: Tensor, device: torch.device, threads: int) -> Call:
        moved, x = move(device), images.to(device)
        return lambda: moved(x)

    return Written(run, make_call)


def registered_name(architecture: Architecture) -> str | None:
    """The name under which lrnas registered a network with timm; None if it is not registered."""
    if architecture.backbone.startswith(TIMM):
        return None
    wanted = built_id(architecture)
    names = (name.replace("-", "_") for name, network in named_networks().items() if built_id(network) == wanted)
    ours = (name for name in names if is_model(name) and model_entrypoint(name).__module__ == "lrnas.models.lrnas")
    return next(ours, None)


def _write_timm(network: Network, folder: Path, name: str) -> Written:
    """Write a folder in the layout of timm and the Hugging Face Hub, without heads that only training needs."""
    model: Any = network.model
    is_folded = network.folding is not None
    registered = None if is_folded else registered_name(network.architecture)
    arguments: dict[str, Any] = {} if registered else {"architecture": network.architecture.to_dict()}
    if network.folding is not None:
        arguments["folded"] = asdict(network.folding)
    heads = auxiliary_heads(model)
    if heads:
        arguments["aux_logits"] = False
    inputs = network.inputs.to_dict()
    classes = inputs.pop("classes", None)
    own = model.pretrained_cfg
    config = {key: own[key] for key in CONFIGURED if own.get(key) is not None}
    if heads:
        config["classifier"] = next(name for name in config["classifier"] if not name.startswith(heads))
    if inputs["input_size"][0] != 3:
        config = {key: value for key, value in config.items() if key not in ("mean", "std", "min_input_size")}
    elif first := _first_convs(model, own.get("first_conv")):
        # lets timm change the channels, which works only from three
        config["first_conv"] = first if len(first) > 1 else first[0]
    content = {
        "architecture": registered or "lrnas",
        "num_classes": model.num_classes,
        "num_features": model.num_features,
        "model_args": arguments,
        "pretrained_cfg": {"num_classes": model.num_classes, **config, **inputs},
        **({"label_names": classes} if classes else {}),
    }
    weights = {key: value for key, value in model.state_dict().items() if not key.startswith(heads)}
    tensors = {key: value.detach().clone().contiguous() for key, value in weights.items()}
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt", "lrnas": json.dumps(network.description())})
    (folder / ARCHITECTURE).write_text(network.architecture.to_json(indent=1) + "\n", encoding="utf-8")
    (folder / CONFIG).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    (folder / WEIGHTS).chmod((folder / CONFIG).stat().st_mode)  # safetensors makes files that only the owner can read
    loaded = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    return _written_module(loaded, lambda device: copy.deepcopy(loaded).to(device))


def _first_convs(model: nn.Module, named: str | Sequence[str] | None) -> list[str]:
    """Paths of the convolutions that read the image: those named or, of a layer of several, all that read its input."""
    found, modules = [], dict(model.named_modules())
    paths = [named] if isinstance(named, str) else named or ()
    # if a layer was folded into one convolution, the parts of it that are named are gone
    for path in dict.fromkeys(path if path in modules else path.rpartition(".")[0] for path in paths):
        layer = modules.get(path)
        if isinstance(layer, CompositeConv2d):
            found += [f"{path}.{name}" for name, _ in layer.named_children() if name.startswith("conv")]
        elif isinstance(layer, SeparableConv2d):
            found.append(f"{path}.{layer.names[0]}")
        elif isinstance(layer, nn.Sequential):  # a merged layer and its join
            found.append(f"{path}.0")
        elif layer is not None:
            found.append(path)
    return found


def _write_onnx(network: Network, folder: Path, name: str) -> Written:
    program = to_onnx(network.model, network.inputs.images)
    program.model.metadata_props["lrnas"] = json.dumps(network.description())
    file = folder / name
    program.save(file)

    def make_call(images: Tensor, device: torch.device, threads: int) -> Call:
        session, inputs = make_session(file, device, threads), {INPUT: images.numpy()}
        return lambda: session.run(None, inputs)

    return Written(lambda images: run_session(make_session(file, torch.device("cpu")), images), make_call)


def _write_torch_export(network: Network, folder: Path, name: str) -> Written:
    from torch.export.passes import move_to_device_pass

    try:
        with quiet(), torch.no_grad():
            images = batch_of_two(network.inputs.images)
            program = torch.export.export(network.model, (images,), dynamic_shapes=ANY_BATCH)
            targets = [node.target for node in program.graph.nodes if node.op == "call_function"]
            foreign = sorted({str(target) for target in targets if str(target).startswith("lrnas")})
            assert not foreign, f"operations that are not PyTorch's: {foreign}"
            torch.export.save(program, folder / name, extra_files={"lrnas.json": json.dumps(network.description())})
            loaded = torch.export.load(folder / name)
    except (RuntimeError, ValueError, TypeError) as error:  # PyTorch cannot trace the model
        raise ExportError(f"torch.export cannot trace this network: {error_line(error)}; try --format timm") from None

    def move(device: torch.device) -> nn.Module:
        return (loaded if device.type == "cpu" else move_to_device_pass(loaded, str(device))).module()

    return _written_module(loaded.module(), move)


WRITERS: Mapping[str, Callable[[Network, Path, str], Written]] = {
    "timm": _write_timm,
    "onnx": _write_onnx,
    "torch-export": _write_torch_export,
}
"""Functions by format that write a network into a folder, under a file name, and read it back."""
