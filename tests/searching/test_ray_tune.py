"""What is recorded when a trial ends. Searches with Ray are in `integration/`."""

import copy
import gc
import signal
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from optuna.trial import TrialState
from ray.train._internal.storage import StorageContext
from ray.tune import Callback, JupyterNotebookReporter, ProgressReporter
from ray.tune.execution.tune_controller import TuneController
from ray.tune.experiment import Trial as TuneTrial
from ray.tune.progress_reporter import TrialProgressCallback
from small_studies import make_proposals

from lrnas.errors import Terminated, UnreadableImages
from lrnas.recipes import Recipe
from lrnas.searching import ray_tune
from lrnas.searching.proposals import Proposal, Proposals
from lrnas.searching.ray_cluster import Workers
from lrnas.searching.ray_tune import _StudySearcher, _Watch
from lrnas.training.job import Job

STATES = {"one": "ERROR", "two": "RUNNING", "before": "ERROR"}


def make_searcher(proposals: Proposals, folder: Path, told: list[str]) -> _StudySearcher:
    def make_job(proposal: Proposal) -> Job:
        return Job(proposal.architecture, "digits", Recipe(), 0)

    return _StudySearcher(proposals, make_job, folder, "", 9, Workers(), told.append, False)


def test_it_is_said_once_where_images_are(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "lrnas")
    searcher = make_searcher(make_proposals(), tmp_path, [])
    for trial in ("one", "two"):
        searcher.suggest(trial)
        for curve in ([0.1], [0.1, 0.2]):
            report = {"curve": curve, "seconds": 1.0, "images_per_second": 9.0, "placement": f"on {trial[:1]} GPU"}
            searcher.on_trial_result(trial, report)
    assert [record.message for record in caplog.records if record.name == "lrnas"] == ["on o GPU", "on t GPU"]


def test_a_trial_whose_worker_is_not_ready_waits(tmp_path: Path) -> None:
    """Tune ends it without a word if the function that the worker trained before takes long to end."""
    searcher = make_searcher(make_proposals(), tmp_path, [])
    for name in ("one", "two"):
        searcher.suggest(name)
    watch = object.__new__(_Watch)
    watch.searcher, watch.next = searcher, float("inf")
    tunes = [SimpleNamespace(trial_id=name, status=status, ERROR="ERROR") for name, status in STATES.items()]
    for _ in range(2):
        watch.on_step_begin(1, tunes)
    states = [trial.state for trial in searcher.queue.study.optuna_trials()]
    assert states == [TrialState.WAITING, TrialState.RUNNING] and list(searcher.running) == ["two"]


def test_images_that_cannot_be_read_end_the_search_at_once(tmp_path: Path) -> None:
    """Another attempt would fail, too; the trial waits until the data set is repaired."""
    proposals = make_proposals()
    told: list[str] = []
    searcher = make_searcher(proposals, tmp_path, told)
    assert "task" in searcher.suggest("one")
    reason = "1 of 80 validation images cannot be read, and more than 1 % end a run: 3.png; repair or remove it"
    with pytest.raises(UnreadableImages, match=r"3\.png"):
        searcher.on_trial_complete("one", {"status": "unreadable", "reason": reason})
    assert str(searcher.failure) == reason and told == ["started"]
    with pytest.raises(UnreadableImages):
        searcher.suggest("two")
    (trial,) = proposals.study.optuna_trials()
    assert trial.state == TrialState.WAITING and "losses" not in trial.user_attrs


