"""What is recorded when a trial ends. Searches with Ray are in `integration/`."""

from pathlib import Path

import pytest
from optuna.trial import TrialState
from small_studies import make_proposals

from lrnas.errors import UnreadableImages
from lrnas.recipes import Recipe
from lrnas.searching.proposals import Proposal, Proposals
from lrnas.searching.ray_cluster import Workers
from lrnas.searching.ray_tune import _StudySearcher
from lrnas.training.job import Job


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


def test_images_that_cannot_be_read_end_the_search_at_once(tmp_path: Path) -> None:
    """Another attempt would fail, too; the trial waits until the data set is repaired."""
    proposals = make_proposals()
    told: list[str] = []
    searcher = make_searcher(proposals, tmp_path, told)
    assert "task" in searcher.suggest("one")
    reason = "1 of 80 validation images cannot be read, and more than 1% end a run: 3.png; repair or remove them"
    with pytest.raises(UnreadableImages, match=r"3\.png"):
        searcher.on_trial_complete("one", {"status": "unreadable", "reason": reason})
    assert str(searcher.failure) == reason and told == ["started"]
    with pytest.raises(UnreadableImages):
        searcher.suggest("two")
    (trial,) = proposals.study.optuna_trials()
    assert trial.state == TrialState.WAITING and "losses" not in trial.user_attrs
