"""What people see while a search runs, where there is no terminal."""

import pytest
from small_studies import SPACE, cost, make_study

from lrnas.searching import progress as search_view
from lrnas.searching.events import SearchEvents
from lrnas.searching.progress import _View, watched
from lrnas.searching.retrain import retrain
from lrnas.searching.search import search


def seconds(macs: float) -> float:
    """Of two epochs, on a made-up machine."""
    return 2 * (1 + macs / 1e6)


def test_what_is_trained_is_told_before_anything_ends(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    study = make_study()
    study.manifest["rungs"], study.manifest["recipe"]["epochs"] = [], 3
    study.enqueue({name: SPACE.points[name] for name in ("nin", "nin-c3")})
    view = _View(None)
    view.started(study, 1)
    first, second = study.ask(), study.ask()
    assert first is not None and second is not None
    view.changed("started")
    study.record(first.number, [0.5], 1.0)
    view.changed("epoch")  # too soon for another line
    monkeypatch.setattr(search_view, "QUIET", 0.0)
    view.changed("epoch")
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("s: 1 trial in all, 0 done")
    assert lines[1:] == [
        "training nin, epoch 1 of 3; nin-c3, epoch 1 of 3",
        "training nin, epoch 2 of 3; nin-c3, epoch 1 of 3",
    ]


def test_time_left_is_that_of_the_networks_that_wait() -> None:
    study = make_study()
    study.manifest["rungs"], study.manifest["recipe"]["epochs"] = [], 2
    names = ("nin", "nin-c3", "nin-c3-lr", "dense-x0.5", "lr-x0.25")  # the dearest first, as in a search
    named = {**SPACE.points, **SPACE.seeds}
    study.enqueue({name: named[name] for name in names})
    macs = [cost(named[name])["macs"] for name in names]
    assert study.waiting_macs() == macs
    view = _View(None)
    view.started(study, len(names))
    now = view.begun
    for i in range(4):
        text = view._standing_of(view.study.summary(), now)
        assert ("left" in text) == (i == 3)
        proposal = study.ask()
        assert proposal is not None
        study.record(proposal.number, [0.4, 0.5], seconds(proposal.macs))
        study.complete(proposal.number, 0.5)
        now += seconds(proposal.macs)
    assert f"about {seconds(macs[-1]):.0f} s left" in view._standing_of(view.study.summary(), now)
    proposal = study.ask()
    assert proposal is not None
    study.complete(proposal.number, 0.5)
    assert "left" not in view._standing_of(view.study.summary(), now)


def test_who_calls_from_python_is_told_too(capsys: pytest.CaptureFixture[str]) -> None:
    @watched
    def run(*, events: SearchEvents | None = None, progress: bool = True) -> None:
        (events or SearchEvents()).say("under way")

    class Own(SearchEvents):
        def say(self, line: str) -> None:
            print(line)

    run()
    assert capsys.readouterr() == ("", "under way\n")
    run(progress=False)
    assert capsys.readouterr() == ("", "")
    run(events=Own())
    assert capsys.readouterr() == ("under way\n", "")
    assert all(hasattr(function, "__wrapped__") for function in (search, retrain))
