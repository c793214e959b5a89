"""The later levels of a search: what is chosen from its studies alone, and what is recorded."""

import functools
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState
from small_studies import LEVELS, SPACE, make_finals, make_proposals, make_search, train_some
from threadpoolctl import threadpool_info, threadpool_limits

from lrnas.errors import UnknownName, naming_options
from lrnas.recipes import Recipe, get_recipe
from lrnas.reporting.report import make_report
from lrnas.sampling.promotion import Measured, believe
from lrnas.searching.finals import Ladder, Promotions, open_levels, tell_end, with_finals
from lrnas.searching.proposals import Proposal, Proposals
from lrnas.searching.retrain import _choose, _Training
from lrnas.searching.settings import InvalidSettings, SearchSettings
from lrnas.searching.setup import SearchTraining
from lrnas.study.folder import delete_study, trials_folder
from lrnas.study.ledger import Ledger
from lrnas.study.levels import compare_with_references, level_study, read_level, tell_below
from lrnas.study.manifest import OtherSettings, StudyError, keep_limits
from lrnas.study.objectives import Limits
from lrnas.study.open import open_search, open_study
from lrnas.study.references import find_network
from lrnas.study.retrained import final_front, read_retrained, retrained_recipes

optuna.logging.set_verbosity(optuna.logging.ERROR)


def climb(proposals: Proposals, share: float = 0.95) -> tuple[Ladder, Promotions]:
    """The finals of a search, as a driver opens them."""
    studies = open_levels(proposals.study, LEVELS)
    ladder = Ladder(proposals, LEVELS, studies, share)
    return ladder, ladder.queue("full")


def finish(runs: Promotions, run: Proposal, accuracy: float, seconds: float = 9.0) -> None:
    runs.ledger.report_epoch(run.number, [accuracy], seconds)
    runs.ledger.complete(run.number, accuracy)


def ask(runs: Promotions) -> Proposal:
    run = runs.ask()
    assert run is not None
    return run


def test_the_papers_network_is_first_and_what_follows_was_promised() -> None:
    proposals = train_some(make_proposals())
    ladder, runs = climb(proposals)
    first = ask(runs)
    assert (first.point, first.seed) == ("nin-c3-lr", 1000)
    others = [ask(runs), ask(runs)]  # its other seeds: nothing can be promised before one of them is done
    assert [(run.point, run.seed) for run in others] == [("nin-c3-lr", 1001), ("nin-c3-lr", 1002)]
    assert runs.ask() is None
    finish(runs, first, 0.95)
    second = ask(runs)
    assert second.point is None and second.seed == 1000
    finish(runs, second, 0.93)
    for run in others:
        finish(runs, run, 0.94)
    while (run := runs.ask()) is not None:
        finish(runs, run, 0.94)
    finals = read_level(proposals.study)
    (paper,) = (final for final in finals if final.point is not None)
    assert paper.name == "nin-c3-lr" and paper.accuracies == (0.95, 0.94, 0.94) and paper.promised is None
    found = [final for final in finals if final.point is None]
    assert found and all(final.promised is not None for final in found)
    on_front = [final for final in final_front(finals) if final.point is None]
    assert on_front and all(final.seeds == (1000, 1001, 1002) for final in on_front)
    runs_of = [run.user_attrs for run in runs.study.optuna_trials() if run.user_attrs["id"] == on_front[0].identity]
    assert len({tuple(known["promised"]) for known in runs_of}) == 1  # what was promised first
    (outcome,) = compare_with_references(finals)
    assert outcome.rival is not None and f"measured {100 * outcome.rival.mean:.2f} ±" in str(outcome)
    assert "promised" in str(outcome) and outcome.to_dict()["point"]["name"] == "nin-c3-lr"
    timed = [replace(final, costs=("latency",), latency=final.params / 1e5) for final in finals]
    (outcome,) = compare_with_references(timed)
    assert outcome.rival is not None and outcome.rival.latency is not None and outcome.point.latency is not None
    assert f" at {outcome.rival.latency / outcome.point.latency:.3f} of its latency: promised" in str(outcome)
    # the search itself is as before: no accuracy of another level is among its trials
    assert max(trial.accuracy or 0 for trial in proposals.study.trials) == 0.9
    assert runs.study.best().accuracy == 0.95 and runs.study.manifest["level"] == "full"
    assert ladder.seconds("full") == 9.0 * len(runs.study.optuna_trials())


