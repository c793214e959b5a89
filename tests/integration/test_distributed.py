"""Searches with several drivers, a PostgreSQL server and a Ray cluster of two nodes, and their failures."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import optuna
import pytest
from optuna.trial import FrozenTrial, TrialState
from pictures import write_set
from searches import SMALL, Search, all_trials, check_rows, descendants, in_training, trials, wait_for
from servers import Postgres, running_cluster, running_postgres

from lrnas.study.ledger import DRIVER
from lrnas.study.storage import open_storage

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_processes_left")]


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    with running_postgres() as server:
        yield server


def test_drivers_that_open_a_new_database_together(tmp_path: Path, postgres: Postgres) -> None:
    url = postgres.create("new")

    def begin(_: int) -> int:
        study = optuna.create_study(
            study_name="s",
            storage=open_storage(url, tmp_path),
            directions=["maximize", "minimize"],
            load_if_exists=True,
        )
        return study._study_id

    with ThreadPoolExecutor(8) as drivers:
        assert len(set(drivers.map(begin, range(8)))) == 1


def test_two_drivers_share_a_study(tmp_path: Path, postgres: Postgres) -> None:
    url = postgres.create("two")
    options = ("--budget", "3", *SMALL, "--storage", url, "--concurrency", "1")
    drivers = [Search(tmp_path, *options, log=f"{i}.txt") for i in range(2)]
    logs = [driver.end() for driver in drivers]
    assert [driver.process.returncode for driver in drivers] == [0, 0], "\n".join(logs)
    check_rows(url, 3)
    signs = optuna.load_study(study_name="s", storage=url).user_attrs
    assert [seen for key, seen in signs.items() if key.startswith(DRIVER)] == [0.0, 0.0]
    assert (tmp_path / "studies/s/front.csv").exists()


def test_another_driver_continues_the_trials_of_a_killed_one(tmp_path: Path, postgres: Postgres) -> None:
    url = postgres.create("killed")
    options = ("--budget", "3", *SMALL, "--storage", url, "--concurrency", "1")
    drivers = [Search(tmp_path, *options, log=f"{i}.txt") for i in range(2)]
    begun = wait_for(url, in_training, drivers[0])
    killed = next(driver for driver in drivers if f":{driver.process.pid}:" in begun.user_attrs["owner"])
    (other,) = (driver for driver in drivers if driver is not killed)
    killed.kill()
    log = other.end()
    assert other.process.returncode == 0, log
    check_rows(url, 3)
    after = all_trials(url)[begun.number].user_attrs
    assert f":{other.process.pid}:" in after["owner"]
    assert after["curve"][: begun.user_attrs["epochs"]] == begun.user_attrs["curve"]


def test_a_database_that_comes_back(tmp_path: Path, postgres: Postgres) -> None:
    url = postgres.create("back")
    search = Search(tmp_path, "--budget", "3", *SMALL, "--storage", url)
    wait_for(url, in_training, search)
    postgres.stop()
    try:
        search.wait_for("cannot be reached (")
        time.sleep(4)
    finally:
        postgres.start()
    log = search.end()
    assert search.process.returncode == 0, log
    assert log.count("cannot be reached (") == log.count("is back after") == 1 and "Traceback" not in log
    check_rows(url, 3)


def test_a_database_that_stays_away(tmp_path: Path, postgres: Postgres) -> None:
    """One error line, exit code 2, no process left; the same command continues."""
    url = postgres.create("away")
    options = ("--budget", "2", *SMALL, "--storage", url, "--concurrency", "1")
    search = Search(tmp_path, *options, LRNAS_PATIENCE="3")
    wait_for(url, lambda rows: [row for row in rows if row.state == TrialState.COMPLETE], search)
    postgres.stop()
    try:
        log = search.end()
        left = descendants(search.process.pid)
    finally:
        postgres.start()
    assert search.process.returncode == 2 and not left, log
    assert log.splitlines()[-1].startswith("lrnas: the storage postgresql") and "Traceback" not in log
    assert "given up after 3 s; nothing is lost: when it is back, the same command continues" in log.splitlines()[-1]
    before = {row.number: row.datetime_complete for row in trials(url) if row.state.is_finished()}
    again = Search(tmp_path, *options)
    log = again.end()
    assert again.process.returncode == 0, log
    check_rows(url, 2)
    after = {row.number: row.datetime_complete for row in trials(url)}
    assert before and {number: after[number] for number in before} == before


def test_a_node_that_goes_away(tmp_path: Path) -> None:
    """Trials run on both nodes of a cluster; when one node fails, the other continues its trial."""
    with running_cluster() as cluster:
        options = ("--budget", "3", *SMALL, "--address", cluster.address)
        search = Search(tmp_path, *options, **cluster.environment)

        def on_the_other(rows: list[FrozenTrial]) -> list[FrozenTrial]:
            return [row for row in in_training(rows) if row.user_attrs["node"].endswith(cluster.other.name)]

        begun = wait_for(tmp_path, on_the_other, search)
        cluster.other.kill()
        log = search.end()
    assert search.process.returncode == 0, log
    assert "a trial was lost (its worker was lost)" in log
    check_rows(tmp_path, 3)
    rows = {row.number: row.user_attrs for row in trials(tmp_path)}
    assert {attributes["node"].rpartition(":")[2] for attributes in rows.values()} >= {cluster.head.name}
    after = rows[begun.number]
    assert after["losses"] == 1 and after["node"].endswith(cluster.head.name)
    assert after["curve"][: begun.user_attrs["epochs"]] == begun.user_attrs["curve"]


def test_a_cluster_without_a_token_is_refused(tmp_path: Path) -> None:
    with running_cluster(mode="disabled") as cluster:
        search = Search(tmp_path, "--budget", "3", *SMALL, "--address", cluster.address, **cluster.environment)
        log = search.end()
    assert search.process.returncode == 2 and not (tmp_path / "studies" / "s").exists()
    assert f"must ask for a token; got {cluster.address} with RAY_AUTH_MODE=disabled; set RAY_AUTH_MODE=token" in log


def test_every_node_packs_the_images_in_its_own_data_folder(tmp_path: Path) -> None:
    images = write_set(tmp_path / "set", {"train": 20, "val": 10}, size=16)
    here, there = tmp_path / "here", tmp_path / "there"
    with running_cluster({"LRNAS_DATA": str(there)}) as cluster:
        options = ("--budget", "2", "--max-macs", "3M", "--epochs", "1", "--data", f"folder:{images}")
        options += ("--image-size", "16", "--address", cluster.address)
        search = Search(tmp_path, *options, **cluster.environment, LRNAS_DATA=str(here))
        log = search.end()
    assert search.process.returncode == 0, log
    nodes = {row.user_attrs["node"].rpartition(":")[2] for row in trials(tmp_path)}
    assert cluster.other.name in nodes
    names = [sorted(file.name for file in (folder / "packs").rglob("*") if file.is_file()) for folder in (here, there)]
    assert names[0] == names[1] != []
