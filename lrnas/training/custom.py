"""Custom training functions: `--trainable package.module:function` replaces the training loop of lrnas.

The function is called as `function(model, run)`. The `Run` says how many epochs to train, receives a report after every
epoch, and saves the state that a stopped trial needs to continue. The function itself does not have to deal with Ray,
Optuna or checkpoints. See docs/own_training.md.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import io
import math
import os
import pickle
import random
import sys
import sysconfig
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from lrnas._arguments import short_repr
from lrnas.data.in_memory import Batches, DataSet, Evaluation, epoch_generator
from lrnas.errors import DataError, LrnasError, closest, error_line
from lrnas.recipes import Recipe
from lrnas.training.checkpoint import (
    CheckpointError,
    DamagedCheckpoint,
    finished_run,
    load_checkpoint,
    load_weights,
    save_interval,
    save_model,
)
from lrnas.training.loop import Status, is_finite

OBJECTS = "objects"
"""Name of the tensor in a checkpoint that holds the states of the objects passed to `Run.keep`."""


class TrainableError(LrnasError):
    """A training function that cannot be loaded, fails, or breaks a rule of `Run`."""


class Diverged(LrnasError):
    """Raised by `Run.report` to end a training with numbers that are not finite."""


@runtime_checkable
class Stateful(Protocol):
    """An object that `Run.keep` can save: an optimiser, a schedule, a model, or anything else with these methods."""

    def state_dict(self) -> Any: ...
    def load_state_dict(self, state_dict: Any, /) -> Any: ...


class Run:
    """One training run, as passed to a training function. Create one yourself to try a function without a search.

    Args:
        model: The network to train, on `device`.
        epochs: Number of epochs to train in total, including epochs that were trained before a stop.
        folder: Where checkpoints are written.
        seed: Seed of the random numbers of every epoch.
        device: Where the model is.
        recipe: The study's recipe, for functions that use its learning rate, batch size or other fields.
        identity: Facts about the run. A checkpoint in the folder with other facts is refused.
        load_data: Function that returns the study's data set; None if the training function loads its own data.
        tell: Callback after every epoch; it gets the result of `progress`.

    Example:
        >>> def train(model, run):
        ...     optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
        ...     run.keep(optimizer=optimizer)
        ...     for epoch in range(run.epochs_done, run.epochs):
        ...         loss = train_one_epoch(model, optimizer)
        ...         run.report(validation_accuracy(model), loss=loss)
        >>> model = lrnas.create_model(lrnas.get_point("nin").architecture, num_classes=10, in_chans=1)
        >>> train(model, lrnas.Run(model, epochs=1, folder="scratch"))
    """

    def __init__(
        self,
        model: nn.Module,
        epochs: int,
        folder: str | Path,
        *,
        seed: int = 0,
        device: torch.device | str = "cpu",
        recipe: Recipe | None = None,
        identity: Mapping[str, Any] | None = None,
        load_data: Callable[[], DataSet] | None = None,
        tell: Callable[[dict[str, Any]], object] | None = None,
    ) -> None:
        self.model = model
        self.epochs = epochs
        self.seed = seed
        self.device = torch.device(device)
        self.recipe = recipe or Recipe(epochs=epochs)
        self.diverged = False
        self._run_folder = Path(folder)
        self._identity = dict(identity or {})
        self._load_data = load_data
        self._tell = tell
        self._objects: dict[str, Stateful] | None = None
        self._curve: list[dict[str, Any]] = []
        self._last_save = time.perf_counter()
        self._epoch_started = time.perf_counter()

    @property
    def epochs_done(self) -> int:
        """Number of epochs reported so far, including epochs before a stop after `keep` has restored them."""
        return len(self._curve)

    @property
    def folder(self) -> Path:
        """A folder for your own files; it is kept when a trial stops and continues."""
        folder = self._run_folder / "own"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    @functools.cached_property
    def data(self) -> DataSet:
        """The study's data set, loaded when it is first used; `train_batches` and `val_batches` return its images."""
        if self._load_data is None:
            raise TrainableError(
                "run.data is the data set of --data, but this study has none; load your own data, or give --data"
            )
        return self._load_data()

    @functools.cached_property
    def _batches(self) -> tuple[Batches, Evaluation]:
        return self.data.batches(self.recipe, self.device, None)

    def train_batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Return the training images of the next epoch: shuffled, cropped, mirrored and normalised, as by a search.

        The batch size and the crops are those of `recipe`. Images that do not fill a batch are left out.

        Returns:
            Batches on `device`: images, float32 [batch_size, channels, rows, columns], and their classes, int64.
        """
        batches, _ = self._batches
        batches.crop = self.recipe.size_in(self.epochs_done, self.data.image_size)
        batches.start_epoch(epoch_generator(self.seed, self.epochs_done))
        for step, places in enumerate(batches.places.split(batches.batch_size, dim=1)):
            batches.load(step)
            yield batches.take(places, torch.float32)

    def val_batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Return all validation images in order, cropped in the middle and normalised.

        Returns:
            Batches as from `train_batches`, of other sizes.
        """
        yield from self._batches[1]

    def keep(self, **objects: Stateful) -> int:
        """Save objects together with the model, and restore them if the trial was stopped before.

        Call it once, before the first report. The model is always saved; you need not pass it.

        Args:
            objects: Objects with `state_dict` and `load_state_dict`, for example `optimizer=optimizer`.

        Returns:
            The number of epochs that were trained before a stop; 0 in a new run.
        """
        if self._objects is not None or self._curve:
            raise TrainableError("run.keep must be called once, before the first report; got another call; move it up")
        for name, value in objects.items():
            if not isinstance(value, Stateful):
                raise TrainableError(
                    f"run.keep takes objects with state_dict and load_state_dict; got {name} of type "
                    f"{type(value).__name__}; leave it out, or add both methods"
                )
        self._objects = {name: value for name, value in objects.items() if value is not self.model}
        self._restore(self._objects)
        self._start_epoch()
        return self.epochs_done

    def report(self, accuracy: float, **metrics: float) -> None:
        """Report the results of one more epoch, and save a checkpoint.

        Checkpoints of large models are saved less often; after a crash, epochs that were not saved are trained again.

        If a reported number or a weight is not finite, the network has diverged: this raises `Diverged` to end the
        training. If the search stops the trial early, the training ends here as well.

        Args:
            accuracy: Accuracy on the validation images, from 0 to 1.
            metrics: Other numbers to record, for example `loss=loss`.
        """
        if self.epochs_done >= self.epochs:
            raise TrainableError(
                f"this run has only {self.epochs} epochs; got one more report; train from run.epochs_done to run.epochs"
            )
        accuracy, *values = (_number(name, value) for name, value in {"accuracy": accuracy, **metrics}.items())
        if self.diverged or not all(map(math.isfinite, (accuracy, *values))) or not is_finite(self.model):
            self.diverged = True
            raise Diverged("a reported number or a weight of the network is not finite")
        if not 0 <= accuracy <= 1:
            raise TrainableError(
                f"the accuracy must be from 0 to 1; got {accuracy:g}; report the share of correct answers"
            )
        entry = {
            "epoch": self.epochs_done + 1,
            "val_accuracy": accuracy,
            "seconds": time.perf_counter() - self._epoch_started,
            "metrics": dict(zip(metrics, values, strict=True)),
        }
        self._curve.append(entry)
        if self.epochs_done in (1, self.epochs) or time.perf_counter() - self._last_save >= save_interval(self.model):
            self._save()
            self._last_save = time.perf_counter()
        if self._tell is not None:
            self._tell(self.progress())
        self._start_epoch()

    def progress(self) -> dict[str, Any]:
        """Return the accuracies of all epochs (`curve`), the seconds they took and the last `metrics`."""
        return {
            "curve": [entry["val_accuracy"] for entry in self._curve],
            "seconds": sum(entry["seconds"] for entry in self._curve),
            "metrics": self._curve[-1]["metrics"] if self._curve else {},
        }

    def _start_epoch(self) -> None:
        """Seed all random generators for the next epoch, so that a stop between epochs does not change the result."""
        number = int(torch.randint(2**31, (1,), generator=epoch_generator(self.seed, self.epochs_done)))
        torch.manual_seed(number)
        random.seed(number)
        np.random.seed(number)
        self._epoch_started = time.perf_counter()

    def _save(self) -> None:
        """Save model, objects and curve as one checkpoint; at the end of the run, objects are not needed any more."""
        is_over = self.epochs_done == self.epochs
        tensors = {}
        if self._objects and (not is_over or self.epochs == 1):  # the first checkpoint shows whether they can be saved
            tensors[OBJECTS] = self._pack(self._objects)
        names = None if self._objects is None else sorted(self._objects)
        record = {"identity": self._identity, "kept": names, "state": {"curve": self._curve}}
        save_model(self._run_folder, self.epochs_done, self.model, tensors, record)

    def _pack(self, objects: Mapping[str, Stateful]) -> Tensor:
        """Return the states of objects as bytes that can be loaded without running code."""
        stream = io.BytesIO()
        try:
            torch.save({name: value.state_dict() for name, value in objects.items()}, stream)
            packed = torch.frombuffer(stream.getbuffer(), dtype=torch.uint8)
            if self.epochs_done == 1:  # checking the first checkpoint is enough
                _unpack(packed)
        except (pickle.PickleError, AttributeError, TypeError, RuntimeError) as error:
            raise TrainableError(
                f"states of objects passed to run.keep must consist of tensors, numbers and text; got something else "
                f"in {', '.join(objects)}: {error_line(error)}; change its state_dict"
            ) from None
        return packed

    def _restore(self, objects: Mapping[str, Stateful]) -> None:
        checkpoint = load_checkpoint(self._run_folder, self._identity)
        if checkpoint is None or checkpoint[1].get("kept") != sorted(objects):  # saved by another version: start over
            return
        tensors, record = checkpoint
        load_weights(self.model, tensors)
        try:
            states = _unpack(tensors[OBJECTS]) if OBJECTS in tensors else {}  # a completed run has none
            curve = list(record["state"]["curve"])
        except (pickle.PickleError, EOFError, RuntimeError, ValueError, KeyError, TypeError) as error:
            raise DamagedCheckpoint(
                f"the checkpoint in {self._run_folder} cannot be read ({error_line(error)})"
            ) from None
        if objects and not states and len(curve) < self.epochs:
            raise finished_run(self._run_folder, len(curve))
        try:
            for name, state in states.items():
                objects[name].load_state_dict(state)
        except (RuntimeError, ValueError, KeyError, TypeError) as error:  # the code may have changed
            raise CheckpointError(
                f"the checkpoint in {self._run_folder} does not fit ({error_line(error)}); delete it to start over"
            ) from None
        self._curve = curve


