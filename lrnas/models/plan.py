"""From a description to the network it means: whole filters, exact costs and one canonical id.

`make_plan` follows a backbone's walk (`lrnas.arch.backbone_shapes`) with an architecture's allocations and builds
nothing: counting an architecture this way takes some tens of microseconds. For a `timm:` backbone the
layers are read off the model itself, once, without memory for its weights.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from lrnas.arch.architecture import Architecture, Mix, parse_classifier
from lrnas.arch.backbone_shapes import BACKBONES, Choices, PlannedConv, Step, Walk, check_kernels
from lrnas.arch.cost import Cost, LayerCost
from lrnas.errors import InvalidArchitecture, UnknownName, closest

if TYPE_CHECKING:
    from lrnas.models.count import Trace

TIMM = "timm:"
_VGG_HIDDEN = 4096


@dataclass(frozen=True, slots=True)
class Plan:
    """An architecture made concrete, at one input size and number of classes."""

    backbone: str
    choices: Choices | None
    """None for a `timm:` backbone, which keeps its own."""
    convs: tuple[PlannedConv, ...]
    """Every convolution an architecture may change, in order."""
    cost: Cost
    steps: tuple[Step, ...] = ()
    """What takes time in a forward pass, in order; none for a `timm:` backbone."""


def make_plan(
    architecture: Architecture,
    input_size: int | None = None,
    num_classes: int | None = None,
    in_chans: int = 3,
    *,
    check_fit: bool = True,
) -> Plan:
    """The whole filters and the cost of every layer.

    The input is square; its size and the number of classes are by default the paper's. Kernels larger
    than the backbone's own must fit the maps they meet, unless `check_fit` is off.
    """
    backbone, batch_norm = resolve_backbone(architecture)
    size = native_input_size(backbone) if input_size is None else input_size
    num_classes = native_num_classes(backbone) if num_classes is None else num_classes
    for what, value in (("input size", size), ("number of classes", num_classes), ("in_chans", in_chans)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise InvalidArchitecture(f"the {what} is a whole number above 0; got {value!r}")
    if backbone.startswith(TIMM):
        return _plan_timm(architecture, backbone, size, num_classes, in_chans, check_fit)
    choices = _resolve_choices(architecture, backbone, batch_norm)
    walk = Walk(architecture, choices, (in_chans, size, size), num_classes, check_fit)
    BACKBONES[backbone].walk(walk)
    named = architecture.layers.keys() - {"*"}
    if len(walk.used) < len(named):
        _refuse_unknown_layers(named - walk.used, [conv.name for conv in walk.convs], walk.costs, backbone)
    return Plan(backbone, choices, tuple(walk.convs), Cost(walk.costs), tuple(walk.steps))


def canonical_id(architecture: Architecture) -> str:
    """One id for all descriptions of the same network, whatever their order, spelling and rounding.

    It is taken from the whole filters of every layer and from the choices that concern the whole
    network, so it depends neither on the input size nor on the number of classes.
    """
    plan = make_plan(architecture, check_fit=False)
    facts = [
        plan.backbone,
        plan.choices,
        [(conv.path, conv.mix.groups, conv.mix.second, conv.stride) for conv in plan.convs],
    ]
    digest = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:12]
    return f"{plan.backbone.removeprefix(TIMM)}-{digest}"


def native_input_size(backbone: str) -> int:
    """The input size a backbone is counted at where nobody says otherwise."""
    if backbone.startswith(TIMM):
        from lrnas.models import count as tracing

        return tracing.native_input_size(backbone.removeprefix(TIMM))
    return BACKBONES[backbone].input_size


def training_size(backbones: Iterable[str]) -> int:
    """What images that are read from files are brought to where nobody says: the backbones' own size, 32 at least."""
    return max(32, *map(native_input_size, backbones))  # NiN is counted on crops of 30 out of 32


def native_num_classes(backbone: str) -> int:
    """The number of classes a backbone is counted with where nobody says otherwise."""
    if backbone.startswith(TIMM):
        from lrnas.models import count as tracing

        return tracing.native_num_classes(backbone.removeprefix(TIMM))
    return BACKBONES[backbone].num_classes


def resolve_backbone(architecture: Architecture) -> tuple[str, bool]:
    """The backbone's one name and whether batch norm is on: vgg11_bn is vgg11 with it."""
    name, batch_norm = architecture.backbone, architecture.batch_norm
    if name.startswith(TIMM):
        model = name.removeprefix(TIMM).split(".")[0]  # a tag names weights, not another network
        name = model if model in BACKBONES else _current_timm_name(model)
    elif name.endswith("_bn") and name.removesuffix("_bn") in BACKBONES:
        if batch_norm is False:
            raise InvalidArchitecture(f"{name} has batch norm; got batch_norm false; name {name[:-3]} instead")
        name, batch_norm = name.removesuffix("_bn"), True
    if not name.startswith(TIMM) and name not in BACKBONES:
        raise UnknownName("backbone", name, BACKBONES, " (timm:NAME takes any CNN of timm)")
    return name, bool(batch_norm)


