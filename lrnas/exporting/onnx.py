"""ONNX models for batches of any size: writing them, and running them with onnxruntime."""

from __future__ import annotations

import copy
import functools
import importlib.util
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lrnas.errors import error_line
from lrnas.exporting.fastest_form import Timer, Times, fastest
from lrnas.exporting.sources import ExportError

EXTRAS = ("onnx", "onnxscript", "onnxruntime")
INPUT, OUTPUT = "images", "logits"
ANY_BATCH = ({0: torch.export.Dim("batch", min=1)},)
"""Shapes of the inputs for `torch.export`: the batch has any size."""
TOGETHER = 200 * 2**20
"""Several modules are written as one model, which is much faster, if their weights have at most this many bytes."""


def check_extras() -> None:
    """Raise ExportError if a package that ONNX needs is not installed."""
    missing = [name for name in EXTRAS if importlib.util.find_spec(name) is None]
    if missing:
        raise ExportError(f"ONNX needs {', '.join(missing)}, which is not installed; pip install 'lrnas[export]'")


def has_cuda() -> bool:
    """Whether the installed onnxruntime runs on GPUs."""
    import onnxruntime

    return "CUDAExecutionProvider" in onnxruntime.get_available_providers()


def batch_of_two(images: Tensor) -> Tensor:
    """Two images for tracing: with one image, PyTorch would assume that the batch always has one."""
    return images[:1].repeat(2, 1, 1, 1)


def to_onnx(model: nn.Module, images: Tensor, outputs: tuple[str, ...] = (OUTPUT,)) -> Any:
    """Convert a model to ONNX.

    Args:
        model: A model on the CPU.
        images: Images of the model's input size.
        outputs: Names of its outputs.

    Returns:
        The program (`torch.onnx.ONNXProgram`), for batches of any size.
    """
    names: dict[str, Any] = {"input_names": [INPUT], "output_names": list(outputs), "dynamic_shapes": ANY_BATCH}
    try:
        with quiet(), torch.no_grad():
            return torch.onnx.export(model.eval(), (batch_of_two(images),), dynamo=True, verbose=False, **names)
    except Exception as error:  # operators that ONNX does not have lead to many kinds of errors
        raise ExportError(
            f"this network cannot be written as ONNX: {error_line(error)}; try --format torch-export"
        ) from None


def make_session(model: bytes | Path, device: torch.device, threads: int = 0) -> Any:
    """An onnxruntime session for a model.

    Args:
        model: The ONNX model, or its file.
        device: Where it runs.
        threads: Number of CPU threads; 0 for onnxruntime's default.
    """
    import onnxruntime

    providers = ["CUDAExecutionProvider"] if device.type == "cuda" else []
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.force_spinning_stop", "1")  # frees the cores after each run
    data = model if isinstance(model, bytes) else str(model)
    return onnxruntime.InferenceSession(data, options, providers=[*providers, "CPUExecutionProvider"])


def run_session(session: Any, images: Tensor) -> Tensor:
    """The first output of a session for some images."""
    (result,) = session.run(None, {INPUT: np.ascontiguousarray(images.numpy())})
    return torch.from_numpy(result)


def onnx_timer(device: torch.device, threads: int) -> Timer:
    """A timer that runs modules in onnxruntime on a device; inputs and outputs are in the memory of the CPU."""

    def time_forms(forms: Mapping[str, nn.Module], x: Tensor) -> Times:
        sessions = {name: make_session(model, device, threads) for name, model in _write(forms, x).items()}
        inputs = {INPUT: x.numpy()}
        calls = {name: functools.partial(session.run, None, inputs) for name, session in sessions.items()}
        return fastest(calls, device, threads)

    return time_forms


def _write(forms: Mapping[str, nn.Module], x: Tensor) -> dict[str, bytes]:
    """Each module as an ONNX model."""
    from onnx.utils import Extractor

    size = sum(value.nbytes for form in forms.values() for value in form.state_dict().values())
    if size > TOGETHER:
        return {name: to_onnx(form, x).model_proto.SerializeToString() for name, form in forms.items()}
    names = {name: f"output{i}" for i, name in enumerate(forms)}
    extractor = Extractor(to_onnx(_Together(forms), x, tuple(names.values())).model_proto)
    return {name: extractor.extract_model([INPUT], [output]).SerializeToString() for name, output in names.items()}


class _Together(nn.Module):
    """Several modules with the same input."""

    def __init__(self, forms: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self.forms = nn.ModuleList(copy.deepcopy(form) for form in forms.values())

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return tuple(form(x) for form in self.forms)


@contextmanager
def quiet() -> Iterator[None]:
    """Hide the warnings and messages of PyTorch's exporters inside a `with` block."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
