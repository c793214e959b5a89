"""Progress of a search outside a terminal, and the estimate of the time left."""

import functools
import io
import signal
import sys
from types import SimpleNamespace
from typing import Any

import optuna
import pytest
from rich.console import Console
from small_studies import LEVELS, SPACE, cost, make_finals, make_proposals, make_search, train_some

from lrnas._messages import logger
from lrnas.errors import Interrupted, LrnasError
from lrnas.searching import progress
from lrnas.searching.finals import Ladder, Promotion, Promotions, open_levels
from lrnas.searching.progress import MIN_NETWORKS, ProgressView, SearchEvents, Work, progress_view, seconds_left
from lrnas.searching.retrain import retrain
from lrnas.searching.runs import Chosen
from lrnas.searching.search import search
from lrnas.study.ledger import Ledger
from lrnas.training.progress import telling_interrupts

optuna.logging.set_verbosity(optuna.logging.ERROR)


def seconds(macs: float, epochs: float = 2) -> float:
    """Time on a machine that needs a second per epoch, and one more per million multiply-accumulates."""
    return epochs * (1 + macs / 1e6)


def work(macs: int, epochs: float) -> Work:
    return Work(macs, epochs, seconds(macs, epochs))


EXPENSIVE = [work(55_000_000, 3), work(40_000_000, 3), work(30_000_000, 3)]
CHEAP = [work(2_000_000, 3), work(7_000_000, 1), work(14_000_000, 2.5)]


def test_running_trials_are_shown_before_any_ends(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO", "lrnas")
    proposals = make_proposals()
    proposals.study.manifest["rungs"], proposals.study.manifest["recipe"]["epochs"] = [], 3
    proposals.enqueue({name: SPACE.points[name] for name in ("nin", "nin-c3")})
    view = ProgressView()
    view.started(proposals, 1)
    first, second = proposals.ask(), proposals.ask()
    assert first is not None and second is not None
    view.changed("started")
    proposals.ledger.report_epoch(first.number, [0.5], 1.0)
    view.changed("epoch")  # too soon for another line
    monkeypatch.setattr(progress, "LINE_INTERVAL", 0.0)
    view.changed("epoch")
    assert caplog.messages[0].startswith("s: 1 trial in all, 0 done")
    assert caplog.messages[1:] == [
        "training nin, epoch 1 of 3; nin-c3, epoch 1 of 3",
        "training nin, epoch 2 of 3; nin-c3, epoch 1 of 3",
    ]
    view.changed("ended")
    assert "0 completed, 0 stopped, 2 running; front 0, none completed yet, " in caplog.messages[-1]


def test_names_in_the_live_line_are_escaped() -> None:
    with Console(file=io.StringIO()).status("starting") as status:
        ProgressView(status).preparing("reading a\x1b[2J:b:[/b]", 1, 2)
        assert str(status.renderable.text).startswith("reading a\\x1b[2J:b:[/b]: 1 of 2")  # type: ignore[union-attr]


class Display:
    """Stands for `IPython.display`, which is not installed with the tests: keeps what a cell shows."""

    def __init__(self) -> None:
        self.shown: list[dict[str, str]] = []

    def display(self, data: dict[str, str], *, raw: bool, display_id: bool) -> "Display":
        assert raw and display_id
        self.shown.append(data)
        return self

    def update(self, data: dict[str, str], *, raw: bool) -> None:
        assert raw
        self.shown[-1] = data


def test_a_notebook_has_a_bar_and_keeps_the_first_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = Display()
    shell = SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=object()))
    monkeypatch.setitem(sys.modules, "IPython", shell)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "IPython.display", cell)  # type: ignore[arg-type]
    monkeypatch.setattr(logger, "handlers", [])
    proposals = train_some(make_proposals())
    with progress_view() as view:
        view.started(proposals, 8)
        view.changed("ended")
    (shown,) = cell.shown
    assert shown["text/html"].startswith('<progress value="4" max="8"></progress> 4/8 trials: 4 completed')
    assert shown["text/plain"].startswith("4/8 trials: 4 completed")
    assert capsys.readouterr().err.startswith("s: 8 trials in all, 4 done; training on digits")


def test_all_trials_that_have_started_are_counted_in_a_live_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lrnas.searching.progress.VIEW_SHARE", float("inf"))
    shown: list[str] = []
    view = ProgressView(SimpleNamespace(update=lambda text: shown.append(str(text))))  # type: ignore[arg-type]
    proposals = make_proposals()
    view.started(proposals, 8)
    for number in (1, 2, 3):
        assert proposals.ask() is not None
        view.changed("started")
        assert f"{number} running" in shown[-1]


