"""The paper's networks by name, and what it published about them.

The networks are points of the search spaces (`search_spaces/*.toml`); the published numbers are the
paper's tables (`results/paper/*.csv`).
"""

from __future__ import annotations

import csv
import dataclasses
import tomllib
from dataclasses import dataclass
from functools import cache

from lrnas._resources import PAPER_TABLES, SEARCH_SPACES
from lrnas.arch.architecture import Architecture
from lrnas.arch.backbone_shapes import VGG_STAGES
from lrnas.arch.cost import Convention
from lrnas.errors import UnknownName
from lrnas.models.plan import canonical_id, make_plan


@dataclass(frozen=True, slots=True)
class Table:
    """One of the paper's tables, and how it counts."""

    title: str
    file: str
    input_size: int
    num_classes: int
    baseline: str
    """The network of this family that the others are compared with."""
    data: str
    """What its accuracies were measured on."""
    convention: Convention


@dataclass(frozen=True, slots=True)
class Published:
    """A row of one of the paper's tables."""

    multiply_acc: int
    params: int
    accuracy: float
    """Top-1, one run."""
    top5: float | None


@dataclass(frozen=True, slots=True)
class Counted:
    """A network counted the way its table counts."""

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
    """Another backbone, on whose maps the paper counted it."""
    note: str = ""
    explained: bool = False
    """Whether the published counts are known not to be of the network that the paper describes."""

    def count(self) -> Counted:
        """Count it as its table does: at the paper's input size, in the paper's convention."""
        architecture = self.architecture
        if self.counted_on is not None:
            architecture = dataclasses.replace(architecture, backbone=self.counted_on)
        cost = make_plan(architecture, self.table.input_size, self.table.num_classes).cost
        convention = self.table.convention
        return Counted(cost.paper_multiply_acc(convention), cost.paper_params(convention))


@cache
def paper_points() -> dict[str, Point]:
    """The 14 networks of tables 1, 3 and 4, by name, in the order of the tables."""
    points = {}
    for space in ("vgg11", "googlenet", "nin"):
        data = tomllib.loads((SEARCH_SPACES / f"{space}.toml").read_text(encoding="utf-8"))
        paper = data["paper"]
        convention = Convention(paper.get("auxiliary_macs", False), paper.get("classifier_params", True))
        table = Table(
            title=paper["title"],
            file=paper["table"],
            input_size=paper["input"],
            num_classes=paper["num_classes"],
            baseline=paper["baseline"],
            data=paper["data"],
            convention=convention,
        )
        published = _read_table(table.file)
        for name, entry in data["points"].items():
            extra = {key: entry.pop(key) for key in ("counted_on", "note", "explained") if key in entry}
            architecture = Architecture.from_dict(entry, f"{space}.toml: {name}")
            points[name] = Point(name, architecture, table, published[name], **extra)
    return points


def named_networks() -> dict[str, Architecture]:
    """Every network that has a name: the paper's, and the VGGs with global max pooling."""
    networks = {name: point.architecture for name, point in paper_points().items()}
    for backbone in VGG_STAGES:
        networks[f"{backbone}-gmp"] = Architecture(backbone, pool="max")
        networks[f"{backbone}-bn-gmp"] = Architecture(backbone, pool="max", batch_norm=True)
    return networks


def get_point(name: str) -> Point:
    """A network of the paper by its name, with - or _ between the parts."""
    points = paper_points()
    key = name.replace("_", "-")
    if key not in points:
        raise UnknownName("network", name, points, "; `lrnas models` lists all")
    return points[key]


def find_point(architecture: Architecture) -> Point | None:
    """The network of the paper that an architecture is, under whatever description."""
    wanted = canonical_id(architecture)
    return next((point for point in paper_points().values() if canonical_id(point.architecture) == wanted), None)


def family_table(backbone: str) -> Table | None:
    """The table of the paper that a backbone's networks are in."""
    return next(
        (
            point.table
            for point in paper_points().values()
            if backbone in (point.architecture.backbone, point.counted_on)
        ),
        None,
    )


@cache
def _read_table(file: str) -> dict[str, Published]:
    with (PAPER_TABLES / file).open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    return {
        row["network"]: Published(
            multiply_acc=int(row["multiply_acc"]),
            params=int(row["params"] if "params" in row else row["test_params"]),
            accuracy=float(row["top1"] if "top1" in row else row["accuracy"]),
            top5=float(row["top5"]) if "top5" in row else None,
        )
        for row in rows
    }