def _unpack(packed: Tensor) -> dict[str, Any]:
    return dict(torch.load(io.BytesIO(packed.numpy().tobytes()), map_location="cpu", weights_only=True))


def _number(name: str, value: Any) -> float:
    try:
        return float(value.detach() if isinstance(value, Tensor) else value)
    except (TypeError, ValueError):
        raise TrainableError(f"run.report accepts only numbers; got {name}={value!r:.60}; leave it out") from None


@dataclass(frozen=True, slots=True)
class Trainable:
    """A training function, and the information that workers on other machines need to load it."""

    name: str
    """The name as package.module:function, which studies store."""
    folder: str
    """Current folder of the search; relative paths in the function start there."""
    root: str | None = None
    """Folder that contains its module or package; None for an installed module."""
    function: Callable[[nn.Module, Run], object] | None = None
    """The function itself, if it cannot be imported by name, for example in a notebook."""

    def load(self) -> Callable[[nn.Module, Run], object]:
        return self.function or _find(self.name, self.root)

    @property
    def short_name(self) -> str:
        """Name of its module without the package, used in the names of studies."""
        return self.name.partition(":")[0].rpartition(".")[2]

    @property
    def files(self) -> tuple[str, ...]:
        """Its module, or the package that contains it: files to send to machines that cannot see the folder."""
        if self.root is None:
            return ()
        path = Path(self.root, self.name.partition(":")[0].partition(".")[0])
        return (str(path if path.is_dir() else path.with_suffix(".py")),)


