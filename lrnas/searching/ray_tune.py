"""`lrnas search`: Ray Tune trains the trials of a study, several at a time, on this machine or a cluster.

Tune is told what to run by a searcher that asks the study, and when to stop a trial by a scheduler that looks at the
study's rungs; its own state is thrown away. Workers stay for the whole search and keep the data; every trial writes a
checkpoint after each epoch, so what a lost worker or a killed search leaves behind is gone on with.
"""

from __future__ import annotations

import functools
import shutil
import signal
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from ray import tune
from ray.tune import FailureConfig, RunConfig, TuneConfig, Tuner
from ray.tune.schedulers import FIFOScheduler, TrialScheduler
from ray.tune.search import Searcher

from lrnas._messages import logger
from lrnas.data.in_memory import DataSet
from lrnas.errors import DataError, LrnasError, UnreadableImages, error_line
from lrnas.searching.early_stopping import is_competitive
from lrnas.searching.progress import Change
from lrnas.searching.proposals import Proposal, Queue
from lrnas.searching.ray_cluster import Workers
from lrnas.searching.shared_folder import check_mark, marked, this_place
from lrnas.study.folder import trial_folder
from lrnas.study.ledger import MOST_LOSSES
from lrnas.study.manifest import StudyError
from lrnas.study.pareto import costs_no_more
from lrnas.study.study import METRIC, Study
from lrnas.training.checkpoint import CheckpointError, drop_momentum, recorded_curve
from lrnas.training.job import Job
from lrnas.training.loop import EpochReport, evaluate
from lrnas.training.provenance import provenance

MOST_LOSSES_IN_A_ROW = 6
"""Of trials, before it is the machine that must be looked at; twice as many as run at a time where that is more, since
one fault of a GPU may end all that share it."""
ONE_CTRL_C = 0.5
"""Seconds within which a signal that comes twice, as from `timeout` to a process and its group, is one."""

