"""Train networks on one GPU with several processes, until all jobs are done or the time is over.

    python -m benchmarks.table.train --what truth short --range 0:64 --seconds 530 --out results/table/new.jsonl

On an H200, 8 processes with CUDA MPS trained 150,000 to 200,000 images/s in all, and once its kernels were compiled a
network was captured as a CUDA graph in 0.2 s. See `benchmarks.table` for the rest.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import signal
import sys
import time
import traceback
from dataclasses import dataclass
from datetime import UTC, datetime
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from benchmarks.table.jobs import SHORT, Job, front_jobs, list_jobs
from benchmarks.table.networks import DENSE
from benchmarks.table.records import Record, append_record, key_of, known_files, read_records
from lrnas.training.gpu_sharing import shared_gpus

START = time.time()
ALL_IMAGES = 45_000
RESERVE = 8.0
"""Seconds before the time limit at which everything ends, so that results can still be copied."""


def work(args: argparse.Namespace, pipe: Connection) -> None:
    """A worker process: trains the jobs that come through the pipe, and sends back records."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    import torch

    from lrnas.models import build  # noqa: F401  # imports timm: before the first job
    from lrnas.training.provenance import provenance

    torch.set_num_threads(1)
    data = load_data(args.data, args.images)
    run = provenance(processes=args.processes, mps=args.mps)
    run["command"] = run["command"].replace("table/train.py", "-m benchmarks.table.train")
    pipe.send(None)
    while True:
        job = pipe.recv()
        try:
            result = train_job(job, data, args.device)
        except Exception:
            pipe.send({**job, "status": "error", "reason": traceback.format_exc()})
            return  # after an error of CUDA nothing works: a new process takes over
        pipe.send({**job, **result, "date": datetime.now(UTC).isoformat(timespec="seconds"), "run": run})
        if args.device == "cuda":
            torch.cuda.empty_cache()