def load_trainable(given: str | Callable[..., object]) -> Trainable:
    """Find a training function, and check it as far as possible without calling it.

    Args:
        given: The name of the function, `package.module:function`, or the function itself.

    Returns:
        The function with the information that workers need to load it.
    """
    folder = str(Path.cwd())
    if isinstance(given, str):
        _check_signature(given, _find(given, folder))
        return Trainable(given, folder, _root(given))
    module, path = getattr(given, "__module__", None), getattr(given, "__qualname__", None)
    if not callable(given) or module is None or path is None:
        raise TrainableError(f"a trainable must be a function or its name; got {short_repr(given)}; define it with def")
    _check_signature(path, given)
    name = f"{module}:{path}"
    if module == "__main__":  # workers have another __main__ module
        script = getattr(sys.modules[module], "__file__", None)
        return Trainable(f"{Path(script).stem}:{path}" if script else name, folder, function=given)
    with contextlib.suppress(TrainableError):
        if _find(name, None) is given:
            return Trainable(name, folder, _root(name))
    return Trainable(name, folder, function=given)


def train_with(trainable: Trainable, run: Run) -> Status:
    """Train the model of a run with a training function.

    Args:
        trainable: The training function.
        run: The run that is passed to the function.

    Returns:
        "completed" if all epochs were trained, "diverged" if a number was not finite.

    Raises:
        TrainableError: If the function fails in another way.
    """
    if Path(trainable.folder).is_dir():
        os.chdir(trainable.folder)
    function = trainable.load()
    run._start_epoch()
    try:
        function(run.model, run)
    except (DataError, CheckpointError, OSError, MemoryError):  # the machine's fault
        raise
    except Exception as error:
        if not run.diverged:
            if isinstance(error, TrainableError):
                raise
            raise TrainableError(error_line(error) + _failing_line(error, function)) from error
    if run.diverged:
        return "diverged"
    if run.epochs_done < run.epochs:
        raise TrainableError(
            f"{trainable.name} must report every epoch; got {run.epochs_done} of {run.epochs} before it returned; "
            "train from run.epochs_done to run.epochs, and call run.report after each epoch"
        )
    return "completed"