def test_networks_beyond_a_later_limit_are_not_trained_in_full() -> None:
    """They were trained before the limit was set."""
    proposals = train_some(make_proposals())
    ladder, runs = climb(proposals)
    macs = {trial.point: trial.macs for trial in proposals.study.trials}
    left = ladder.training_left()
    proposals.limits = Limits(max_macs=macs["dense-x0.25"])
    assert ladder.training_left() <= left
    trained = set()
    while (run := runs.ask()) is not None:
        trained.add(run.costs["macs"])
        finish(runs, run, 0.95)
    assert trained == {macs["lr-x0.25"], macs["dense-x0.25"]}
    proposals.limits = Limits(max_macs=1)
    assert ladder.training_left() == 0
    proposals.limits = Limits()
    assert ask(climb(proposals)[1]).point == "nin-c3-lr"


def test_networks_beyond_a_later_limit_of_latency_are_not_trained_in_full() -> None:
    """It was not measured before there was a limit."""
    proposals = train_some(make_proposals())
    cost_of = proposals.cost_of
    proposals.cost_of = lambda network: {**cost_of(network), "latency": cost_of(network)["macs"] / 1e6}
    macs = {trial.point: trial.macs for trial in proposals.study.trials}
    proposals.limits = Limits(max_latency=macs["dense-x0.25"] / 1e6)
    _, runs = climb(proposals)
    trained = set()
    while (run := runs.ask()) is not None:
        trained.add(run.costs["macs"])
        finish(runs, run, 0.95)
    assert trained == {macs["lr-x0.25"], macs["dense-x0.25"]}


def test_networks_below_the_accuracy_of_a_reference_network_do_not_count_if_a_limit_leaves_it_out_later() -> None:
    references = {"nin": 0.92, "nin-c3": 0.91, "nin-c3-lr": 0.9}
    proposals = train_some(make_proposals(), references | {"dense-x0.5": 0.8, "dense-x0.25": 0.75, "lr-x0.25": 0.7})
    proposals.limits, proposals.beat = Limits(max_macs=7_000_000), 0.6
    assert climb(proposals)[1].ask() is None


def test_full_trainings_that_were_begun_are_put_off_while_a_limit_leaves_out_their_networks(tmp_path: Path) -> None:
    proposals = train_some(make_proposals(tmp_path))
    ladder, runs = climb(proposals)
    begun, waiting = ask(runs), ask(runs)
    runs.ledger.report_epoch(begun.number, [0.5], 2.0)
    for run in (begun, waiting):
        runs.ledger.release(run.number)
    assert begun.point == waiting.point == "nin-c3-lr"
    proposals.limits = Limits(max_macs=begun.macs - 1)
    runs = ladder.queue("full")
    trained = set()
    while not runs.is_over(None):
        trained.add((run := ask(runs)).macs)
        finish(runs, run, 0.95)
    assert trained and max(trained) < begun.macs and runs.ask() is None
    assert ladder.seconds("full") == 2.0 + 9.0 * runs.spent()
    assert ladder.training_left() == max(0.0, ladder.seconds_left("full"))
    states = [runs.study.optuna_trial(run.number).state for run in (begun, waiting)]
    assert states == [TrialState.WAITING, TrialState.WAITING]
    proposals.limits = Limits()
    runs = ladder.queue("full")
    assert not runs.is_over(None) and {ask(runs).number, ask(runs).number} == {begun.number, waiting.number}


