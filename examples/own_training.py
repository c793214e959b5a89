"""Search with your own training code: `python examples/own_training.py`, a few minutes on a CPU.

The function `train` loads its own data, scikit-learn's handwritten digits, and trains with a plain PyTorch loop. To use
it from the command line, run `lrnas search --trainable own_training:train …` in this folder (docs/own_training.md).
"""

import argparse
import functools

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

import lrnas

BATCH_SIZE = 64


@functools.cache  # a worker trains many networks, but loads the images only once
def load_images() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return training images [number, 1, 8, 8] and their classes, then validation images and their classes."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 8 - 1
    labels = torch.tensor(digits.target)
    is_val = torch.arange(len(labels)) % 5 == 0
    return images[~is_val], labels[~is_val], images[is_val], labels[is_val]


def train(model: nn.Module, run: lrnas.Run) -> None:
    images, labels, val_images, val_labels = (tensor.to(run.device) for tensor in load_images())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=5e-4, nesterov=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=run.epochs)
    run.keep(optimizer=optimizer, schedule=schedule)  # saved at every report; restored here after a stop

    for _ in range(run.epochs_done, run.epochs):
        model.train()
        for batch in torch.randperm(len(labels), device=run.device).split(BATCH_SIZE):
            loss = F.cross_entropy(model(images[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        schedule.step()

        model.eval()
        with torch.no_grad():
            logits = model(val_images)
        accuracy = (logits.argmax(1) == val_labels).float().mean()
        run.report(accuracy, loss=F.cross_entropy(logits, val_labels))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget", type=int, default=12, help="networks to train (default: 12)")
    parser.add_argument("--studies", default="studies", help="where the study is kept (default: studies)")
    options = parser.parse_args()
    study = lrnas.search(
        "nin",
        trainable="own_training:train",  # given by name, because workers import this file
        input=(1, 8, 8),
        classes=10,
        epochs=3,
        max_macs="5M",
        budget=options.budget,
        finals=0,  # only short trainings; by default, the best networks are then trained longer
        studies=options.studies,
        name="own-training",
    )
    for trial in study.front():
        print(f"{trial.point or trial.identity}: {100 * (trial.accuracy or 0):.1f} %, {trial.macs:,} MACs")


if __name__ == "__main__":
    main()
