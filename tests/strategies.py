"""Random architectures for the property tests."""

from __future__ import annotations

from hypothesis import strategies as st

from lrnas.arch.architecture import Allocation, Architecture, FilterGroup
from lrnas.models.plan import make_plan

SHAPES = ("kx1", "1xk", "kxk", "1x1", "3x1", "1x5")


@st.composite
def allocations(draw: st.DrawFn, kernel: int = 3, keeps_width: bool = False) -> Allocation:
    """An allocation for a k×k layer; with `keeps_width`, one that keeps the number of output channels."""
    if kernel == 1:
        return Allocation(width=draw(st.sampled_from((0.25, 0.5, 1.0, 1.5))))
    form = draw(st.sampled_from(("dense", "composite", "composite", "separable")))
    width = 1.0 if keeps_width else draw(st.sampled_from((0.25, 0.5, 0.7, 1.0, 1.5)))
    join = None if form == "separable" else draw(st.sampled_from((None, 1.0) if keeps_width else (None, 0.5, 1.0)))
    if form == "composite":
        parts = draw(st.lists(st.integers(0, 8), min_size=len(SHAPES), max_size=len(SHAPES)).filter(any))
        groups = (FilterGroup(shape, part / sum(parts)) for shape, part in zip(SHAPES, parts, strict=True) if part)
        return Allocation("composite", tuple(groups), width, join)
    middle = draw(st.sampled_from((None, 0.5))) if form == "separable" else None
    return Allocation(form, (), width, join, middle)


@st.composite
def architectures(
    draw: st.DrawFn, backbones: tuple[str, ...] = ("vgg11", "googlenet", "nin", "nin_3x3")
) -> Architecture:
    """A random network of one of the backbones; every layer is drawn independently."""
    backbone = draw(st.sampled_from(backbones))
    layers = {
        conv.name: draw(allocations(conv.kernel))
        for conv in make_plan(Architecture(backbone)).convs
        if draw(st.booleans())
    }
    if draw(st.booleans()):
        layers["*"] = draw(allocations())
    if backbone == "vgg11":
        # pool none has the classifier of 100 million weights: too large to build over and over
        pool = draw(st.sampled_from(("max", "avg")))
        classifier = draw(st.sampled_from((None, "linear", "mlp", "mlp:64")))
    else:
        pool, classifier = draw(st.sampled_from((None, "avg", "max"))), None
    stem_stride = draw(st.sampled_from((None, 1, 2, 4)))
    return Architecture(backbone, layers, pool, stem_stride, draw(st.sampled_from((None, False, True))), classifier)
