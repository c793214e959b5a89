"""Training of the trials of a study with Ray Tune, several at a time, on this machine or on a cluster.

Tune asks a searcher what to train, and a scheduler when to stop a trial. The searcher takes networks from the queue of
the study; the scheduler stops trials at the rungs. Tune's own state is thrown away. Workers live as long as the search
and keep the data in memory. Trials write checkpoints, from which they continue after a lost worker or a killed search.
"""

from __future__ import annotations

import functools
import gc
import re
import shutil
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

import ray
from ray import tune
from ray.exceptions import OutOfMemoryError
from ray.tune import Callback, ProgressReporter, RunConfig, Stopper, TuneConfig, Tuner
from ray.tune.progress_reporter import TrialProgressCallback
from ray.tune.schedulers import FIFOScheduler, TrialScheduler
from ray.tune.search import Searcher

from lrnas._messages import logger
from lrnas._notebook import in_notebook
from lrnas._ray import scratch_folder
from lrnas.errors import LrnasError, Terminated, UnreadableImages
from lrnas.sampling.front_pruner import FrontPruner
from lrnas.searching.progress import Change
from lrnas.searching.proposals import Proposal, Queue
from lrnas.searching.ray_cluster import (
    RayEnded,
    RayLife,
    Workers,
    follow_room,
    marked_folder,
)
from lrnas.study.folder import trial_folder
from lrnas.study.ledger import MOST_LOSSES, training_facts
from lrnas.study.manifest import StudyError
from lrnas.study.study import METRIC, Study
from lrnas.training.job import Job
from lrnas.training.provenance import provenance
from lrnas.training.worker import Task, train_task

MAX_LOSSES_IN_A_ROW = 6
"""Number of lost trials in a row after which a search ends, since the machine seems to be at fault. It is twice the
number of trials at a time if that is more, because one fault of a GPU may end all trials that share it."""
SAME_SIGNAL_SECONDS = 0.5
"""Two signals within this time count as one: `timeout` sends one to a process and one to its group."""

LOOKING_AHEAD = 4
"""Number of trials at a time from which on networks are proposed ahead. With fewer, the latest result matters more to a
proposal than its time."""
TUNE_SETS = ("_stopped_trials", "_failed_trials", "_trials_to_cache")
"""Sets of Tune's controller that keep trials that have ended."""
WATCH_SECONDS = 0.5
"""Seconds between looks at Ray's processes, its nodes and trials that hang."""

Method = TypeVar("Method", bound=Callable[..., Any])


def run_trials(
    queue: Queue,
    make_job: Callable[[Proposal], Job],
    folder: Path,
    *,
    budget: int | None,
    workers: Workers,
    notify: Callable[[Change], None],
    rungs: tuple[int, ...] = (),
    test: bool = False,
) -> bool:
    """Train until the budget is spent, nothing is left to train, or the user stops it. Ray must be running.

    Args:
        queue: Networks to train.
        make_job: Returns the training of a proposed network.
        folder: Folder of the trials' checkpoints.
        budget: Number of trials to train, those of earlier calls included; None: as many as the queue has.
        workers: Resources of the workers.
        notify: Called when a trial has started, has one more epoch, or has ended.
        rungs: Epochs after which trials may be stopped.
        test: Whether to test each network at the end of its training. Only for networks that are already chosen.

    Returns:
        Whether the queue has no more networks, although the budget is not spent.
    """
    study, ledger = queue.study, queue.ledger
    with ledger.alive(), marked_folder(folder, ledger) as mark:
        searcher = _StudySearcher(queue, make_job, folder, mark, budget, workers, notify, test)
        while True:
            before = _count_events(searcher)
            try:
                with _stoppable(study):
                    _fit(searcher, rungs)
            except (Exception, _Abandoned) as error:
                if searcher.failure is None:
                    if not (reason := _memory_reason(error)):
                        raise
                    searcher.lose_all(reason)
            finally:
                with suppress(LrnasError):  # if the storage is gone, the next driver puts these trials back
                    for number in searcher.running.values():
                        ledger.release(number)
            if searcher.failure is not None:
                raise searcher.failure
            searcher.running.clear()
            ledger.release_orphans()
            # lost trials wait to be tried again, so there is another round, unless nothing happened in this one
            is_stuck = _count_events(searcher) == before
            if searcher.end_reason or study.interrupted or queue.is_over(budget) or is_stuck:
                break
    if searcher.broken:
        raise StudyError(searcher.end_reason)
    is_exhausted = bool(searcher.end_reason) and not study.interrupted
    if is_exhausted:
        logger.info(searcher.end_reason)
    return is_exhausted