@pytest.mark.parametrize(("beat", "name"), [(None, "dense-x0.25"), (0.1, "lr-x0.25")])
def test_rivals_of_the_paper_cost_at_most_the_share_to_beat(beat: float | None, name: str) -> None:
    proposals = train_some(make_proposals())  # the network dense-x0.25 has 0.12 of the MACs of nin-c3-lr
    proposals.beat = beat
    _, runs = climb(proposals)
    while (run := ask(runs)).point is not None:
        finish(runs, run, 0.95)
    assert run.architecture == proposals.space.uniform[name]


@pytest.mark.parametrize(
    ("share", "num_workers", "names"),
    [
        (0.95, 1, ["nin-c3-lr", "dense-x0.25"]),
        (0.95, 2, ["nin-c3-lr", "dense-x0.25"]),
        (0.95, 3, ["nin-c3-lr", "dense-x0.25", "nin-c3-lr"]),
        (0.95, 8, ["nin-c3-lr", "dense-x0.25", "nin-c3-lr", "nin-c3-lr"]),
        (0.8, 8, ["nin-c3-lr"]),
    ],
)
def test_what_is_trained_before_anything_is_promised(share: float, num_workers: int, names: list[str]) -> None:
    """The paper's network, its best rival, and other seeds of the paper's while workers would wait.

    With 0.8 of the time, the later levels have 16 s: too little for two runs of 9 s and the other level.
    """
    ladder, runs = climb(train_some(make_proposals()), share)
    names_of = {network.to_json(): name for name, network in ladder.proposals.space.uniform.items()}
    runs.choose = functools.partial(ladder.choose, "full", num_workers=num_workers)
    found = []
    while (run := runs.ask()) is not None:
        found.append(run.point or names_of[run.architecture.to_json()])
    assert found == names


def test_nothing_was_promised_for_the_first_network_and_it_is_not_trained_longer() -> None:
    ladder, runs = climb(train_some(make_proposals()), share=0.98)
    runs.choose = functools.partial(ladder.choose, "full", num_workers=1)
    while (run := runs.ask()) is not None:
        finish(runs, run, 0.94 if run.point else 0.95)
    longer = Promotions(Ledger(ladder.studies["longer"]), choose=functools.partial(ladder.choose, "longer"))
    while (run := longer.ask()) is not None:
        finish(longer, run, 0.85, seconds=3.0)
    _, runs = climb(ladder.proposals, share=0.98)
    while (run := runs.ask()) is not None:
        finish(runs, run, 0.93)
    finals = [final for final in read_level(ladder.proposals.study) if final.point is None]
    (first,) = (final for final in finals if final.accuracies[0] == 0.95)
    others = [final for final in finals if final is not first]
    assert first.promised is None and others and all(final.promised is not None for final in others)
    assert first.identity not in {final.identity for final in read_level(ladder.proposals.study, "longer")}


def test_promotions_are_decided_with_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def watched(networks: Sequence[Measured], kinds: Sequence[int]) -> Any:
        seen.append({library["num_threads"] for library in threadpool_info()})
        return believe(networks, kinds)

    seen: list[set[int]] = []
    monkeypatch.setattr("lrnas.searching.finals.believe", watched)
    _, runs = climb(train_some(make_proposals()))
    with threadpool_limits(2):
        ask(runs)
        assert {library["num_threads"] for library in threadpool_info()} == {2}
    assert seen == [{1}]


def test_the_time_of_the_finals_is_a_share_of_the_training_time() -> None:
    """Four trials of a second: with half of the time, the finals have 4 s, less than one full run of 9 s."""
    ladder, runs = climb(train_some(make_proposals()), share=0.5)
    while (run := runs.ask()) is not None:
        finish(runs, run, 0.9)
    seeds = [run.user_attrs["seed"] for run in runs.study.optuna_trials()]
    assert seeds == [1000, 1000]  # the least: a pair to compare
    assert ladder.seconds_left("full") == 4.0 - 18.0
    ladder, runs = climb(train_some(make_proposals()), share=0.9)
    while (run := runs.ask()) is not None:
        finish(runs, run, 0.9)
    assert ladder.seconds_left("full") == pytest.approx(36.0 - 9.0 * 4)  # no more than a fifth would be exceeded


