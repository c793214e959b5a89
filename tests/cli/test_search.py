"""The output of searches: the front, and the reference networks."""

import csv
import json
import re
import shlex
from itertools import pairwise
from pathlib import Path

import optuna
import pytest
from small_studies import SPACE, cost, make_finals, make_proposals, make_search, train_some

import lrnas
from lrnas.arch.architecture import Architecture
from lrnas.cli import output as terminal
from lrnas.cli.main import main
from lrnas.cli.search import _write_files
from lrnas.errors import Terminated
from lrnas.reporting.report import make_report
from lrnas.study.levels import keep_open, read_level
from lrnas.study.location import Whereabouts
from lrnas.study.manifest import BUDGET, MANIFEST, StudyError, check_manifest, keep_limits
from lrnas.study.objectives import Limits
from lrnas.study.open import open_study

optuna.logging.set_verbosity(optuna.logging.ERROR)


@pytest.fixture(scope="module")
def studies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a search in it; of the reference networks, one is on the front and one is beaten."""
    folder = tmp_path_factory.mktemp("my studies")
    make_search(folder / "s")
    proposals = make_proposals(folder / "s")
    proposals.enqueue({"nin": SPACE.points["nin"]})
    proposal = proposals.ask()
    assert proposal is not None
    proposals.ledger.report_epoch(proposal.number, [0.6], 1.0)
    proposals.ledger.complete(proposal.number, 0.6)
    return folder


def test_the_table_and_its_data_have_the_same_networks(studies: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["front", "s", "--studies", str(studies)]) == 0
    table = capsys.readouterr().out
    assert main(["front", "s", "--studies", str(studies), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert list(shown)[:3] == ["study", "level", "front"] and list(shown)[-1] == "manifest"
    assert [(row["point"], row["on_front"]) for row in shown["references"]] == [("nin-c3-lr", True), ("nin", False)]
    assert all(row.keys() == shown["front"][0].keys() for row in shown["references"])
    rows = [line.strip() for line in table.splitlines() if "," in line and "%" in line]
    marks = {row.split()[0]: row.rsplit("  ", 1)[1] for row in rows}
    assert marks == {row["point"]: "front" for row in shown["front"]} | {
        row["point"]: "front, reference" if row["on_front"] else "beaten, reference" for row in shown["references"]
    }


def test_a_front_without_networks_that_the_sampler_proposed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def is_told() -> bool:
        assert main(["front", "s", "--studies", str(tmp_path)]) == 0
        return "The front has only networks with which every search begins" in capsys.readouterr().out

    search = make_search(tmp_path / "s")
    assert is_told()
    stored, number = make_proposals(tmp_path / "s").study, len(search.trials)
    for budget, advice in ((number, "a larger --budget"), (number + 3, f"the rest of its {number + 3} trials")):
        stored.optuna_study.set_user_attr(BUDGET, budget)
        assert main(["front", "s", "--studies", str(tmp_path)]) == 0
        assert f"; {advice} may find better ones." in " ".join(capsys.readouterr().out.split())
    proposals = make_proposals(tmp_path / "s")
    proposal = proposals.ask()
    assert proposal is not None
    proposals.ledger.complete(proposal.number, 0.99)
    assert not is_told()
    make_finals(search, {"nin-c3-lr": (0.95, 0.96), "lr-x0.25": (0.93,)})
    assert is_told()
    stored.optuna_study.set_user_attr(BUDGET, number + 1)
    keep_open(stored.optuna_study, True)  # it was ended in the finals
    assert main(["front", "s", "--studies", str(tmp_path)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "; the full trainings that are left may find better ones." in out and "larger" not in out
    assert "Full trainings are not complete: the command that began the search continues them." in out
    keep_open(stored.optuna_study, False)
    assert main(["front", "s", "--studies", str(tmp_path)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "are not complete" not in out and " Not among them: " in out


def test_a_network_of_a_study_is_counted_for_its_images(studies: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--studies", str(studies)]
    for trial in make_proposals(studies / "s").study.trials:
        assert main(["count", f"s:{trial.number}", "--json", *where]) == 0
        counted = json.loads(capsys.readouterr().out)
        assert (counted["name"], counted["macs"], counted["params"]) == (f"s:{trial.number}", trial.macs, trial.params)
    assert main(["count", "s:nin-c3", "--input", "16", "--classes", "3", *where]) == 2
    assert "unknown network of s 'nin-c3'; did you mean nin-c3-lr or nin?" in capsys.readouterr().err
    assert main(["count", "s:nin", "--input", "16", "--classes", "3", *where]) == 0
    assert "s:4, input 16×16, 3 classes" in capsys.readouterr().out
    assert main(["count", "s", *where]) == 2
    assert capsys.readouterr().err == "lrnas: a network is needed; got s, a study; did you mean s:best?\n"


@pytest.mark.parametrize(
    ("kind", "word", "code"), [(KeyboardInterrupt, "interrupted", 130), (Terminated, "terminated", 143)]
)
def test_a_search_that_is_ended_at_once_can_be_continued(
    kind: type[KeyboardInterrupt],
    word: str,
    code: int,
    studies: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def end(*_: object) -> None:
        raise kind

    monkeypatch.setattr("lrnas.searching.search._search", end)
    monkeypatch.setattr("lrnas.searching.retrain._choose", end)
    for command, what in ((["search", "nin", "--budget", "2"], "search"), (["retrain", "s"], "retraining")):
        assert main([*command, "--studies", str(studies)]) == code
        assert capsys.readouterr().err == f"lrnas: the {what} was {word}; the same command continues it\n"
    with pytest.raises(kind, match=f"^the search was {word}; the same call continues it$"):
        lrnas.search("nin", budget=2)


def test_a_narrow_terminal_shows_what_is_on_the_front(
    studies: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(terminal.sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["front", "s", "--studies", str(studies)]) == 0
    rows = [line.rstrip() for line in capsys.readouterr().out.splitlines() if " %" in line]
    assert [row.rsplit("  ", 1)[1] for row in rows] == ["front", "front", "front, reference", "beaten, reference"]
    assert max(map(len, rows)) <= 80


def test_a_narrow_terminal_shows_the_names_of_studies(
    studies: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(terminal.sys.stdout, "isatty", lambda: True)
    for columns, heads in (("60", "study trained level on the front"), ("120", "study space data trained stopped")):
        monkeypatch.setenv("COLUMNS", columns)
        assert main(["studies", "--studies", str(studies)]) == 0
        lines = re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out).splitlines()
        head, row = next(pair for pair in pairwise(lines) if pair[0].startswith("study "))  # below a title with a path
        assert head.split()[: len(heads.split())] == heads.split() and row.split()[0] == "s"
        assert len(row.rstrip()) <= int(columns)


def test_a_dash_under_promised_is_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def told() -> str:
        assert main(["front", "s", "--studies", str(tmp_path)]) == 0
        return " ".join(capsys.readouterr().out.split())

    search, dash = make_search(tmp_path / "s"), "± standard deviation (–: trained before anything could be predicted)."
    make_finals(search, {"lr-x0.25": (0.93,)})
    assert "promised: predicted when" in told() and dash not in told()
    make_finals(search, {"nin-c3-lr": (0.95,)}, promised=None)
    assert dash in told()


def test_finals_are_shown_if_there_are_any(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Accuracies of one level only, with deviations over seeds, and what was promised."""
    search = make_search(tmp_path / "s")
    results = {"nin-c3-lr": (0.95, 0.96), "lr-x0.25": (0.93,), "dense-x0.5": (0.92, 0.90), "dense-x0.25": (0.0,)}
    make_finals(search, results)

    def show(*options: str) -> str:
        assert main(["front", "s", "--studies", str(tmp_path), *options]) == 0
        return capsys.readouterr().out

    table = show()
    rows = {words[0]: " ".join(words[1:]) for line in table.splitlines() if len(words := line.split()) > 5}
    assert "70.00" not in table and "s: networks trained at level full" in table
    assert rows["nin-c3-lr"].startswith("2 95.50 ± 0.71 % 2 90.00 ± 1.00 %")
    assert rows["nin-c3-lr"].endswith("0 front, reference") and rows["lr-x0.25"].endswith("0 front by fewer runs")
    assert rows["dense-x0.5"].endswith("0 beaten") and rows["dense-x0.25"].startswith("1 – 0 90.00 ± 1.00 %")
    outcome = "nin-c3-lr: 95.50 ± 0.71 % (2 seeds); lr-x0.25 at 0.055 of its MACs: promised 90.00 ± 1.00 %, measured "
    assert f"{outcome}93.00 % (1 seed)." in table
    assert "Not among them" not in table
    data = json.loads(show("--json"))
    assert data["level"] == "full" and [row["name"] for row in data["front"]] == ["lr-x0.25", "nin-c3-lr"]
    assert data["front"][1]["mean"] == pytest.approx(0.955) and data["front"][1]["promised"] == [0.9, 0.01]
    assert [(row["point"]["name"], row["rival"]["name"]) for row in data["outcomes"]] == [("nin-c3-lr", "lr-x0.25")]
    assert main(["studies", "--studies", str(tmp_path), "--json"]) == 0  # the same level
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["level"], row["front"], row["best"]) == ("full", 2, pytest.approx(0.955))
    short = json.loads(show("--json", "--level", "short"))
    assert short["level"] == "short" and [row["accuracy"] for row in short["front"]] == [0.7, 0.8, 0.9]
    assert "has no network trained at level longer yet" in show("--level", "longer")
    assert main(["front", "s", "--studies", str(tmp_path), "--level", "all"]) == 2
    assert "unknown level 'all'" in capsys.readouterr().err


