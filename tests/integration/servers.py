"""A PostgreSQL server and a Ray cluster for the duration of a test."""

import contextlib
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from searches import MARK, commands, descendants


class Postgres:
    """A PostgreSQL server without passwords, except for the user `locked`, with its data in a temporary folder."""

    def __init__(self, programs: Path, folder: Path) -> None:
        self.programs = programs
        self.folder = folder
        self.port = free_port()
        self.user = "postgres" if os.geteuid() == 0 else None
        """User to run it as; PostgreSQL refuses to run as root."""
        self.process: subprocess.Popen[bytes] | None = None
        if self.user:
            shutil.chown(folder, self.user, self.user)
        self._run("initdb", "--auth=trust", "--username=postgres", "--no-sync", f"--pgdata={folder}/data")
        rules = folder / "data" / "pg_hba.conf"
        rules.write_text(f"host all locked 127.0.0.1/32 scram-sha-256\n{rules.read_text()}")

    def _run(self, program: str, *options: str) -> None:
        subprocess.run(
            [self.programs / program, *options], check=True, cwd=self.folder, user=self.user, stdout=subprocess.DEVNULL
        )

    def start(self) -> None:
        options = ["-D", f"{self.folder}/data", "-p", str(self.port), "-k", str(self.folder), "-F", "-h", "127.0.0.1"]
        own = {name: value for name, value in os.environ.items() if name != MARK}  # it lives longer than one test
        with (self.folder / "log.txt").open("a") as log:
            self.process = subprocess.Popen(
                [self.programs / "postgres", *options], cwd=self.folder, user=self.user, env=own, stdout=log, stderr=log
            )
        deadline = time.monotonic() + 30
        while subprocess.run([self.programs / "pg_isready", "-q", *self._where()], check=False).returncode:
            assert time.monotonic() < deadline and self.process.poll() is None, (self.folder / "log.txt").read_text()
            time.sleep(0.05)

    def stop(self) -> None:
        """Stop at once, like a crash."""
        if self.process is not None:
            self.process.send_signal(signal.SIGQUIT)
            self.process.wait(timeout=30)
            self.process = None

    def kill(self) -> None:
        """Kill it, and wait until the processes of its connections have noticed: it could not start again earlier."""
        assert self.process is not None
        connections = descendants(self.process.pid)
        self.process.kill()
        self.process.wait()
        self.process = None
        deadline = time.monotonic() + 30
        while any(Path(f"/proc/{connection}").exists() for connection in connections):
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def connect(self, database: str) -> Any:
        """A connection to a database, in which every statement is a transaction."""
        import psycopg2

        connection = psycopg2.connect(host="127.0.0.1", port=self.port, user="postgres", dbname=database)
        connection.autocommit = True
        return connection

    def create(self, name: str) -> str:
        """Create a database; returns its URL for --storage."""
        self._run("createdb", *self._where(), "--username=postgres", name)
        return f"postgresql+psycopg2://postgres@127.0.0.1:{self.port}/{name}"

    def _where(self) -> list[str]:
        return [f"--host={self.folder}", f"--port={self.port}"]


@contextlib.contextmanager
def running_postgres() -> Iterator[Postgres]:
    """A running server; skips the test if PostgreSQL is not installed."""
    pytest.importorskip("psycopg2")
    found = [Path(program).parent for program in [shutil.which("postgres")] if program]
    found += sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    if not found:
        pytest.skip("no PostgreSQL here")
    folder = Path(tempfile.mkdtemp(prefix="lrnas-"))
    server = None
    try:
        server = Postgres(found[-1], folder)
        server.start()
        yield server
    finally:
        if server is not None:
            server.stop()
        shutil.rmtree(folder)


class Node:
    """One node of a Ray cluster with one CPU, started by `ray start`."""

    def __init__(self, folder: Path, environment: dict[str, str], *options: str) -> None:
        ray = Path(sys.executable).with_name("ray")
        fixed = ["--num-cpus=1", "--num-gpus=0", "--disable-usage-stats", "--block", "--object-store-memory=100000000"]
        self.log = folder / f"node-{time.monotonic_ns()}.txt"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [ray, "start", *fixed, *options], stdout=log, stderr=log, env=os.environ | environment
            )
        deadline = time.monotonic() + 60
        while "Ray runtime started" not in self.log.read_text():
            assert time.monotonic() < deadline and self.process.poll() is None, self.log.read_text()
            time.sleep(0.1)
        (self.raylet, self.name), *_ = (
            (process, found[1][:8])
            for process, command in commands(descendants(self.process.pid)).items()
            if (found := re.search(r"raylet/raylet .*--node_id=(\w+)", command))
        )

    def kill(self) -> None:
        """Kill the node, like a machine that fails."""
        os.kill(self.raylet, signal.SIGKILL)

    def workers(self) -> list[int]:
        """Processes of its workers that train or have trained."""
        found = commands(descendants(self.raylet))
        return [process for process, command in found.items() if "ray::ImplicitFunc" in command]

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


@dataclass
class Cluster:
    """A Ray cluster of one or two nodes, and the environment that is needed to use it."""

    address: str
    environment: dict[str, str]
    head: Node
    other: Node = field(init=False)

    def join(self, environment: Mapping[str, str]) -> None:
        """Start the second node, with environment variables of its own."""
        self.other = Node(self.head.log.parent, self.environment | dict(environment), f"--address={self.address}")


@contextlib.contextmanager
def running_head(mode: str = "token") -> Iterator[Cluster]:
    """A running cluster of one node; another may join.

    Args:
        mode: `token`, so that only this test can use it, or `disabled`.
    """
    environment = {"RAY_AUTH_MODE": mode, "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    folder = Path(tempfile.mkdtemp(prefix="lrnas-"))  # a short path: names of sockets have at most 107 letters
    with contextlib.ExitStack() as ends:
        ends.callback(shutil.rmtree, folder, ignore_errors=True)
        port = free_port()
        alone = ("--include-dashboard=false", f"--temp-dir={folder}")
        head = Node(folder, environment, "--head", f"--port={port}", *alone)
        ends.callback(head.end)
        yield Cluster(f"127.0.0.1:{port}", environment, head)


@contextlib.contextmanager
def running_cluster(of_other: Mapping[str, str] | None = None, mode: str = "token") -> Iterator[Cluster]:
    """A running cluster of two nodes.

    Args:
        of_other: Environment variables of the second node alone.
        mode: As in `running_head`.
    """
    with running_head(mode) as cluster:
        cluster.join(of_other or {})
        try:
            yield cluster
        finally:
            cluster.other.end()


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
