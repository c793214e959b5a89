"""The plan of a network, made from its description: numbers of filters, exact costs and one canonical id.

`make_plan` follows the walk of a backbone (`lrnas.arch.backbone_shapes`) with the allocations of an architecture. It
builds no model, so counting an architecture takes about 0.1 ms. The layers of a `timm:` backbone are read once from the
timm model, which is built without memory for its weights.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lrnas._arguments import checked
from lrnas.arch.architecture import DENSE, Allocation, Architecture, FilterGroup, parse_classifier
from lrnas.arch.backbone_shapes import BACKBONES, Choices, PlannedConv, Step, Walk, smallest_input
from lrnas.arch.cost import Cost, LayerCost, cheapest_form
from lrnas.errors import InvalidArchitecture, UnknownName, closest

if TYPE_CHECKING:
    from lrnas.models.count import Trace

TIMM = "timm:"
_VGG_HIDDEN = 4096
_IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225), "crop_pct": 0.875}
_CIFAR10 = {"mean": (0.4914, 0.4822, 0.4465), "std": (0.2470, 0.2435, 0.2616), "crop_pct": 1.0}
_TIMM_SETTINGS: dict[str, tuple[int, str | tuple[str, ...], dict[str, Any]]] = {
    "vgg": (224, "head.fc", _IMAGENET),
    "googlenet": (224, ("fc", "aux_4a.fc2", "aux_4d.fc2"), _IMAGENET),
    "nin": (32, "cccp6", _CIFAR10),
}
"""For each family of backbones: input size, last layers and normalisation of images, in the form that timm uses."""


@dataclass(frozen=True, slots=True, repr=False)
class Plan:
    """An architecture with whole numbers of filters, at one input size and number of classes."""

    backbone: str
    choices: Choices | None
    """The settings of the whole network; None for a `timm:` backbone, which keeps its own."""
    convs: tuple[PlannedConv, ...]
    """Every convolution that an architecture can change, in order."""
    cost: Cost
    input_size: int
    num_classes: int
    steps: tuple[Step, ...] = ()
    """The parts of the forward pass that take time, in order; empty for a `timm:` backbone."""

    def __repr__(self) -> str:
        size = f"{self.input_size}×{self.input_size} pixels, {self.num_classes} classes"
        return f"<Plan of {self.canonical_id}, {size}: {self.cost.macs:,} MACs, {self.cost.params:,} parameters>"

    @property
    def canonical_id(self) -> str:
        """The id of the network as planned; the function `canonical_id` in this module plans it as deployed."""
        convs = [(conv.path, conv.mix.groups, conv.mix.second, conv.stride) for conv in self.convs]
        facts = [self.backbone, self.choices, convs]
        digest = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:12]
        return f"{self.backbone.removeprefix(TIMM)}-{digest}"


@checked
def make_plan(
    architecture: Architecture,
    input_size: int | None = None,
    num_classes: int | None = None,
    in_chans: int = 3,
    *,
    deployed: bool = False,
) -> Plan:
    """Compute the numbers of filters and the exact cost of every layer, without building the network.

    Args:
        architecture: The network.
        input_size: Rows and columns of the image; by default as in the paper, or as in the timm model.
        num_classes: Number of classes; by default as in the paper, or as in the timm model.
        in_chans: Channels of the image.
        deployed: Whether to plan the network as deployed, that is, every layer in its cheapest exactly equal form (see
            `deployed_form`); by default as it is built.

    Returns:
        The plan, with the filters in `convs` and the cost in `cost`.

    Raises:
        InvalidArchitecture: If the architecture names a layer or a setting that the backbone does not have.

    Example:
        >>> from lrnas import Architecture, make_plan
        >>> plan = make_plan(Architecture("nin"), input_size=32)
        >>> str(plan.convs[0].mix), plan.cost.macs
        ('5x5,192', 222486528)
    """
    backbone, batch_norm = resolve_backbone(architecture)
    size = native_input_size(backbone) if input_size is None else input_size
    num_classes = native_num_classes(backbone) if num_classes is None else num_classes
    for what, value in (("input size", size), ("number of classes", num_classes), ("number of channels", in_chans)):
        if value < 1:
            raise InvalidArchitecture(f"the {what} must be a whole number above 0; got {value!r}")
    size, num_classes, in_chans = int(size), int(num_classes), int(in_chans)  # they may be NumPy's
    if backbone.startswith(TIMM):
        return _plan_timm(architecture, backbone, size, num_classes, in_chans, deployed)
    choices = _resolve_choices(architecture, backbone, batch_norm)
    walk = Walk(architecture, choices, (in_chans, size, size), num_classes, deployed)
    BACKBONES[backbone].walk(walk)
    if unknown := architecture.layers.keys() - walk.used - {"*"}:
        _refuse_layer(min(unknown), [conv.name for conv in walk.convs], walk.costs, backbone)
    return Plan(backbone, choices, tuple(walk.convs), Cost(walk.costs), size, num_classes, tuple(walk.steps))


@checked
def deployed_form(architecture: Architecture, input_size: int | None = None, in_chans: int = 3) -> Architecture:
    """The cheapest network that computes exactly the same: layers are one convolution where that has no more MACs.

    There is no activation between the groups of a composite layer and its join, nor between the halves of a separable
    layer. Both are linear, so together they are one convolution, whose kernel is the smallest that contains the shapes
    of all groups. A separable layer with biases is not exactly one convolution if it pads with zeros, and is kept.

    Args:
        architecture: The network.
        input_size: Rows and columns of the image. It matters only in separable layers with a stride.
        in_chans: Channels of the image.

    Returns:
        The network as deployed; `architecture` itself if no layer changes.

    Example:
        >>> from lrnas import Allocation, Architecture, deployed_form
        >>> wide = Architecture("nin_3x3", {"conv1": Allocation(width=0.75, join=0.5)})
        >>> deployed_form(wide).layers["conv1"]
        Allocation(form='dense', groups=(), width=0.5, join=None, middle=None)
    """
    layers = dict(architecture.layers)
    for conv in folded_convs(architecture, input_size, in_chans):
        key = conv.name if conv.name in layers else conv.path if conv.path in layers else "*"
        layers[conv.name if key == "*" else key] = _fold_allocation(layers[key], conv)
    return architecture if layers == architecture.layers else dataclasses.replace(architecture, layers=layers)


def folded_convs(architecture: Architecture, input_size: int | None = None, in_chans: int = 3) -> list[PlannedConv]:
    """The layers that are one convolution in the deployed form, but not as built; see `deployed_form`."""
    built, deployed = (
        make_plan(architecture, input_size, None, in_chans, deployed=as_deployed).convs for as_deployed in (False, True)
    )
    return [new for old, new in zip(built, deployed, strict=True) if new.mix != old.mix]


def _fold_allocation(allocation: Allocation, folded: PlannedConv) -> Allocation:
    """The allocation of the single convolution that a layer with this allocation is folded into."""
    width = allocation.width if allocation.join is None else allocation.join
    rows, columns, _ = folded.mix.groups[0]
    if rows == columns == folded.kernel:
        return Allocation(width=width)
    shape = "x".join("k" if size == folded.kernel else str(size) for size in (rows, columns))
    return Allocation("composite", (FilterGroup(shape, 1.0),), width)


@checked
def canonical_id(architecture: Architecture, input_size: int | None = None, in_chans: int = 3) -> str:
    """The id of a network as deployed. All descriptions of the same network have the same id.

    Descriptions of a network can differ in the order of layers, in spelling, in shares that are rounded to the same
    numbers of filters, and in layers that are the same convolution as deployed.

    Args:
        architecture: A description of the network.
        input_size: Rows and columns of the image, as in `deployed_form`.
        in_chans: Channels of the image, as in `deployed_form`.

    Returns:
        The backbone and a hash of the filters of every layer in the deployed form, and of the settings of the whole
        network.

    Example:
        >>> from lrnas import Allocation, Architecture, canonical_id
        >>> canonical_id(Architecture("vgg11"))
        'vgg11-7d7a72984580'
        >>> canonical_id(Architecture("vgg11", {"*": Allocation("dense")}, pool="none"))
        'vgg11-7d7a72984580'
        >>> canonical_id(Architecture("vgg11", {"*": Allocation("dense", width=2, join=1)}))
        'vgg11-7d7a72984580'
    """
    return make_plan(architecture, input_size, None, in_chans, deployed=True).canonical_id


def built_id(architecture: Architecture) -> str:
    """The id of a network as built, which decides what weights fit it; `canonical_id` is that of its deployed form."""
    return make_plan(architecture).canonical_id


def native_input_size(backbone: str) -> int:
    """The input size of a backbone in the paper, or of a timm model."""
    return _native_sizes(backbone)[0]


def native_num_classes(backbone: str) -> int:
    """The number of classes of a backbone in the paper, or of a timm model."""
    return _native_sizes(backbone)[1]


def _native_sizes(backbone: str) -> tuple[int, int]:
    if backbone.startswith(TIMM):
        from lrnas.models.count import timm_sizes  # loads torch and timm, which other backbones do not need

        return timm_sizes(backbone.removeprefix(TIMM))
    return BACKBONES[backbone].input_size, BACKBONES[backbone].num_classes


def training_size(backbones: Iterable[str]) -> int:
    """The default size of images from files: the largest input size of the backbones, at least 32."""
    return max(32, *map(native_input_size, backbones))  # NiN is counted on 30×30 crops of 32×32 images


def resolve_backbone(architecture: Architecture) -> tuple[str, bool]:
    """The unique name of the backbone, and whether it has batch norm.

    vgg11_bn is another name of vgg11 with batch norm. The name of a timm model can be outdated, or can have the tag of
    its weights.
    """
    name, batch_norm = architecture.backbone, architecture.batch_norm
    if name.startswith(TIMM):
        name = name.removeprefix(TIMM).split(".")[0]
        if name not in BACKBONES:
            from lrnas.models.count import current_name

            return TIMM + current_name(name), bool(batch_norm)
    elif name.endswith("_bn") and name.removesuffix("_bn") in BACKBONES:
        if batch_norm is False:
            raise InvalidArchitecture(f"{name} has batch norm; got batch_norm false; use {name[:-3]} instead")
        name, batch_norm = name.removesuffix("_bn"), True
    if name not in BACKBONES:
        raise UnknownName("backbone", name, BACKBONES, " (timm:NAME is any CNN of timm)")
    return name, bool(batch_norm)


def names_to_suggest(name: str, known: Iterable[str]) -> list[str]:
    """The names that an error may suggest for an unknown network or space: `known`, or only timm:NAME if that exists.

    The name is looked up in the files of timm, because importing timm takes seconds.
    """
    known, own = list(known), name.lower()
    package = importlib.util.find_spec("timm")
    if own in known or not own.isidentifier() or package is None or package.origin is None:
        return known
    files = (Path(package.origin).parent / "models").glob("*.py")
    is_model = any(f"@register_model\ndef {own}(" in file.read_text(encoding="utf-8") for file in files)
    return [TIMM + own] if is_model else known


def has_norms(backbone: str, batch_norm: bool | None) -> bool:
    """Whether the networks of a backbone have norms: our backbones only with batch norm, models of timm always."""
    return bool(batch_norm) or backbone.startswith(TIMM)


def _resolve_choices(architecture: Architecture, backbone: str, batch_norm: bool) -> Choices:
    own = BACKBONES[backbone]
    pool = architecture.pool or own.pools[0]
    kind, hidden = parse_classifier(architecture.classifier or own.classifiers[0])
    for name, value, known in (("pool", pool, own.pools), ("classifier", kind, own.classifiers)):
        if value not in known:
            raise InvalidArchitecture(f"{name} of {backbone} must be {' or '.join(known)}; got {value!r}; choose one")
    if kind == "mlp" and hidden is None:
        hidden = _VGG_HIDDEN
    if pool == "none" and hidden != _VGG_HIDDEN:
        raise InvalidArchitecture(
            f"{backbone} with pool none must have its classifier mlp:{_VGG_HIDDEN}; got {architecture.classifier!r}; "
            "set pool to max or avg"
        )
    return Choices(pool, architecture.stem_stride or own.stem_stride, batch_norm, kind, hidden)  # type: ignore[arg-type]


def _refuse_layer(name: str, known: Sequence[str], costs: Sequence[LayerCost], backbone: str) -> None:
    """Raise the error for a layer in an architecture that does not exist or cannot be changed."""
    if not any(layer.name == name for layer in costs):
        listed = closest(name, known) or f"; it has {', '.join(known[:6])}, …"
        raise InvalidArchitecture(f"{backbone} has no layer {name!r}{listed}")
    if backbone.startswith(TIMM):
        raise InvalidArchitecture(f"{backbone}: {name} is not a k×k convolution and cannot be changed; remove it")
    raise InvalidArchitecture(
        f"{backbone}: {name} is part of the classifier; set classifier instead, or remove the layer"
    )


def _plan_timm(
    architecture: Architecture,
    backbone: str,
    input_size: int,
    num_classes: int,
    in_chans: int,
    deployed: bool,
) -> Plan:
    from lrnas.models.convert import halves_fold, mix_at, own_mix

    for choice in ("pool", "batch_norm", "classifier"):
        if (value := getattr(architecture, choice)) is not None:
            raise InvalidArchitecture(f"{backbone} keeps its own {choice}; got {value!r}; leave it out")
    trace, layers = trace_of(architecture, input_size, num_classes, in_chans), architecture.layers
    for path in sorted(layers.keys() - trace.sites.keys() - {"*"}):
        if path in trace.left:
            raise InvalidArchitecture(f"{backbone}: {path} cannot be replaced: {trace.left[path]}; remove it")
        _refuse_layer(path, list(trace.sites), trace.costs, backbone)
    allocations = {path: layers.get(path, layers.get("*", DENSE)) for path in trace.sites}
    left_out = tuple(f"{block}." for block, convs in trace.blocks.items() if not allocations[convs[0]].width)
    sites = {path: site for path, site in trace.sites.items() if not path.startswith(left_out)}
    divisor = architecture.divisor or 1
    mixes = {
        path: mix_at(path, site.conv, allocations[path], divisor, can_shrink=path in trace.inner)
        for path, site in sites.items()
    }
    costs = {layer.name: layer for layer in trace.costs if not layer.name.startswith(left_out)}
    in_channels = {path: site.conv.in_channels for path, site in sites.items()}
    for path, layer in trace.inner.items():
        if path in mixes and (width := mixes[path].out_channels) != (before := sites[path].conv.out_channels):
            in_channels |= dict.fromkeys(layer.readers, width)
            costs |= {norm: costs[norm].with_channels(width) for norm in layer.norms if norm in costs}
            costs |= {reader: costs[reader].with_inputs(width, before) for reader in layer.readers}
    convs = []
    for path, site in sites.items():
        mix, channels, own = mixes[path], in_channels[path], site.conv
        if mix.second and deployed:
            mix = cheapest_form(mix, partial(site.macs, in_channels=channels), halves_fold(own))
        if mix != own_mix(own):
            costs[path] = site.cost(costs[path], mix, channels)
        fixed, block = path not in trace.inner, trace.block_of(path)
        convs.append(PlannedConv(path, path, own.kernel_size[0], mix, own.stride[0], channels, fixed, block))
    return Plan(backbone, None, tuple(convs), Cost(tuple(costs.values())), input_size, num_classes)


def trace_of(architecture: Architecture, input_size: int, num_classes: int, in_chans: int = 3) -> Trace:
    """What is known of the backbone of a `timm:` network; see `trace_timm`."""
    from lrnas.models.count import trace_timm

    name = resolve_backbone(architecture)[0].removeprefix(TIMM)
    return trace_timm(name, input_size, num_classes, in_chans, architecture.stem_stride)


def timm_config(architecture: Architecture, input_size: int | None = None) -> dict[str, Any]:
    """timm's `default_cfg` for a network on a backbone of lrnas: its input size, first layer, last layers and so on.

    Args:
        architecture: The network.
        input_size: Rows and columns of images (default: as usual for the backbone).
    """
    backbone = architecture.backbone
    size, classifier, pixels = next(_TIMM_SETTINGS[name] for name in _TIMM_SETTINGS if backbone.startswith(name))
    size = input_size or size
    plan = make_plan(architecture, size)
    stem, last = plan.convs[0], plan.convs[-1].name
    parts = () if stem.mix.is_plain else tuple(f"{stem.path}.conv{group.shape}" for group in stem.mix.groups)
    if isinstance(classifier, tuple):  # GoogLeNet's auxiliary heads
        there = {layer.name for layer in plan.cost.layers}
        classifier = tuple(name for name in classifier if name in there or not name.startswith("aux_"))
    map_size = next(layer.output[1] for layer in plan.cost.layers if layer.name == last)
    if plan.choices and plan.choices.pool == "none":  # VGG's fifth pool
        map_size //= 2
    return {
        "url": "",
        "num_classes": native_num_classes(plan.backbone),
        "input_size": (3, size, size),
        "min_input_size": (3, smallest_input(backbone), smallest_input(backbone)),
        "pool_size": (map_size, map_size),
        "interpolation": "bilinear",
        "first_conv": parts or stem.path,
        "classifier": classifier,
        **pixels,
    }