def test_a_bar_in_a_notebook_does_not_move_after_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = Display()
    shell = SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=object()))
    monkeypatch.setitem(sys.modules, "IPython", shell)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "IPython.display", cell)  # type: ignore[arg-type]
    monkeypatch.setattr(logger, "handlers", [])
    with pytest.raises(LrnasError), progress_view():
        raise LrnasError("wrong")
    assert cell.shown[-1] == {"text/html": "", "text/plain": ""}
    with pytest.raises(Interrupted) as caught, telling_interrupts("search"), progress_view():
        raise KeyboardInterrupt
    assert str(caught.value) == "the search was interrupted; the same call continues it"
    assert hasattr(caught.value, "_render_traceback_")
    study = make_finals(make_search(), {"nin-c3-lr": (0.95, 0.0)})
    with progress_view() as view:
        view.started(Promotions(Ledger(study)), None)
        view.changed("ended")
        assert "<progress" in cell.shown[-1]["text/html"]
    assert cell.shown[-1]["text/html"].startswith("2 runs at level full done")


def test_a_search_that_is_complete_says_so(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "lrnas")
    proposals = train_some(make_proposals())
    ProgressView().started(proposals, 4)
    assert caplog.messages == ["s: 4 trials in all, all done; a larger `budget` extends it"]


def test_trials_that_were_trained_in_part_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "lrnas")
    proposals = make_proposals()
    proposals.enqueue({name: SPACE.points[name] for name in ("nin", "nin-c3")})
    first, second = proposals.ask(), proposals.ask()
    assert first is not None and second is not None
    proposals.ledger.report_epoch(first.number, [0.5], 1.0)
    proposals.ledger.put_back(first.number)
    proposals.ledger.put_back(second.number)
    ProgressView().started(proposals, 4)
    assert caplog.messages[-1].startswith("s: 4 trials in all, 0 done, 1 trained in part; training on digits")


def test_a_later_level_has_lines_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "lrnas")
    study = make_finals(make_search(), {"nin-c3-lr": (0.95, 0.0)})
    view = ProgressView()
    view.started(Promotions(Ledger(study)), None)
    view.changed("ended")
    line = "s@finals: level full, 2 done; training on digits, images of 8×8 pixels, epochs: 9"
    assert caplog.messages[0] == line
    assert caplog.messages[1] == "2 runs at level full done, 0 running, 1 diverged; front 1, best 95.00 %"


def test_the_last_line_of_a_search_has_trials_front_and_best_also_with_finals(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "lrnas")
    proposals = train_some(make_proposals())
    study = make_finals(proposals.study, {"nin-c3-lr": (0.95, 0.97), "lr-x0.25": (0.96,)})
    view = ProgressView()
    view.started(proposals, 4)
    view.started(Promotions(Ledger(study)), None)
    view.changed("ended")
    assert caplog.messages[-1] == "4/4 trials, 3 runs at level full done, 0 running; front 1, best 96.00 %"


def test_two_seeds_of_one_network_differ(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "lrnas")
    search = make_search()
    known = {trial.point: trial for trial in search.trials}
    order = iter(
        Promotion(Chosen(trial.identity, trial.architecture, name, trial.number), seed, cost(trial.architecture), None)
        for name, seed in (("nin-c3-lr", 1000), ("nin-c3-lr", 1001), ("lr-x0.25", 1000))
        if (trial := known[name])
    )
    runs = Promotions(Ledger(open_levels(search, LEVELS)["full"]), choose=lambda _: next(order, None))
    view = ProgressView()
    view.started(runs, None)
    for _ in range(3):
        runs.ask()
    view.changed("started")
    names = ("nin-c3-lr seed 1000", "nin-c3-lr seed 1001", "lr-x0.25")
    assert caplog.messages[-1] == f"training {'; '.join(f'{name}, epoch 1 of 9' for name in names)}"


def test_two_drivers_that_propose_the_same_network() -> None:
    """For a moment, two trials of a search have the same network; one of them is about to end as a duplicate."""
    proposals = make_proposals()
    view = ProgressView()
    view.started(proposals, 9)
    assert proposals.ask() is not None
    (trial,) = (one for one in proposals.study.summary().trials if one.status == "running")
    told = view._training([trial, trial])
    assert told.count(trial.point or trial.identity) == 2 and "seed" not in told


def test_finals_have_the_names_of_tables_and_a_time_left() -> None:
    proposals = train_some(make_proposals())  # four networks, a second and an epoch each; 9 epochs in full
    studies = open_levels(proposals.study, LEVELS)
    ladder = Ladder(proposals, LEVELS, studies, share=0.9)  # 36 seconds
    runs = Promotions(
        Ledger(studies["full"]), choose=functools.partial(ladder.choose, "full"), expect=ladder.training_left
    )
    view = ProgressView()
    view.started(runs, None)
    first = runs.ask()
    assert first is not None and first.point == "nin-c3-lr"
    assert "left" not in view._state(runs.study.summary(), view.start + 1)  # nothing is known yet
    runs.ledger.report_epoch(first.number, [0.9], 9.0)
    runs.ledger.complete(first.number, 0.9)
    second = runs.ask()
    assert second is not None and second.point is None
    summary = runs.study.summary()
    assert view._training(summary.trials) == "training dense-x0.25, epoch 1 of 9"
    assert "at most about 54 s left" in view._state(summary, view.start + 18)  # 27 of 36 seconds, at half speed


