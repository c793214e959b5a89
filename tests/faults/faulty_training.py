"""A training function whose calls fail in turn: see FAULTS. The folder of the search counts the calls."""

import itertools
import os
import time
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

import lrnas

FAULTS = {2: "raises", 3: "returns NaN", 4: "hangs", 6: "takes too much memory"}
"""What goes wrong in the second epoch, by the number of the call; calls 5 and 7 are those that try again."""


def count_call() -> int:
    """The number of this call, over all workers."""
    for number in itertools.count(1):
        try:
            Path(f"call-{number}").touch(exist_ok=False)
        except FileExistsError:
            continue
        return number
    raise AssertionError


def fail(fault: str) -> float:
    if fault == "raises":
        raise ValueError("this network cannot be trained")
    if fault == "hangs":
        time.sleep(1_000_000)
    if fault == "takes too much memory":  # more than its group may have: the kernel kills this process
        Path(os.environ["MEMORY_GROUP"], "cgroup.procs").write_text(str(os.getpid()))
        return len([bytearray(b"1" * 2**24) for _ in range(64)])
    return float("nan")


def train(model: torch.nn.Module, run: lrnas.Run) -> None:
    fault = FAULTS.get(count_call())
    train_normally(model, run, fault)


def train_normally(model: torch.nn.Module, run: lrnas.Run, fault: str | None = None) -> None:
    """Train on a few images, which is the same every time; in the second epoch, fail."""
    torch.set_num_threads(1)
    images, labels = run.data.val.images.permute(0, 3, 1, 2).float()[:64], run.data.val.labels[:64]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(run.keep(optimizer=optimizer), run.epochs):
        if fault is not None and epoch == 1:
            run.report(fail(fault))
        optimizer.zero_grad()
        answers = model(images)
        cross_entropy(answers, labels).backward()
        optimizer.step()
        run.report(float((answers.argmax(1) == labels).float().mean()))
