"""The paper's figures as data: panels, series, marks, and where each number comes from.

Nothing is drawn here, and nothing is made up: where nothing was measured, a figure has the published marks alone and
says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from lrnas.errors import DataError, LrnasError
from lrnas.reporting.paper.runs import Runs, read_json, read_runs

Style = Literal["published", "measured", "beside", "line"]
PAPER = "Ioannou et al., ICLR 2016; single runs"


class NothingToDraw(LrnasError):
    """A figure whose numbers are not there."""


@dataclass(frozen=True, slots=True)
class Mark:
    """One network, or one layer, at one place."""

    name: str
    x: float
    y: float
    error: float | None = None
    """Standard deviation between seeds."""
    number: int = 1
    """Of seeds."""


@dataclass(frozen=True, slots=True)
class Series:
    """Marks that belong together."""

    label: str
    style: Style
    marks: tuple[Mark, ...]
    """None for a line of the legend that says what is not there."""
    is_published: bool = False
    """In the paper; measured here otherwise."""


@dataclass(frozen=True, slots=True)
class Panel:
    """A pair of axes."""

    x_label: str
    y_label: str
    series: tuple[Series, ...]
    title: str = ""
    log: str = ""
    """Which of the axes are logarithmic: x, y, xy."""
    named: bool = True
    """Whether names stand beside marks."""
    shares: bool = False
    """Both axes are shares of a baseline, which is at 1, 1."""
    band: tuple[float, float] | None = None
    """Of values that are as they should be."""


@dataclass(frozen=True, slots=True)
class PaperFigure:
    """A figure before it is drawn."""

    name: str
    title: str
    panels: tuple[Panel, ...]
    footer: tuple[str, ...]
    """Where its numbers come from."""
    columns: int | None = None
    """Of panels; None for as many as fit on a page. A single one is as wide as two."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Places:
    """Where to look for what was measured."""

    results: Path = Path("results")
    """With reproduce/, composite_*.json and gradient_variance.json."""
    records: tuple[Path, ...] = ()
    """More folders of `lrnas reproduce`."""
    profiles: tuple[Path, ...] = ()
    """Files of `lrnas profile --json`."""
    data: Mapping[str, str] = field(default_factory=dict)
    """By table, what its data is called in the records, if not as the paper's."""

    def runs(self) -> list[Runs]:
        own = self.results / "reproduce"
        return read_runs([*([own] if own.is_dir() else []), *self.records])


def read_result(file: Path) -> dict[str, Any] | None:
    """What a benchmark wrote; None where the file is not there."""
    if not file.exists():
        return None
    data = read_json(file)
    if not isinstance(data, dict) or "provenance" not in data:
        raise DataError(f"{file} is no result of a benchmark: it says nothing of its provenance; give other --results")
    return data


def where(data: Mapping[str, Any]) -> str:
    return str(data["provenance"].get("hardware", "unknown hardware")).split(",")[0]


def commit_of(data: Mapping[str, Any]) -> str:
    return str(data["provenance"].get("commit", "unknown"))[:7]


def told(file: Path, data: Mapping[str, Any]) -> str:
    hardware = data["provenance"].get("hardware", "unknown hardware")
    return f"Measured: {file.as_posix()}, commit {commit_of(data)}, {hardware}."
