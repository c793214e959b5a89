"""`lrnas export`: a network as files that others can use, checked against the network before they are called done.

- timm: a folder of safetensors and a configuration, as timm and the Hugging Face Hub have it. `import lrnas` and
  `timm.create_model("local-dir:FOLDER", pretrained=True)` give the network back.
- onnx: one file for onnxruntime and others, for any number of images at a time.
- torch-export: one file of PyTorch's own operations (`torch.export`), which runs where lrnas is not installed.

With `fuse`, batch norms are folded and every mixed-shape layer takes the form that is the fastest where it is to run
(`lrnas.exporting.fastest_form`). Files are written under another name and take their place when all checks have passed.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from lrnas.arch.architecture import Architecture
from lrnas.data.in_memory import DataSet
from lrnas.errors import UnknownName, error_line
from lrnas.exporting.fastest_form import Fusion, Timer, choose_forms, fastest, torch_timer
from lrnas.exporting.formats import ARCHITECTURE, CONFIG, WEIGHTS, WRITERS, Network, Written, registered_name
from lrnas.exporting.onnx import check_extras, has_cuda, onnx_timer
from lrnas.exporting.sample_inputs import Inputs, find_data, find_inputs
from lrnas.exporting.sources import ExportError, Source, find_source
from lrnas.profiling.threads import num_threads
from lrnas.profiling.timing import measure
from lrnas.training.provenance import hardware

Format = Literal["timm", "onnx", "torch-export"]
SUFFIX = {"timm": "", "onnx": ".onnx", "torch-export": ".pt2"}
TOLERANCE = 1e-4
"""Largest difference of outputs, as a part of the largest output: rounding is well below, anything else above."""


@dataclass(frozen=True, slots=True)
class Check:
    """The exported network beside the one it was made from."""

    images: str
    max_difference: float
    largest_output: float
    same_class: int
    """Images that both put in the same class."""
    number: int


@dataclass(frozen=True)
class Export:
    """What was written."""

    name: str
    format: str
    origin: str
    files: dict[Path, int]
    """And their bytes."""
    load: str
    """The line of Python that loads it."""
    also: str
    """Another one, for networks that timm knows by name."""
    check: Check
    seconds: dict[str, float]
    """For one batch, by what runs it."""
    device: str
    batch: int
    threads: int
    """Of the CPU, PyTorch's as well as onnxruntime's."""
    fusion: Fusion | None = None
    notes: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        fusion = None
        if self.fusion is not None:
            whole = self.fusion.network
            fusion = {
                **asdict(self.fusion.folding),
                "layers": [choice.to_dict() for choice in self.fusion.layers],
                "network": None if whole is None else whole.to_dict(),
            }
        plain_fields = ("name", "format", "origin", "load", "also", "seconds", "device", "batch", "threads", "notes")
        return {
            **{name: getattr(self, name) for name in plain_fields},
            "files": {str(file): size for file, size in self.files.items()},
            "check": asdict(self.check),
            "fusion": fusion,
        }


def export(
    source: str,
    format: Format = "timm",  # noqa: A002  # the option's name
    *,
    out: str | Path | None = None,
    fuse: bool = False,
    device: str | None = None,
    batch: int = 1,
    threads: int | None = None,
    data: str | None = None,
    data_dir: str | Path | None = None,
    input_size: int | None = None,
    num_classes: int | None = None,
    architecture: str | Path | None = None,
    studies: str | Path = "studies",
    storage: str | None = None,
    fresh: bool = False,
    force: bool = False,
    say: Callable[[str], object] = print,
) -> Export:
    """Write a checkpoint, a trial (STUDY:TRIAL) or a named network for use elsewhere, and check what was written.

    `device`, `batch` and `threads` say where and how it is to run: it is measured there, and with `fuse` every layer
    takes the form that is the fastest there. Without `threads`, a CPU's are as many as PyTorch takes, or one where that
    is faster, as for small networks and where others use its cores. The other arguments are those of the command line,
    which explains them.
    """
    if format not in get_args(Format):
        raise UnknownName("format", str(format), get_args(Format))
    for what, number in (
        ("batch", batch),
        ("number of threads", threads),
        ("input", input_size),
        ("number of classes", num_classes),
    ):
        if number is not None and number < 1:
            raise ExportError(f"the {what} is at least 1; got {number}")
    notes: list[str] = []

    def note(line: str) -> None:
        notes.append(line)
        say(line)

    target = _pick_device(format, device, note)
    found = find_source(source, architecture=architecture, studies=studies, storage=storage, fresh=fresh)
    place = _place(out, found.name + "-fused" * fuse, format, force)
    if found.weights is None:
        note(f"{found.name} has {found.origin}")
    network_data = find_data(found, data, data_dir, input_size, note)
    model, inputs = _prepare(found, network_data, num_classes, data_dir, input_size)
    if network_data is not None and inputs.mean is None:
        note("images were whitened in training, which is no part of the network: whoever runs it must do the same")
    expected = _outputs(model, inputs.images)
    fusion = None
    threads = threads or _pick_threads(model, inputs.batch(batch), target)
    with _scratch(place) as folder:
        if fuse:
            say(f"measuring on {_in_words(target)}, {batch} at a time")
            fusion = choose_forms(model, inputs.batch(batch), _timer(format, target, threads))
        final = model if fusion is None else fusion.model
        network = Network(final, found.architecture, inputs, None if fusion is None else fusion.folding)
        written = WRITERS[format](network, folder, place.name)
        check = _check(written, inputs, expected)
        seconds = _latency(written, model, inputs.batch(batch), target, threads, format)
        files = _move(folder, place, format)
    load, also = _how_to_load(format, place, found.architecture, model, inputs, fused=fuse)
    return Export(
        found.name, format, found.origin, files, load, also, check, seconds, str(target), batch,
        threads, fusion, notes,
    )  # fmt: skip


def _pick_device(wanted_format: str, device: str | None, note: Callable[[str], object]) -> torch.device:
    """Where the network is to run, if it can."""
    is_onnx = wanted_format == "onnx"
    if is_onnx:
        check_extras()
    here = torch.cuda.is_available()
    if device is None:
        if here and is_onnx and not has_cuda():
            note("onnxruntime, as it is installed here, has no CUDA: measuring on the CPU")
            here = False
        return torch.device("cuda" if here else "cpu")
    if device != "cpu" and not device.startswith("cuda"):
        raise ExportError(f"the device is cpu or cuda; got {device!r}; choose one")
    if device != "cpu" and not here:
        raise ExportError(f"there is no GPU that PyTorch can use here; got {device!r}; give --device cpu")
    if device != "cpu" and is_onnx and not has_cuda():
        raise ExportError("onnxruntime, as it is installed here, has no CUDA; pip install onnxruntime-gpu, or cpu")
    return torch.device(device)


def _place(out: str | Path | None, name: str, wanted_format: str, force: bool) -> Path:
    """The folder or file to write, which is not there yet or may be replaced."""
    suffix = SUFFIX[wanted_format]
    place = Path("exports") / f"{name}{suffix}" if out is None else Path(out)
    if suffix and place.is_dir():
        place = place / f"{name}{suffix}"
    if suffix and place.suffix != suffix:
        raise ExportError(f"a file of format {wanted_format} ends in {suffix}; got {place}; give --out FILE{suffix}")
    if not suffix and place.is_file():
        raise ExportError(f"{place} is a file; the timm format is a folder; give another --out")
    taken = [place] if suffix else [place / WEIGHTS, place / CONFIG]
    if not force and (there := [file for file in taken if file.exists()]):
        raise ExportError(f"{there[0]} exists; add --force to replace it, or give another --out")
    above = next(folder for folder in place.absolute().parents if folder.exists())
    if not above.is_dir() or not os.access(above, os.W_OK):
        raise ExportError(f"cannot write to {above}: it is no folder of yours; give another --out")
    return place


@contextmanager
def _scratch(place: Path) -> Iterator[Path]:
    """A folder beside the place, which is gone afterwards."""
    folder = place.with_name(f".{place.name}.part")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise ExportError(f"cannot write to {place.parent}: {error.strerror}; give another --out") from None
    try:
        yield folder
    except OSError as error:
        raise ExportError(f"cannot write {place}: {error.strerror or error}; give another --out") from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _move(folder: Path, place: Path, wanted_format: str) -> dict[Path, int]:
    home = place.parent if SUFFIX[wanted_format] else place
    home.mkdir(exist_ok=True)
    files = {}
    for file in sorted(folder.iterdir()):
        there = file.replace(home / file.name)
        files[there] = there.stat().st_size
    return files


def _prepare(
    source: Source, data: DataSet | None, num_classes: int | None, data_dir: str | Path | None, size: int | None
) -> tuple[nn.Module, Inputs]:
    """The network as it is, and images for it."""
    model: Any
    if source.weights is None and data is not None:
        model, channels = source.create_model(num_classes or data.num_classes, data.channels)
    else:
        model, channels = source.create_model(num_classes)
    _, rows, columns = model.pretrained_cfg["input_size"]
    return model, find_inputs(source, data, (channels, rows, columns), data_dir, size)


def _outputs(model: nn.Module, images: Tensor) -> Tensor:
    try:
        with torch.no_grad():
            outputs = model(images)
    except RuntimeError as error:
        size = "×".join(map(str, images.shape[2:]))
        raise ExportError(f"the network does not take images of {size}: {error_line(error)}; give --input") from None
    if not isinstance(outputs, Tensor) or not outputs.isfinite().all():
        raise ExportError("the outputs of the network are not finite numbers; export weights of another epoch")
    return outputs


def _timer(wanted_format: str, device: torch.device, threads: int) -> Timer:
    return onnx_timer(device, threads) if wanted_format == "onnx" else torch_timer(device, threads)


def _pick_threads(model: nn.Module, images: Tensor, device: torch.device) -> int:
    """Of the CPU, for all that is measured: as many as PyTorch takes, or one where that is faster."""
    most = torch.get_num_threads()
    if device.type != "cpu" or most == 1:
        return most
    taken: dict[int, float] = {}
    with torch.inference_mode():
        for number in (1, most, 1, most):
            with num_threads(number):
                (seconds,) = measure([lambda: model(images)], device, rounds=5, limit=0.3, quantile=0.0)
            taken[number] = min(seconds, taken.get(number, seconds))
    return min(taken, key=taken.__getitem__)


def _check(written: Written, inputs: Inputs, expected: Tensor) -> Check:
    """Compare, at two sizes of a batch."""
    found = written.run(inputs.images)
    alone = written.run(inputs.images[:1])
    largest = expected.abs().max().item()
    difference = max((found - expected).abs().max().item(), (alone - expected[:1]).abs().max().item())
    if not difference <= TOLERANCE * max(largest, 1e-6):
        raise ExportError(
            f"what was written does not compute the same: outputs differ by {difference:.3g} where the largest is "
            f"{largest:.3g}; nothing is kept; try without --fuse, or another format"
        )
    same = int((found.argmax(1) == expected.argmax(1)).sum())
    return Check(inputs.what, difference, largest, same, len(expected))


def _latency(
    written: Written, model: nn.Module, images: Tensor, device: torch.device, threads: int, wanted_format: str
) -> dict[str, float]:
    """Seconds for a batch: in PyTorch before, and as exported; measured as forms are."""
    there, x = model.to(device), images.to(device)
    before, after = ("PyTorch", "onnxruntime") if wanted_format == "onnx" else ("before", "exported")
    with torch.inference_mode():
        calls = {before: lambda: there(x), after: written.caller(images, device, threads)}
        return fastest(calls, device, threads).seconds


def _how_to_load(
    wanted_format: str, place: Path, architecture: Architecture, model: Any, inputs: Inputs, fused: bool
) -> tuple[str, str]:
    """The line of Python, and another one where there are two ways."""
    if wanted_format == "onnx":
        return f'import onnxruntime; session = onnxruntime.InferenceSession("{place}")', (
            'logits, = session.run(None, {"images": images})  # float32 [any number, '
            f"{', '.join(map(str, inputs.images.shape[1:]))}]"
        )
    if wanted_format == "torch-export":
        return f'import torch; model = torch.export.load("{place}").module()', ""
    line = f'import lrnas, timm; model = timm.create_model("local-dir:{place}", pretrained=True)'
    name = None if fused else registered_name(architecture)
    sizes = f"num_classes={model.num_classes}, in_chans={inputs.images.shape[1]}"
    if fused:
        return line, ""
    what = f'"{name}"' if name else f'"lrnas", architecture="{place / ARCHITECTURE}"'
    return line, f'timm.create_model({what}, {sizes}, checkpoint_path="{place / WEIGHTS}")'


def _in_words(device: torch.device) -> str:
    return f"{device} ({hardware()})"
