"""The cost of a network, compared with the published numbers, for `lrnas count` and `lrnas models`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lrnas.arch.architecture import Architecture
from lrnas.arch.backbone_shapes import BACKBONES
from lrnas.arch.cost import Convention, Cost
from lrnas.errors import UnknownName
from lrnas.models.found import found_networks
from lrnas.models.paper import Counted, Point, count_as, family_table, find_point, named_networks, paper_points
from lrnas.models.plan import TIMM, Plan, make_plan, names_to_suggest


@dataclass(frozen=True, slots=True)
class Summary:
    """The counts of a network at one input size and number of classes."""

    name: str
    architecture: Architecture
    input_size: int
    num_classes: int
    built: Plan
    """The network as built."""
    deployed: Plan
    """The network as deployed; see `deployed_form`."""
    paper: Counted
    """The counts by the rules of the paper's table for this backbone."""
    point: Point | None
    """The same network in the paper; None if there is none with this input size and number of classes."""

    @property
    def cost(self) -> Cost:
        """The cost of the network as deployed."""
        return self.deployed.cost

    @property
    def folded(self) -> dict[str, str]:
        """The filters as built of each layer that is one convolution in the deployed form, by name."""
        pairs = zip(self.built.convs, self.deployed.convs, strict=True)
        return {built.name: str(built.mix) for built, deployed in pairs if built.mix != deployed.mix}

    def to_dict(self) -> dict[str, Any]:
        """The counts as a JSON object; its layers are those of the network as deployed."""
        filters = {conv.name: str(conv.mix) for conv in self.deployed.convs}
        layers = self.cost.layers_as_dicts()
        for layer in layers:
            layer["filters"] = filters.get(layer["name"])
        data = {
            "name": self.name,
            "id": self.deployed.canonical_id,
            "input": self.input_size,
            "num_classes": self.num_classes,
            "macs": self.cost.macs,
            "params": self.cost.params,
            "as_built": {"macs": self.built.cost.macs, "params": self.built.cost.params, "folded": self.folded},
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
        """The counts of this program minus the published ones, by column."""
        assert self.point is not None
        published = self.point.published
        return {name: value - getattr(published, name) for name, value in self.paper._asdict().items()}


def read_source(source: str) -> tuple[str, Architecture]:
    """Find a network by name or read it from a file.

    Args:
        source: A network of the paper, a backbone, timm:MODEL, or a JSON file.

    Returns:
        The name and the architecture of the network.
    """
    if source.startswith(TIMM):
        return source, Architecture(source)
    networks = named_networks()
    if (key := source.replace("_", "-")) in networks:
        return key, networks[key]
    if source.removesuffix("_bn") in BACKBONES:
        return source, Architecture(source)
    if source.endswith(".json") or (len(source) < 1000 and Path(source).is_file()):
        return Path(source).stem, Architecture.load(source)
    known = names_to_suggest(source, [*networks, *BACKBONES])
    raise UnknownName("network", source[:80], known, " (`lrnas models` lists all; or give FILE.json or timm:MODEL)")


def summarise(
    name: str,
    architecture: Architecture,
    input_size: int | None = None,
    num_classes: int | None = None,
    in_chans: int = 3,
) -> Summary:
    """Count an architecture by our rules and by the rules of the paper.

    Args:
        name: The name to show.
        architecture: The network.
        input_size: Rows and columns of the image; by default as in the paper, in the timm model, or in the training of
            a network that is part of lrnas.
        num_classes: Number of classes; by default the same.
        in_chans: Channels of the image.

    Returns:
        The counts.
    """
    if (found := found_networks().get(name)) is not None:
        input_size = found.config["input_size"][1] if input_size is None else input_size
        num_classes = found.config["num_classes"] if num_classes is None else num_classes
    plan = make_plan(architecture, input_size, num_classes, in_chans)
    deployed = make_plan(architecture, input_size, num_classes, in_chans, deployed=True)
    sizes, point, table = (plan.input_size, plan.num_classes), find_point(architecture), family_table(plan.backbone)
    if point is not None and (*sizes, in_chans) != (point.table.input_size, point.table.num_classes, 3):
        point = None
    convention = Convention() if table is None else table.convention
    paper = count_as(plan.cost, convention) if point is None else point.count()
    return Summary(name, architecture, *sizes, plan, deployed, paper, point)


def summarise_points() -> list[Summary]:
    """The counts of every network of the paper, at the paper's input sizes and numbers of classes."""
    return [summarise(name, point.architecture) for name, point in paper_points().items()]
