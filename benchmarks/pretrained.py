"""Does a converted network start near the pretrained one? Accuracy after conversion, and after 1 and 5 epochs.

    python benchmarks/pretrained.py --data FOLDER_OF_CIFAR10 --out results/pretrained.json

Networks are trained on CIFAR-10, and their k×k convolutions, except the first, are replaced by mixed-shape layers, with
four starts: "calibrated" and "pretrained" are `convert(…, init="pretrained")` with and without images, "random" has
random weights in the new layers and keeps the rest, and "scratch" has random weights everywhere. Each is trained with
two learning rates. The table has the test accuracy at the learning rate with the better validation accuracy. "scratch"
is also trained for as many epochs as the dense network and the longest fine-tuning together.

Results are added to the file of `--out`; a second run with the same file does only what is missing. Weights of dense
networks are kept in the folder `--weights`.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from common import RESULTS, make_parser, write_result

import lrnas
from lrnas import Allocation, Architecture
from lrnas.recipes import Recipe
from lrnas.training.gpu_sharing import shared_gpus
from lrnas.training.provenance import provenance

START = time.time()
RECIPE = Recipe(batch_size=512, nesterov=True, label_smoothing=0.1, pad=2, clip=2)
LR = 0.5
"""Of the dense networks; networks from scratch are trained with it as well."""
LRS = (0.1, LR)
EPOCHS = (0, 1, 5)
ALLOCATIONS = {
    "half": Allocation.composite(vertical=3 / 8, horizontal=3 / 8, square=1 / 4),
    "third": Allocation.composite(vertical=1 / 2, horizontal=1 / 2),
    "quarter": Allocation.composite(vertical=1 / 2, horizontal=1 / 2, width=1 / 2, join=1),
}
"""Named after their share of the MACs of VGG-11 and ResNet-18."""
NETWORKS = {
    "nin": Architecture("nin", batch_norm=True),
    "vgg11": Architecture("vgg11", pool="max", classifier="linear", batch_norm=True),
    "resnet18": None,
}
STARTS = ("calibrated", "pretrained", "random", "scratch")
NUM_IMAGES = 45_000
NUM_CALIBRATION = 2048

Job = dict[str, Any]
NAMES = ("network", "start", "allocation", "epochs", "lr", "seed", "images", "pretraining")
"""The fields of a job. The allocation is None for dense networks, the learning rate if nothing is trained."""


def make_network(name: str) -> Any:
    """A dense network for images of 32×32 pixels, with random weights, and the path of its first convolution."""
    from lrnas.models.convert import find_convs

    architecture = NETWORKS[name]
    if architecture is not None:
        model = lrnas.create_model(architecture, num_classes=10)
    else:
        import timm
        from torch import nn

        model = timm.create_model(name, num_classes=10)
        model.conv1, model.maxpool = nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.Identity()
    return model, next(iter(find_convs(model)[0]))


def load_data(args: argparse.Namespace) -> Any:
    """CIFAR-10, or for tests a small part of it."""
    from lrnas.data.catalog import load_set
    from lrnas.data.in_memory import ImageSet, Split

    data = load_set("cifar10", args.data)
    if args.images == NUM_IMAGES:
        return data
    parts = ((data.train, args.images), (data.val, args.images // 4), (data.test(), args.images // 4))
    return ImageSet(data.name, data.classes, *(Split(part.images[:n], part.labels[:n]) for part, n in parts))


def prepare_worker(args: argparse.Namespace) -> None:
    """Called once in every worker process."""
    global ARGS, DATA
    import torch

    torch.set_num_threads(1)
    ARGS, DATA = args, load_data(args)


def run_job(job: Job) -> Job:
    """Convert and train a network as a job says; the result has its accuracies, or the error."""
    try:
        return {**job, **_run(job)}
    except NoWeights as error:
        return {**job, "failed": str(error)}
    except Exception:
        if job["start"] == "dense":
            failure_file(ARGS, job).parent.mkdir(parents=True, exist_ok=True)
            failure_file(ARGS, job).touch()
        return {**job, "failed": traceback.format_exc()}


class NoWeights(Exception):
    """The dense network that a job begins with could not be trained."""


def _run(job: Job) -> Job:
    import torch

    from lrnas.models.count import count_model
    from lrnas.training.loop import evaluate, move_model, train

    torch.manual_seed(job["seed"])
    model, first = make_network(job["network"])
    dense = count_model(model, DATA.image_size).macs
    device = torch.device(ARGS.device)
    recipe = RECIPE.changed({"lr": job["lr"] or LR, "epochs": job["epochs"] or 1})
    if len(DATA.train) < 32 * recipe.batch_size:
        recipe = recipe.changed({"batch_size": max(2, len(DATA.train) // 32)})
    if job["start"] not in ("dense", "scratch"):
        while not weights_file(ARGS, job).exists():  # another process makes them
            if failure_file(ARGS, job).exists():
                raise NoWeights("dropped, because its dense network failed")
            time.sleep(0.5)
        model.load_state_dict(torch.load(weights_file(ARGS, job), "cpu", weights_only=True))
    started = time.perf_counter()
    move_model(model, device)
    found: Job = {}
    if job["start"] != "dense":
        allocations = {"*": ALLOCATIONS[job["allocation"]], first: Allocation()}
        near = job["start"] in ("calibrated", "pretrained")
        images = calibration_images(recipe, device) if job["start"] == "calibrated" else []
        report = lrnas.convert(model, allocations, init="pretrained" if near else "composite", calibration=images)
        found["errors"] = {path: round(error, 4) for path, error in report.errors.items()}
        found["convert_seconds"] = round(time.perf_counter() - started, 2)
    found["share_of_macs"] = round(count_model(model, DATA.image_size).macs / dense, 4)
    if job["epochs"]:
        result = train(model, DATA, recipe, seed=job["seed"], device=device)
        found["status"] = result.status
    for name, split in (("val", DATA.val), ("test", DATA.test())):
        found[name] = round(evaluate(model, split, DATA, recipe, device=device)[1], 5)
    if job["start"] == "dense":
        file = weights_file(ARGS, job)
        file.parent.mkdir(parents=True, exist_ok=True)
        torch.save(model.state_dict(), file.with_suffix(".part"))
        file.with_suffix(".part").rename(file)
    return {**found, "seconds": round(time.perf_counter() - started, 2)}


def calibration_images(recipe: Recipe, device: Any) -> list[Any]:
    """Training images in batches, without crops and reflections."""
    from lrnas.data.in_memory import Split

    some = Split(DATA.train.images[:NUM_CALIBRATION], DATA.train.labels[:NUM_CALIBRATION])
    return [part for images, _ in DATA.eval_batches(some, recipe, device, None) for part in images.split(256)]


def weights_file(args: argparse.Namespace, job: Job) -> Path:
    return args.weights / f"{job['network']}-{job['seed']}-{args.images}-{args.pretraining}.pt"


def failure_file(args: argparse.Namespace, job: Job) -> Path:
    """An empty file that tells other processes that there will be no weights."""
    return weights_file(args, job).with_suffix(".failed")


def make_jobs(args: argparse.Namespace) -> list[Job]:
    """All jobs, in an order in which the weights of dense networks are made before they are needed."""
    jobs: list[Job] = []
    for seed in args.seeds:
        for network in args.networks:
            own = {"network": network, "seed": seed, "images": args.images, "pretraining": args.pretraining}
            jobs.append({**own, "start": "dense", "allocation": None, "epochs": args.pretraining, "lr": LR})
            for start, allocation in product(STARTS, ALLOCATIONS):
                own |= {"start": start, "allocation": allocation}
                if start == "scratch":
                    jobs.append({**own, "epochs": args.pretraining + max(EPOCHS), "lr": LR})
                else:
                    jobs.append({**own, "epochs": 0, "lr": None})
                jobs += [{**own, "epochs": epochs, "lr": lr} for epochs, lr in product(EPOCHS[1:], LRS)]
    # dense networks first, because others wait for them; then the rest that needs no weights, long trainings first
    needs_weights = ("calibrated", "pretrained", "random")
    return sorted(
        jobs,
        key=lambda job: (job["seed"], job["start"] != "dense", job["start"] in needs_weights, -job["epochs"]),
    )


def key_of(job: Job) -> str:
    return json.dumps([job[name] for name in NAMES])


def lacks_weights(args: argparse.Namespace, job: Job) -> bool:
    """Whether a job makes the weights of a dense network that other jobs need."""
    return job["start"] == "dense" and not weights_file(args, job).exists()


def run_all(args: argparse.Namespace, jobs: list[Job]) -> Iterator[Job]:
    """Run jobs in several processes; yields their results until the time is over."""
    for job in filter(partial(lacks_weights, args), jobs):
        failure_file(args, job).unlink(missing_ok=True)  # of an earlier run
    context = multiprocessing.get_context("spawn")
    with context.Pool(args.processes, prepare_worker, (args,)) as pool:
        results = pool.imap_unordered(run_job, jobs)
        for _ in jobs:
            try:
                yield results.next(max(1.0, START + args.seconds - time.time()))
            except multiprocessing.TimeoutError:
                print("the time is over; run the same command again for the rest", file=sys.stderr)
                return


def summary(rows: list[Job]) -> str:
    """A table in Markdown: test accuracies, means over seeds."""
    lines = ["| network | share of MACs | start | epochs | test accuracy | n |", "|---|---:|---|---:|---:|---:|"]
    groups: dict[tuple[Any, ...], dict[int, list[Job]]] = {}
    for row in rows:
        key = (row["network"], -row["share_of_macs"], row["start"], row["epochs"])
        groups.setdefault(key, {}).setdefault(row["seed"], []).append(row)
    order = ("dense", *STARTS)
    for key in sorted(groups, key=lambda key: (key[0], key[1], order.index(key[2]), key[3])):
        (network, share, start, epochs), seeds = key, groups[key]
        chosen = [max(same, key=lambda row: row["val"])["test"] for same in seeds.values()]
        deviation = f" ± {100 * statistics.stdev(chosen):.2f}" if len(chosen) > 1 else ""
        mean = f"{100 * statistics.mean(chosen):.2f}{deviation} %"
        lines.append(f"| {network} | {-share:.3f} | {start} | {epochs} | {mean} | {len(chosen)} |")
    return "\n".join(lines)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=["vgg11", "resnet18"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--pretraining", type=int, default=20, help="epochs of the dense networks (default: 20)")
    parser.add_argument("--processes", type=int, default=8, help="trainings at the same time (default: 8)")
    parser.add_argument("--seconds", type=float, default=530, help="time limit (default: 530)")
    parser.add_argument("--data", help="folder with cifar10.npz (default: lrnas's data folder)")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--images", type=int, default=NUM_IMAGES, help="for tests: use only so many training images")
    parser.add_argument("--weights", type=Path, default=Path("build/pretrained"), help="folder for weights")
    parser.add_argument("--out", type=Path, default=RESULTS / "pretrained.json")
    args = parser.parse_args()
    rows: list[Job] = json.loads(args.out.read_text(encoding="utf-8"))["rows"] if args.out.exists() else []
    known = {key_of(row) for row in rows}
    jobs = [job for job in make_jobs(args) if key_of(job) not in known or lacks_weights(args, job)]
    print(f"{len(jobs)} jobs to do", flush=True)
    with shared_gpus() if args.device == "cuda" else nullcontext("no GPU is used") as reason:
        import torch  # noqa: F401  # now the provenance names the GPU

        facts = {"processes": args.processes, "mps": not reason, "recipe": RECIPE.to_dict()}
        for result in run_all(args, jobs):
            name = ", ".join(str(result[part]) for part in NAMES)
            if "failed" in result:
                print(f"failed: {name}\n{result['failed']}", file=sys.stderr)
                continue
            rows = [row for row in rows if key_of(row) != key_of(result)] + [result]
            write_result(args.out, provenance(seeds=args.seeds, n=len(args.seeds), **facts), rows=rows)
            found = f"{100 * result['test']:.2f} %, {result['seconds']} s"
            print(f"{time.time() - START:5.0f} s: {name}: {found}", flush=True)
    print(summary(rows))


if __name__ == "__main__":
    main()