def test_a_narrow_terminal_shows_the_trials_of_finals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_finals(make_search(tmp_path / "s"), {"nin-c3-lr": (0.95, 0.96), "lr-x0.25": (0.93,)})
    monkeypatch.setattr(terminal.sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["front", "s", "--studies", str(tmp_path)]) == 0
    words = " ".join(re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out).split())
    assert " network trial accuracy n MACs lr-x0.25 " in words
    assert "Not shown for lack of room: parameters, share, promised; use a wider terminal or --json." in words


def test_networks_of_the_short_front_that_were_not_trained_in_full_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    search = make_search(tmp_path / "s")
    make_finals(search, {"lr-x0.25": (0.93,)})

    def shown() -> str:
        assert main(["front", "s", "--studies", str(tmp_path)]) == 0
        return " ".join(capsys.readouterr().out.split())

    assert "Not among them: 2 of the 3 networks on the front of the short trainings, see `lrnas front s " in shown()
    keep_limits(search.optuna_study, {"max_macs": search.trials[1].macs})
    assert "Not among them: 1 of the 2 networks within the limits on the front of the short trainings, see" in shown()
    keep_limits(search.optuna_study, {"max_macs": search.trials[0].macs})
    assert "Not among them" not in shown()


def test_with_beat_the_best_network_below_the_share_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    search = make_search(tmp_path / "s")

    def lines(*options: str) -> list[str]:
        assert main(["front", "s", "--studies", str(tmp_path), *options]) == 0
        return [line for line in capsys.readouterr().out.splitlines() if " of its MACs: " in line or " costs " in line]

    def outcomes() -> list[tuple[str, float | None, bool]]:
        assert main(["front", "s", "--studies", str(tmp_path), "--json"]) == 0
        found = json.loads(capsys.readouterr().out)["outcomes"]
        return [(row["rival"]["name"], row["beat"], row["is_beaten"]) for row in found]

    assert not lines() and not outcomes()
    keep_limits(search.optuna_study, {"beat": 0.1})
    below = "nin-c3-lr: 90.00 % (1 seed); lr-x0.25 at 0.055 of its MACs: measured 70.00 % (1 seed), not higher."
    assert lines() == [below] and outcomes() == [("lr-x0.25", 0.1, False)]
    make_finals(search, {"nin-c3-lr": (0.95, 0.96), "dense-x0.25": (0.97,), "lr-x0.25": (0.96,)})
    (line,) = lines()
    assert "; lr-x0.25 at 0.055 of its MACs: " in line and line.endswith("measured 96.00 % (1 seed), higher.")
    assert lines("--level", "short") == [below] and outcomes() == [("lr-x0.25", 0.1, True)]
    keep_limits(search.optuna_study, {"beat": 0.5})
    assert outcomes() == [("dense-x0.25", 0.5, True)]
    keep_limits(search.optuna_study, {"beat": 0.01})
    (line,) = lines()
    assert line.endswith("; no network found that costs at most 0.01 of its costs was trained at this level.")
    keep_limits(search.optuna_study, {})
    (line,) = lines()
    assert "; dense-x0.25 at " in line and line.endswith("measured 97.00 % (1 seed).")


