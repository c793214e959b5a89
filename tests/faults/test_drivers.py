"""Several drivers on one study, some of which are killed or have a wrong clock; `make faults` runs them."""

import signal
import sys
from pathlib import Path

import pytest
from aftermath import check_log, check_nothing_lost, signalled
from searches import SMALL, Search
from servers import running_postgres

pytestmark = [pytest.mark.slow, pytest.mark.faults, pytest.mark.usefixtures("no_processes_left")]

DAY = 86_400


def other_clock(seconds: int) -> list[str]:
    """Program of a driver whose clock is ahead."""
    return [sys.executable, str(Path(__file__).with_name("other_clock.py")), str(seconds)]


def run_together(folder: Path, budget: int, storage: str | None, programs: list[list[str] | None]) -> None:
    """Run drivers with these programs, None for `lrnas`, at the same time; check that those not killed succeed."""
    where = ("--storage", storage) if storage else ()
    options = ("--budget", str(budget), *SMALL, "--concurrency", "1", *where)
    drivers = [
        Search(folder, *options, log=f"{i}.txt", **({} if program is None else {"program": program}))
        for i, program in enumerate(programs)
    ]
    for driver in drivers:
        log = driver.end()
        is_killed = any(part.endswith("signalled.py") for part in driver.process.args)
        assert driver.process.returncode == (-signal.SIGKILL if is_killed else 0), log
        check_log(log)


def test_four_drivers_of_which_two_are_killed(tmp_path: Path, scratch: Path) -> None:
    killed = [signalled(point, 1, signal.SIGKILL) for point in ("an epoch is recorded", "half a result is recorded")]
    with running_postgres() as server:
        url = server.create("four")
        run_together(tmp_path, 8, url, [None, None, *killed])
        check_nothing_lost(tmp_path, scratch, 8, url)


def test_two_drivers_on_one_file(tmp_path: Path, scratch: Path) -> None:
    run_together(tmp_path, 4, None, [None, signalled("a network is proposed", 2, signal.SIGKILL)])
    check_nothing_lost(tmp_path, scratch, 4)


def test_drivers_whose_clocks_differ(tmp_path: Path, scratch: Path) -> None:
    run_together(tmp_path, 4, None, [None, other_clock(DAY), other_clock(-DAY)])
    check_nothing_lost(tmp_path, scratch, 4)
