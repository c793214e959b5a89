"""Images per second of a study."""

from datetime import datetime, timedelta

import optuna
import pytest
from optuna.trial import FrozenTrial
from small_studies import SPACE, make_proposals

from lrnas.searching.proposals import Proposals
from lrnas.study.throughput import measure_throughput

BEGIN = datetime(2026, 1, 1)


def trial(start: float, end: float | None, images: int, **attributes: float) -> FrozenTrial:
    found = optuna.trial.create_trial(value=0.0, user_attrs={"images": images, **attributes})
    found.datetime_start = BEGIN + timedelta(seconds=start)
    found.datetime_complete = None if end is None else BEGIN + timedelta(seconds=end)
    return found


def test_time_counts_once_however_many_trials_are_in_training() -> None:
    trials = [trial(0, 10, 400), trial(5, 12, 300), trial(6, 9, 100), trial(100, 104, 160)]  # and a pause
    found = measure_throughput(trials)
    assert found is not None and found.seconds == 16 and found.images_per_second == 960 / 16
    assert str(found) == "60 images/s"


def test_trials_in_training_count_until_their_last_epoch_and_earlier_ones_may_be_left_out() -> None:
    trials = [trial(0, 10, 400), trial(20, None, 50, seconds=4.0)]
    for later in (25, 1000):  # a trial that was stopped does not become slower while it waits
        found = measure_throughput(trials, since=BEGIN + timedelta(seconds=15), now=BEGIN + timedelta(seconds=later))
        assert found is not None and (found.images, found.seconds) == (50, 4)


def test_how_busy_a_gpu_was_is_weighted_by_images() -> None:
    found = measure_throughput([trial(0, 10, 3000, gpu_busy=1.0), trial(0, 10, 1000, gpu_busy=0.6)])
    assert found is not None and str(found) == "400 images/s, GPU 90 % busy"


def test_without_images_there_is_no_throughput() -> None:
    waiting = trial(0, None, 100)
    waiting.datetime_start = None
    assert measure_throughput([trial(0, 10, 0), waiting]) is None


def test_only_what_the_last_worker_trained_counts() -> None:
    """If a trial is continued, its time begins anew, so that images of earlier workers must not count."""
    proposals = make_proposals()
    proposals.enqueue({"nin": SPACE.points["nin"]})

    def measured(proposals: Proposals) -> tuple[int, float] | None:
        found = measure_throughput(proposals.study.optuna_trials(), now=datetime.now() + timedelta(seconds=1000))
        return None if found is None else (found.images, found.seconds)

    proposal = proposals.ask()
    assert proposal is not None
    proposals.ledger.report_epoch(proposal.number, [0.5], 10.0, images=1000)
    assert measured(proposals) == (1000, pytest.approx(10.0))
    proposals.ledger.release(proposal.number)
    proposal = proposals.ask()
    assert proposal is not None and measured(proposals) is None
    proposals.ledger.report_epoch(proposal.number, [0.5, 0.6], 14.0, images=500)
    assert measured(proposals) == (500, pytest.approx(4.0))


def test_networks_taken_over_from_another_study_do_not_count() -> None:
    assert measure_throughput([trial(0, 0, 1000, imported_from=0)]) is None
    found = measure_throughput([trial(0, 10, 400), trial(3, 3, 1000, imported_from=0)])
    assert found is not None and found.images_per_second == 40