def test_a_remark_of_a_worker_is_shown(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    searcher = make_searcher(make_proposals(), tmp_path, [])
    searcher.suggest("one")
    remark = "00000/checkpoint.json cannot be read (KeyError: 'version'): it starts again from epoch 0"
    searcher.on_trial_result("one", {"hardware": "any", "node": "here", "remark": remark})
    assert caplog.messages[-1] == f"trial 0: {remark}"


@pytest.mark.parametrize("ending", [{"result": {"status": "lost", "reason": "no room"}}, {"error": True}])
def test_a_loss_does_not_count_while_the_search_is_being_stopped(
    ending: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    proposals = make_proposals()
    searcher = make_searcher(proposals, tmp_path, [])
    searcher.suggest("one")
    searcher.queue.study.interrupted = signal.SIGTERM
    searcher.on_trial_complete("one", **ending)
    (trial,) = proposals.study.optuna_trials()
    assert trial.state == TrialState.WAITING and "losses" not in trial.user_attrs
    assert "lost" not in caplog.text


def test_an_epoch_that_ends_while_the_search_is_being_stopped_is_recorded(tmp_path: Path) -> None:
    """Its weights are in the checkpoint, from which the trial continues."""
    proposals = make_proposals()
    searcher = make_searcher(proposals, tmp_path, [])
    searcher.suggest("one")
    number = searcher.running["one"]
    proposals.study.interrupted = signal.SIGINT
    searcher.on_trial_complete("one", {"curve": [0.5], "seconds": 2.0})
    trial = proposals.study.optuna_trial(number)
    assert trial.state == TrialState.WAITING and trial.user_attrs["epochs"] == 1


def test_the_number_of_trials_at_a_time_follows_the_workers(tmp_path: Path) -> None:
    searcher = make_searcher(make_proposals(), tmp_path, [])
    searcher.workers = Workers(concurrency=1)
    assert "task" in searcher.suggest("one") and searcher.suggest("two") is None
    searcher.workers = Workers(concurrency=2)
    assert "task" in searcher.suggest("two")


def test_networks_are_proposed_ahead_if_many_train_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    monkeypatch.setattr(Proposals, "look_ahead", lambda self: looked.append(self.study.running()))
    for at_a_time, expected in ((3, []), (4, [4])):
        searcher = make_searcher(make_proposals(), tmp_path, [])
        searcher.workers = Workers(concurrency=at_a_time)
        for trial in range(at_a_time):
            searcher.suggest(str(trial))
        assert looked == expected
    searcher.budget = 5
    searcher.workers = Workers(concurrency=5)
    searcher.suggest("the last one")
    assert looked == [4]


def test_tune_leaves_the_output_of_a_notebook_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its own reporter for notebooks would clear what a cell has shown, lrnas's progress bar included."""
    given: dict[str, Any] = {}
    tuner = SimpleNamespace(fit=lambda: None)
    monkeypatch.setattr(ray_tune, "Tuner", lambda *_, **named: given.update(named) or tuner)
    monkeypatch.setattr(ray_tune, "_Watch", lambda _: Callback())
    ray_tune._fit(make_searcher(make_proposals(), tmp_path, []), ())
    reporter = given["run_config"].progress_reporter
    assert isinstance(reporter, ProgressReporter) and not isinstance(reporter, JupyterNotebookReporter)
    reporter.setup(start_time=0.0)
    assert not reporter.should_report([], done=True)
    (lines,) = (one for one in given["run_config"].callbacks if isinstance(one, TrialProgressCallback))
    before, trial = copy.deepcopy(vars(lines)), TuneTrial("train", stub=True)
    lines.on_trial_result(0, [trial], trial, {"done": True})
    lines.on_trial_complete(0, [trial], trial)
    assert vars(lines) == before and capsys.readouterr().out == ""  # Tune's own would keep the trial


def test_tune_forgets_trials_that_have_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNE_MAX_PENDING_TRIALS_PG", "1")  # else the controller asks Ray for its size
    storage = StorageContext(str(tmp_path / "tune"), "search")
    scheduler = ray_tune._RungScheduler(make_searcher(make_proposals(), tmp_path, []), ())
    controller = TuneController(storage=storage, scheduler=scheduler)
    trials = [TuneTrial("train", stub=True, storage=storage) for _ in range(5)]
    for trial in trials:
        controller.add_trial(trial)
        controller._set_trial_status(trial, TuneTrial.RUNNING)
    controller._pending_trials_list.clear()  # as its next step does
    for trial in trials[:3]:
        controller.stop_trial(trial)
    assert controller.get_trials() == trials[2:] and controller.get_live_trials() == set(trials[3:])
    assert controller._stopped_trials == {trials[2]} and controller._trials_to_cache == set(trials[2:])
    kept = [weakref.ref(trial) for trial in trials]
    del trial, trials
    gc.collect()
    assert [one() is None for one in kept] == [True, True, False, False, False]
    for trial in list(controller.get_live_trials()):
        controller.stop_trial(trial)
    assert not controller.get_live_trials()
    assert len(controller.get_trials()) == 1  # if there were none, Tune would look for them in its files


def test_an_interrupted_trial_ends_by_itself_after_its_last_epoch(tmp_path: Path) -> None:
    proposals = make_proposals()
    searcher = make_searcher(proposals, tmp_path, [])
    proposals.study.manifest["recipe"] = Recipe(epochs=2).to_dict()
    scheduler = ray_tune._RungScheduler(searcher, ())
    assert searcher.suggest("a") is not None

    def stops(*curve: float) -> bool:
        return scheduler._should_stop("a", {"curve": curve})

    assert not stops(0.5)
    proposals.study.interrupted = signal.SIGINT
    assert stops(0.5) and not stops(0.5, 0.6)


class _Interrupting:
    """An object that is its own garbage, and whose destructor is interrupted."""

    def __init__(self, number: int) -> None:
        self.itself, self.number = self, number

    def __del__(self) -> None:
        signal.raise_signal(self.number)


@pytest.mark.parametrize(("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated)])
def test_a_second_signal_in_a_destructor_is_not_forgotten(
    number: int, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_tune, "SAME_SIGNAL_SECONDS", -1)
    study, handlers = (
        SimpleNamespace(interrupted=0),
        [signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)],
    )

    def search() -> None:
        with ray_tune._stoppable(study):  # type: ignore[arg-type]
            signal.raise_signal(number)
            _Interrupting(number)

    with pytest.raises(error):
        search()
    assert study.interrupted == number
    assert [signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)] == handlers
