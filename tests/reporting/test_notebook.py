"""Studies, trials, networks and conversions in notebooks, and their short texts."""

import linecache
import re
import subprocess
import sys
from dataclasses import replace
from html import escape
from html.parser import HTMLParser
from pathlib import Path

import pytest
import timm
import torch
from filled_studies import fill_study
from retrainings import finish, retraining
from small_studies import SPACE, cost, make_finals, make_proposals, make_search, train_some

import lrnas
from lrnas.cli.dry_run import print_estimate
from lrnas.errors import LrnasError
from lrnas.exporting.export import Check, Export
from lrnas.exporting.fastest_form import Choice, Fusion
from lrnas.layers.fold import Folding
from lrnas.models.convert import LOW_RANK
from lrnas.profiling.latency_table import Conditions
from lrnas.profiling.profile import LayerTime, Profile, Profiled
from lrnas.searching.estimate import Estimate, LevelEstimate, NamedNetwork
from lrnas.searching.progress import tell_interrupted
from lrnas.searching.runs import Chosen
from lrnas.study.levels import keep_open
from lrnas.study.manifest import keep_limits
from lrnas.study.objectives import Limits
from lrnas.study.study import MAX_PRINTED, Study


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    folder = tmp_path_factory.mktemp("studies")
    return fill_study(folder, 16, storage=f"journal:{folder / 'journal'}")


