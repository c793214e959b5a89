"""Pictures of filters: those of each shape beside the k×k filters that come of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib import colormaps

from lrnas.exporting.sample_inputs import find_inputs
from lrnas.exporting.sources import Source
from lrnas.reporting.figures.filters import FilterSet, LayerFilters, Pictures, mixed_layers, read_filters, to_pictures
from lrnas.reporting.figures.style import (
    COARSE,
    add_footer,
    check_format,
    fit_text,
    make_figure,
    plain_text,
    save_figure,
)

WEIGHT, GAP = 4, 3
"""Pixels of a weight, and between filters."""
SIGNED = colormaps["RdBu_r"]


@dataclass(frozen=True)
class FilterFigure:
    """What was drawn of a network."""

    source: Source
    layer: LayerFilters
    pictures: tuple[Pictures, ...]
    layers: tuple[str, ...]
    """All that could be drawn."""
    file: Path

    @property
    def is_trained(self) -> bool:
        return self.source.weights is not None

    def to_dict(self) -> dict[str, Any]:
        remarks = [{"learned": each.learned, "remark": each.remark} for each in self.layer.sets]
        sets = [{**own.to_dict(), **more} for own, more in zip(self.pictures, remarks, strict=True)]
        return {
            "name": self.source.name,
            "origin": self.source.origin,
            "trained": self.is_trained,
            "layer": self.layer.name,
            "path": self.layer.path,
            "sets": sets,
            "remark": self.layer.remark,
            "layers": list(self.layers),
            "file": str(self.file),
        }


def draw_filters(
    source: Source, layer: str | None = None, out: Path | None = None, *, number: int = 64, show: str | None = None
) -> FilterFigure:
    """Draw the filters of a layer of a network, the first mixed-shape one if none is named."""
    if out is not None:
        check_format(out)
    model, channels = source.create_model()
    rows, columns = model.pretrained_cfg["input_size"][1:]  # type: ignore[index]
    images = find_inputs(source, None, (channels, rows, columns), None, None).images[:1]
    found = read_filters(model, layer, images)
    pictures = tuple(_pictures(each, found, number, show) for each in found.sets)
    file = out or Path("figures") / f"{source.name}-{found.name}.png"
    _draw(source, found, pictures, file)
    return FilterFigure(source, found, pictures, tuple(mixed_layers(model)), file)


def _pictures(filters: FilterSet, layer: LayerFilters, number: int, show: str | None) -> Pictures:
    own = filters.kernels.shape[1] == layer.channels  # the second half of a separable layer has others
    return to_pictures(filters, number, show if own else None)


def _draw(source: Source, layer: LayerFilters, pictures: tuple[Pictures, ...], file: Path) -> None:
    sheets = [_sheet(each) for each in pictures]
    widths = [sheet.shape[1] for sheet in sheets]
    height = max(sheet.shape[0] for sheet in sheets)
    scale = 10 / sum(widths)
    figure = make_figure(10 + 0.2 * len(sheets), min(max(scale * height, 1.5), 8) + 1.6, COARSE)
    panels = figure.subplots(1, len(sheets), width_ratios=widths, squeeze=False)[0]
    for axes, sheet, each, filters in zip(panels, sheets, pictures, layer.sets, strict=True):
        axes.imshow(sheet, interpolation="nearest")
        axes.set_axis_off()
        axes.set_anchor("N")
        axes.set_title(plain_text(_title(each, filters)), fontsize=9)
    weights = source.origin if source.weights is not None else f"NOT TRAINED: {source.origin}"
    title = fit_text(f"{source.name}, {layer.name}\n{weights}", figure.get_figwidth(), 10)
    figure.suptitle(title, fontsize=10)
    add_footer(figure, _explained(layer, pictures))
    save_figure(figure, file)


def _title(pictures: Pictures, filters: FilterSet) -> str:
    number = len(pictures.values)
    drawn = f"{number} filters" if number == pictures.total else f"the strongest {number} of {pictures.total} filters"
    return f"{filters.label}: {drawn}"


def _explained(layer: LayerFilters, pictures: tuple[Pictures, ...]) -> list[str]:
    """What one sees."""
    lines = [f"{each.label}: {each.remark}." for each in layer.sets if each.remark]
    if layer.remark:
        lines.append(f"{layer.remark[0].upper()}{layer.remark[1:]}.")
    first = pictures[0]
    many = f"{first.channels} input channels" if first.channels > 1 else "one input channel"
    scaled = "every filter scaled by its own largest weight, the strongest (by norm) first"
    if first.shown_as == "colour":
        how = f"The 3 input channels as red, green and blue; grey is zero; {scaled}."
    elif first.shown_as == "principal" and first.channels > 1:
        shares = ", ".join(f"{100 * each.energy:.0f} % ({each.label})" for each in pictures if each.energy is not None)
        how = f"Of {many} the pattern closest to them all; of the squared weights, on average, it has {shares}."
        lines.append(how)
        how = f"Red is positive, blue negative; {scaled}."
    else:
        what = {"principal": many, "mean": f"the mean of {many}"}.get(
            first.shown_as, f"input channel {first.shown_as} of {first.channels}"
        )
        how = f"{what[0].upper()}{what[1:]}: red is positive, blue negative; {scaled}."
    lines.append(how)
    return lines + [
        f"{each.label}: of {each.channels} channels the pattern closest to them all."
        for each in pictures
        if each.shown_as != first.shown_as
    ]


def _sheet(pictures: Pictures) -> npt.NDArray[np.float64]:
    """All pictures of a set as one, about square, in colours between 0 and 1."""
    values = pictures.values
    colours = 0.5 + 0.5 * values if pictures.is_coloured else SIGNED(0.5 + 0.5 * values)[..., :3]
    number, rows, columns = colours.shape[:3]
    tall, wide = WEIGHT * rows + GAP, WEIGHT * columns + GAP
    across = min(number, math.ceil(math.sqrt(number * tall / wide)))
    down = math.ceil(number / across)
    background = 1.0 if pictures.is_coloured else 0.8  # zero is grey in the one, white in the other
    sheet = np.full((down * tall + GAP, across * wide + GAP, 3), background)
    for i, tile in enumerate(colours):
        top, left = GAP + i // across * tall, GAP + i % across * wide
        sheet[top : top + tall - GAP, left : left + wide - GAP] = tile.repeat(WEIGHT, axis=0).repeat(WEIGHT, axis=1)
    return sheet
