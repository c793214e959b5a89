"""The command line; some tests run it in a new process."""

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lrnas.cli.main import main, make_parser
from lrnas.models.found import found_networks

HEAVY = ("ray", "torch", "timm", "matplotlib", "pandas", "optuna")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(arguments)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_models_shows_thirteen_exact_and_one_explained(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "models")
    assert code == 0
    assert "13 of 14 networks have exactly the published counts." in out
    assert "vgg-gmp-lr-lde: As printed" in out
    assert "-519,624,720" in out and "6,336,823,656" in out


def test_models_json(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "models", "--json")
    rows = json.loads(out)
    found = [row for row in rows if "found" in row]
    (first,) = (row for row in found if row["name"] == "lrnas-nin-a")
    rows = [row for row in rows if "published" in row]
    assert code == 0 and len(rows) == 14 and {row["name"] for row in found} == found_networks().keys()
    assert first["input"] == 32 and first["macs"] > 0
    assert first["found"] == {"timm": "lrnas_nin_a", "data": "cifar10"}
    exact = [row["name"] for row in rows if row["published"]["difference"] == {"multiply_acc": 0, "params": 0}]
    assert len(exact) == 13 and "vgg-gmp-lr-lde" not in exact


def test_count_json(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "count", "vgg-gmp-lr", "--json")
    data = json.loads(out)
    assert code == 0
    assert {key: data[key] for key in ("name", "input", "num_classes", "macs", "params")} == {
        "name": "vgg-gmp-lr",
        "input": 224,
        "num_classes": 1000,
        "macs": 2_518_122_496,
        "params": 26_054_888,
    }
    assert (data["paper_multiply_acc"], data["paper_params"]) == (2_518_134_440, 26_054_888)
    assert data["published"]["multiply_acc"] == 2_518_134_440
    assert data["published"]["difference"] == {"multiply_acc": 0, "params": 0}
    assert sum(layer["macs"] for layer in data["layers"]) == data["macs"]
    assert sum(layer["params"] for layer in data["layers"]) == data["params"]
    assert data["layers"][0] == {
        "name": "conv1_1",
        "kind": "composite",
        "macs": 28_901_376,
        "params": 640,
        "output": [64, 224, 224],
        "filters": "3x1,32 || 1x3,32",
    }


def test_count_as_deployed_and_as_built(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "count", "vgg-gmp-lr-join", "--json")
    data = json.loads(out)
    saved = 224**2 * (3 * 3 * 64 + 64 * 64 - 3 * 9 * 64)
    assert data["as_built"]["macs"] - data["macs"] == saved
    assert data["as_built"]["folded"] == {"conv1_1": "3x1,32 || 1x3,32 > 1x1,64"}
    assert data["published"]["difference"] == {"multiply_acc": 0, "params": 0}  # as built
    assert data["layers"][0]["filters"] == "3x3,64" and sum(layer["macs"] for layer in data["layers"]) == data["macs"]
    _, out, _ = run(capsys, "count", "vgg-gmp-lr-join")
    assert re.search(f"as deployed +{data['macs']:,} .*\n.*as built +{data['as_built']['macs']:,} ", out)
    assert "A single convolution as deployed: conv1_1 (built as 3x1,32 || 1x3,32 > 1x1,64)." in out
    assert "as built" not in run(capsys, "count", "vgg-gmp-lr")[1]


def test_count_at_another_size_has_nothing_published_to_compare(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "count", "nin", "--input", "32", "--json")
    data = json.loads(out)
    assert data["macs"] == 222_486_528 and "published" not in data
    _, out, _ = run(capsys, "count", "vgg-gmp", "--classes", "10")
    assert "published" not in out and "10 classes" in out


