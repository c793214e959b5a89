"""Who trains: what the command line and callers from Python may say of workers."""

from typing import Any

import pytest

import lrnas
from lrnas.cli.main import main
from lrnas.errors import LrnasError
from lrnas.searching.ray_cluster import Workers, pick_workers

SEARCH = ["search", "--space", "nin", "--budget", "1"]
RETRAIN = ["retrain", "nin-digits"]


@pytest.mark.parametrize("command", [SEARCH, RETRAIN])
def test_every_option_reaches_the_workers(command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    picked = []

    def pick(*args: Any, **kwargs: Any) -> None:
        picked.append(pick_workers(*args, **kwargs))
        raise LrnasError("no more is needed")

    monkeypatch.setattr(f"lrnas.searching.{command[0]}.pick_workers", pick)
    given = ["--cpus-per-trial", "2", "--gpus-per-trial", "0.5", "--concurrency", "3", "--address", "head:6379"]
    assert main([*command, "--gpus-per-trial", "0"]) == main([*command, *given]) == 2
    assert picked == [Workers(), Workers(2, 0.5, 3, "head:6379")]


@pytest.mark.parametrize("option", ["--cpus-per-trial=0", "--gpus-per-trial=-1", "--concurrency=0"])
@pytest.mark.parametrize("command", [SEARCH, RETRAIN])
def test_impossible_workers(command: list[str], option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command, option]) == 2
    assert "a trial takes some CPU, no less than no GPU, and at least one is trained" in capsys.readouterr().err


def test_from_python_the_options_are_keywords() -> None:
    with pytest.raises(LrnasError, match="got 1, 0 and -1"):
        lrnas.search("nin", budget=1, gpus_per_trial=0, concurrency=-1)
    with pytest.raises(LrnasError, match=r"unknown setting 'concurency'; did you mean concurrency\?"):
        lrnas.search("nin", budget=1, concurency=1)
