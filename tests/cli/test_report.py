"""`lrnas report`, `lrnas plot` and `lrnas dashboard` on the command line."""

import json
from pathlib import Path

import pytest
from filled_studies import fill_study

from lrnas.cli.main import main


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(arguments)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("studies")
    fill_study(folder, 5, name="<s>")
    fill_study(folder, 0, name="empty")
    return folder


@pytest.mark.slow
@pytest.mark.ci
def test_a_report_is_a_page_and_figures(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    code, out, _ = run(capsys, "report", "<s>", "--studies", str(folder), "--json")
    told = json.loads(out)
    assert code == 0 and told["studies"][0]["study"] == "<s>"
    names = {Path(file).name for file in told["files"]}
    kinds = ("front", "history", "allocation", "curves")  # importances need more than five networks
    assert names == {"report.html", *(f"{kind}.{form}" for kind in kinds for form in ("png", "svg"))}
    assert all(Path(file).parent == folder / "<s>" / "report" and Path(file).stat().st_size for file in told["files"])


@pytest.mark.slow
def test_several_studies_and_an_empty_one(capsys: pytest.CaptureFixture[str], folder: Path, tmp_path: Path) -> None:
    out_folder = tmp_path / "new" / "folder"
    code, out, _ = run(capsys, "report", "<s>", "empty", "--studies", str(folder), "--out", str(out_folder))
    assert code == 0 and "empty has no trained network yet" in out
    assert (out_folder / "report.html").exists() and (out_folder / "curves-<s>.svg").exists()
    code, out, _ = run(capsys, "report", "empty", "--studies", str(folder), "--out", str(tmp_path))
    assert code == 0 and [file.name for file in tmp_path.glob("*.*")] == ["report.html"]


@pytest.mark.parametrize(
    "picture", ["pareto", *(pytest.param(name, marks=pytest.mark.slow) for name in ("history", "allocation", "curves"))]
)
def test_plots(capsys: pytest.CaptureFixture[str], folder: Path, tmp_path: Path, picture: str) -> None:
    file = tmp_path / "figures" / f"{picture}.pdf"
    code, out, _ = run(capsys, "plot", picture, "<s>", "--studies", str(folder), "--out", str(file), "--axis", "params")
    assert (code, out) == (0, f"Written: {file}\n") and file.read_bytes().startswith(b"%PDF")
    code, out, err = run(capsys, "plot", picture, "empty", "--studies", str(folder), "--out", str(file))
    assert (code, out, err.count("\n")) == (2, "", 1) and "let the search run" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["report", "s"], "unknown study 's'"),
        (
            ["report", "<s>", "--axis", "latency"],
            "--axis must be one of macs, params for these studies; got 'latency'",
        ),
        (["report", "<s>", "--storage", "nonsense"], "a storage is a database URL"),
        (["plot", "curves", "<s>", "--out", "x.gif"], "the format of a figure must be png, svg, pdf; got 'x.gif'"),
        (["plot", "curves", "../s"], "must be the name of a folder"),
        (["dashboard", "missing"], "unknown study 'missing'"),
        (["dashboard", "<s>", "--port", "99999"], "cannot use port 99999"),
    ],
)
def test_bad_input_gets_a_line(
    capsys: pytest.CaptureFixture[str], folder: Path, arguments: list[str], message: str
) -> None:
    if "--port" in arguments:
        pytest.importorskip("optuna_dashboard")
    code, out, err = run(capsys, *arguments, "--studies", str(folder))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err


def test_a_folder_that_cannot_be_written(capsys: pytest.CaptureFixture[str], folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code, _, err = run(capsys, "report", "<s>", "--studies", str(folder), "--out", str(tmp_path / "file" / "x"))
    assert code == 2 and "cannot write to" in err and "give another --out" in err


def test_the_only_study_need_not_be_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    where = ["--studies", str(tmp_path)]
    for command in (["front"], ["report"], ["plot", "pareto"], ["dashboard", "--no-browser"]):
        code, out, err = run(capsys, *command, *where)
        assert (code, out) == (2, "") and "there is no study in" in err and "lrnas search --space nin" in err
    code, out, _ = run(capsys, "studies", *where)
    assert (
        code == 0
        and out == f"There are no studies in {tmp_path} yet; begin with `lrnas search --space nin --budget 20`\n"
    )
    assert run(capsys, "studies", *where, "--json")[:2] == (0, "[]\n")
    fill_study(tmp_path, 2, name="one")
    assert "one: the front" in run(capsys, "front", *where)[1]
    code, out, _ = run(capsys, "plot", "pareto", *where)
    assert code == 0 and (tmp_path / "one" / "pareto.pdf").stat().st_size
    url = f"sqlite:///{tmp_path}/one/study.db"
    assert "one: the front" in run(capsys, "front", "--storage", url, "--studies", str(tmp_path / "none"))[1]
    fill_study(tmp_path, 2, name="two")
    code, _, err = run(capsys, "front", *where)
    assert code == 2 and "give one of one, two" in err