def test_count_file_and_timm(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    file.write_text('{"backbone": "nin", "layers": {"conv1": {"form": "separable"}}}')
    _, out, _ = run(capsys, "count", str(file), "--layers")
    assert "mine, layer by layer" in out and "1x5,192 > 5x1,192" in out
    file.write_text(
        '{"backbone": "nin_3x3", "layers": {"*": {"form": "composite", "shares": {"3x1": 0.5, "1x3": 0.5}}}}'
    )
    _, out, _ = run(capsys, "count", str(file), "--json")
    assert json.loads(out)["published"]["multiply_acc"] == 104_261_834  # it is nin-c3-lr
    odd = tmp_path / "a[red].json"
    odd.write_text('{"backbone": "nin"}')
    assert "a[red], input 30×30" in run(capsys, "count", str(odd))[1]
    assert "vgg16-gmp" in run(capsys, "count", "vgg16_gmp")[1]
    _, out, _ = run(capsys, "count", "timm:resnet18", "--json")
    assert json.loads(out)["macs"] == 1_814_073_344


def test_spaces(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "spaces")
    assert code == 0
    assert re.search(r"nin +nin, nin_3x3 +layer +22 +2.0e17 +3 +7", out)
    code, out, _ = run(capsys, "spaces", "nin", "--granularity", "stage")
    assert code == 0 and "left out: nin-c3\n" in out
    assert re.search(r"block3.cccp.width +1/4 to 3/2 in steps of 1/8 +cccp5", out)
    assert "Filter counts are multiples of 8, as far as the widths of layers allow." in out
    assert "Filter counts" not in run(capsys, "spaces", "nin", "--divisor", "1")[1]
    _, out, _ = run(capsys, "spaces", "--json")
    assert [(space["name"], space["dimension"]) for space in json.loads(out)] == [
        ("googlenet", 33),
        ("googlenet-deep", 31),
        ("googlenet-small", 27),
        ("nin", 22),
        ("nin-deep", 43),
        ("vgg-deep", 27),
        ("vgg11", 28),
    ]
    _, out, _ = run(capsys, "spaces", "nin", "--json")
    assert json.loads(out)["baseline"] == "nin"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot read"),
        ("{", "not valid JSON"),
        ('{"backbone": "vgg11", "version": 99}', "got version 99; upgrade lrnas"),
        ('{"backbone": "vgg11", "pooling": "max"}', "unknown key 'pooling'; did you mean pool?"),
        ('{"a": 1}', "divisor, layers, pool, stem_stride, version (see docs/networks.md for the format)"),
        ('{"backbone": "vgg11", "layers": {"conv1_2": {}}}', "has no layer 'conv1_2'; did you mean"),
        (
            '{"backbone": "vgg11", "layers": {"*": {"form": "composite", "shares": {"kx1": 0.5}}}}',
            "the shares of a layer must sum to 1; got kx1 0.5, sum 0.5",
        ),
        (
            '{"backbone": "vgg11", "layers": {"*": {"form": "composite", "shares": {"kx1": 2}}}}',
            "a share must be from 0 to 1; got 2 for kx1",
        ),
    ],
)
def test_bad_files_get_one_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, content: str | None, message: str
) -> None:
    file = tmp_path / "net.json"
    if content is not None:
        file.write_text(content)
    code, out, err = run(capsys, "count", str(file))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["count", "vgg-gmp-lrr"], "unknown network 'vgg-gmp-lrr'; did you mean vgg-gmp-lr"),
        (["count", "VGG11"], "unknown network 'VGG11'; did you mean vgg11"),
        (["count", "NIN"], "unknown network 'NIN'; did you mean nin"),
        (["count", "resnet50"], "unknown network 'resnet50'; did you mean timm:resnet50? (`lrnas models` lists all"),
        (["search", "--space", "ResNet18", "--budget", "3"], "unknown space 'ResNet18'; did you mean timm:resnet18?"),
        (["export", "resnet18"], "unknown source 'resnet18'; did you mean timm:resnet18?"),
        (["count", "timm:resnet1888"], "'resnet1888'; did you mean resnet18? (timm.list_models() lists all)\n"),
        (["count", "x" * 5000], "unknown network"),
        (["count", "timm:nin_c3"], "nin_c3 is one of lrnas; write nin-c3"),
        (["spaces", "vgg-11"], "unknown space 'vgg-11'; did you mean vgg11?"),
        (["spaces", "missing.toml"], "cannot read missing.toml: No such file or directory"),
        (["spaces", "--divisor", "0"], "divisor must be a whole number from 1 to 64; got 0"),
        (["spaces", "--granularity", "block"], "granularity must be one of network, stage, layer; got 'block'"),
        (["count", "vgg-gmp", "--input", "8"], "choose a larger input"),
        (["count", "vgg-gmp", "--input", "-1"], "the input size must be a whole number above 0; got -1"),
        (["count", "vgg-gmp", "--classes", "0"], "the number of classes must be a whole number above 0; got 0"),
    ],
)
def test_bad_arguments(capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    code, out, err = run(capsys, *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: COMMAND; see `lrnas --help`"),
        (["--foo"], "unknown option '--foo'; known: --version, --help (see `lrnas --help`)"),
        (["serach"], "unknown command 'serach'; did you mean search? (see `lrnas --help`)"),
        (["count"], "the following arguments are required: NETWORK; see `lrnas count --help`"),
        (["data", "folder:x", "--pack", "png"], "--pack takes pixels or jpeg; got 'png'; for example jpeg"),
        (["count", "nin", "--input", "large"], "--input takes a whole number; got 'large'; for example 224"),
        (["retrain", "s", "--seeds", "many"], "--seeds takes a whole number; got 'many'; for example 3"),
        (["search", "nin", "--stem-stride", "x"], "--stem-stride takes a whole number; got 'x'; for example 4"),
        (
            ["search", "nin", "--max-mac", "3M"],
            "unknown option '--max-mac'; did you mean --max-macs? (see `lrnas search",
        ),
        (["search", "--budgt", "3"], "unknown option '--budgt'; did you mean --budget? (see `lrnas search --help`)"),
        (["count", "nin", "--lyers=1"], "unknown option '--lyers'; did you mean --layers? (see `lrnas count --help`)"),
        (["count", "nin", "nin"], "unrecognized arguments: nin; see `lrnas count --help`"),
        (["plot", "pareto", "--out", "x.png", "a", "b"], "unrecognized arguments: b; see `lrnas plot --help`"),
        (["plot", "pareto", "--out", "x.png", "a", "--axes", "b"], "unknown option '--axes'; did you mean --axis?"),
        (
            ["search", "nin", "--num-epochs", "3"],
            "unknown option '--num-epochs'; did you mean --min-epochs or --epochs",
        ),
        (["plot", "parteo"], "unknown picture 'parteo'; did you mean pareto? (see `lrnas plot --help`)"),
        (["retrain", "s", "--trials", "one"], "--trials takes numbers of trials separated by commas; got 'one'"),
    ],
)
def test_usage_errors_get_one_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    code, out, err = run(capsys, *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("lrnas: ") and message in err


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ("plot pareto --out x.png photos", {"picture": "pareto", "name": "photos", "out": Path("x.png")}),
        ("plot --axis params curves --out x.png photos", {"picture": "curves", "name": "photos", "axis": "params"}),
        ("report a --out x b", {"names": ["a", "b"], "out": Path("x")}),
        ("profile nin --batch 1 nin-c3 --no-layers vgg11", {"sources": ["nin", "nin-c3", "vgg11"], "batch": 1}),
        ("figures table1 --out x table2", {"names": ["table1", "table2"]}),
    ],
)
def test_options_may_stand_between_arguments(arguments: str, wanted: dict[str, object]) -> None:
    assert vars(make_parser().parse_args(arguments.split())).items() >= wanted.items()


