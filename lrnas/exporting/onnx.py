"""ONNX: writing a model with any number of images at a time, and running it with onnxruntime."""

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
TOGETHER = 200 * 2**20
"""Bytes of weights up to which modules are written as one model, which saves most of the time it takes."""


def check_extras() -> None:
    """Refuse before any work where something is not installed."""
    missing = [name for name in EXTRAS if importlib.util.find_spec(name) is None]
    if missing:
        raise ExportError(f"ONNX needs {', '.join(missing)}; not installed; pip install 'lrnas[export]'")


def has_cuda() -> bool:
    """Whether onnxruntime, as installed here, runs on GPUs."""
    import onnxruntime

    return "CUDAExecutionProvider" in onnxruntime.get_available_providers()


def to_onnx(model: nn.Module, images: Tensor, outputs: tuple[str, ...] = (OUTPUT,)) -> Any:
    """A model on the CPU as an ONNX program whose batch has any size."""
    batch = torch.export.Dim("batch", min=1)
    two = images[:1].repeat(2, 1, 1, 1)  # of one image, PyTorch would think that it is always one
    try:
        with _quietly(), torch.no_grad():
            return torch.onnx.export(
                model.eval(),
                (two,),
                dynamo=True,
                verbose=False,
                input_names=[INPUT],
                output_names=list(outputs),
                dynamic_shapes=({0: batch},),
            )
    except Exception as error:  # whatever an operator that ONNX does not have leads to
        raise ExportError(
            f"this network cannot be written as ONNX: {error_line(error)}; try --format torch-export"
        ) from None


def make_session(model: bytes | Path, device: torch.device, threads: int = 0) -> Any:
    """A model ready to run, with so many threads of the CPU, or as many as onnxruntime takes."""
    import onnxruntime

    providers = ["CUDAExecutionProvider"] if device.type == "cuda" else []
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.force_spinning_stop", "1")  # who runs next has the cores to itself
    data = model if isinstance(model, bytes) else str(model)
    return onnxruntime.InferenceSession(data, options, providers=[*providers, "CPUExecutionProvider"])


def run_session(session: Any, images: Tensor) -> Tensor:
    """The first output for some images."""
    (result,) = session.run(None, {INPUT: np.ascontiguousarray(images.numpy())})
    return torch.from_numpy(result)


def onnx_timer(device: torch.device, threads: int) -> Timer:
    """Times in onnxruntime, on a device; images come from and results go to the processor's memory."""

    def time_forms(forms: Mapping[str, nn.Module], x: Tensor) -> Times:
        models = _write(forms, x)
        sessions = {name: make_session(model, device, threads) for name, model in models.items()}
        inputs = {INPUT: x.numpy()}
        calls = {name: functools.partial(session.run, None, inputs) for name, session in sessions.items()}
        return fastest(calls, device, threads)

    return time_forms


def _write(forms: Mapping[str, nn.Module], x: Tensor) -> dict[str, bytes]:
    """Each module as an ONNX model of its own."""
    from onnx.utils import Extractor

    size = sum(value.nbytes for form in forms.values() for value in form.state_dict().values())
    if size > TOGETHER:
        return {name: to_onnx(form, x).model_proto.SerializeToString() for name, form in forms.items()}
    names = {name: f"output{i}" for i, name in enumerate(forms)}
    proto = to_onnx(_Together(forms), x, tuple(names.values())).model_proto
    extractor = Extractor(proto)
    return {name: extractor.extract_model([INPUT], [output]).SerializeToString() for name, output in names.items()}


class _Together(nn.Module):
    """Modules that are given the same."""

    def __init__(self, forms: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self.forms = nn.ModuleList(copy.deepcopy(form) for form in forms.values())

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return tuple(form(x) for form in self.forms)


@contextmanager
def _quietly() -> Iterator[None]:
    """Without what the exporter says to its own makers."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