def test_time_left_depends_on_the_networks_that_wait() -> None:
    proposals = make_proposals()
    proposals.study.manifest["rungs"], proposals.study.manifest["recipe"]["epochs"] = [], 2
    names = ("nin", "nin-c3", "nin-c3-lr", "dense-x0.5", "lr-x0.25")  # the most expensive first, as in a search
    named = {**SPACE.points, **SPACE.uniform}
    proposals.enqueue({name: named[name] for name in names})
    macs = [cost(named[name])["macs"] for name in names]
    assert proposals.waiting_macs() == macs
    view = ProgressView()
    view.started(proposals, len(names))
    now = view.start
    for i in range(4):
        assert ("left" in view._state(proposals.study.summary(), now)) == (i == 3)
        proposal = proposals.ask()
        assert proposal is not None
        proposals.ledger.report_epoch(proposal.number, [0.4, 0.5], seconds(proposal.macs), images=2000, gpu_busy=0.9)
        proposals.ledger.complete(proposal.number, 0.5)
        now += seconds(proposal.macs)
        assert " images/s, GPU 90 % busy" in view._state(proposals.study.summary(), now)
    assert f"about {seconds(macs[-1]):.0f} s left" in view._state(proposals.study.summary(), now)
    open_levels(proposals.study, LEVELS)
    assert view._state(proposals.study.summary(), now).endswith(" s left")  # --finals 0, though there were finals
    proposals.has_finals = True
    assert view._state(proposals.study.summary(), now).endswith(" s left until the finals")
    proposals.study.interrupted = signal.SIGINT  # it stops after the current epochs
    assert "left" not in view._state(proposals.study.summary(), now)
    proposals.study.interrupted = 0
    proposal = proposals.ask()
    assert proposal is not None
    proposals.ledger.complete(proposal.number, 0.5)
    assert "left" not in view._state(proposals.study.summary(), now)


def test_messages_are_shown_unless_progress_is_off(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logger, "handlers", [])
    own = SearchEvents()
    views: dict[str, dict[str, Any]] = {"off": {"progress": False}, "on": {}, "off again": {"progress": False}}
    shown = {}
    for name, options in (views | {"own": {"events": own}}).items():
        with progress_view(**options) as view:
            logger.info("started")
        shown[name] = (type(view), *capsys.readouterr())
    assert shown == {
        "off": (SearchEvents, "", ""),
        "on": (ProgressView, "", "started\n"),
        "off again": (SearchEvents, "", ""),
        "own": (SearchEvents, "", "started\n"),
    }
    assert view is own


def test_a_search_and_a_retraining_show_their_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    for run, module in ((search, "search"), (retrain, "retrain")):
        opened = []

        def view(*options: Any, opened: list[Any] = opened) -> None:
            opened.append(options)
            raise KeyboardInterrupt

        monkeypatch.setattr(f"lrnas.searching.{module}.progress_view", view)
        with pytest.raises(KeyboardInterrupt):
            run("nin", progress=False)
        assert opened == [(None, False)]


def test_expensive_first_networks_do_not_inflate_the_estimate() -> None:
    left = seconds_left(EXPENSIVE, CHEAP, pace=1.0)
    assert left == pytest.approx(sum(done.seconds for done in CHEAP))
    assert left < sum(done.seconds for done in EXPENSIVE) / 3  # their mean would give three times that
    assert seconds_left(EXPENSIVE, CHEAP, pace=4.0) == pytest.approx(left / 4)


def test_no_part_of_an_epoch_takes_negative_time() -> None:
    falling = [Work(1_000_000, 1, 3.0), Work(2_000_000, 1, 2.0), Work(3_000_000, 1, 1.0)]
    assert seconds_left(falling, [Work(9_000_000, 2)], 1.0) == pytest.approx(4.0)
    steep = [Work(1_000_000, 1, 0.1), Work(2_000_000, 1, 2.0), Work(3_000_000, 1, 6.0)]
    assert seconds_left(steep, [Work(0, 1)], 1.0) == pytest.approx(0.0)
    same = [Work(5, 1, 2.0)] * MIN_NETWORKS
    assert seconds_left(same, [Work(5, 3)], 1.0) == pytest.approx(6.0)


def test_time_left_is_unknown_at_first() -> None:
    few = EXPENSIVE[: MIN_NETWORKS - 1]
    assert seconds_left(few, CHEAP, 1.0) is None
    assert seconds_left([*few, Work(5, 0)], CHEAP, 1.0) is None  # a network that was never trained
    assert seconds_left(EXPENSIVE, CHEAP, 0.0) is None