def test_drivers_share_the_finals_and_continue_those_of_a_dead_one(tmp_path: Path) -> None:
    proposals = train_some(make_proposals(tmp_path))
    (_, one), (_, two) = climb(proposals), climb(proposals)
    left, other = ask(one), ask(two)  # the second driver has nothing to wait for
    assert left.number != other.number  # a run that is being trained counts
    one.ledger.sign_off()
    assert two.ledger.release_orphans() == 2  # its own, too: a driver calls it while training none
    assert {ask(two).number, ask(two).number} == {left.number, other.number}


def test_drivers_that_choose_the_same_run_train_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    proposals = train_some(make_proposals())
    (_, one), (_, two) = climb(proposals), climb(proposals)
    chosen = two.choose(False)
    assert chosen is not None
    first = ask(one)
    once = iter([chosen])
    monkeypatch.setattr(two, "choose", lambda _: next(once, None))
    assert two.ask() is None
    states = [(run.state, run.user_attrs.get("status")) for run in one.study.optuna_trials()]
    assert states == [(TrialState.RUNNING, None), (TrialState.FAIL, "duplicate")]
    finish(one, first, 0.9)
    (final,) = read_level(proposals.study)
    assert final.accuracies == (0.9,)


def test_networks_are_trained_longer_before_they_are_trained_in_full() -> None:
    proposals = train_some(make_proposals())
    studies = open_levels(proposals.study, LEVELS)
    ladder = Ladder(proposals, LEVELS, studies, 0.9)  # 36 s, a quarter of them for this level, where a run takes 3 s
    runs = Promotions(Ledger(studies["longer"]), choose=functools.partial(ladder.choose, "longer"))
    names = []
    while (run := runs.ask()) is not None:
        finish(runs, run, 0.85, seconds=3.0)
        names.append(run.number)
    finals = read_level(proposals.study, "longer")
    assert 1 <= len(names) <= 3 and all(final.point is None and final.seeds == (1000,) for final in finals)
    assert read_level(proposals.study) == [] and final_front(finals)
    with pytest.raises(UnknownName, match="unknown later level 'short'"):
        read_level(proposals.study, "short")


def test_a_failed_run_is_not_repeated_for_ever() -> None:
    _, runs = climb(train_some(make_proposals()))
    paper = ask(runs)
    runs.ledger.prune(paper.number, "diverged", "the loss became infinite")
    failed = ask(runs)
    for _ in range(3):
        runs.ledger.lose(failed.number, "out of memory")
        waiting = runs.study.optuna_trials((TrialState.WAITING,))
        assert all(runs.ledger.claim(run) for run in waiting)
    seen = []
    while (run := runs.ask()) is not None:
        seen.append((run.number, run.point))
        finish(runs, run, 0.9)
        assert len(seen) < 20
    assert failed.number not in [number for number, _ in seen]
    assert [point for _, point in seen].count("nin-c3-lr") == 2  # its other seeds


