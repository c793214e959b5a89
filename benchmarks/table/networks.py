"""The networks of the table, in one fixed order: the paper's points, then random ones, log-uniform in MACs.

    python -m benchmarks.table.networks        # writes results/table/networks.json.xz

The first n of a list cover the whole range of costs for every n: the target MACs follow the golden ratio, between 0.1
and 1 of the dense network's. The paper's points may lie outside. As in a search, the paper's points are as the paper
built them and all other networks in their deployed form; MACs are those of the deployed form, at 32×32.
"""

from __future__ import annotations

import functools
import json
import lzma
import math
import random
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lrnas.arch.architecture import Architecture
from lrnas.errors import LrnasError
from lrnas.models.plan import canonical_id, deployed_form, make_plan
from lrnas.sampling.axes import Axes
from lrnas.searching.proposals import distributions_of, kind_of
from lrnas.spaces.space import SearchSpace, load_space
from lrnas.training.provenance import provenance

FILE = Path(__file__).parents[2] / "results" / "table" / "networks.json.xz"
DENSE = {"nin": "nin", "vgg11": "vgg-gmp"}
"""The spaces, and the point of each that shares of MACs refer to."""
NUMBER = {"nin": 420, "vgg11": 260}
LOWEST, HIGHEST = 0.1, 1.0
SEED = 20261116
UNIFORM_AT = 96
"""Index of the first uniform network of a space: after the networks that are also trained in full."""

Network = dict[str, Any]
"""Space, index, kind (point, seed, random, front), name, id, macs, params (weights), held_out, architecture, values
(of the space's parameters): JSON values.

The kind "seed" is a uniform network of the space.
"""


def is_held_out(index: int) -> bool:
    """Whether a network is used for final figures only."""
    return index % 2 == 1 if 32 <= index < 64 else index >= 64 and index % 4 == 0


@functools.cache
def get_space(name: str) -> SearchSpace:
    return load_space(name, batch_norm=True, divisor=8)


def make_network(
    space: str, architecture: Architecture, kind: str, name: str, index: int, values: dict[str, Any] | None = None
) -> Network:
    """A network of a space.

    Args:
        space: The space.
        architecture: The network as built.
        kind: point, seed, random or front.
        name: Its name.
        index: Its place in the list.
        values: The values of the space's parameters; by default found from the architecture.
    """
    macs, params = _count(architecture)
    values = get_space(space).params_of(architecture) if values is None else values
    return {
        "space": space,
        "index": index,
        "kind": kind,
        "name": name,
        "id": canonical_id(architecture),
        "macs": macs,
        "params": params,
        "held_out": is_held_out(index),
        "architecture": (architecture if kind == "point" else deployed_form(architecture)).to_dict(),
        "values": values,
    }


@functools.cache
def dense_macs(space: str) -> int:
    return _count(get_space(space).points[DENSE[space]])[0]


def _count(architecture: Architecture) -> tuple[int, int]:
    cost = make_plan(architecture, 32, 10, 3, deployed=True).cost
    return cost.macs, cost.params


def draw_networks(name: str, number: int) -> list[Network]:
    """Draw the first networks of a space's list; a longer list begins with the same networks."""
    space, chance, dense = get_space(name), random.Random(SEED), dense_macs(name)
    found = [make_network(name, point, "point", label, i) for i, (label, point) in enumerate(space.points.items())]
    known = {network["id"] for network in found} | {canonical_id(network) for network in space.uniform.values()}
    num_random = 0
    while len(found) < number:
        if len(found) == UNIFORM_AT:
            uniform = enumerate(space.uniform.items(), UNIFORM_AT)
            found += [make_network(name, network, "seed", label, i) for i, (label, network) in uniform]
            continue
        share = LOWEST * (HIGHEST / LOWEST) ** (num_random * 0.6180339887498949 % 1.0)
        values = _draw_at(space, chance, share * dense, known)
        architecture = space.architecture(values)
        found.append(make_network(name, architecture, "random", f"random-{num_random}", len(found), values))
        known.add(found[-1]["id"])
        num_random += 1
    return found


def _draw_at(space: SearchSpace, chance: random.Random, macs: float, known: Collection[str]) -> dict[str, Any]:
    """Draw until a new network has the given MACs to within 4 %."""
    while True:
        try:
            architecture = space.architecture(values := _draw_params(space, chance))
            found = _count(architecture)[0]
        except LrnasError:  # the maps are too small at 32×32
            continue
        if abs(math.log(found / macs)) < 0.04 and canonical_id(architecture) not in known:
            return values


def _draw_params(space: SearchSpace, chance: random.Random) -> dict[str, Any]:
    """Draw a point whose widths scatter around a common level; all other values are equally likely."""
    level = chance.uniform(0.0, 1.0)
    params = {}
    for parameter in space.parameters:
        values, weights = parameter.values, None
        if parameter.name.endswith(".width"):
            low, high = float(min(values)), float(max(values))
            centre, deviation = low + level * (high - low), 0.2 * (high - low)
            weights = [math.exp(-0.5 * ((float(value) - centre) / deviation) ** 2) for value in values]
        params[parameter.name] = chance.choices(values, weights)[0] if weights else chance.choice(values)
    return params


def draw_near_front(
    name: str, results: Sequence[tuple[Network, float]], known: Collection[str], index: int, number: int
) -> list[Network]:
    """Draw new networks by changing those that are at most 0.4 points of accuracy below the front.

    Args:
        name: The space.
        results: Networks with their accuracies.
        known: The ids of all networks that were drawn before.
        index: The index of the first new network.
        number: How many to draw.
    """
    space, dense, chance = get_space(name), dense_macs(name), np.random.default_rng(SEED + index)
    results = [(n, accuracy) for n, accuracy in results if 0.08 * dense <= n["macs"] <= 1.2 * dense]
    parents = [
        network["values"]
        for network, accuracy in results
        if accuracy >= max(other for rival, other in results if rival["macs"] <= network["macs"]) - 0.004
    ]
    axes = Axes(distributions_of(space), kind_of)
    parents = [axes.point(params) for params in parents]
    known, found = set(known), list[Network]()
    for _ in range(1000 * number if parents else 0):
        if len(found) == number:
            break
        try:
            values = axes.params(axes.mutate(parents, chance))
            place = index + len(found)
            network = make_network(name, space.architecture(values), "front", f"front-{place}", place, values)
        except LrnasError:
            continue
        if network["id"] not in known and LOWEST * dense <= network["macs"] <= HIGHEST * dense:
            known.add(network["id"])
            found.append(network)
    return found


@functools.cache
def read_networks() -> dict[str, list[Network]]:
    """The lists of all spaces, as drawn once."""
    return json.loads(lzma.decompress(FILE.read_bytes()))


if __name__ == "__main__":
    lists = {name: draw_networks(name, number) for name, number in NUMBER.items()}
    FILE.parent.mkdir(parents=True, exist_ok=True)
    origin = provenance(command="python -m benchmarks.table.networks", seeds=[SEED], n=sum(NUMBER.values()))
    text = json.dumps({"provenance": origin, **lists}, separators=(",", ":"))
    FILE.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))
    for name, networks in lists.items():
        print(name, len(networks), [round(network["macs"] / dense_macs(name), 2) for network in networks[:32]])