def load_data(folder: str | None, images: int) -> Any:
    """CIFAR-10, or a small part of it for tests: `images` training images, a quarter as many in the other splits."""
    from lrnas.data.catalog import load_set
    from lrnas.data.in_memory import ImageSet, Split

    data = load_set("cifar10", folder)
    if images == ALL_IMAGES:
        return data
    sizes = ((data.train, images), (data.val, images // 4), (data.test(), images // 4))
    splits = [Split(split.images[:number], split.labels[:number]) for split, number in sizes]
    return ImageSet(data.name, data.classes, *splits)


def train_job(job: Job, data: Any, device: str) -> dict[str, Any]:
    """Train one network, and test it if the job is a truth."""
    from lrnas.arch.architecture import Architecture
    from lrnas.recipes import Recipe
    from lrnas.training.job import Job as Training
    from lrnas.training.loop import evaluate, train

    started = time.perf_counter()
    recipe = Recipe(**job["recipe"])
    architecture = Architecture.from_dict(job["network"]["architecture"])
    model = Training(architecture, "cifar10", recipe, job["seed"]).create_model(data)
    result = train(model, data, recipe, seed=job["seed"], device=device)
    found: dict[str, Any] = {"status": result.status, "epochs_done": len(result.curve), "curves": {}}
    for name, field in (("val", "val_accuracy"), ("val_loss", "val_loss"), ("train_loss", "train_loss")):
        values = [getattr(report, field) for report in result.curve]
        found["curves"][name] = [round(value, 5) for value in values if value is not None]
    if job["what"] == "truth" and result.status == "completed":
        found["test_loss"], found["test"] = evaluate(model, data.test(), data, recipe, device=device)
    found["images_per_second"] = round(result.images_per_second)
    return {**found, "seconds": round(time.perf_counter() - started, 2), "micro_batches": result.micro_batches}


def work_of(job: Job) -> float:
    """How much work a job is, in images of a network of about 100 million MACs; only ratios matter."""
    network, recipe = job["network"], job["recipe"]
    per_image = 0.5 + network["macs"] / 2e8 + network["params"] / 1.5e8
    return recipe["epochs"] * job["images"] * per_image * max(1.0, 512 / recipe["batch_size"]) ** 0.5


@dataclass
class Worker:
    process: BaseProcess
    pipe: Connection
    job: Job | None = None
    starting: bool = True


class Driver:
    """Gives jobs to workers and writes down their results."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.end = START + args.seconds - RESERVE
        self.records = {key_of(record): record for record in read_records([*known_files(), args.out])}
        jobs = list_jobs(args)
        self.queue = [job for job in jobs if key_of(job) not in self.records]
        print(f"{len(jobs)} jobs, {len(self.queue)} to do")
        self.pace = 8e-5  # seconds per unit of work: a safe guess, corrected by what is measured
        self.workers: list[Worker] = []
        self.num_started = self.num_finished = 0

    def run(self) -> None:
        with shared_gpus() if self.args.device == "cuda" else contextlib.nullcontext("no GPU is used") as reason:
            if reason:
                print(f"without CUDA MPS: {reason}")
            self.args.mps = not reason
            self.train_all()

    def train_all(self) -> None:
        try:
            for _ in range(self.args.processes):
                self.start_worker()
            while self.workers and time.time() < self.end:
                for pipe in wait([worker.pipe for worker in self.workers], timeout=0.5):
                    self.receive(next(worker for worker in self.workers if worker.pipe is pipe))
                for worker in self.workers:
                    if worker.job is None and not worker.starting:
                        self.give_job(worker)
                if not any(worker.job or worker.starting for worker in self.workers):
                    break
        finally:
            for worker in self.workers:
                worker.process.kill()
                worker.process.join()
            print(f"{self.num_finished} results in {time.time() - START:.0f} s; {len(self.queue)} jobs not started")

    def start_worker(self) -> None:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=work, args=(self.args, theirs), daemon=True)
        process.start()
        theirs.close()
        self.workers.append(Worker(process, ours))
        self.num_started += 1

    def give_job(self, worker: Worker) -> None:
        """Give a worker the first job that ends in time, if there is one."""
        if not self.queue and "table" in self.args.what:
            self.queue += front_jobs(self.args, self.records.values(), [w.job for w in self.workers if w.job])
        left = self.end - time.time()
        job = next((job for job in self.queue if 1 + 1.1 * self.pace * work_of(job) < left), None)
        if job is not None:
            self.queue.remove(job)
            worker.job = job
            with contextlib.suppress(OSError):  # the worker has died: `receive` will see it
                worker.pipe.send(job)

    def receive(self, worker: Worker) -> None:
        """Take what a worker sends. A job that failed is not tried again by this command, but by the next one."""
        try:
            record = worker.pipe.recv()
        except (EOFError, OSError):
            self.workers.remove(worker)
            worker.process.join()
            print(f"a worker ended with code {worker.process.exitcode}; its job: {worker.job and describe(worker.job)}")
            if self.num_started < 3 * self.args.processes:
                self.start_worker()
            return
        worker.job, worker.starting = None, record is not None and record["status"] == "error"
        if record is None:  # the worker is ready
            return
        if record["status"] == "error":
            print(f"failed: {describe(record)}\n{record['reason']}", file=sys.stderr)
        else:
            self.keep(record)

    def keep(self, record: Record) -> None:
        self.records[key_of(record)] = record
        append_record(record, self.args.out)
        self.num_finished += 1
        self.pace += max(0.1, 1 / (1 + self.num_finished)) * (record["seconds"] / work_of(record) - self.pace)
        accuracy = record["curves"]["val"][-1] if record["curves"]["val"] else record.get("test", 0.0)
        print(
            f"{time.time() - START:6.1f} s, {len(self.queue):4d} to start; {describe(record)}: {record['status']}, "
            f"{100 * accuracy:.2f} %, {record['seconds']:.1f} s, {record['images_per_second']} images/s",
            flush=True,
        )


def describe(job: Job) -> str:
    recipe, network = job["recipe"], job["network"]
    settings = f"{recipe['epochs']} epochs, batch {recipe['batch_size']}, lr {recipe['lr']:g}"
    return f"{job['what']} {network['space']} {network['name']}, {settings}, seed {job['seed']}"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    kinds = ("sweep", "plain", "truth", "short", "table")
    add("--what", nargs="+", choices=kinds, required=True, help="what to train, in order of priority")
    add("--out", type=Path, required=True, help="file that results are appended to, one line of JSON each")
    add(
        "--seconds",
        type=float,
        default=530,
        help="time limit; what would not end in time is not started (default: 530)",
    )
    add("--processes", type=int, default=8, help="trainings at the same time (default: 8)")
    add("--range", default="0:32", help="truth and short: networks of each space, by index (default: 0:32)")
    add("--spaces", nargs="+", choices=DENSE, default=list(DENSE), help="truth and short: spaces (default: all)")
    add("--seeds", type=int, nargs="+", default=[0], help="truth and short: seeds (default: 0)")
    add("--full", nargs="+", default=[""], help='truth: recipes, as changes of jobs.FULL, for example "lr=1 clip=0"')
    add(
        "--short", nargs="+", default=SHORT, help="short and plain: recipes, table: one recipe, as changes of jobs.BASE"
    )
    add("--table", default="nin=300,vgg11=150", help="table: networks of each space (default: nin=300,vgg11=150)")
    add("--data", help="folder with cifar10.npz (default: lrnas's data folder)")
    add("--device", default="cuda", help="cuda or cpu (default: cuda)")
    add("--images", type=int, default=ALL_IMAGES, help="for tests: use only so many training images")
    add("--list", action="store_true", help="print the jobs that are left, and end")
    args = parser.parse_args()
    args.range = [int(part) for part in args.range.split(":")]
    args.table = {space: int(number) for space, number in (part.split("=") for part in args.table.split(","))}
    return args


def main() -> None:
    args = parse_arguments()
    driver = Driver(args)
    if args.list:
        print("\n".join(map(describe, driver.queue)))
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped by a signal"))
    driver.run()


if __name__ == "__main__":
    main()
