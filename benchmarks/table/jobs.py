"""The trainings of the table: recipes, and lists of jobs in order of priority."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.table.networks import Network, draw_near_front, get_space, make_network, read_networks
from benchmarks.table.records import Record, key_of
from lrnas.recipes import Recipe

BASE = Recipe(epochs=5, batch_size=512, lr=0.5, nesterov=True, label_smoothing=0.1, pad=2)
"""Every recipe is a change of this one. It is written out, so that a change of `fast` does not change the table."""
FULL = "epochs=40 clip=2"
SHORT = (
    "clip=2 weight_decay=1e-3",
    "clip=2 batch_size=256",
    "clip=2 batch_size=128 lr=0.2",
    "clip=2 weight_decay=1e-3 epochs=3",
    "clip=2 batch_size=256 epochs=3",
    "clip=2 batch_size=256 epochs=2",
)
SWEEP = (
    *("", "lr=0.2", "lr=1", "clip=2", "batch_size=256 lr=0.25", "batch_size=1024 lr=1", "pad=4", "weight_decay=1e-3"),
    *("lr=0.1", "batch_size=256", "label_smoothing=0", "warmup=0.1", "lr=1.5", "warmup=0.4", "batch_size=1024"),
    *("nesterov=false", "batch_size=128 lr=0.2"),
)
"""Most important first."""
SWEEP_FULL = {
    "nin": ("epochs=40", "epochs=40 weight_decay=1e-3", "epochs=40 lr=1", FULL),
    # VGG's classifier has no norm: it needs a lower rate, or a limit on the gradient
    "vgg11": ("epochs=40 lr=0.1", "epochs=40 lr=0.2", "epochs=40 clip=2", FULL),
}
SWEEP_POINTS = {"nin": ("nin", "nin-c3-lr"), "vgg11": ("vgg-gmp", "vgg-gmp-lr-join")}

Job = dict[str, Any]
"""The first fields of a record: what, network, recipe, seed, images."""


def make_recipe(text: str, base: Recipe = BASE) -> Recipe:
    """A recipe from changes such as "lr=0.2 clip=2"."""
    return base.changed(dict(change.split("=") for change in text.split()))


def make_job(what: str, network: Network, recipe: Recipe, seed: int, images: int) -> Job:
    return {"what": what, "network": network, "recipe": recipe.to_dict(), "seed": seed, "images": images}


def list_jobs(args: argparse.Namespace) -> list[Job]:
    """The jobs of a command, most important first, each once."""
    jobs: list[Job] = []
    some = in_turn({space: read_networks()[space][slice(*args.range)] for space in args.spaces})
    recipes = {
        "truth": [make_recipe(text, make_recipe(FULL)) for text in args.full],
        "short": [make_recipe(text) for text in args.short],
    }
    for what in args.what:
        if what == "sweep":
            jobs += _sweep_jobs(args.images)
        elif what == "plain":
            jobs += [make_job(what, n, r, 0, args.images) for r in recipes["short"] for n in _plain_points(args.spaces)]
        elif what == "table":
            drawn = in_turn({space: read_networks()[space][:n] for space, n in num_drawn(args.table).items()})
            jobs += [make_job(what, network, recipes["short"][0], 0, args.images) for network in drawn]
        else:
            jobs += [
                make_job(what, n, r, seed, args.images) for r in recipes[what] for seed in args.seeds for n in some
            ]
    return list({key_of(job): job for job in jobs}.values())


def _sweep_jobs(images: int) -> list[Job]:
    networks = {}
    for space, names in SWEEP_POINTS.items():
        points = [next(n for n in read_networks()[space] if n["name"] == name) for name in names]
        drawn = (n for n in read_networks()[space] if n["kind"] == "random")
        networks[space] = [*points, next(n for n in drawn if 0.15 < n["macs"] / points[0]["macs"] < 0.35)]
    full = [
        make_job("sweep", network, make_recipe(text), 0, images)
        for texts in zip(*SWEEP_FULL.values(), strict=True)
        for space, text in zip(SWEEP_FULL, texts, strict=True)
        for network in networks[space][:2]
    ]
    return full + [make_job("sweep", n, make_recipe(text), 0, images) for text in SWEEP for n in in_turn(networks)]


def _plain_points(spaces: Sequence[str]) -> list[Network]:
    """The first points of SWEEP_POINTS without batch norm."""
    found = []
    for space in spaces:
        point = get_space(space).points[SWEEP_POINTS[space][0]]
        plain = dataclasses.replace(point, batch_norm=False)
        found.append(make_network(space, plain, "plain", f"{SWEEP_POINTS[space][0]} without norms", -1, {}))
    return found


def in_turn(lists: Mapping[str, Sequence[Network]]) -> list[Network]:
    """All networks, in an order in which every first part of the list has the same share of each space."""
    placed = [((i + 0.5) / len(some), network) for some in lists.values() for i, network in enumerate(some)]
    return [network for _, network in sorted(placed, key=lambda pair: pair[0])]


def num_drawn(table: Mapping[str, int]) -> dict[str, int]:
    """How many networks of the table come from the fixed lists; the others are near the front."""
    return {space: round(0.7 * number) for space, number in table.items()}


def front_jobs(args: argparse.Namespace, records: Iterable[Record], underway: Sequence[Job]) -> list[Job]:
    """The next networks of the table near the front; asked for when all others have been started.

    Args:
        args: The command's arguments.
        records: All results so far.
        underway: The jobs that are being trained.
    """
    recipe, jobs = make_recipe(args.short[0]), []
    same = [r for r in records if key_of(r) == key_of(make_job("", r["network"], recipe, 0, args.images))]
    for space, total in args.table.items():
        done = [r for r in same if r["network"]["space"] == space]
        front = [r["network"] for r in [*done, *underway] if r["network"]["space"] == space]
        front = [network for network in front if network["kind"] == "front"]
        left = total - num_drawn(args.table)[space] - len(front)
        known = {network["id"] for network in [*read_networks()[space], *front]}
        good = [r for r in done if r["status"] == "completed" and not r["network"]["held_out"]]
        results = [(r["network"], r["curves"]["val"][-1]) for r in good]
        index = len(read_networks()[space]) + len(front)
        new = draw_near_front(space, results, known, index, min(left, 4))
        jobs += [make_job("table", network, recipe, 0, args.images) for network in new]
    return jobs
