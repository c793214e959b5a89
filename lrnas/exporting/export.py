"""Export of a network to files for use elsewhere. The files are checked against the network before they are kept.

- timm: a folder with safetensors and a configuration, in the layout of timm and the Hugging Face Hub. `import lrnas`
  and `timm.create_model("local-dir:FOLDER", pretrained=True)` load the network.
- onnx: one file for onnxruntime and others, for batches of any size.
- torch-export: one file with PyTorch's own operations (`torch.export`), which runs without lrnas.

With `fuse`, batch norms are folded and every mixed-shape layer gets the form that is fastest on the device where the
network will run (`lrnas.exporting.fastest_form`). Files are written to a temporary folder and moved to their place when
all checks have passed.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from lrnas._arguments import checked, is_a, short_repr
from lrnas._field_docs import in_help
from lrnas._messages import logger, show_messages
from lrnas._notebook import NotebookView
from lrnas.arch.architecture import Architecture
from lrnas.data.in_memory import DataSet
from lrnas.errors import InvalidArgument, first_line, in_users_words
from lrnas.exporting.fastest_form import Fusion, Timer, choose_forms, fastest, torch_timer
from lrnas.exporting.formats import ARCHITECTURE, WRITERS, Network, Written, registered_name
from lrnas.exporting.names import SUFFIX, check_format
from lrnas.exporting.onnx import check_extras, has_cuda, onnx_timer
from lrnas.exporting.sample_inputs import Inputs, find_data, find_inputs
from lrnas.exporting.sources import ExportError, Source, find_source
from lrnas.models.count import auxiliary_heads
from lrnas.models.found import CONFIG, WEIGHTS
from lrnas.profiling.timing import find_device, pick_threads
from lrnas.training.provenance import hardware

if TYPE_CHECKING:
    from lrnas.study.study import Trial

Format = Literal["timm", "onnx", "torch-export"]
Exported: TypeAlias = "str | Path | Trial"
"""A network that can be exported."""
TOLERANCE = 1e-4
"""Largest allowed difference of outputs, as a share of the largest output. Rounding errors are far smaller."""


@in_help
@dataclass(frozen=True, slots=True)
class Check:
    """Comparison of the exported network with the original."""

    images: str
    """Description of the images."""
    max_difference: float
    """Largest difference of an output."""
    largest_output: float
    """Largest absolute value of an output."""
    same_class: int
    """Number of images that both networks put into the same class."""
    number: int
    """Number of images."""

    def __str__(self) -> str:
        difference = f"outputs differ by {self.max_difference:.2g} at most (largest output {self.largest_output:.3g})"
        return f"{self.images}: {difference}, {self.same_class} of {self.number} in the same class"


@in_help
@dataclass(frozen=True)
class Export(NotebookView):
    """Result of an export."""

    name: str
    """Name of the network."""
    format: str
    """timm, onnx or torch-export."""
    origin: str
    """Description of the weights."""
    files: dict[Path, int]
    """The written files and their sizes in bytes."""
    load: str
    """Python code that loads the network."""
    also: str
    """Another way to load it, or how to run it; may be empty."""
    check: Check
    """Comparison with the network before the export."""
    seconds: dict[str, float]
    """Time of one batch, before and after the export."""
    device: str
    """Where times were measured."""
    batch: int
    """Images in a batch, for the times."""
    threads: int
    """CPU threads, for PyTorch and onnxruntime."""
    fusion: Fusion | None = None
    """Folded norms, chosen forms and measured times; None without `fuse`."""
    notes: list[str] = field(default_factory=list)
    """Messages for the user; they were also logged."""

    def __repr__(self) -> str:
        checked = f"{self.check.same_class} of {self.check.number} images in the same class"
        fused = "" if self.fusion is None else ", fused"
        files = ", ".join(map(str, self.files))
        return f"<Export of {self.name} as {self.format}{fused}: {files}; {self.origin}; {checked}>"

    def __str__(self) -> str:
        return "\n".join([*([] if self.fusion is None else self.fusion.lines), *self.lines, *self._remarks])

    def _repr_html_(self) -> str:
        lines = [f"{self.name}: {self.origin}", *self._remarks]
        return f"{super()._repr_html_()}<p>{'<br>'.join(map(escape, lines))}</p>"

    @property
    def lines(self) -> list[str]:
        """What was written, how it was checked, its times and how to load it, in words."""
        times = ", ".join(f"{name} {1000 * seconds:.2f} ms" for name, seconds in self.seconds.items())
        return [
            f"{self.name}: {self.origin}",
            *(f"Written:  {file}, {_size(size)}" for file, size in self.files.items()),
            f"Checked:  {self.check}",
            f"Takes:    {times} {self.conditions}",
            f"Load:     {self.load}",
            *([f"          {self.also}"] if self.also else []),
        ]

    @property
    def _remarks(self) -> list[str]:
        return [f"Note: {note}" for note in self.notes if note != _tell_weights(self.name, self.origin)]

    @property
    def forms_title(self) -> str:
        """Title of the table of `fusion`."""
        where = "onnxruntime" if self.format == "onnx" else "PyTorch"
        return f"Forms of every layer, milliseconds in {where} {self.conditions}"

    @property
    def conditions(self) -> str:
        """Batch, device and threads of the times, in words."""
        threads = f", {self.threads} thread{'s' * (self.threads != 1)}" if self.device == "cpu" else ""
        return f"for {self.batch} at a time on {self.device}{threads}"

    def to_dict(self) -> dict[str, Any]:
        """All results, for JSON."""
        plain = ("name", "format", "origin", "load", "also", "seconds", "device", "batch", "threads", "notes")
        return {
            **{name: getattr(self, name) for name in plain},
            "files": {str(file): size for file, size in self.files.items()},
            "check": asdict(self.check),
            "fusion": None if self.fusion is None else self.fusion.to_dict(),
        }


def _size(number: int) -> str:
    return f"{number / 1e6:,.2f} MB" if number >= 10_000 else f"{number:,} bytes"


def _tell_weights(name: str, origin: str) -> str:
    return f"{name} has {origin}"


@checked
def export(
    source: Exported,
    format: Format = "timm",  # noqa: A002  # the option's name
    *,
    out: str | Path | None = None,
    fuse: bool = False,
    device: str | torch.device | None = None,
    batch: int = 1,
    threads: int | None = None,
    data: str | None = None,
    data_dir: str | Path | None = None,
    input: int | None = None,  # noqa: A002  # the option's name
    classes: int | None = None,
    architecture: str | Path | None = None,
    studies: str | Path = "studies",
    storage: str | None = None,
    fresh: bool = False,
    force: bool = False,
) -> Export:
    """Write a network for use elsewhere, and check what was written against the network.

    Args:
        source: A trial, a checkpoint (folder or file), STUDY:TRIAL, a named network, FILE.json or timm:MODEL. A trial
            has the weights of its own training. STUDY:TRIAL has those of the full training, if the search made one.
        format: "timm" (a folder), "onnx" or "torch-export" (a file each).
        out: Folder or file to write; None for one in `exports/`.
        fuse: Fold batch norms, and replace every mixed-shape layer by its fastest form, found by measurement.
        device: Where the network will run and is measured: cpu, cuda or cuda:N; None for the GPU if there is one.
        batch: Images in a batch, for the measurements.
        threads: CPU threads for the measurements; None for PyTorch's number, or for one if that is faster.
        data: Data set whose images are used for the check; None for the one that the network was trained on.
        data_dir: Folder of the data sets; None for the default one.
        input: Rows and columns of an image; None for the size in training or, if unknown, the backbone's size.
        classes: Number of classes of a network with random weights; None for that of the data or the backbone.
        architecture: JSON file with the architecture, for a file of weights that does not contain it.
        studies: Folder of the studies, for STUDY:TRIAL.
        storage: URL of the studies' database, if they are not in that folder.
        fresh: Use random weights if the weights of a run were not kept.
        force: Replace existing files.

    Returns:
        The written files, how to load them, the result of the check, and times.

    Raises:
        LrnasError: If the network cannot be exported as requested; nothing is written then.
    """
    if not isinstance(source, str | Path) and not is_a("Trial", source):
        how = "export its weights with `architecture`, as examples/convert_and_export.py does"
        how = how if is_a("Module", source) else "see help(lrnas.export)"
        raise InvalidArgument(f"source takes text or a path or a Trial; got {short_repr(source)}; {how}")
    check_format(format)
    show_messages()
    counts = {"batch": batch, "number of threads": threads, "input": input, "number of classes": classes}
    for what, value in counts.items():
        if value is not None and value < 1:
            raise ExportError(f"the {what} must be at least 1; got {value}; give a larger number")
    notes: list[str] = []

    def note(line: str) -> None:
        if line:
            notes.append(in_users_words(line))
            logger.info(line)

    target, message = _pick_device(format, device)
    note(message)
    found = find_source(source, architecture=architecture, studies=studies, storage=storage, fresh=fresh)
    place = _find_place(out, found.name + "-fused" * fuse, format, force)
    if found.weights is None:
        note(_tell_weights(found.name, found.origin))
    data_set, message = find_data(found, data, data_dir, input)
    note(message)
    model, inputs = _prepare(found, data_set, classes, data_dir, input)
    if data_set is not None and inputs.mean is None:
        note("images were whitened in training, which is not part of the network: whiten its inputs in the same way")
    expected = _outputs(model, inputs.images)
    images = inputs.batch(batch)
    threads = threads or pick_threads([torch.inference_mode()(lambda: model(images))], target)
    with _temporary_folder(place) as folder:
        fusion = None
        if fuse:
            logger.info(f"measuring on {target} ({hardware()}), {batch} at a time")
            fusion = choose_forms(model, images, _make_timer(format, target, threads))
        final, folding = (model, None) if fusion is None else (fusion.model, fusion.folding)
        written = WRITERS[format](Network(final, found.architecture, inputs, folding), folder, place.name)
        check = _check(written, inputs, expected)
        seconds = _time(written, model, images, target, threads, format)
        files = _move(folder, place if format == "timm" else place.parent)
    load, also = _how_to_load(format, place, found.architecture, model, inputs, is_fused=fuse)
    return Export(
        found.name, format, found.origin, files, load, also, check, seconds, str(target), batch,
        threads, fusion, notes,
    )  # fmt: skip


def _pick_device(wanted_format: str, name: str | torch.device | None) -> tuple[torch.device, str]:
    """The device where the network will run, and a message if it is not the default device."""
    if wanted_format == "onnx":
        check_extras()
    device = find_device(name)
    if wanted_format != "onnx" or device.type == "cpu" or has_cuda():
        return device, ""
    if name is None:
        return torch.device("cpu"), "the installed onnxruntime does not support CUDA: measuring on the CPU"
    raise ExportError("the installed onnxruntime does not support CUDA; pip install onnxruntime-gpu, or --device cpu")


def _find_place(out: str | Path | None, name: str, wanted_format: str, force: bool) -> Path:
    """The folder or file to write. Raises ExportError if it exists and `force` is not set, or cannot be written."""
    suffix = SUFFIX[wanted_format]
    place = Path("exports") / f"{name}{suffix}" if out is None else Path(out)
    if suffix and place.is_dir():
        place = place / f"{name}{suffix}"
    if suffix and place.suffix != suffix:
        raise ExportError(f"a file of format {wanted_format} ends in {suffix}; got {place}; give --out FILE{suffix}")
    if not suffix and place.is_file():
        raise ExportError(f"{place} is a file, but the timm format is a folder; give another --out")
    taken = [place] if suffix else [place / WEIGHTS, place / CONFIG]
    if not force and (there := [file for file in taken if file.exists()]):
        raise ExportError(f"{there[0]} exists; add --force to replace it, or give another --out")
    above = next(folder for folder in place.absolute().parents if folder.exists())
    if not above.is_dir() or not os.access(above, os.W_OK):
        raise ExportError(f"cannot write to {above}: it is not a folder that you may write to; give another --out")
    return place


@contextmanager
def _temporary_folder(place: Path) -> Iterator[Path]:
    """A temporary folder next to the place; it is removed when the `with` block ends."""
    folder = place.with_name(f".{place.name}.part")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield folder
    except OSError as error:
        raise ExportError(f"cannot write {place}: {error.strerror or error}; give another --out") from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _move(folder: Path, home: Path) -> dict[Path, int]:
    """Move files to their folder. Returns the moved files and their sizes."""
    home.mkdir(exist_ok=True)
    files = [file.replace(home / file.name) for file in sorted(folder.iterdir())]
    return {file: file.stat().st_size for file in files}


def _prepare(
    source: Source, data: DataSet | None, num_classes: int | None, data_dir: str | Path | None, size: int | None
) -> tuple[nn.Module, Inputs]:
    """The network before the export, and images for it."""
    in_chans = None
    if source.weights is None and data is not None:
        num_classes, in_chans = num_classes or data.num_classes, data.channels
    model, channels = source.create_model(num_classes, in_chans)
    _, rows, columns = model.pretrained_cfg["input_size"]  # type: ignore[index]
    return model, find_inputs(source, data, (channels, rows, columns), data_dir, size)


def _outputs(model: nn.Module, images: Tensor) -> Tensor:
    try:
        with torch.no_grad():
            outputs = model(images)
    except RuntimeError as error:
        size = "×".join(map(str, images.shape[2:]))
        raise ExportError(f"the network cannot process images of {size}: {first_line(error)}; give --input") from None
    if not isinstance(outputs, Tensor) or not outputs.isfinite().all():
        raise ExportError("the outputs of the network are not finite numbers; export weights of another epoch")
    return outputs


def _make_timer(wanted_format: str, device: torch.device, threads: int) -> Timer:
    return onnx_timer(device, threads) if wanted_format == "onnx" else torch_timer(device, threads)


def _check(written: Written, inputs: Inputs, expected: Tensor) -> Check:
    """Compare outputs for all images in one batch, and for a batch of one image."""
    found = written.run(inputs.images)
    alone = written.run(inputs.images[:1])
    largest = expected.abs().max().item()
    difference = max((found - expected).abs().max().item(), (alone - expected[:1]).abs().max().item())
    if not difference <= TOLERANCE * max(largest, 1e-6):
        raise ExportError(
            f"the exported network does not compute the same outputs: they differ by {difference:.3g}, and the largest "
            f"is {largest:.3g}; nothing is written; try without --fuse, or another format"
        )
    same = int((found.argmax(1) == expected.argmax(1)).sum())
    return Check(inputs.what, difference, largest, same, len(expected))


def _time(
    written: Written, model: nn.Module, images: Tensor, device: torch.device, threads: int, wanted_format: str
) -> dict[str, float]:
    """Seconds of a batch, before the export (in PyTorch) and after."""
    model, x = model.to(device), images.to(device)
    before, after = ("PyTorch", "onnxruntime") if wanted_format == "onnx" else ("before", "exported")
    with torch.inference_mode():
        calls = {before: lambda: model(x), after: written.make_call(images, device, threads)}
        return fastest(calls, device, threads).seconds


def _quoted(text: object) -> str:
    """The text as a string literal of Python, in double quotes."""
    return json.dumps(str(text), ensure_ascii=False)


def _how_to_load(
    wanted_format: str, place: Path, architecture: Architecture, model: Any, inputs: Inputs, is_fused: bool
) -> tuple[str, str]:
    """Python code that loads the network; and code that loads it in another way or runs it, or ""."""
    if wanted_format == "onnx":
        return f"import onnxruntime; session = onnxruntime.InferenceSession({_quoted(place)})", (
            'logits, = session.run(None, {"images": images})  # float32 [any number, '
            f"{', '.join(map(str, inputs.images.shape[1:]))}]"
        )
    if wanted_format == "torch-export":
        return f"import torch; model = torch.export.load({_quoted(place)}).module()", ""
    line = f"import lrnas, timm; model = timm.create_model({_quoted(f'local-dir:{place}')}, pretrained=True)"
    if is_fused:
        return line, ""
    name = registered_name(architecture)
    what = f'"{name}"' if name else f'"lrnas", architecture={_quoted(place / ARCHITECTURE)}'
    options = f"num_classes={model.num_classes}, in_chans={inputs.images.shape[1]}"
    if auxiliary_heads(model):
        options += ", aux_logits=False"
    return line, f"timm.create_model({what}, {options}, checkpoint_path={_quoted(place / WEIGHTS)})"