def test_the_file_of_the_finals_has_plain_columns(tmp_path: Path) -> None:
    search = make_search(tmp_path / "s")
    make_finals(search, {"nin-c3-lr": (0.95, 0.96), "lr-x0.25": (0.93,)})
    _write_files(search, tmp_path)
    with (tmp_path / "front.csv").open() as file:
        rows = list(csv.DictReader(file))
    names = "name trial point identity mean sd n macs params promised promised_sd accuracies architecture"
    assert list(rows[0]) == names.split() and [row["name"] for row in rows] == ["lr-x0.25", "nin-c3-lr"]
    (final,) = (final for final in read_level(search) if final.name == "nin-c3-lr")
    known = final.to_dict()
    for name in ("trial", "mean", "sd", "n", "macs", "params"):
        assert float(rows[1][name]) == known[name]
    assert (rows[1]["promised"], rows[1]["promised_sd"], rows[1]["accuracies"]) == ("0.9", "0.01", "0.95 0.96")
    assert rows[0]["sd"] == "" and Architecture.from_json(rows[1]["architecture"]) == final.architecture


def test_suggested_commands_name_the_folder_of_the_study(
    studies: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("lrnas.searching.search.search", lambda *_, **__: make_proposals(studies / "s").study)
    assert main(["search", "--space", "nin", "--budget", "5", "--studies", str(studies)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert f"Test:       lrnas retrain s --studies {shlex.quote(str(studies))}" in lines
    (line,) = (line for line in lines if line.startswith("Look again: "))
    program, *arguments = shlex.split(line.removeprefix("Look again: "))
    assert (program, main(arguments)) == ("lrnas", 0) and "nin-c3-lr" in capsys.readouterr().out
    assert Whereabouts().command("front", "my study") == "lrnas front 'my study'"


def test_a_test_is_suggested_when_a_search_is_complete_and_has_networks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    incomplete, proposals = make_search(tmp_path / "s"), make_proposals(tmp_path / "t")
    incomplete.optuna_study.set_user_attr(BUDGET, 9)
    proposals.enqueue({"nin": SPACE.points["nin"]})
    proposal = proposals.ask()
    assert proposal is not None
    proposals.ledger.report_epoch(proposal.number, [0.1], 1.0)
    proposals.ledger.prune(proposal.number, "diverged", "the loss became infinite")
    for study in (incomplete, proposals.study):
        monkeypatch.setattr("lrnas.searching.search.search", lambda *_, study=study, **__: study)
        assert main(["search", "--space", "nin", "--budget", "9", "--studies", str(tmp_path)]) == 0
        told = capsys.readouterr().out
        assert "Look again: " in told and "Test: " not in told


def test_shares_refer_to_the_dense_network_even_if_it_is_beyond_a_limit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_search(tmp_path / "s")  # without nin itself
    assert main(["front", "s", "--studies", str(tmp_path)]) == 0
    rows = {line.split()[0]: line.split() for line in capsys.readouterr().out.splitlines() if "front" in line}
    for name in ("lr-x0.25", "nin-c3-lr"):
        network = {**SPACE.points, **SPACE.uniform}[name]
        assert rows[name][5] == f"{cost(network)['macs'] / cost(SPACE.points['nin'])['macs']:.3f}"


def test_latency_that_is_only_a_limit_is_in_the_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    proposals = make_proposals(tmp_path / "s", Limits(max_latency=100.0))
    proposals.cost_of = lambda network: cost(network) | {"latency": cost(network)["macs"] / 1e6}
    search = train_some(proposals).study
    assert main(["front", "s", "--studies", str(tmp_path), "--json"]) == 0
    front = json.loads(capsys.readouterr().out)["front"]
    assert [trial["latency"] for trial in front] == [trial["macs"] / 1e6 for trial in front]
    make_finals(search, {"nin-c3-lr": (0.95,)})
    _write_files(search, tmp_path)
    with (tmp_path / "front.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert float(row["latency"]) == int(row["macs"]) / 1e6


@pytest.mark.parametrize("is_known", [False, True])
def test_shares_of_latency_are_shown_if_that_of_the_dense_network_is_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], is_known: bool
) -> None:
    proposals = make_proposals(tmp_path / "s", Limits(max_macs=10_000_000), "accuracy,latency")
    proposals.cost_of = lambda network: cost(network) | {"latency": cost(network)["macs"] / 1e6}
    timed = {"threads": 1, "dtype": "fp32", "batch": 1, "hardware": "made up", "factor": 1.0}
    manifest = proposals.study.manifest
    manifest |= {"latency": timed, "reference": {**manifest["reference"], "latency": 20.0}}
    proposals.study.optuna_study.set_user_attr(MANIFEST, manifest)
    if is_known:  # it is beyond the limit, and not trained
        proposals.enqueue({"nin": SPACE.points["nin"]})
    train_some(proposals)
    assert main(["front", "s", "--studies", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    (row,) = (line.split() for line in out.splitlines() if line.startswith("lr-x0.25"))
    share = cost(SPACE.uniform["lr-x0.25"])["macs"] / cost(SPACE.points["nin"])["macs"]
    assert ("latency share" in out) == is_known
    end = ["0.404", "ms", f"{share:.3f}", "front"] if is_known else ["0.404", "ms", "front"]
    assert row[-len(end) :] == end and "–" not in out


@pytest.mark.parametrize("name", ["baseline", "dense-x1"])
def test_an_old_study_without_points_is_read_and_its_shares_refer_to_the_unchanged_backbone(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In earlier versions, the unchanged backbone was a uniform network of a space without points."""
    study = make_search(tmp_path / "s")
    space = study.manifest["space"]
    without = {**space, "baseline": None, "points": {}, "seeds": {name: space["points"]["nin"]}}
    study.optuna_study.set_user_attr(MANIFEST, {**study.manifest, "space": without})
    assert main(["front", "s", "--studies", str(tmp_path)]) == 0
    title, *lines = capsys.readouterr().out.strip().splitlines()
    assert title.strip() == "s: the front"
    (row,) = (line.split() for line in lines if line.startswith("lr-x0.25"))
    assert row[5] == f"{cost(SPACE.uniform['lr-x0.25'])['macs'] / cost(SPACE.points['nin'])['macs']:.3f}"
    data = make_report([open_study("s", studies=tmp_path)]).to_dict()
    (shown,) = data["studies"]
    assert shown["dense"]["name"] == name and not any(network["is_reference"] for network in shown["networks"])
    with pytest.raises(StudyError, match="s was begun with other settings"):  # it cannot be continued
        check_manifest(study.optuna_study, study.manifest)


def test_a_study_of_version_0_1_0_is_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = make_search(tmp_path / "s")
    old = {key: value for key, value in study.manifest.items() if key not in ("channels", "num_classes")}
    study.optuna_study.set_user_attr(MANIFEST, old)
    where = ["--studies", str(tmp_path)]
    message = (
        "lrnas: studies must hold the channels and the number of classes of their images; got s, begun with lrnas "
        "0.1.0, without them; open it with 0.1.0, or begin another study"
    )
    search = ["search", "nin", "--budget", "9", "--name", "s"]
    for command in (["front", "s"], ["report", "s"], ["retrain", "s"], search):
        assert main([*command, *where]) == 2
        assert capsys.readouterr().err.splitlines()[-1] == message
    assert main(["studies", *where]) == 0  # others are listed
    assert capsys.readouterr().err == f"{message}\n"
    assert main(["studies", "--delete", "s", *where]) == 0