def test_levels_are_data() -> None:
    training = SearchTraining(SearchSettings(space="nin", budget=1, data="digits"), SPACE, "digits", None)
    short, full = training.levels["short"], training.levels["full"]
    assert (short.recipe, short.seeds) == (training.recipe, (0,))
    assert list(training.levels) == ["short", "full"]  # 3 × 3 epochs are not clearly between 3 and 9
    assert (full.recipe.epochs, full.seeds) == (9, (1000, 1001, 1002))

    def levels(**settings: object) -> dict[str, int]:
        given = SearchSettings(space="nin", budget=1, data="digits", **settings)  # type: ignore[arg-type]
        return {name: each.recipe.epochs for name, each in SearchTraining(given, SPACE, "digits", None).levels.items()}

    assert levels(epochs=5, final_epochs=40) == {"short": 5, "longer": 15, "full": 40}
    assert levels(epochs=1) == {"short": 1, "longer": 3, "full": 8}  # at most 8 times as many
    assert levels(epochs=50) == {"short": 50, "full": 50}  # trained in full already
    assert levels(finals=0) == {"short": 3}
    given = SearchSettings(space="nin", budget=1, data="digits", set={"mirror": "false", "epochs": "2"}, seed=7)
    full = SearchTraining(given, SPACE, "digits", None).levels["full"]
    assert not full.recipe.mirror and full.recipe.epochs == 9 and full.seeds == (1007, 1008, 1009)
    paper = SearchSettings(space="nin", budget=1, data="digits", recipe="paper", epochs=2, set={"drop_at": "0.5"})
    full = SearchTraining(paper, SPACE, "digits", None).levels["full"]
    assert full.recipe.schedule == get_recipe("full", "nin", 8, 1000).schedule


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"finals": 1}, "the share of the finals must be from 0 to 0.95; got 1; for example 0.5"),
        ({"finals": -0.1}, "got -0.1"),
        ({"final_seeds": 0}, "finals need at least 1 seed; got 0; for example 3"),
    ],
)
def test_settings_that_make_no_sense(settings: dict[str, float], message: str) -> None:
    with pytest.raises(InvalidSettings, match=message):
        SearchSettings(space="nin", budget=1, **settings)  # type: ignore[arg-type]


def test_levels_are_pinned_once_they_have_results() -> None:
    search = make_search()
    make_finals(search, {"nin-c3-lr": (0.95, 0.96)})
    other = LEVELS | {"full": replace(LEVELS["full"], recipe=Recipe(epochs=20))}
    with pytest.raises(OtherSettings, match="s was begun with other settings: `final_epochs` was 9, now 20"):
        open_levels(search, other)
    changed = open_levels(search, LEVELS | {"longer": replace(LEVELS["longer"], recipe=Recipe(epochs=4))})
    assert changed["longer"].manifest["recipe"]["epochs"] == 4  # it had no results


def test_other_epochs_of_the_finals_are_told_with_other_differences() -> None:
    proposals = train_some(make_proposals())
    search = proposals.study
    error = OtherSettings("s", "--image-size was 8, now 16", "give them")

    def told(final_epochs: int | None, epochs: int) -> str:
        levels = LEVELS | {"full": replace(LEVELS["full"], recipe=Recipe(epochs=epochs))}
        settings = SearchSettings(space="nin", budget=1, final_epochs=final_epochs)
        return with_finals(error, search, SimpleNamespace(levels=levels, settings=settings)).found  # type: ignore[arg-type]

    assert told(20, 20) == error.found  # there are no finals
    _, runs = climb(proposals)
    run = ask(runs)
    assert told(20, 20) == error.found  # nothing was trained
    runs.ledger.report_epoch(run.number, [0.5], 9.0)
    runs.ledger.put_back(run.number)
    assert told(20, 20) == "--image-size was 8, now 16; --final-epochs was 9, now 20"
    assert told(9, 9) == error.found
    assert told(None, 20) == error.found  # it follows from the other differences


def test_a_later_level_is_no_search_and_no_retraining(tmp_path: Path) -> None:
    search = make_search(tmp_path / "s")
    make_finals(search, {"nin-c3-lr": (0.95, 0.96), "lr-x0.25": (0.93, 0.94), "dense-x0.5": (0.9, 0.0)})
    finals = open_study("s@finals", studies=tmp_path)
    opens = re.escape(f'lrnas.open_study("s", studies="{tmp_path}")')
    with pytest.raises(StudyError, match=f"got s@finals, a later level; give its search, s: `{opens}`$"):
        open_search(finals)
    with naming_options(), pytest.raises(StudyError, match=r"its search, s; `lrnas front s .* --level full` shows"):
        open_search("s@finals", studies=tmp_path)
    with pytest.raises(StudyError, match="got s@finals, a level of a search"):
        read_retrained(finals)
    assert retrained_recipes(search) == [] and read_retrained(search) is None
    assert trials_folder(tmp_path, "s@finals") == tmp_path / "s" / "finals"
    file = tmp_path / "finals.toml"
    file.write_text("epochs = 2\n")
    with pytest.raises(
        StudyError, match=r"longer and finals are levels of a search, not recipes .*; got .*finals.toml"
    ):
        _Training(search, None, None, str(file), {})
    # what is retrained and exported is the final front
    chosen = _choose(search, (), True, False)
    assert [network.trial for network in chosen] == [0, 2]  # lr-x0.25 and nin-c3-lr; dense-x0.25 was not trained
    best = find_network("s:best", tmp_path)
    assert best is not None and best.name == "s@finals:0 (nin-c3-lr)" and best.trial.point == "nin-c3-lr"
    named = find_network("s@finals:lr-x0.25", tmp_path)
    assert named is not None and named.trial.accuracy == 0.93
    assert delete_study("s", studies=tmp_path).trials == {"s": 4, "s@longer": 0, "s@finals": 6}
    assert level_study(make_search(), "full") is None