def test_every_option_says_what_it_does() -> None:
    (commands,) = (action for action in make_parser()._actions if isinstance(action, argparse._SubParsersAction))
    for name, command in commands.choices.items():
        for action in command._actions:
            if action.dest not in ("help", "json"):
                text = action.help or ""
                assert text[0].isupper() or text.startswith(("digits, ", "torch.")), f"{name}: {action.dest}: {text}"
                assert text.endswith("."), f"{name}: {action.dest}: {text}"
                has_default = action.default not in (None, False, [], argparse.SUPPRESS) and action.nargs != 0
                assert "default" in text or not has_default, f"{name}: {action.dest}: {text}"


def test_help_says_which_networks_a_limit_keeps_out(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["search", "--help"])
    words = " ".join(capsys.readouterr().out.split())
    assert "--max-macs N Skip networks with more than N multiply-accumulates, e.g. 120M." in words
    assert "--min-macs N Skip networks with fewer than N multiply-accumulates, e.g. 120M." in words


@pytest.mark.parametrize(
    "arguments",
    [
        *(["--help"], ["models"], ["models", "--json"], ["count", "vgg-gmp-lr"], ["spaces"]),
        *(["export", "nin", "--format", "bogus"], ["profile", "nin", "--dtype", "bogus"]),
        *(["count", "resnet50"], ["search", "--space", "resnet18", "--budget", "3"]),
    ],
)
def test_nothing_heavy_is_imported(arguments: list[str]) -> None:
    code = (
        "import sys\nfrom lrnas.cli.main import main\n"
        f"try: main({arguments!r})\nexcept SystemExit: pass\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stderr.splitlines()[-1] == "[]"


def test_the_script_is_installed_and_survives_a_closed_pipe() -> None:
    command = f"{Path(sys.executable).parent / 'lrnas'} models --json | head -1"
    result = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=True)
    assert result.stdout == "[\n" and result.stderr == ""


def test_control_characters_are_escaped_wherever_they_come_from(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    forged = "a\nlrnas: all is well \x1b[2J.json"
    code, out, err = run(capsys, "count", forged)
    assert (code, out) == (2, "") and err.startswith("lrnas: cannot read a\\nlrnas: all is well \\x1b[2J.json: No such")
    assert err.count("\n") == 1
    (tmp_path / forged).write_text('{"backbone": "nin"}')
    code, out, _ = run(capsys, "count", str(tmp_path / forged))
    assert code == 0 and "\\x1b[2J" in out and "\x1b" not in out
    code, out, err = run(capsys, "studies", "--studies", f"{tmp_path}/\x1b[31m")
    assert code == 0 and "\\x1b[31m" in out and "\x1b" not in out


def test_sigterm_ends_a_command_like_ctrl_c(tmp_path: Path) -> None:
    program = "import os, signal, sys\nfrom lrnas.cli.main import main\nimport lrnas.study.folder as folder\n"
    program += "folder.study_names = lambda _: os.kill(os.getpid(), signal.SIGTERM)\nsys.exit(main())"
    done = subprocess.run([sys.executable, "-c", program, "studies"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (143, "", "lrnas: terminated\n")
