"""The command doctor: what lrnas finds on this machine, what is wrong with it, and what to do."""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from lrnas._messages import file_size
from lrnas.cli.options import add_command, add_settings
from lrnas.cli.output import make_console, make_table, print_result
from lrnas.errors import LrnasError, error_line

EXTRAS = ("", "train", "workers", "search")
"""Extras of lrnas, beside its own requirements, whose packages a search needs."""
SHOWN = ("lrnas", "torch", "timm", "triton", "optuna", "ray")
"""Packages whose versions are shown."""
LITTLE_ROOM = 2_000_000_000
"""Bytes below which a disk counts as full."""
DRIVER = Path("/proc/driver/nvidia/version")


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found."""

    check: str
    is_ok: bool
    text: str
    advice: str = ""
    """What to do about it, if it is not ok."""


class Problem(Exception):
    """Something that is wrong. Its arguments are what was found, and what to do about it."""


def add_commands(commands: Any) -> None:
    """Add the command to the program."""
    text = "Check what a search needs on this machine: packages, GPU, kernels, Ray, storage, data and disk. Says what "
    text += "is wrong and what to do about it. The exit code is 1 if anything is wrong."
    doctor = add_command(commands, "doctor", _doctor, "check what a search needs on this machine", text)
    add_settings(doctor, "studies", "storage", "data_dir")


def _doctor(options: argparse.Namespace) -> int:
    checks: dict[str, Callable[[argparse.Namespace], str]] = {
        "packages": _packages,
        "GPU": _gpu,
        "GPU sharing": _sharing,  # before this process uses a GPU
        "kernels": _kernels,
        "Ray": _ray,
        "storage": _storage,
        "data": _data,
        "disk": _disk,
    }
    found = [_find(name, check, options) for name, check in checks.items()]

    def show() -> None:
        table = make_table("This machine", ["", "check", "found"])
        for finding in found:
            advice = f"; {finding.advice}" if finding.advice else ""
            table.add_row("ok" if finding.is_ok else "WRONG", finding.check, finding.text + advice)
        make_console().print(table)

    print_result(options, lambda: [asdict(finding) for finding in found], show)
    return 0 if all(finding.is_ok for finding in found) else 1


def _find(name: str, check: Callable[[argparse.Namespace], str], options: argparse.Namespace) -> Finding:
    try:
        return Finding(name, True, check(options))
    except Problem as problem:
        return Finding(name, False, *problem.args)
    except LrnasError as error:  # which says itself what to do
        return Finding(name, False, str(error))
    except Exception as error:  # whatever a package raises that is broken
        return Finding(name, False, error_line(error), "reinstall lrnas in a new virtual environment")


def _packages(options: argparse.Namespace) -> str:
    from packaging.requirements import Requirement

    wanted = [Requirement(line) for line in metadata.requires("lrnas") or ()]
    wanted = [each for each in wanted if each.marker is None or any(each.marker.evaluate({"extra": e}) for e in EXTRAS)]
    wrong = []
    for each in wanted:
        version = _version(each.name)
        if version is None:
            wrong.append(f"{each.name} is not installed")
        elif not each.specifier.contains(version, prereleases=True):
            wrong.append(f"{each.name} is {version}, which is not {each.specifier}")
    if wrong:
        raise Problem(", ".join(wrong), "pip install --upgrade 'lrnas[train,search]'")
    versions = [f"{name} {version}" for name in SHOWN if (version := _version(name))]
    return f"Python {platform.python_version()}, {', '.join(versions)}"


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _gpu(options: argparse.Namespace) -> str:
    import torch

    if torch.cuda.is_available():
        each = [torch.cuda.get_device_properties(number) for number in range(torch.cuda.device_count())]
        return ", ".join(f"{gpu.name} ({file_size(gpu.total_memory)})" for gpu in each)
    if DRIVER.exists():
        driver = DRIVER.read_text().splitlines()[0]
        built = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPUs only"
        raise Problem(
            f"there is a driver ({driver}), but PyTorch, built for {built}, does not find a GPU",
            "install a PyTorch for the CUDA version that `nvidia-smi` shows, and check $CUDA_VISIBLE_DEVICES",
        )
    return f"none; trainings run on {os.cpu_count()} CPU cores"


def _kernels(options: argparse.Namespace) -> str:
    import torch

    from lrnas.layers.kernels import available

    if not torch.cuda.is_available():
        return "not needed without a GPU"
    if os.environ.get("LRNAS_KERNELS") == "off":
        return "switched off by $LRNAS_KERNELS"
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        if not available(torch.device("cuda", 0)):
            reason = str(told[-1].message) if told else "fused kernels do not run on this GPU"
            raise Problem(reason, "install triton and a C compiler; without them, trainings are slower")
    return "Triton compiles, and a kernel ran"


def _sharing(options: argparse.Namespace) -> str:
    import torch

    from lrnas.training.gpu_sharing import shared_gpus

    if not torch.cuda.is_available():
        return "not needed without a GPU"
    with shared_gpus() as reason:
        if reason:  # searches work without it
            return f"trials on the same GPU take turns, which is slower, because CUDA MPS does not work: {reason}"
    return "CUDA MPS works: trials on the same GPU run at the same time"


def _ray(options: argparse.Namespace) -> str:
    import ray

    from lrnas.searching.ray_cluster import Workers, running_ray

    with running_ray(Workers(1, 0)):
        found: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
        return f"starts, with {found['CPU']:g} CPU cores and {found.get('GPU', 0):g} GPUs"


def _storage(options: argparse.Namespace) -> str:
    from lrnas.study.folder import study_names
    from lrnas.study.storage import NoStudies, open_storage

    if options.storage is None:
        folder = Path(options.studies)
        _check_writable(folder, "--studies")
        number = len(study_names(folder))
        return f"{number:,} {'study' if number == 1 else 'studies'} in {folder}"
    try:
        number = len(open_storage(options.storage, Path(options.studies), must_exist=True).get_all_studies())
    except NoStudies:
        number = 0
    what = "study" if number == 1 else "studies"
    return f"can be used, and has {number:,} {what}, later levels and retrainings counted"


def _data(options: argparse.Namespace) -> str:
    from lrnas.data.names import data_folder
    from lrnas.study.folder import disk_use

    folder = data_folder(options.data_dir)
    _check_writable(folder, "--data-dir or $LRNAS_DATA")
    return f"{file_size(disk_use(folder))} of data sets and packed images in {folder}"


def _disk(options: argparse.Namespace) -> str:
    from lrnas.data.names import data_folder

    places = {"studies": Path(options.studies), "data": data_folder(options.data_dir), "temporary files": None}
    free = {}
    for name, folder in places.items():
        there = Path(tempfile.gettempdir()) if folder is None else _nearest(folder)
        free[name] = shutil.disk_usage(there).free
    text = ", ".join(f"{file_size(size)} free for {name}" for name, size in free.items())
    if min(free.values()) < LITTLE_ROOM:
        raise Problem(text, "make room: `lrnas clean STUDY` deletes weights that a search can do without")
    return text


def _check_writable(folder: Path, option: str) -> None:
    """Check that files can be made in a folder, or that the folder can be made; nothing is left behind."""
    there = _nearest(folder)
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        raise Problem(f"cannot write to {there}: {error.strerror}", f"give another folder with {option}") from None


def _nearest(folder: Path) -> Path:
    """A folder, or the nearest one above it that exists."""
    folder = folder.expanduser().absolute()
    return next(each for each in (folder, *folder.parents) if each.exists())