def _memory_reason(error: BaseException | None) -> str:
    """Why Ray ended workers, if it did so for lack of memory; Tune then ends a round. Empty after any other error."""
    while error is not None and not isinstance(error, OutOfMemoryError):
        error = error.__cause__
    if error is None:
        return ""
    used = re.search(r"was (\S+)GB used / (\S+)GB limit", str(error))
    numbers = f", {used[1]} of {used[2]} GB were in use" if used else ""
    return f"the machine had too little memory{numbers}; fewer trials at a time, --concurrency, need less"


def _count_events(searcher: _StudySearcher) -> tuple[int, int, int, int]:
    """Numbers that stay the same in a round only if nothing happened. A lost trial changes at least the losses."""
    queue = searcher.queue
    return queue.spent(), queue.study.waiting(), queue.study.losses(), searcher.losses_in_a_row


@contextmanager
def _stoppable(study: Study) -> Iterator[None]:
    """Context in which Ctrl-C or SIGTERM ends the search after the current epochs, and a second one at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    first, is_over, late = 0.0, False, 0

    def stop(number: int, frame: object) -> None:
        nonlocal first, late
        if not study.interrupted:
            study.interrupted, first = number, time.monotonic()
            by_user = "interrupt the kernel" if in_notebook() else "press Ctrl-C"
            how = "send SIGTERM" if number == signal.SIGTERM else by_user
            logger.info(f"stopping after the current epochs; {how} again to stop at once")
        elif time.monotonic() - first > SAME_SIGNAL_SECONDS:
            if is_over:
                late = number
                return
            raise Terminated if number == signal.SIGTERM else KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        is_over = True
        gc.collect()  # in destructors of Tune, Python would print an interrupt and forget it
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)
        if late:
            raise Terminated if late == signal.SIGTERM else KeyboardInterrupt


def _fit(searcher: _StudySearcher, rungs: tuple[int, ...]) -> None:
    """One round of Tune: until the searcher has nothing more to train."""
    workers = searcher.workers
    with scratch_folder() as scratch, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Tune warns about its next version
        Tuner(
            tune.with_resources(train_task, {"cpu": workers.cpus, "gpu": workers.gpus}),
            tune_config=TuneConfig(
                search_alg=searcher,
                scheduler=_RungScheduler(searcher, rungs),
                num_samples=-1,
                max_concurrent_trials=workers.concurrency,
                reuse_actors=True,
            ),
            run_config=RunConfig(
                name="search",
                storage_path=str(scratch),
                stop=_Stopper(searcher),
                verbose=0,
                progress_reporter=_NoReports(),
                callbacks=[_Watch(searcher), _NoLines()],
            ),  # no retries: the ledger handles them
        ).fit()


class _Abandoned(BaseException):
    """Ends a round of Tune at once. After an Exception, Tune would first wait for answers of Ray, which has ended."""


def _guarded(callback: Method) -> Method:
    """Decorator for callbacks of Tune: all calls after an error raise it again, because Tune hides errors."""

    @functools.wraps(callback)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        searcher = self if isinstance(self, _StudySearcher) else self.searcher
        if searcher.failure is not None:
            raise searcher.failure
        try:
            return callback(self, *args, **kwargs)
        except LrnasError as error:
            searcher.failure = error
            if isinstance(error, RayEnded):
                raise _Abandoned from error
            raise

    return cast(Method, call)


@dataclass(eq=False, repr=False)
class _StudySearcher(Searcher):
    """Gives networks of a queue to Tune, and records the results of their training in the study."""

    queue: Queue
    make_job: Callable[[Proposal], Job]
    folder: Path
    mark: str
    budget: int | None
    workers: Workers
    notify: Callable[[Change], None]
    test: bool
    running: dict[str, int] = field(default_factory=dict, init=False)
    """Trial numbers in the study, by Tune's id."""
    first_facts: dict[str, dict[str, Any]] = field(default_factory=dict, init=False)
    """Attributes of trials that are written together with the first report of their workers, by Tune's id."""
    stop_reasons: dict[str, str] = field(default_factory=dict, init=False)
    """Why the scheduler stopped a trial, by Tune's id."""
    end_reason: str = field(default="", init=False)
    """Why there is nothing left to propose."""
    broken: bool = field(default=False, init=False)
    """Whether the search ended because too many trials in a row were lost."""
    losses_in_a_row: int = field(default=0, init=False)
    shown_losses: set[str] = field(default_factory=set, init=False)
    """Reasons of lost trials that were shown to the user."""
    shown_placements: set[str] = field(default_factory=set, init=False)
    """Where workers keep images from files, as far as it was shown to the user."""
    last_reasons: dict[str, str] = field(default_factory=dict, init=False)
    """Why workers had to end, by Tune's id."""
    unfit: set[str] = field(default_factory=set, init=False)
    """Trials whose workers are on machines that cannot train them, by Tune's id."""
    trains: bool = field(default=False, init=False)
    """Whether a worker of this driver has finished an epoch, so that its machine is fit."""
    last_reports: dict[str, float] = field(default_factory=dict, init=False)
    """When workers last reported, by Tune's id."""
    ray_life: RayLife | None = field(default=None, init=False)
    failure: LrnasError | None = field(default=None, init=False)
    """The error that ended the search, for example of the storage."""

    def __post_init__(self) -> None:
        super().__init__()
        self.ledger, facts = self.queue.ledger, provenance()
        self.facts = {name: facts[name] for name in ("commit", "versions")}

    def set_max_concurrency(self, max_concurrent: int) -> bool:
        return True  # `suggest` does it: the number changes when nodes join or go

    @_guarded
    def suggest(self, trial_id: str) -> Any:
        if self.end_reason or self.queue.study.interrupted:
            return Searcher.FINISHED
        if self.workers.concurrency is not None and len(self.running) >= self.workers.concurrency:
            return None  # Tune asks again, many times; what follows reads all trials
        if self.budget is not None and self.queue.is_over(self.budget):
            return Searcher.FINISHED
        try:
            proposal = self.queue.ask(self.budget)
        except StudyError as error:
            self.end_reason, proposal = str(error), None
        if proposal is None:
            is_waiting = self.queue.may_ask_again and self.running and not self.end_reason
            return None if is_waiting else Searcher.FINISHED
        job = self.make_job(proposal)
        folder = trial_folder(self.folder, proposal.number).resolve()
        self.running[trial_id] = proposal.number
        self.first_facts[trial_id] = {"seed": job.seed, **self.facts}
        with suppress(OSError):  # a driver that took this one for dead may have removed it
            (self.folder / self.mark).touch()
        self.notify("started")
        is_full = LOOKING_AHEAD <= (self.workers.concurrency or 0) <= len(self.running)
        if is_full and not self.queue.is_over(self.budget):
            self.queue.look_ahead()
        return {"task": Task(job, folder, self.workers.cpus, self.workers.gpus, self.mark, self.test)}

    @_guarded
    def on_trial_result(self, trial_id: str, result: Mapping[str, Any]) -> None:
        """Record a report of a worker: where it trains, one more epoch, or the outcome."""
        self.last_reports[trial_id] = time.monotonic()
        if trial_id in self.running and "node" in result:
            facts = {"hardware": result["hardware"], "node": result["node"], **self.first_facts.pop(trial_id, {})}
            self.ledger.note(self.running[trial_id], **facts)
            if "remark" in result:
                logger.warning(f"trial {self.running[trial_id]}: {result['remark']}")
        elif "reason" in result:
            self.last_reasons[trial_id] = result["reason"]
            if result["status"] == "unfit":
                self.unfit.add(trial_id)
        elif trial_id in self.running and "status" not in result:
            self._record_epoch(trial_id, result)
            if (placement := result.get("placement")) and placement not in self.shown_placements:
                self.shown_placements.add(placement)
                logger.info(placement)
            self.notify("epoch")

    def put_back(self, trial_id: str) -> None:
        """Let a trial wait that no worker has begun to train."""
        self.first_facts.pop(trial_id, None)
        self.ledger.release(self.running.pop(trial_id))

    def _record_epoch(self, trial_id: str, result: Mapping[str, Any]) -> None:
        self.trains = True
        self.ledger.report_epoch(self.running[trial_id], result["curve"], result["seconds"], **_metrics(result))

    @_guarded
    def on_trial_complete(self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False) -> None:
        if trial_id not in self.running:
            return
        if error and self.ray_life is not None:
            self.ray_life.check()
        self.last_reports.pop(trial_id, None)
        result = result or {}
        status = result.get("status")
        number = self.running.pop(trial_id)
        facts = self.first_facts.pop(trial_id, {})
        if "curve" in result:
            facts |= training_facts(result["curve"], result["seconds"]) | _metrics(result)
        if status == "unreadable":  # the search ends; the trial waits until the images are repaired
            self.ledger.release(number)
            raise UnreadableImages(result["reason"])
        is_lost = error or status in ("lost", "unwritable") or (status == "faulty" and self._is_unproven())
        if is_lost and self.queue.study.interrupted:  # whoever stopped the search may have stopped its workers, too
            self.ledger.release(number)
            return
        if not is_lost:
            self.losses_in_a_row = 0
        if is_lost:
            self.ledger.note(number, **facts)
            reason = result.get("reason") or self.last_reasons.pop(trial_id, "its worker was lost")
            is_unfit = trial_id in self.unfit
            # a machine that cannot train ends the search only if it is the only one
            self._lose(number, reason, status != "unwritable" and not is_unfit, not (is_unfit and self.trains))
        elif trial_id in self.stop_reasons:
            self._prune(number, "stopped", self.stop_reasons.pop(trial_id), facts)
        elif status == "completed":
            facts |= {"test_loss": result["test_loss"]} if self.test else {}
            self.ledger.complete(number, result["test_accuracy"] if self.test else result["curve"][-1], **facts)
        elif status == "diverged":
            self._prune(number, "diverged", "the loss became infinite", facts)
        elif status == "faulty" and self.queue.retries_faulty:
            self._lose(number, result["reason"])
        elif status == "faulty":
            self._prune(number, "faulty", result["reason"], facts)
        else:  # Tune was stopped while the trial ran
            self.ledger.note(number, **facts)
            self.ledger.release(number)
        self.notify("ended")

    def _is_unproven(self) -> bool:
        """Whether the user's own training function has completed no network yet, so that it is probably at fault."""
        study = self.queue.study
        return study.manifest.get("trainable") is not None and not study.counts().get("completed")

    def lose_all(self, reason: str) -> None:
        """Put back all trials in training, through no fault of theirs."""
        for number in self.running.values():
            self._lose(number, reason, counts=False)
        self.running.clear()

    def _lose(self, number: int, reason: str, counts: bool = True, is_in_a_row: bool = True) -> None:
        """Put back a trial that failed; `counts` is False if that cannot be the fault of this trial alone."""
        if counts:
            self.ledger.lose(number, reason)
        else:
            self.ledger.release(number)
        self.losses_in_a_row += is_in_a_row
        if reason not in self.shown_losses:
            self.shown_losses.add(reason)
            times = f", {MOST_LOSSES} times in all" if counts else ""
            logger.warning(f"a trial was lost ({reason}); it is tried again{times}")
        if self.losses_in_a_row >= max(MAX_LOSSES_IN_A_ROW, 2 * (self.workers.concurrency or 1)):
            self.end_reason = f"{self.losses_in_a_row} trials in a row were lost, the last one: {reason}"
            self.broken = True

    def _prune(self, number: int, status: str, reason: str, facts: Mapping[str, Any]) -> None:
        """End a trial that nobody will continue, and remove its checkpoint."""
        if status != "stopped":
            logger.warning(f"trial {number} ends without a result ({status}: {reason})")
        self.ledger.prune(number, status, reason, **facts)
        shutil.rmtree(trial_folder(self.folder, number), ignore_errors=True)

    def __reduce__(self) -> tuple[Any, ...]:
        return Searcher, ()  # Tune pickles it into a file that nobody reads: the study is the only state


