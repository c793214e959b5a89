"""The networks of the paper by name, with the published numbers.

The networks are points of the search spaces (`search_spaces/*.toml`); the published numbers are in the paper's tables
(`results/paper/*.csv`).
"""

from __future__ import annotations

import csv
import dataclasses
import tomllib
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from lrnas._arguments import checked
from lrnas._resources import PAPER_TABLES, SEARCH_SPACES
from lrnas.arch.architecture import Architecture
from lrnas.arch.backbone_shapes import NIN_BLOCKS
from lrnas.arch.cost import Convention, Cost
from lrnas.errors import UnknownName
from lrnas.models.found import found_networks
from lrnas.models.plan import built_id, make_plan


@dataclass(frozen=True, slots=True)
class Table:
    """A table of the paper, and its rules of counting."""

    title: str
    file: str
    input_size: int
    num_classes: int
    baseline: str
    """The network with which the other networks of the table are compared."""
    data: str
    """The data set on which its accuracies were measured."""
    convention: Convention


@dataclass(frozen=True, slots=True)
class Published:
    """A row of a table of the paper."""

    multiply_acc: int
    params: int
    accuracy: float
    """Top-1 accuracy of one training."""
    top5: float | None


class Counted(NamedTuple):
    """The counts of a network by the rules of a table of the paper."""

    multiply_acc: int
    params: int


@dataclass(frozen=True, slots=True)
class Point:
    """A network of the paper."""

    name: str
    architecture: Architecture
    table: Table
    published: Published
    counted_on: str | None = None
    """The backbone whose map sizes the paper used for its count; None: the backbone of the architecture."""
    note: str = ""
    explained: bool = False
    """Whether `note` explains why our counts differ from the published counts."""

    def __repr__(self) -> str:
        numbers = f"{self.published.multiply_acc:,} MACs, {self.published.params:,} parameters"
        return f"<Point {self.name}: published {numbers}, {100 * self.published.accuracy:.1f} %>"

    def count(self) -> Counted:
        """Count the network as its table does: with the same input size, classes and convention."""
        architecture = self.architecture
        if self.counted_on is not None:
            architecture = dataclasses.replace(architecture, backbone=self.counted_on)
        cost = make_plan(architecture, self.table.input_size, self.table.num_classes).cost
        return count_as(cost, self.table.convention)


def count_as(cost: Cost, convention: Convention) -> Counted:
    """The counts of a network by the rules of a table of the paper."""
    return Counted(cost.paper_multiply_acc(convention), cost.paper_params(convention))


@cache
def paper_points() -> dict[str, Point]:
    """The 14 networks of tables 1, 3 and 4 of the paper, by name, in the order of the tables."""
    points = {}
    for space in ("vgg11", "googlenet", "nin"):
        data = tomllib.loads((SEARCH_SPACES / f"{space}.toml").read_text(encoding="utf-8"))
        paper = data["paper"]
        convention = Convention(paper.get("auxiliary_macs", False), paper.get("classifier_params", True))
        columns = [paper[key] for key in ("title", "table", "input", "num_classes", "baseline", "data")]
        table = Table(*[*columns, convention])
        published = _read_table(table.file)
        for name, entry in data["points"].items():
            extra = {key: entry.pop(key) for key in ("counted_on", "note", "explained") if key in entry}
            architecture = Architecture.from_dict(entry, f"{space}.toml: {name}")
            points[name] = Point(name, architecture, table, published[name], **extra)
    return points


def named_networks() -> dict[str, Architecture]:
    """All named networks: those of the paper, VGGs with global max pooling, and networks that searches found."""
    networks = {name: point.architecture for name, point in paper_points().items()}
    for backbone in ("vgg11", "vgg13", "vgg16", "vgg19"):
        networks[f"{backbone}-gmp"] = Architecture(backbone, pool="max")
        networks[f"{backbone}-bn-gmp"] = Architecture(backbone, pool="max", batch_norm=True)
    return networks | {name: found.architecture for name, found in found_networks().items()}


@checked
def get_point(name: str) -> Point:
    """Get a network of the paper by its name.

    Args:
        name: The name, with - or _ between its parts; `lrnas models` lists all.

    Returns:
        The network: its architecture, and the numbers that the paper published.

    Raises:
        UnknownName: If the paper has no network with this name.

    Example:
        >>> import lrnas
        >>> point = lrnas.get_point("nin-c3-lr")
        >>> point.architecture.backbone, point.published.params
        ('nin_3x3', 438410)
    """
    points = paper_points()
    key = name.replace("_", "-")
    if key not in points:
        raise UnknownName("network", name, points, " (`lrnas models` lists all)")
    return points[key]


def find_point(architecture: Architecture) -> Point | None:
    """The network of the paper that is the same as an architecture, as built; None if there is none."""
    wanted = built_id(architecture)
    return next((point for point in paper_points().values() if built_id(point.architecture) == wanted), None)


def family_table(backbone: str) -> Table | None:
    """The table of the paper that contains networks of this backbone's family; None if there is none."""
    points = paper_points().values()
    backbone = "nin" if backbone in NIN_BLOCKS else "vgg11" if backbone == "vgg_deep" else backbone
    return next((p.table for p in points if backbone in (p.architecture.backbone, p.counted_on)), None)


def _read_table(file: str) -> dict[str, Published]:
    rows = csv.DictReader((PAPER_TABLES / file).read_text(encoding="utf-8").splitlines())
    return {
        row["network"]: Published(
            multiply_acc=int(row["multiply_acc"]),
            params=int(row["params"] if "params" in row else row["test_params"]),
            accuracy=float(row["top1"] if "top1" in row else row["accuracy"]),
            top5=float(row["top5"]) if "top5" in row else None,
        )
        for row in rows
    }
