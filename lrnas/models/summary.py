"""What `lrnas count` and `lrnas models` tell: a network's cost beside what the paper published."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lrnas.arch.architecture import Architecture
from lrnas.arch.backbone_shapes import BACKBONES
from lrnas.arch.cost import Convention, Cost
from lrnas.errors import UnknownName
from lrnas.models.paper import Counted, Point, family_table, find_point, named_networks, paper_points
from lrnas.models.plan import (
    TIMM,
    Plan,
    canonical_id,
    make_plan,
    native_input_size,
    native_num_classes,
    resolve_backbone,
)


@dataclass(frozen=True, slots=True)
class Summary:
    """A network counted at one input size and number of classes."""

    name: str
    architecture: Architecture
    input_size: int
    num_classes: int
    plan: Plan
    paper: Counted
    """Counted as the paper counts its family."""
    point: Point | None
    """The paper's network that this is, if it is counted under the paper's conditions."""

    @property
    def cost(self) -> Cost:
        return self.plan.cost

    def to_dict(self) -> dict[str, Any]:
        filters = {conv.name: str(conv.mix) for conv in self.plan.convs}
        layers = self.cost.layers_as_dicts()
        for layer in layers:
            layer["filters"] = filters.get(layer["name"])
        data = {
            "name": self.name,
            "id": canonical_id(self.architecture),
            "input": self.input_size,
            "num_classes": self.num_classes,
            "macs": self.cost.macs,
            "params": self.cost.params,
            "paper_multiply_acc": self.paper.multiply_acc,
            "paper_params": self.paper.params,
            "layers": layers,
        }
        if self.point is not None:
            data["published"] = {
                "multiply_acc": self.point.published.multiply_acc,
                "params": self.point.published.params,
                "difference": self.difference(),
                "table": self.point.table.title,
                "note": self.point.note,
            }
        return data

    def difference(self) -> dict[str, int]:
        """Our count, made the paper's way, less the published one."""
        assert self.point is not None
        published = self.point.published
        return {
            "multiply_acc": self.paper.multiply_acc - published.multiply_acc,
            "params": self.paper.params - published.params,
        }


def read_source(source: str) -> tuple[str, Architecture]:
    """A network by name of the paper's or of a backbone, as timm:MODEL, or from a JSON file."""
    if source.startswith(TIMM):
        return source, Architecture(source)
    networks = named_networks()
    if (key := source.replace("_", "-")) in networks:
        return key, networks[key]
    if source.removesuffix("_bn") in BACKBONES:
        return source, Architecture(source)
    if source.endswith(".json") or (len(source) < 1000 and Path(source).is_file()):
        return Path(source).stem, Architecture.load(source)
    known = [*networks, *BACKBONES]
    raise UnknownName("network", source[:80], known, " (`lrnas models` lists all; or give FILE.json or timm:MODEL)")


def summarise(
    name: str, architecture: Architecture, input_size: int | None = None, num_classes: int | None = None
) -> Summary:
    """Count an architecture, by default under the paper's conditions for its backbone."""
    backbone, _ = resolve_backbone(architecture)
    input_size = native_input_size(backbone) if input_size is None else input_size
    num_classes = native_num_classes(backbone) if num_classes is None else num_classes
    plan = make_plan(architecture, input_size, num_classes)
    point = find_point(architecture)
    if point is not None and (input_size, num_classes) != (point.table.input_size, point.table.num_classes):
        point = None
    if point is not None:
        paper = point.count()
    else:
        table = family_table(backbone)
        convention = table.convention if table is not None else Convention()
        paper = Counted(plan.cost.paper_multiply_acc(convention), plan.cost.paper_params(convention))
    return Summary(name, architecture, input_size, num_classes, plan, paper, point)


def summarise_points() -> list[Summary]:
    """Every network of the paper, under the paper's conditions."""
    return [summarise(name, point.architecture) for name, point in paper_points().items()]