def test_the_end_tells_what_the_finals_did_not_train() -> None:
    search, level = make_search(), LEVELS["full"]
    assert tell_end(search, level, 0.5).startswith("no network was trained in full: 50 % of the training time is too ")
    make_finals(search, {"lr-x0.25": (0.9,), "nin-c3-lr": (0.93, 0.94, 0.92)})
    left = "not trained in full: 1 of the 3 networks on the front of the short trainings; "
    few = "fewer than 3 seeds: 1 of the 2 networks on the front; a larger --finals trains more"
    assert tell_end(search, level, 0.5) == left + few
    with naming_options():  # a command prints the first part below the front
        assert tell_end(search, level, 0.5) == few
    search = make_search()
    make_finals(search, {"lr-x0.25": (0.9,)})
    with naming_options():
        few = "fewer than 3 seeds: the only network on the front; a larger --finals trains more"
        assert tell_end(search, level, 0.5) == few
    search = make_search()
    make_finals(search, dict.fromkeys(("lr-x0.25", "dense-x0.25", "nin-c3-lr"), (0.9, 0.9, 0.9)))
    assert tell_end(search, level, 0.5) == ""


def test_what_the_finals_did_not_train_is_told_of_networks_within_the_limits() -> None:
    """A larger --finals trains no others."""
    search, level = make_search(), LEVELS["full"]
    macs = {trial.point: trial.macs for trial in search.trials}
    keep_limits(search.optuna_study, {"max_macs": macs["lr-x0.25"] - 1, "beat": 0.5})
    beyond = "all networks that were trained are beyond the limits; raise --budget, or change the limits"
    assert tell_end(search, level, 0.5) == f"no network was trained in full: {beyond}"
    keep_limits(search.optuna_study, {"max_macs": macs["dense-x0.5"]})
    assert "50 % of the training time is too little" in tell_end(search, level, 0.5)
    make_finals(search, {"lr-x0.25": (0.9, 0.9, 0.9), "nin-c3-lr": (0.95, 0.94)})
    left = "not trained in full: 1 of the 2 networks within the limits on the front of the short trainings; "
    assert tell_end(search, level, 0.5) == f"{left}a larger --finals trains more"
    keep_limits(search.optuna_study, {"max_macs": macs["lr-x0.25"], "max_latency": 1.0})
    assert tell_end(search, level, 0.5) == ""
    search = make_search()
    make_finals(search, {"lr-x0.25": (0.9,), "nin-c3-lr": (0.93,)})
    keep_limits(search.optuna_study, {"min_macs": macs["nin-c3-lr"]})
    few = "fewer than 3 seeds: the only network within the limits on the front; a larger --finals trains more"
    assert tell_end(search, level, 0.5) == few


def test_full_trainings_below_the_short_ones_are_told() -> None:
    search = make_search()  # with 0.7, 0.8 and 0.9
    assert tell_below(search) == ""
    make_finals(search, {"nin-c3-lr": (0.85, 0.9), "lr-x0.25": (0.7,), "dense-x0.25": (0.9,)})
    assert tell_below(search) == ""
    make_finals(search, {"dense-x0.5": (0.1,)})
    told = (
        "full training is less accurate than short training for 2 of 4 networks; begin a study with more --final-epochs"
    )
    assert tell_below(search) == told and f"s: {told}." in make_report([search]).remarks()
    same = replace(search, manifest=search.manifest | {"recipe": LEVELS["full"].recipe.to_dict()})
    assert tell_below(same) == ""