class Cells(HTMLParser):
    """Collects the texts of table cells, by row, and checks that tags are closed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.rows: list[list[str]] = []
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in ("img", "br"):
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("td", "th"):
            self.rows[-1][-1] += data


def test_texts_are_short(study: Study) -> None:
    assert repr(study) == "<Study s: nin on cifar10, accuracy, macs>"
    trials = study.trials
    assert len(trials) == 16 > MAX_PRINTED and isinstance(trials[:3], lrnas.Trials)
    lines = repr(trials).splitlines()
    assert len(lines) == MAX_PRINTED + 1 and lines[-1] == f" … {16 - MAX_PRINTED} more]"
    assert repr(trials[0]).startswith("<Trial 0: nin, ") and "222,486,528 MACs, completed" in repr(trials[0])
    assert max(map(len, lines)) < 120
    assert len(repr(trials[: MAX_PRINTED + 1]).splitlines()) == MAX_PRINTED + 1 and "more" not in repr(trials[:11])
    assert str(trials[-1].architecture) == trials[-1].architecture.to_json()
    assert len(repr(trials[-1].architecture)) < 200
    small = lrnas.Architecture("nin", batch_norm=True)
    assert repr(small) == 'Architecture({"version": 1, "backbone": "nin", "batch_norm": true, "layers": {}})'


def test_a_study_shows_its_front(study: Study) -> None:
    html = study._repr_html_()
    front = study.front()
    rows = Cells(html).rows[1:]
    assert [row[0] for row in rows] == [str(trial.number) for trial in front]
    assert [row[4] for row in rows] == [f"{trial.share:.3f}" for trial in front] and study.dense_macs == 222_486_528
    assert html.count("data:image/png;base64,") == 1


def test_an_interrupted_study_says_so(study: Study, caplog: pytest.LogCaptureFixture) -> None:
    tell_interrupted(study, is_complete=False)
    stopped = replace(study, interrupted=2)
    tell_interrupted(stopped, is_complete=False)
    tell_interrupted(stopped, is_complete=True)
    assert caplog.messages == [
        "interrupted: s is not complete; the same call continues it",
        "interrupted: s is complete nevertheless",
    ]
    assert "; interrupted, not complete: the same call continues it</p>" in stopped._repr_html_()
    assert repr(stopped) == "<Study s: nin on cifar10, accuracy, macs, interrupted>"


def test_a_study_with_finals_shows_them() -> None:
    search = make_search()
    make_finals(search, {"nin-c3-lr": (0.95, 0.96), "lr-x0.25": (0.91,)})
    assert repr(lrnas.read_level(search)[-1]) == "<Final nin-c3-lr: 95.50 ± 0.71 %, n 2, 7,417,344 MACs>"
    rows = Cells(search._repr_html_()).rows
    assert rows[0][2:4] == ["accuracy", "n"]
    assert [row[1:4] for row in rows[1:]] == [["lr-x0.25", "91.00 %", "1"], ["nin-c3-lr", "95.50 ± 0.71 %", "2"]]
    assert [row[-1] for row in rows] == ["", "front by fewer runs", "front"]
    left = "Not trained in full: 1 of the 3 networks on the front of the short trainings, study.front("
    assert left in search._repr_html_() and left not in lrnas.open_study(search.front()[0].study)._repr_html_()
    short = "On the front: that of the short trainings; study.front() is that of the finals."
    assert short in search.trials._repr_html_() and short not in search.front()._repr_html_()
    assert short not in make_search().trials._repr_html_()
    head, first, second = Cells(search.front()._repr_html_()).rows
    assert (head[:2], first[:2], second[:2]) == (["trial", "run"], ["0", "2"], ["2", "0"])
    assert f"Runs of {search.name}@finals, each one training" in search.front()._repr_html_()
    assert f"<b>run 0 of {search.name}@finals, trial 2: " in search.front()[-1]._repr_html_()
    assert "not complete" not in search._repr_html_()
    keep_limits(search.optuna_study, {"max_macs": search.trials[0].macs})
    assert "Not trained in full" not in search._repr_html_()
    keep_open(search.optuna_study, True)
    assert "; full trainings are not complete</p>" in search._repr_html_()


def test_a_retraining_shows_its_networks_and_verdicts(tmp_path: Path) -> None:
    search = make_search(tmp_path / "s")
    trials = [trial for trial in search.trials if trial.point in ("nin-c3-lr", "lr-x0.25")]
    runs = retraining(search)
    html = runs.study._repr_html_()
    assert "0 of 0 networks tested" in html and html.count("s@fast") == 1
    chosen = [Chosen(t.identity, t.architecture, t.point if t.is_reference else None, t.number) for t in trials]
    runs.enqueue(chosen, range(1, 3), {t.identity: {"macs": t.macs, "params": t.params} for t in trials})
    for accuracy in (0.90, 0.91, 0.95):
        finish(runs, accuracy)
    study = lrnas.open_study("s@fast", studies=tmp_path)
    html = study._repr_html_()
    rows = Cells(html).rows
    assert rows[0][1:5] == ["network", "test accuracy", "n", "MACs"]
    shown = {row[1]: [row[2], row[3], row[7]] for row in rows[1:]}
    assert shown == {
        "lr-x0.25": ["92.50 ± 3.54 %", "2", "front"],
        "nin-c3-lr": ["91.00 %", "1", "reference"],
    }
    for text in (*map(str, lrnas.judge(lrnas.read_retraining(study))), "1 runs not done", "mean ± standard deviation"):
        assert escape(text) in html
    rows = Cells(study.trials._repr_html_()).rows
    assert rows[0][3] == "test accuracy" and rows[1][3] == "90.00 %"
    table = study.to_pandas()
    assert list(table["test_accuracy"][:3]) == [0.90, 0.91, 0.95] and "on_front" not in table
    assert list(table["trial"]) == [trials[0].number, trials[1].number] * 2
    assert {row[-1] for row in rows[1:]} == {"completed", "waiting"}  # runs have no front
    assert "90.00 % on test images after 2 epochs" in study.trials[0]._repr_html_()
    assert "90.00 % on test images" in repr(study.trials[0])
    for call in (lrnas.report, lrnas.plot):
        with pytest.raises(LrnasError, match="got s@fast, a retraining, which is on the page of s: "):
            call(study)
    for call in (study.front, study.best, study.hypervolume):
        with pytest.raises(
            LrnasError, match=r"this needs a search, .*; got s@fast, .* Python lrnas.read_retraining does"
        ):
            call()


def test_an_empty_study_has_no_picture(tmp_path: Path) -> None:
    study = fill_study(tmp_path, 0, storage=f"journal:{tmp_path / 'journal'}")
    assert "No front yet." in study._repr_html_() and "<img" not in study._repr_html_()
    assert study.trials._repr_html_() == "<p>No networks.</p>" and repr(study.trials) == "[]"
    assert study.front()._repr_html_() == "<p>No networks.</p>"
    assert "No networks." not in study._repr_html_()


def test_a_trial_shows_its_layers_and_curve(study: Study) -> None:
    trial = next(trial for trial in study.trials if trial.point == "nin-c3-lr")
    html = trial._repr_html_()
    Cells(html)
    assert f"{trial.macs:,} MACs (0.539 of the dense network" in html
    assert "parameters, for images of 32×32 pixels in 3 channels, 10 classes" in html
    assert "96 3×1 ‖ 96 1×3" in html and ">192×32×32<" in html and "<polyline" in html


def test_a_trial_shows_its_latency(tmp_path: Path) -> None:
    trial = fill_study(tmp_path, 1, objectives="accuracy,latency", storage=f"journal:{tmp_path / 'journal'}").trials[0]
    assert ", 222,486,528 MACs, 2.225 ms, completed" in repr(trial)
    assert " parameters, 2.225 ms for a batch, for images of 32×32 pixels" in trial._repr_html_()


def test_latency_that_is_only_a_limit_is_shown() -> None:
    proposals = make_proposals(limits=Limits(max_latency=100.0))
    proposals.cost_of = lambda network: cost(network) | {"latency": cost(network)["macs"] / 1e6}
    search = train_some(proposals).study
    assert search.costs == ["macs"]
    for shown in (search, search.trials):
        head, first, *_ = Cells(shown._repr_html_()).rows
        assert head[6:] == ["latency", ""] and first[6] == f"{float(first[3].replace(',', '')) / 1e6:.3f} ms"
    assert list(search.to_pandas()["latency"]) == [trial.macs / 1e6 for trial in search.trials]
    make_finals(search, {"nin-c3-lr": (0.95, 0.96)})
    assert [row[7:] for row in Cells(search._repr_html_()).rows] == [["latency", ""], ["7.417 ms", "front"]]
    without = make_search()
    assert "latency" not in without.to_pandas() and "latency" not in without._repr_html_()


def test_trials_can_be_keys(study: Study) -> None:
    assert {trial: trial.number for trial in study.front()}[study.front()[0]] == study.front()[0].number
    assert set(study.front()) < set(study.trials)


def test_times_are_tables() -> None:
    network = lrnas.get_point("nin-c3").architecture
    layers = [LayerTime("conv1", "192 3x3", 1_000, 2.0, None)]
    base = Profiled("nin", network, "nin", 32, 2_000, 4.0, None, layers)
    small = replace(base, name="small", macs=1_000, forward=1.0, layers=[replace(layers[0], forward=0.5)], spread=0.02)
    conditions = Conditions.here(torch.device("cpu"), 1, threads=1)
    html = Profile(conditions, True, [base, small], 0.5)._repr_html_()
    rows = Cells(html).rows
    assert rows[0] == ["network", "MACs", "share of MACs", "forward", "share of forward time", "compared with"]
    assert rows[2] == ["small", "1,000", "0.500", "1.000 ms", "0.250", "nin"]
    assert rows[-1] == ["conv1", "192 3x3", "1,000", "1.000", "0.500 ms", "0.250"]
    assert "<summary>small, layer by layer, compared with nin</summary>" in html and "1 thread, compiled" in html
    assert "at most 2.0 %" in html and "CPU cores meanwhile: measure again" in html and "disturbed" not in html
    disturbed = replace(small, layers=[replace(layers[0], forward=2.5)])
    html = Profile(conditions, True, [base, disturbed])._repr_html_()
    assert "Together, layers take 2.5 times as long as their network: other programs disturbed" in html
    profile = Profile(
        conditions, True, [replace(base, name="nin, batch norm", baseline="nin, batch norm"), base, small]
    )
    assert repr(profile) == f"<Profile of 'nin, batch norm', 'nin', 'small' for images of 32×32 pixels on {conditions}>"
    title, head, *lines = str(profile).splitlines()
    assert title == f"Times for a batch of images of 32×32 pixels on {conditions}, compiled:"
    assert head.split()[:2] == ["network", "MACs"]
    assert re.split("  +", lines[2]) == ["small", "1,000", "0.500", "1.000 ms", "0.250", "nin"]
    assert lines[3:] == [line for line in profile.lines if "sum of layers" not in line] != profile.lines
    assert f"<b>{title[:-1]}</b>" in html
    large = replace(base, name="large", baseline="large", input_size=64)
    html = Profile(conditions, False, [base, large])._repr_html_()
    assert f"<b>Times for a batch of images of 32×32 or 64×64 pixels on {conditions}</b>" in html
    assert [row[:3] for row in Cells(html).rows[:3]] == [
        ["network", "images", "MACs"], ["nin", "32×32", "2,000"], ["large", "64×64", "2,000"],
    ]  # fmt: skip
    trained = replace(base, training=8.0)
    rows = Cells(Profile(conditions, False, [trained, replace(small, training=4.0)])._repr_html_()).rows
    assert rows[0][5:7] == ["training", "share of training time"] and rows[2][5:7] == ["4.000 ms", "0.500"]


def test_an_export_is_a_table() -> None:
    check = Check("digits", 0.0, 1.0, 63, 64)
    written = Export("n", "onnx", "", {Path("n.onnx"): 1200}, "load <n>", "", check, {"after": 0.002}, "cpu", 8, 2)
    html = written._repr_html_()
    assert Cells(html).rows[1] == ["n.onnx", "1,200 bytes"]
    assert "<p>Checked with digits: outputs differ by 0 at most (largest output 1), 63 of 64 in the same class" in html
    assert "<pre>load &lt;n&gt;</pre>" in html and "fused" not in html
    assert "<pre>load &lt;n&gt;\nrun</pre>" in replace(written, also="run")._repr_html_()
    random = replace(written, origin="random weights", notes=["n has random weights", "checked with <any> images"])
    assert "; random weights; 63 of 64 images" in repr(random)
    assert random._repr_html_().endswith("<p>n: random weights<br>Note: checked with &lt;any&gt; images</p>")
    assert str(random).splitlines() == [
        "n: random weights",
        "Written:  n.onnx, 1,200 bytes",
        f"Checked:  {check}",
        "Takes:    after 2.00 ms for 8 at a time on cpu, 2 threads",
        "Load:     load <n>",
        "Note: checked with <any> images",
    ]
    choice = Choice("conv1", "3x1,2 || 1x3,2", {"composite": 0.002, "dense": 0.001}, "dense")
    network = Choice("whole network", "", {"as trained": 0.004, "dense": 0.003}, "dense")
    fusion = Fusion(torch.nn.Conv2d(1, 1, 3), Folding({"conv1": "norm1"}), [choice], network)
    fused = replace(written, fusion=fusion)
    assert str(fused).startswith(fusion.lines[0])
    assert "n as onnx, fused" in fused._repr_html_() and "n as onnx, fused:" in repr(fused)
    rows = Cells(fused._repr_html_()).rows
    assert rows[2:] == [
        ["layer", "filters", "composite", "dense", "chosen", ""],
        ["conv1", "3x1,2 || 1x3,2", "2.000", "1.000", "dense", ""],
    ]
    assert "The whole network: as trained 4.000 ms, dense 3.000 ms; kept: dense." in fused._repr_html_()
    assert repr(fusion).startswith("<Fusion: 1 batch norms folded") and "Conv2d" not in repr(fusion)
    assert "after: 2.000 ms for 8 at a time on cpu, 2 threads" in html


def test_an_estimate_shows_what_the_command_shows(capsys: pytest.CaptureFixture[str]) -> None:
    estimate = Estimate(
        study="s",
        space="nin",
        num_parameters=3,
        num_points=9,
        networks=(NamedNetwork("nin", True, 2_000, 1.0, 300, ("max_macs",)),),
        data="digits",
        train_images=1_000,
        val_images=200,
        levels=(LevelEstimate("short", 4, 4, 1, 3, 64, 90.0),),
        hardware="a CPU",
        device="cpu",
        at_a_time=2,
        at_a_time_reason="1 of 2 CPU cores each",
        seconds={0: 120.0},
        busy=0.0,
        start_seconds=1.0,
        idle_seconds=120.0,
        device_hours=0.05,
        packing_seconds=5.0,
        gpu_memory=2_000_000,
        image_memory=0,
        disk={"checkpoints": 4_000, "study": 0},
        remarks=("a rest",),
    )
    html = estimate._repr_html_()
    rows = Cells(html).rows
    assert rows[1] == ["nin", "2,000", "1.000", "300", "reference, left out: max_macs"]
    assert rows[3] == ["short", "4", "4", "3", "64", "1 min 30 s"]
    assert "Named networks of the space nin (3 parameters, 9 points), which come first" in html
    assert "CPU-hours: about 360, 5 s of it for packing (the sum of" in str(replace(estimate, device_hours=357.4))
    assert "CPU-hours: less than 0.001, 5 s" in str(replace(estimate, device_hours=7.3e-5))
    print_estimate(estimate)
    printed = capsys.readouterr().out.splitlines()
    for line in (
        "a CPU; 2 at a time on this machine (1 of 2 CPU cores each)",
        "Time: about 2 min 0 s",
        "CPU-hours: about 0.05, 5 s of it for packing "
        "(the sum of the training times, without the time that other programs take)",
        "GPU memory: about 2 MB for each network in training",
        "Disk: about 4 kB (checkpoints 4 kB)",
        "Note: a rest.",
    ):
        assert line in printed and line in html
    assert str(estimate).splitlines() == ["Estimate of s: 4 trainings", *estimate.lines]


def test_trials_that_were_not_trained_are_told_in_words() -> None:
    proposals = make_proposals(limits=Limits(max_macs=5_000_000))
    proposals.enqueue({"nin": SPACE.points["nin"], "lr-x0.25": SPACE.uniform["lr-x0.25"]})
    proposals.ask()
    html = proposals.study._repr_html_()
    assert "trials: 1 beyond a limit, 1 running" in html
    assert "beyond a limit" in proposals.study.trials._repr_html_()
    assert "beyond a limit: beyond max_macs" in proposals.study.trials[0]._repr_html_()
    assert repr(proposals.study.trials[0]).endswith(" MACs, beyond a limit>")


def test_names_are_escaped(study: Study) -> None:
    trial = replace(study.trials[0], point="<script>")
    assert "<script>" not in trial._repr_html_() and "&lt;script&gt;" in lrnas.Trials([trial])._repr_html_()


def test_an_architecture() -> None:
    html = lrnas.get_point("vgg-gmp-lr-join").architecture._repr_html_()
    Cells(html)
    assert "256 3×1 ‖ 256 1×3, then 512 1×1" in html
    cost = lrnas.make_plan(lrnas.get_point("vgg-gmp-lr-join").architecture, deployed=True).cost
    assert f"{cost.macs:,} MACs and {cost.params:,} parameters as deployed" in html
    assert "for images of 224×224 pixels in 3 channels, 1000 classes, the paper&#x27;s sizes" in html
    assert ">cannot vary; 4,096,000 MACs<" in html  # fc8
    assert "lrnas.make_plan(architecture, input_size, num_classes, in_chans, deployed=True).cost" in html
    assert [f">{text}<" in html for text in ("64×224×224", "512×14×14", "1000", "output")] == [True] * 4


def test_pictures_of_layers_are_as_wide_as_their_texts() -> None:
    shapes = {"1x1": 0.2, "kx1": 0.2, "1xk": 0.2, "kxk": 0.4}
    groups = tuple(lrnas.FilterGroup(shape, share) for shape, share in shapes.items())
    html = lrnas.Architecture("vgg11", {"*": lrnas.Allocation("composite", groups, join=1.0)})._repr_html_()
    (width,) = re.findall(r'<svg width="(\d+)"', html)
    ends = [int(x) + 5.5 * len(text) for x, text in re.findall(r'<text x="(\d+)"[^>]*>([^<]*)<', html)]
    assert max(ends) < int(width) < max(ends) + 120


def test_a_conversion() -> None:
    conversion = lrnas.convert(timm.create_model("resnet10t"))
    assert repr(conversion).startswith("<Conversion: ") and len(repr(conversion)) < 100
    rows = Cells(conversion._repr_html_()).rows[1:]
    assert len(rows) == len(conversion.replaced) + len(conversion.left)
    assert rows[-1][-1].startswith("left: ") and "<th>error</th>" not in conversion._repr_html_()
    model = timm.create_model("resnet10t")
    one = lrnas.convert(model, {"layer1.0.conv1": LOW_RANK}, init="pretrained")
    html = one._repr_html_()
    title = "1 convolution replaced, which approximates the old one, 13 left as they were"
    assert str(one).splitlines()[0] == title and f"<b>{title}</b>" in html and repr(one) == f"<Conversion: {title}>"
    head, row, *_ = Cells(html).rows
    assert head[3] == "error" and f"  layer1.0.conv1: {row[1]}, error {row[3]}" in str(one).splitlines()


def test_costs_plans_and_spaces_are_short_and_tables() -> None:
    network = lrnas.get_point("nin-c3-lr").architecture
    plan = lrnas.make_plan(network, 16, 4, deployed=True)
    numbers = f"{plan.cost.macs:,} MACs, {plan.cost.params:,} parameters"
    assert repr(plan.cost) == f"<Cost: {numbers}, 10 layers with MACs>"
    assert repr(plan) == f"<Plan of {plan.canonical_id}, 16×16 pixels, 4 classes: {numbers}>"
    rows = Cells(plan.cost._repr_html_()).rows
    assert rows[0] == ["layer", "kind", "output", "MACs", "share of MACs", "parameters"]
    assert [row[0] for row in rows[1:]] == [layer.name for layer in plan.cost.layers] and rows[1][2] == "192×16×16"
    cost = lrnas.count_model(timm.create_model("resnet50"), 224)
    assert repr(cost) == "<Cost: 4,089,184,256 MACs, 25,557,032 parameters, 54 layers with MACs>"
    assert len(Cells(cost._repr_html_()).rows) == 55
    assert "… 53 layers without MACs, 53,120 parameters" in cost._repr_html_()
    space = lrnas.load_space("nin")
    assert repr(space).startswith(f"<SearchSpace nin, granularity layer: {space.dimension} parameters, ")
    assert len(repr(space)) < 120
    rows = Cells(space._repr_html_()).rows
    assert rows[0] == ["parameter", "values", "layers"] and [row[0] for row in rows[1:]] == [
        one.name for one in space.parameters
    ]
    assert "Named points: nin, nin-c3, nin-c3-lr<br>Uniform networks: " in space._repr_html_()


def test_a_network_that_cannot_be_built_is_shown_as_text() -> None:
    html = lrnas.Architecture("vgg12")._repr_html_()
    assert "Architecture({&quot;version&quot;" in html and "unknown backbone &#x27;vgg12&#x27;; did you mean" in html


def test_errors_are_shown_in_short_and_their_traceback_later() -> None:
    code = "import lrnas\nlrnas.open_study(\n    3)\n"
    linecache.cache["<cell 1>"] = (len(code), None, code.splitlines(keepends=True), "<cell 1>")  # as IPython does
    try:
        exec(compile(code, "<cell 1>", "exec"), {"__name__": "__main__"})
    except LrnasError as error:
        kept, shown = error, error._render_traceback_()
    message = "InvalidArgument: name takes text or a Study or None; got 3; see help(lrnas.open_study)"
    assert shown == ["line 2: lrnas.open_study(", message, "(%tb shows the whole traceback)"]
    assert "_arguments.py" in "".join(kept._render_traceback_())


NOTEBOOK = """
import sys
from types import ModuleType, SimpleNamespace

class ZMQInteractiveShell:
    config = {"IPKernelApp": {}}
    kernel = object()
    events = SimpleNamespace(register=lambda *names: None)

sys.modules["IPython"], sys.modules["ipykernel.zmqshell"] = ModuleType("IPython"), ModuleType("zmqshell")
sys.modules["IPython"].get_ipython = sys.modules["IPython"].version_info = ZMQInteractiveShell
sys.modules["ipywidgets"] = None  # not installed
import lrnas
lrnas.search
"""


def test_a_notebook_gets_no_advice_to_install_widgets() -> None:
    result = subprocess.run([sys.executable, "-c", NOTEBOOK], capture_output=True, text=True, check=True)
    assert result.stderr == ""