def _resolve_choices(architecture: Architecture, backbone: str, batch_norm: bool) -> Choices:
    own = BACKBONES[backbone]
    pool = architecture.pool or own.pools[0]
    kind, hidden = parse_classifier(architecture.classifier or own.classifiers[0])
    for name, value, known in (("pool", pool, own.pools), ("classifier", kind, own.classifiers)):
        if value not in known:
            raise InvalidArchitecture(f"{backbone} has {name} {' or '.join(known)}; got {value!r}; choose one")
    if pool == "none" and kind == "linear":
        raise InvalidArchitecture(
            f"{backbone} with pool none needs its mlp classifier; got linear; set pool to max or avg"
        )
    if kind == "mlp" and hidden is None:
        hidden = _VGG_HIDDEN
    if pool == "none" and hidden != _VGG_HIDDEN:
        raise InvalidArchitecture(
            f"{backbone} with pool none keeps its {_VGG_HIDDEN} hidden units; got {hidden}; set pool to max or avg"
        )
    stride = architecture.stem_stride or own.stem_stride
    return Choices(pool, stride, batch_norm, kind, hidden)  # type: ignore[arg-type]  # checked above


def _refuse_unknown_layers(unknown: set[str], known: list[str], costs: Sequence[LayerCost], backbone: str) -> None:
    name = min(unknown)
    if any(layer.name == name for layer in costs) and backbone.startswith(TIMM):
        raise InvalidArchitecture(f"{backbone}: {name} is no k×k convolution and stays as it is; remove it")
    if any(layer.name == name for layer in costs):
        raise InvalidArchitecture(
            f"{backbone}: {name} belongs to the classifier and stays as it is; set classifier instead, "
            "or remove the layer"
        )
    listed = closest(name, known) or f"; it has {', '.join(known[:6])}, …"
    raise InvalidArchitecture(f"{backbone} has no layer {name!r}{listed}")


def _plan_timm(
    architecture: Architecture, backbone: str, input_size: int, num_classes: int, in_chans: int, check_fit: bool
) -> Plan:
    for choice in ("pool", "stem_stride", "batch_norm", "classifier"):
        if (value := getattr(architecture, choice)) is not None:
            raise InvalidArchitecture(f"{backbone} keeps its own {choice}; got {value!r}; leave it out")
    trace = _trace(backbone.removeprefix(TIMM), input_size, num_classes, in_chans)
    mixes = _timm_mixes(architecture, trace, backbone)
    for path, mix in mixes.items() if check_fit else ():
        traced = trace.sites[path]
        for call in traced.calls:
            check_kernels(path, mix, traced.site.kernel, call.input[2], call.input[3], input_size)
    costs = []
    for layer in trace.costs:
        chosen = mixes.get(layer.name)
        costs.append(layer if chosen is None else trace.sites[layer.name].cost(layer, chosen))
    convs = tuple(
        PlannedConv(path, path, traced.site.kernel, mixes.get(path, traced.site.own), traced.site.stride[0])
        for path, traced in trace.sites.items()
    )
    return Plan(backbone, None, convs, Cost(costs))


def _current_timm_name(model: str) -> str:
    from lrnas.models import count as tracing  # it needs torch and timm, which our own backbones do without

    return TIMM + tracing.current_name(model)


@lru_cache(maxsize=64)
def _trace(model: str, input_size: int, num_classes: int, in_chans: int) -> Trace:
    from lrnas.models import count as tracing

    return tracing.trace_timm(model, input_size, num_classes, in_chans)


def _timm_mixes(architecture: Architecture, trace: Trace, backbone: str) -> dict[str, Mix]:
    """The filters of every layer that the architecture speaks of."""
    from lrnas.models.convert import mix_at

    layers = architecture.layers
    for path in sorted(layers.keys() - trace.sites.keys() - {"*"}):
        if path in trace.left:
            raise InvalidArchitecture(f"{backbone}: {path} cannot be replaced, {trace.left[path]}; remove it")
        _refuse_unknown_layers({path}, list(trace.sites), trace.costs, backbone)
    chosen = {path: layers.get(path, layers.get("*")) for path in trace.sites}
    return {
        path: mix_at(path, trace.sites[path].site, allocation, architecture.divisor or 1)
        for path, allocation in chosen.items()
        if allocation is not None
    }