def test_the_front_and_the_best_network_are_those_of_the_finals(tmp_path: Path) -> None:
    search = make_search(tmp_path / "s")
    short, best = search.front(), search.best()
    assert short == search.front("short") and best == search.best(level="short") and best.study is search
    for ask_for_full in (search.front, search.hypervolume, lambda level: search.best(level=level)):
        with pytest.raises(StudyError, match=r's ran without finals; got level="full"; give "short", or leave it out'):
            ask_for_full("full")
    make_finals(search, {"nin-c3-lr": (0.91, 0.95), "lr-x0.25": (0.92, 0.90), "dense-x0.5": (0.85,)})
    assert search.front("short") == short and search.best(level="short") == best
    front = search.front()
    assert [trial.point for trial in front] == [final.name for final in final_front(read_level(search))]
    assert [trial.point for trial in front] == ["lr-x0.25", "nin-c3-lr"] and all(trial.on_front for trial in front)
    found = search.best()  # by the means, not by the first runs
    assert (found.point, found.accuracy, found.study.name) == ("nin-c3-lr", 0.91, "s@finals")
    assert repr(found).startswith(f"<Run {found.number} of s@finals, trial {best.number}: nin-c3-lr, 91.00 %")
    assert found.trial == best.trial == best.number != found.number and search.trials[found.trial].name == found.name
    assert "trial" in found.study.to_pandas() and "trial" not in search.to_pandas()
    assert search.best(max_macs=f"{front[0].macs / 1e6}M").point == "lr-x0.25"
    with pytest.raises(StudyError, match=r"limits; the closest one, lr-x0.25, has [\d,]+ mul.*; raise them$"):
        search.best(max_macs=1)
    other = make_search()
    make_finals(other, {"nin-c3-lr": (0.91,)})
    with pytest.raises(StudyError, match=r'one, nin-c3-lr, .*; raise them, or give level="short" for networks'):
        other.best(max_macs=front[0].macs)
    assert other.best(max_macs=front[0].macs, level="short").point == "lr-x0.25"
    with pytest.raises(StudyError, match="s has no trained network at this level yet"):
        search.best(level="longer")
    with pytest.raises(UnknownName, match="unknown level 'ful'; did you mean full"):
        search.front("ful")
    with pytest.raises(UnknownName, match=r"unknown level 'finals'; .* .finals are the level full."):
        search.front("finals")
    with pytest.raises(StudyError, match="max_macs takes a number above 0; got 'much'; for example 3M"):
        search.best(max_macs="much")


def test_the_study_of_the_finals_agrees_with_its_search(tmp_path: Path) -> None:
    search = make_search(tmp_path / "s")
    make_finals(search, {"nin-c3-lr": (0.91, 0.95), "lr-x0.25": (0.945, 0.90), "dense-x0.5": (0.94, 0.80)})
    finals = open_study("s@finals", studies=tmp_path)
    assert finals.front() == search.front() == finals.front("full") and finals.best() == search.best()
    assert finals.best().point == "nin-c3-lr"  # the first runs of both others are more accurate
    assert [run.on_front for run in finals.trials] == [True, True, True, True, False, False]
    assert read_level(finals) == read_level(search)
    few, many = (run.macs / 2e7 for run in finals.front())
    assert finals.hypervolume() == pytest.approx((1 - few) * 0.9225 + (1 - many) * (0.93 - 0.9225))
    with pytest.raises(StudyError, match="s@finals has only the level full; got short; open s for other levels"):
        finals.best(level="short")
    html = finals._repr_html_()
    assert "The front, trained in full, mean ± standard deviation over n seeds" in html
    assert "<td>93.00 ± 2.83 %</td>" in html and html.count("<tr>") == 3