def _metrics(result: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes of a trial for a report of its worker, except those of `training_facts`."""
    nested = "metrics/"  # Tune's prefix for the entries of a mapping
    facts = {METRIC + k.removeprefix(nested): value for k, value in result.items() if k.startswith(nested)}
    digits = {"images_per_second": 1, "images": 0, "gpu_busy": 3}
    return facts | {name: round(result[name], number) for name, number in digits.items() if name in result}


class _NoReports(ProgressReporter):
    """Shows nothing. Tune's own reporter for notebooks clears the output of the cell, even if it is to be silent."""

    def should_report(self, trials: list[Any], done: bool = False) -> bool:
        return False


class _NoLines(TrialProgressCallback):
    """Shows nothing of single trials. Tune's own callback shows nothing either, but remembers every trial."""

    def log_result(self, trial: Any, result: dict[str, Any], error: bool = False) -> None:
        pass

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        pass


class _Stopper(Stopper):
    """Ends a round that the user has stopped when no worker trains: a trial may wait for a worker for any time."""

    def __init__(self, searcher: _StudySearcher) -> None:
        self.searcher = searcher

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        with_worker = self.searcher.running.keys() & self.searcher.last_reports.keys()
        return bool(self.searcher.queue.study.interrupted) and not with_worker


class _Watch(Callback):
    """Watches over a search: Ray must live, trials must go on, and nodes that join get trials."""

    def __init__(self, searcher: _StudySearcher) -> None:
        self.searcher = searcher
        self.ray_life = searcher.ray_life = RayLife.of_this_driver(searcher.workers.address is None)
        self.next = 0.0
        """When to look again."""
        self.trials: dict[str, Any] = {}
        """Tune's trials that are in training, by their id."""

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self.trials[trial.trial_id] = trial

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self.trials.pop(trial.trial_id, None)

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self.on_trial_complete(iteration, trials, trial)

    @_guarded
    def on_step_begin(self, iteration: int, trials: list[Any], **info: Any) -> None:
        for trial in trials:  # if a worker is not ready for its next trial, Tune ends that one and tells nobody
            if trial.status == trial.ERROR and trial.trial_id in self.searcher.running:
                self.searcher.put_back(trial.trial_id)
        now = time.monotonic()
        if now < self.next:
            return
        self.next = now + WATCH_SECONDS
        searcher, workers = self.searcher, self.searcher.workers
        self.ray_life.check()
        if workers.address is not None:
            searcher.workers = follow_room(workers)
        for trial_id in searcher.running:
            last = searcher.last_reports.get(trial_id, now)  # a trial may wait for a worker for any time
            if workers.timeout is not None and now - last > workers.timeout:
                searcher.last_reasons[trial_id] = f"no epoch within {workers.timeout:g} s"
                searcher.last_reports.pop(trial_id)
                ray.kill(self.trials[trial_id].temporary_state.ray_actor)  # Tune then sees a lost worker


class _RungScheduler(FIFOScheduler):
    """Stops trials that are not competitive at a rung. Reference networks are never stopped."""

    def __init__(self, searcher: _StudySearcher, rungs: tuple[int, ...]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.searcher = searcher
        self.study = searcher.queue.study
        self.pruner = FrontPruner(self.study.costs, rungs)
        self.decided: set[tuple[int, int]] = set()
        """Trial numbers and rungs that have been judged."""

    def __reduce__(self) -> tuple[Any, ...]:
        return FIFOScheduler, ()  # for the same reason as in the searcher

    def on_trial_complete(self, tune_controller: Any, trial: Any, result: Mapping[str, Any]) -> None:
        """Let Tune forget all trials that have ended before; the study has what is needed.

        Tune would keep them as long as the search runs, and look at each of them again in every step.
        """
        ended = {one for one in tune_controller.get_trials() if one.is_finished()}
        tune_controller.get_trials()[:] = [one for one in tune_controller.get_trials() if one not in ended]
        for name in TUNE_SETS:
            getattr(tune_controller, name, set()).difference_update(ended)

    @_guarded
    def on_trial_result(self, tune_controller: Any, trial: Any, result: Mapping[str, Any]) -> str:
        return str(TrialScheduler.STOP if self._should_stop(trial.trial_id, result) else TrialScheduler.CONTINUE)

    def _should_stop(self, trial_id: str, result: Mapping[str, Any]) -> bool:
        number = self.searcher.running.get(trial_id)
        if number is None or "status" in result or "node" in result:
            return False
        if self.study.interrupted:  # after its last epoch, the trial ends by itself; before, it waits in the study
            return len(result["curve"]) < int(self.study.manifest["recipe"]["epochs"])
        # the last rung that the trial has reached; it may be past the rung if another driver started it
        epoch = max((rung for rung in self.pruner.rungs if rung <= len(result["curve"])), default=0)
        if not epoch or (number, epoch) in self.decided or self.study.is_protected(number):
            return False
        self.decided.add((number, epoch))
        accuracy = result["curve"][epoch - 1]
        standing = self.pruner.standing(self.study.optuna_study, self.study.optuna_trial(number), epoch, accuracy)
        if standing.is_competitive:
            return False
        self.searcher.stop_reasons[trial_id] = (
            f"{100 * accuracy:.2f} % after {epoch} epoch{'s' * (epoch != 1)}, "
            f"behind most of the {standing.rivals} networks that cost no more"
        )
        return True