def _find(name: str, root: str | None) -> Callable[[nn.Module, Run], object]:
    """Import a function by its name, from a folder or from the installed packages."""
    module_name, _, path = name.partition(":")
    if not all(part.isidentifier() for part in (*module_name.split("."), *path.split("."))):
        raise TrainableError(
            f"a trainable must be written as package.module:function; got {name!r}; give for example my_code:train"
        )
    if root is not None and root not in sys.path:
        sys.path.insert(0, root)
    importlib.invalidate_caches()
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and error.name and f"{module_name}.".startswith(f"{error.name}."):
            where = f"in {root} or " if root is not None else ""
            raise TrainableError(
                f"the module of a trainable must be {where}installed; {module_name!r} was not found; change the folder "
                "or the name"
            ) from None
        raise TrainableError(f"{module_name} fails when it is imported: {error_line(error)}; correct it") from error
    try:
        function = functools.reduce(getattr, path.split("."), module)
    except AttributeError:
        known = [key for key, value in vars(module).items() if inspect.isfunction(value) and not key.startswith("_")]
        raise TrainableError(f"{module_name} has no function {path!r}{closest(path, known)}") from None
    if not callable(function):
        raise TrainableError(f"a trainable must be a function; got {name}, which is of type {type(function).__name__}")
    return function


def _check_signature(name: str, function: Callable[..., object]) -> None:
    with contextlib.suppress(ValueError):  # some built-in functions have no signature
        signature = inspect.signature(function)
        try:
            signature.bind("model", "run")
        except TypeError:
            raise TrainableError(
                f"a trainable must take the model and the run; got {name}{signature}; write def train(model, run)"
            ) from None


def _root(name: str) -> str | None:
    """Return the folder that a module was imported from; None for an installed module."""
    module_name = name.partition(":")[0]
    file = getattr(sys.modules[module_name], "__file__", None)
    if file is None:
        return None
    path = Path(file).resolve()
    root = path.parents[module_name.count(".") + (path.stem == "__init__")]
    installed = {Path(place).resolve() for place in sysconfig.get_paths().values()}
    return None if root in installed else str(root)


def _failing_line(error: Exception, function: Callable[..., object]) -> str:
    """Return, for an error message, the file and line of the training function where an error occurred."""
    try:
        file = Path(inspect.getfile(inspect.unwrap(function))).resolve()
    except TypeError:
        return ""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if Path(frame.filename).resolve() == file]
    return f" ({file.name}, line {lines[-1]})" if lines else ""