Callback = TypeVar("Callback", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Task:
    """What a worker is sent."""

    job: Job
    folder: str
    cpus: float
    use_gpu: bool
    mark: str
    """A file beside the folder, by which a worker sees that it has the same disk as the search."""
    test: bool = False
    """Whether the network is tested when it is trained."""


def run_trials(
    queue: Queue,
    make_job: Callable[[Proposal], Job],
    folder: Path,
    *,
    budget: int,
    rungs: tuple[int, ...],
    workers: Workers,
    notify: Callable[[Change], None],
    test: bool = False,
) -> None:
    """Train until the study has spent its budget, or there is nothing left to train, or somebody stops it.

    Ray runs. `make_job` says how a network is trained; `notify` is called when a trial starts, has one more epoch, or
    ends. With `test`, each network is tested when its training is over: only where nothing is chosen any more.
    """
    losses = _Losses()
    with queue.ledger.alive(), marked(folder) as mark:
        while True:
            searcher = _StudySearcher(queue, make_job, folder, mark, budget, workers, notify, test, losses)
            scheduler = _RungScheduler(queue.study, searcher, rungs)
            before = _standing(queue)
            try:
                with _stoppable(searcher):
                    _fit(searcher, scheduler, workers)
            except Exception:
                if searcher.failure is None:
                    raise
            finally:
                with suppress(LrnasError):  # where the storage is gone, they are the next driver's orphans
                    for number in searcher.running.values():
                        queue.ledger.release(number)
            if searcher.failure is not None:
                raise searcher.failure
            queue.ledger.release_orphans()
            # trials that were lost wait for another try: go on, unless nothing moves
            stands = _standing(queue) == before
            if searcher.over or searcher.interrupted or queue.spent() >= budget or stands:
                break
    if searcher.broken:
        raise StudyError(searcher.over)
    if searcher.interrupted:
        queue.study.interrupted = True
        logger.info("stopped; the same command goes on with it")
    elif searcher.over:
        logger.info(searcher.over)


def _standing(queue: Queue) -> tuple[int, int, int]:
    """What is another after a round in which anything happened: a trial that is lost once more waits as before."""
    return queue.spent(), queue.study.waiting(), queue.study.losses()


@contextmanager
def _stoppable(searcher: _StudySearcher) -> Iterator[None]:
    """Ctrl-C ends the search after the epochs that are being trained; a second one at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    first = 0.0

    def stop(number: int, frame: object) -> None:
        nonlocal first
        if searcher.interrupted:
            if time.monotonic() - first > ONE_CTRL_C:
                raise KeyboardInterrupt
            return
        searcher.interrupted, first = True, time.monotonic()
        logger.info("stopping when the epochs that are being trained end; Ctrl-C again to stop at once")

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _fit(searcher: _StudySearcher, scheduler: TrialScheduler, workers: Workers) -> None:
    trainable = tune.with_resources(_train_trial, {"cpu": workers.cpus, "gpu": workers.gpus})
    with tempfile.TemporaryDirectory() as scratch, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Tune's own, about its next version
        tuner = Tuner(
            trainable,
            tune_config=TuneConfig(
                search_alg=searcher,
                scheduler=scheduler,
                num_samples=-1,
                max_concurrent_trials=workers.concurrency,
                reuse_actors=True,
            ),
            run_config=RunConfig(
                name="search",
                storage_path=scratch,
                verbose=0,
                failure_config=FailureConfig(max_failures=0),  # the study tries again, whoever drives it then
            ),
        )
        tuner.fit()


@functools.lru_cache(maxsize=2)
def _load_data(data: str, min_size: int, data_dir: str | None, image_size: int | None) -> DataSet:
    from lrnas.data.catalog import load_set

    return load_set(data, data_dir, min_size=min_size, image_size=image_size)


def _train_trial(config: dict[str, Any]) -> None:
    """What a worker does: train one network, tell Tune after every epoch, and at the end how it went."""
    task: Task = config["task"]
    job = task.job
    torch.set_num_threads(max(1, int(task.cpus)))
    past = recorded_curve(Path(task.folder))  # of whoever began this trial
    curve, seconds = [entry["val_accuracy"] for entry in past], sum(entry["seconds"] for entry in past)
    tune.report(this_place())

    def load() -> DataSet:
        return _load_data(job.data, job.min_size, job.data_dir, job.image_size)

    def report(entry: EpochReport) -> None:
        nonlocal seconds
        curve.append(entry.val_accuracy)
        seconds += entry.seconds
        tune.report({"curve": curve, "seconds": seconds, "images_per_second": entry.images_per_second})

    try:
        check_mark(Path(task.folder).parent, task.mark)
        folder, device = Path(task.folder), "cuda" if task.use_gpu else "cpu"
        if job.trainable is not None:
            outcome = job.run_trainable(folder, device, load, tune.report)
        else:
            data = load()
            model = job.create_model(data)
            result = job.run(model, data, folder, device, report=report)
            rate = result.images_per_second
            outcome = {"status": result.status, "curve": curve, "seconds": seconds, "images_per_second": rate}
            if task.test and result.status == "completed":  # the one look at the test images
                loss, accuracy = evaluate(model, data.test(), data, job.recipe, device=device, cache=job.cache)
                outcome |= {"test_loss": loss, "test_accuracy": accuracy}
    except UnreadableImages as error:  # nobody's who could train it better
        tune.report({"status": "unreadable", "reason": str(error)})
        return
    except (CheckpointError, DataError, OSError) as error:  # the machine's fault, not the network's
        tune.report({"status": "lost", "reason": error_line(error)})
        return
    except (LrnasError, RuntimeError, ValueError) as error:
        if "[CUDA]" in str(error) or "CUDA error" in str(error):  # it sticks: this worker must go
            tune.report({"status": "lost", "reason": error_line(error)})
            raise
        tune.report({"status": "faulty", "reason": error_line(error)})
        return
    finally:
        if task.use_gpu:
            with suppress(RuntimeError):  # of a GPU that failed
                torch.cuda.empty_cache()
    if outcome["status"] == "completed":
        drop_momentum(folder)
    tune.report(outcome)


def _guarded(callback: Callback) -> Callback:
    """Tune wraps or swallows what a callback raises: the first error is kept, and all that follow raise it too."""

    @functools.wraps(callback)
    def call(self: Any, *arguments: Any, **named: Any) -> Any:
        searcher = self if isinstance(self, _StudySearcher) else self.searcher
        if searcher.failure is not None:
            raise searcher.failure
        try:
            return callback(self, *arguments, **named)
        except LrnasError as error:
            searcher.failure = error
            raise

    return cast(Callback, call)


@dataclass
class _Losses:
    """What is known of lost trials from one round of Tune's to the next."""

    in_a_row: int = 0
    reasons: set[str] = field(default_factory=set)
    """That have been told."""


class _StudySearcher(Searcher):
    """Tune's way to ask and tell a study."""

    def __init__(
        self,
        queue: Queue,
        make_job: Callable[[Proposal], Job],
        folder: Path,
        mark: str,
        budget: int,
        workers: Workers,
        notify: Callable[[Change], None],
        test: bool,
        losses: _Losses | None = None,
    ) -> None:
        super().__init__()
        self.queue = queue
        self.ledger = queue.ledger
        self.make_job = make_job
        self.folder = folder
        self.mark = mark
        self.budget = budget
        self.workers = workers
        self.notify = notify
        self.test = test
        self.running: dict[str, int] = {}
        """Trial of the study by Tune's name for it."""
        self.stopped: dict[str, str] = {}
        """Why the scheduler stopped a trial."""
        self.over = ""
        """Why there is nothing left to propose."""
        self.interrupted = False
        self.broken = False
        """Whether it is over because nothing can be trained here."""
        self.losses = losses or _Losses()
        self.last_words: dict[str, str] = {}
        """Of workers that had to go."""
        self.failure: LrnasError | None = None
        """What ended the search: of the storage, say."""
        self.facts = provenance()

    @_guarded
    def suggest(self, trial_id: str) -> Any:
        if self.over or self.interrupted or self.queue.spent() >= self.budget:
            return Searcher.FINISHED
        try:
            proposal = self.queue.ask(self.budget)
        except StudyError as error:
            self.over = str(error)
            return Searcher.FINISHED
        if proposal is None:
            return Searcher.FINISHED
        job = self.make_job(proposal)
        folder = self._folder(proposal.number)
        self.running[trial_id] = proposal.number
        facts = {name: self.facts[name] for name in ("commit", "versions")}
        self.ledger.note(proposal.number, seed=job.seed, **facts)
        self.notify("started")
        task = Task(job, str(folder.resolve()), self.workers.cpus, self.workers.gpus > 0, self.mark, self.test)
        return {"task": task}

    @_guarded
    def on_trial_result(self, trial_id: str, result: Mapping[str, Any]) -> None:
        """Where it is trained, an epoch more, or the end."""
        if trial_id in self.running and "node" in result:
            self.ledger.note(self.running[trial_id], hardware=result["hardware"], node=result["node"])
        elif "reason" in result:
            self.last_words[trial_id] = result["reason"]
        elif trial_id in self.running and "status" not in result:
            self._take_epoch(trial_id, result)
            self.notify("epoch")

    def _take_epoch(self, trial_id: str, result: Mapping[str, Any]) -> None:
        nested = "metrics/"  # as Tune names what is in a mapping
        facts = {METRIC + k.removeprefix(nested): value for k, value in result.items() if k.startswith(nested)}
        if "images_per_second" in result:
            facts["images_per_second"] = round(result["images_per_second"], 1)
        self.ledger.report_epoch(self.running[trial_id], result["curve"], result["seconds"], **facts)

    @_guarded
    def on_trial_complete(self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False) -> None:
        if trial_id not in self.running:
            return
        result = result or {}
        status = result.get("status")
        if "curve" in result:
            self._take_epoch(trial_id, result)
        number = self.running.pop(trial_id)
        if status == "unreadable":  # another try would meet them again: the search ends, and the trial waits
            self.ledger.release(number)
            raise UnreadableImages(result["reason"])
        if error or status == "lost" or (status == "faulty" and self._is_unproven()):
            self._lose(number, result.get("reason") or self.last_words.pop(trial_id, "its worker was lost"))
            self.notify("ended")
            return
        self.losses.in_a_row = 0
        if trial_id in self.stopped:
            self.ledger.prune(number, "stopped", self.stopped.pop(trial_id))
            self._forget(number)
        elif status == "completed":
            if self.test:
                self.ledger.note(number, test_loss=result["test_loss"])
            self.ledger.complete(number, result["test_accuracy"] if self.test else result["curve"][-1])
        elif status == "diverged":
            self.ledger.prune(number, "diverged", "the loss became infinite")
            self._forget(number)
        elif status == "faulty" and self.test:  # what is trained again was chosen for what it came to before
            self._lose(number, result["reason"])
        elif status == "faulty":
            self.ledger.prune(number, "faulty", result["reason"])
            self._forget(number)
        else:  # Tune was stopped in mid-trial
            self.ledger.release(number)
        self.notify("ended")

    def _is_unproven(self) -> bool:
        """Whether people's own code trains and has yet to train a network in full: errors are not a network's then."""
        return self.queue.study.manifest.get("trainable") is not None and not self.queue.study.counts().get("completed")

    def _lose(self, number: int, reason: str) -> None:
        self.ledger.lose(number, reason)
        self.losses.in_a_row += 1
        if reason not in self.losses.reasons:
            self.losses.reasons.add(reason)
            logger.warning(f"a trial was lost ({reason}); it is tried again, {MOST_LOSSES} times in all")
        if self.losses.in_a_row >= max(MOST_LOSSES_IN_A_ROW, 2 * (self.workers.concurrency or 1)):
            self.over, self.broken = f"{self.losses.in_a_row} trials in a row were lost, the last one: {reason}", True

    def _folder(self, number: int) -> Path:
        return trial_folder(self.folder, number)

    def _forget(self, number: int) -> None:
        """Remove the checkpoint of a trial that nobody will go on with."""
        shutil.rmtree(self._folder(number), ignore_errors=True)

    # the study is the only state there is

    def __reduce__(self) -> tuple[Any, ...]:
        return Searcher, ()  # for Tune, which writes it into a file that nobody reads

    def get_state(self) -> dict[str, Any]:
        return {}

    def set_state(self, state: dict[str, Any]) -> None:
        pass

    def save(self, checkpoint_path: str) -> None:
        pass

    def restore(self, checkpoint_path: str) -> None:
        pass


class _RungScheduler(FIFOScheduler):
    """Stops trials that are not competitive at a rung. Named points are trained in full."""

    def __init__(self, study: Study, searcher: _StudySearcher, rungs: tuple[int, ...]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.study = study
        self.searcher = searcher
        self.rungs = rungs
        self.decided: set[tuple[int, int]] = set()

    def __reduce__(self) -> tuple[Any, ...]:
        return FIFOScheduler, ()  # as the searcher

    @_guarded
    def on_trial_result(self, tune_controller: Any, trial: Any, result: Mapping[str, Any]) -> str:
        number = self.searcher.running.get(trial.trial_id)
        if number is None or "status" in result or "node" in result:
            return str(TrialScheduler.CONTINUE)
        if self.searcher.interrupted:
            return str(TrialScheduler.STOP)  # for now: the trial waits in the study
        # the last rung it has reached; that of a trial that was begun by another driver may lie behind
        epoch = max((rung for rung in self.rungs if rung <= len(result["curve"])), default=0)
        if not epoch or (number, epoch) in self.decided or self.study.is_protected(number):
            return str(TrialScheduler.CONTINUE)
        self.decided.add((number, epoch))
        costs, others = self.study.at_epoch(number, epoch)
        accuracy = result["curve"][epoch - 1]
        if is_competitive(accuracy, costs, others):
            return str(TrialScheduler.CONTINUE)
        cheaper = sum(costs_no_more(theirs, costs) for _, theirs in others)
        self.searcher.stopped[trial.trial_id] = (
            f"{100 * accuracy:.2f} % after {epoch} epoch{'s' * (epoch != 1)}, "
            f"behind most of the {cheaper} that cost no more"
        )
        return str(TrialScheduler.STOP)
