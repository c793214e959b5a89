"""Other people's training code: `--trainable package.module:function` takes the place of lrnas's own loop.

The function is called as `function(model, run)`. The `Run` says for how long to train, keeps what a stopped trial needs
to go on, and takes a report after every epoch; the function needs to know nothing of Ray, Optuna or checkpoints. See
docs/own_training.md.
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
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from lrnas.data.in_memory import DataSet, epoch_generator
from lrnas.errors import DataError, LrnasError, closest, error_line
from lrnas.recipes import Recipe
from lrnas.training.checkpoint import CheckpointError, described, difference, load_checkpoint, save_checkpoint
from lrnas.training.loop import Status, is_finite

OBJECTS = "objects"
"""The tensor of a checkpoint that holds the state of what a function keeps."""


class TrainableError(LrnasError):
    """Training code that cannot be loaded, fails, or does not keep to the rules of a run."""


class Diverged(LrnasError):
    """Ends a training whose numbers are no longer finite; raised by a report."""


class Stateful(Protocol):
    """What a run can keep: optimisers, schedules, models, and anything else with these two."""

    def state_dict(self) -> Any: ...
    def load_state_dict(self, state_dict: Any, /) -> Any: ...


class Run:
    """One training, as the function that trains sees it. To try a function by itself, make one."""

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
        """To train, those before a stop included."""
        self.seed = seed
        self.device = torch.device(device)
        """Where the model is."""
        self.recipe = recipe or Recipe(epochs=epochs)
        """The study's; its learning rate, batch size and the like are there for a function that wants them."""
        self.diverged = False
        self._place = Path(folder)
        self._identity = dict(identity or {})
        self._load_data = load_data
        self._tell = tell
        self._objects: dict[str, Stateful] | None = None
        self._curve: list[dict[str, Any]] = []
        self._checked = False
        self._clock = time.perf_counter()

    @property
    def epochs_done(self) -> int:
        """Epochs that were reported; those before a stop count once `keep` has restored what they came to."""
        return len(self._curve)

    @property
    def folder(self) -> Path:
        """A folder for files of your own; it is there again when a stopped trial goes on."""
        folder = self._place / "own"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    @functools.cached_property
    def data(self) -> DataSet:
        """The study's data set, loaded when it is first asked for."""
        if self._load_data is None:
            raise TrainableError("the study has no data set of lrnas's; got run.data; load your own, or give --data")
        return self._load_data()

    def keep(self, **objects: Stateful) -> int:
        """Save objects with the model at every report; restore them, and the model, if the trial was stopped before.

        It takes anything with `state_dict` and `load_state_dict`, and returns the number of epochs that are done.
        """
        if self._objects is not None or self._curve:
            raise TrainableError("run.keep is called once, before the first report; got a later call; move it up")
        for name, kept in objects.items():
            if not all(callable(getattr(kept, method, None)) for method in ("state_dict", "load_state_dict")):
                raise TrainableError(
                    f"run.keep takes what has state_dict and load_state_dict; got {name} of type "
                    f"{type(kept).__name__}; leave it out, or give it both"
                )
        self._objects = {name: kept for name, kept in objects.items() if kept is not self.model}
        self._restore(self._objects)
        self._start_epoch()
        return self.epochs_done

    def report(self, accuracy: float, **metrics: float) -> None:
        """One more epoch is trained. The accuracy is the validation images', from 0 to 1; other numbers are kept.

        A number or a weight that is not finite means that the network diverged, and ends the training. So does a
        search that stops the trial.
        """
        if self.epochs_done >= self.epochs:
            raise TrainableError(
                f"a run has {self.epochs} epochs; got a report of one more; train from run.epochs_done to run.epochs"
            )
        accuracy, *values = (_number(name, value) for name, value in {"accuracy": accuracy, **metrics}.items())
        if self.diverged or not all(map(math.isfinite, (accuracy, *values))) or not is_finite(self.model):
            self.diverged = True
            raise Diverged("a number that was reported, or a weight of the network, is not finite")
        if not 0 <= accuracy <= 1:
            raise TrainableError(f"the accuracy lies from 0 to 1; got {accuracy:g}; report the share of right answers")
        entry = {
            "epoch": self.epochs_done + 1,
            "val_accuracy": accuracy,
            "seconds": time.perf_counter() - self._clock,
            "metrics": dict(zip(metrics, values, strict=True)),
        }
        self._curve.append(entry)
        self._save()
        if self._tell is not None:
            self._tell(self.progress())
        self._start_epoch()

    def progress(self) -> dict[str, Any]:
        """What there is to tell so far: the curve, the seconds, the last metrics."""
        return {
            "curve": [entry["val_accuracy"] for entry in self._curve],
            "seconds": sum(entry["seconds"] for entry in self._curve),
            "metrics": self._curve[-1]["metrics"] if self._curve else {},
        }

    def _start_epoch(self) -> None:
        """Have what an epoch draws at random follow from the seed and its number, so that a stop changes nothing."""
        number = int(torch.randint(2**31, (1,), generator=epoch_generator(self.seed, self.epochs_done)))
        torch.manual_seed(number)
        random.seed(number)
        np.random.seed(number)
        self._clock = time.perf_counter()

    def _save(self) -> None:
        """Model, objects and curve, in one step: they always belong together."""
        tensors = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        if self._objects:
            tensors[OBJECTS] = self._packed(self._objects)
        names = None if self._objects is None else sorted(self._objects)
        record = {"identity": self._identity, **described(self.model), "kept": names, "state": {"curve": self._curve}}
        save_checkpoint(self._place, self.epochs_done, tensors, record)

    def _packed(self, objects: Mapping[str, Stateful]) -> Tensor:
        """The objects' states as bytes, which must be such that they can be read without running any code."""
        stream = io.BytesIO()
        try:
            torch.save({name: kept.state_dict() for name, kept in objects.items()}, stream)
            packed = torch.frombuffer(stream.getbuffer(), dtype=torch.uint8)
            if not self._checked:
                _unpack(packed)
                self._checked = True
        except (pickle.PickleError, AttributeError, TypeError, RuntimeError) as error:
            raise TrainableError(
                f"what run.keep is given has a state of tensors, numbers and text; got something else in "
                f"{', '.join(objects)}: {error_line(error)}; change its state_dict"
            ) from None
        return packed

    def _restore(self, objects: Mapping[str, Stateful]) -> None:
        found = load_checkpoint(self._place)
        if found is None:
            return
        tensors, record = found
        if other := difference(record["identity"], self._identity):
            raise CheckpointError(f"{self._place} holds another run: {other}; choose another folder")
        if record["kept"] != sorted(objects):  # by another state of the code: it cannot go on from there
            return
        try:
            self.model.load_state_dict({k.removeprefix("model."): t for k, t in tensors.items() if k != OBJECTS})
            states = _unpack(tensors[OBJECTS]) if OBJECTS in tensors else {}  # a run that was complete has none
            for name, state in states.items():
                objects[name].load_state_dict(state)
        except (pickle.PickleError, RuntimeError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(
                f"{self._place} cannot be gone on with ({error_line(error)}); remove the folder to start anew"
            ) from None
        self._curve = record["state"]["curve"]


def _unpack(packed: Tensor) -> dict[str, Any]:
    states: dict[str, Any] = torch.load(io.BytesIO(packed.numpy().tobytes()), map_location="cpu", weights_only=True)
    return states


def _number(name: str, value: Any) -> float:
    try:
        return float(value.detach() if isinstance(value, Tensor) else value)
    except (TypeError, ValueError):
        raise TrainableError(f"what is reported are numbers; got {name}={value!r:.60}; leave it out") from None


@dataclass(frozen=True, slots=True)
class Trainable:
    """A function that trains, and how workers elsewhere come by it."""

    name: str
    """package.module:function, which is what a study knows it by."""
    folder: str
    """Where the search was started: what the function reads and writes by relative paths is there."""
    root: str | None = None
    """Where its module is found; None for one that is installed."""
    function: Callable[[nn.Module, Run], object] | None = None
    """Where it cannot be imported by its name, from a notebook, say."""

    def load(self) -> Callable[[nn.Module, Run], object]:
        return self.function or _find(self.name, self.root)

    @property
    def short_name(self) -> str:
        """That of its module, for the names of studies."""
        return self.name.partition(":")[0].rpartition(".")[2]

    @property
    def files(self) -> tuple[str, ...]:
        """What machines must be sent that do not see the folder: the module, or the package it is in."""
        if self.root is None:
            return ()
        path = Path(self.root, self.name.partition(":")[0].partition(".")[0])
        return (str(path if path.is_dir() else path.with_suffix(".py")),)


def load_trainable(given: str | Callable[..., object]) -> Trainable:
    """A function by its name, package.module:function, or itself; checked as far as it can be without calling it."""
    folder = str(Path.cwd())
    if isinstance(given, str):
        _check_call(given, _find(given, folder))
        return Trainable(given, folder, _root(given))
    module, name = getattr(given, "__module__", None), getattr(given, "__qualname__", None)
    if not callable(given) or module is None or name is None:
        raise TrainableError(f"a trainable is a function or its name; got {given!r:.80}; write a def")
    _check_call(name, given)
    if module == "__main__":  # workers have another one
        script = getattr(sys.modules[module], "__file__", None)
        return Trainable(f"{Path(script).stem if script else module}:{name}", folder, function=given)
    whole = f"{module}:{name}"
    with contextlib.suppress(AttributeError):
        found: object = functools.reduce(getattr, name.split("."), sys.modules[module])
        if found is given:
            return Trainable(whole, folder, _root(whole))
    return Trainable(whole, folder, function=given)


def train_with(trainable: Trainable, run: Run) -> Status:
    """Have a function train a run's model to the end."""
    if Path(trainable.folder).is_dir():
        os.chdir(trainable.folder)
    function = trainable.load()
    run._start_epoch()
    try:
        function(run.model, run)
    except (DataError, CheckpointError, OSError, MemoryError):  # the machine's fault
        raise
    except Exception as error:
        if run.diverged or isinstance(error, Diverged):
            return "diverged"
        if isinstance(error, TrainableError):
            raise
        raise TrainableError(error_line(error) + _where(error, function)) from error
    if run.diverged:
        return "diverged"
    if run.epochs_done < run.epochs:
        raise TrainableError(
            f"{trainable.name} reports every epoch; got {run.epochs_done} of {run.epochs} before it returned; train "
            "from run.epochs_done to run.epochs, and call run.report after each"
        )
    return "completed"


def _find(name: str, root: str | None) -> Callable[[nn.Module, Run], object]:
    """Import a function by its name, from a folder or from what is installed."""
    module_name, _, path = name.partition(":")
    if not all(part.isidentifier() for part in (*module_name.split("."), *path.split("."))):
        raise TrainableError(f"a trainable is given as package.module:function; got {name!r}; write my_code:train, say")
    if root is not None and root not in sys.path:
        sys.path.insert(0, root)
    importlib.invalidate_caches()
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and error.name and f"{module_name}.".startswith(f"{error.name}."):
            where = f"in {root} or " if root is not None else ""
            raise TrainableError(
                f"a trainable's module is {where}installed; got {module_name!r}, which is not; change the folder or "
                "the name"
            ) from None
        raise TrainableError(f"{module_name} fails when it is imported: {error_line(error)}; mend it") from error
    try:
        function = functools.reduce(getattr, path.split("."), module)
    except AttributeError:
        known = [key for key, value in vars(module).items() if inspect.isfunction(value) and not key.startswith("_")]
        raise TrainableError(f"{module_name} has no function {path!r}{closest(path, known)}") from None
    if not callable(function):
        raise TrainableError(f"a trainable is a function; got {name}, which is of type {type(function).__name__}")
    return function


def _check_call(name: str, function: Callable[..., object]) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # one that does not tell
        return
    try:
        signature.bind("model", "run")
    except TypeError:
        raise TrainableError(
            f"a trainable is called with the model and the run; got {name}{signature}; write def train(model, run)"
        ) from None


def _root(name: str) -> str | None:
    """The folder that a module was found from; None for what is installed."""
    module_name = name.partition(":")[0]
    file = getattr(sys.modules[module_name], "__file__", None)
    if file is None:
        return None
    path = Path(file).resolve()
    root = path.parents[module_name.count(".") + (path.stem == "__init__")]
    installed = {Path(place).resolve() for place in sysconfig.get_paths().values()}
    return None if root in installed else str(root)


def _where(error: Exception, function: Callable[..., object]) -> str:
    """The last line of the function's own file that an error passed through."""
    try:
        file = Path(inspect.getfile(inspect.unwrap(function))).resolve()
    except TypeError:
        return ""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if Path(frame.filename).resolve() == file]
    return f" ({file.name}, line {lines[-1]})" if lines else ""
