"""What a network looks like, as data: which layer has how many filters of which shape.

An `Architecture` names a backbone and, for the layers that differ from it, an `Allocation`: the
shares of the layer's filters that are k×1, 1×k, k×k (or any other shape), the layer's width, and
whether a 1×1 join follows. It is frozen, checked when it is made, and travels as JSON:

    {"version": 1, "backbone": "vgg11", "pool": "max",
     "layers": {"*": {"form": "composite", "shares": {"kx1": 0.5, "1xk": 0.5}, "join": 1},
                "conv1_1": {"form": "dense"}}}

"*" stands for every k×k layer that has no entry of its own. Nothing here knows torch, nor the
layers a backbone has: `lrnas.models.plan` brings the two together.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, get_args

from lrnas.arch.values import (
    check_divisor,
    check_keys,
    check_one_of,
    json_number,
    located,
    parse_classifier,
    parse_shape,
    read_multiple,
    read_number,
    without_repeats,
)
from lrnas.errors import InvalidArchitecture

VERSION = 1
"""Version of the JSON. A reader refuses a newer one rather than guess what it means."""

Form = Literal["dense", "composite", "separable"]
Pool = Literal["max", "avg", "none"]


class Filters(NamedTuple):
    """A whole number of filters of one shape, rows × columns as in `torch.nn.Conv2d`."""

    height: int
    width: int
    num: int

    @property
    def shape(self) -> str:
        return f"{self.height}x{self.width}"


class Mix(NamedTuple):
    """An allocation in whole filters: groups side by side, then possibly a second convolution.

    The second one is the 1×1 join of a composite layer or the k×1 half of a separable one; no
    activation stands between. A plain convolution is one group and no second. Equal mixes are equal
    layers, whatever description led to them.
    """

    groups: tuple[Filters, ...]
    second: Filters | None = None

    @property
    def out_channels(self) -> int:
        return self.second.num if self.second else sum(group.num for group in self.groups)

    @property
    def is_plain(self) -> bool:
        return len(self.groups) == 1 and self.second is None

    @property
    def is_separable(self) -> bool:
        return self.second is not None and self.second.height > 1

    @property
    def kind(self) -> Form:
        return "dense" if self.is_plain else "separable" if self.is_separable else "composite"

    def __str__(self) -> str:
        groups = " || ".join(f"{group.shape},{group.num}" for group in self.groups)
        return f"{groups} > {self.second.shape},{self.second.num}" if self.second else groups


@dataclass(frozen=True, slots=True)
class FilterGroup:
    """A share of a layer's filters that have one shape.

    The shape is rows × columns, where k is the layer's own kernel size: "kx1" (or "vertical"), "1xk"
    ("horizontal"), "kxk" ("square"), or in numbers, "5x1", "3x3".
    """

    shape: str
    share: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", parse_shape(self.shape))
        object.__setattr__(self, "share", read_number(self.share, f"the share of {self.shape} filters"))
        if not 0 <= self.share <= 1:
            raise InvalidArchitecture(
                f"a share lies between 0 and 1; {self.shape} has {self.share:g}; give the part of the "
                "layer's filters that have this shape"
            )


@dataclass(frozen=True, slots=True)
class Allocation:
    """What one layer is made of, relative to the layer of the backbone that it replaces."""

    form: Form = "dense"
    """dense: k×k filters. composite: the groups side by side. separable: 1×k, then k×1."""
    groups: tuple[FilterGroup, ...] = ()
    """Composite only: the shares, which sum to 1. Their order does not matter."""
    width: float = 1.0
    """Number of filters as a multiple of the backbone's (of the k×1 ones in a separable layer)."""
    join: float | None = None
    """Output channels of a 1×1 join as a multiple of the backbone's width; None for no join."""
    middle: float | None = None
    """Separable only: number of 1×k filters as a multiple of the backbone's; None for `width`."""

    def __post_init__(self) -> None:
        check_one_of("form", self.form, get_args(Form))
        object.__setattr__(self, "width", read_multiple(self.width, "width"))
        for name in ("join", "middle"):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, read_multiple(value, name))
        object.__setattr__(self, "groups", tuple(self.groups))
        if self.form == "composite":
            self._set_groups()
        elif self.groups:
            raise InvalidArchitecture(f'shares belong to form "composite"; got them with {self.form!r}; leave them out')
        if self.form == "separable" and self.join is not None:
            raise InvalidArchitecture(
                f"a separable layer has no join (its k×1 half mixes all channels); got join "
                f"{self.join:g}; set width to change its output"
            )
        if self.form != "separable" and self.middle is not None:
            raise InvalidArchitecture(
                f'middle belongs to form "separable"; got {self.middle:g} with {self.form!r}; leave it out'
            )

    def _set_groups(self) -> None:
        if not all(isinstance(group, FilterGroup) for group in self.groups):
            raise InvalidArchitecture(f"groups are FilterGroups; got {self.groups!r}; write FilterGroup('kx1', 0.5)")
        groups = tuple(sorted(self.groups, key=lambda group: group.shape))
        shapes = [group.shape for group in groups]
        if len(set(shapes)) < len(shapes):
            raise InvalidArchitecture(f"each shape is given once; got {', '.join(shapes)}; add up its shares")
        total = math.fsum(group.share for group in groups)
        if abs(total - 1) > 1e-6:
            listed = ", ".join(f"{group.shape} {group.share:g}" for group in groups) or "none"
            raise InvalidArchitecture(f"the shares of a layer sum to 1; {listed} sum to {total:g}; change one")
        object.__setattr__(self, "groups", groups)

    @classmethod
    def composite(
        cls,
        *,
        vertical: float = 0.0,
        horizontal: float = 0.0,
        square: float = 0.0,
        width: float = 1.0,
        join: float | None = None,
    ) -> Allocation:
        """A layer of k×1, 1×k and k×k filters, as in the paper."""
        shares = {"kx1": vertical, "1xk": horizontal, "kxk": square}
        groups = tuple(FilterGroup(shape, share) for shape, share in shares.items() if share)
        return cls("composite", groups, width, join)

    @classmethod
    def from_dict(cls, data: object, where: str = "an allocation") -> Allocation:
        """From the JSON form; `where` names the place in messages."""
        data = check_keys(data, {"form", "shares", "width", "join", "middle"}, where)
        shares = data.pop("shares", {})
        if not isinstance(shares, Mapping):
            raise InvalidArchitecture(f'{where}: shares is an object like {{"kx1": 0.5}}; got {shares!r}')

        def make() -> Allocation:
            return cls(groups=tuple(FilterGroup(shape, share) for shape, share in shares.items()), **data)

        return located(where, make)

    def to_dict(self) -> dict[str, Any]:
        data: dict[str, Any] = {"form": self.form}
        if self.groups:
            data["shares"] = {group.shape: json_number(group.share) for group in self.groups}
        if self.width != 1:
            data["width"] = json_number(self.width)
        for name in ("join", "middle"):
            if (value := getattr(self, name)) is not None:
                data[name] = json_number(value)
        return data

    def at(self, kernel: int, width: int, divisor: int = 1) -> Mix:
        """This allocation in a k×k layer of the given width, in whole filters; see `Architecture.divisor`."""
        filters = _whole(self.width, width, divisor)
        if self.form == "separable":
            middle = filters if self.middle is None else _whole(self.middle, width, divisor)
            return Mix((Filters(1, kernel, middle),), Filters(kernel, 1, filters))
        join = None if self.join is None else Filters(1, 1, _whole(self.join, width, divisor))
        if self.form == "dense":
            return Mix((Filters(kernel, kernel, filters),), join)
        shapes, places = _layout(tuple([group.shape for group in self.groups]), kernel)
        shares = [0.0] * len(shapes)
        for group, place in zip(self.groups, places, strict=True):
            shares[place] += group.share
        counts = apportion(filters, shares, divisor)
        groups = [Filters(rows, columns, n) for (rows, columns), n in zip(shapes, counts, strict=True) if n]
        return Mix(tuple(groups), join)


@lru_cache(maxsize=4096)
def _layout(shapes: tuple[str, ...], k: int) -> tuple[list[tuple[int, int]], list[int]]:
    """The kernels of a k×k layer's groups in the order of their outputs, and which of them each shape is.

    They can be fewer than the shapes: "kx1" and "3x1" are one where k is 3.
    """
    kernels = []
    for shape in shapes:
        rows, columns = shape.split("x")
        kernels.append((k if rows == "k" else int(rows), k if columns == "k" else int(columns)))
    ordered = sorted(set(kernels), key=concatenation_order)
    return ordered, [ordered.index(kernel) for kernel in kernels]


def concatenation_order(kernel: tuple[int, int]) -> tuple[int, int, int]:
    """Vertical filters first, then horizontal ones, then the rest; small before large."""
    height, width = kernel
    place = 0 if height > width == 1 else 1 if width > height == 1 else 2
    return (place, height, width)


def apportion(total: int, shares: Iterable[float], divisor: int = 1) -> list[int]:
    """Whole numbers in proportion to shares that sum to 1: the largest-remainder rule.

    They sum to `total` exactly; of equal remainders the first is served first. All are multiples of `divisor`, but for
    the last, which has what is over; where that is too much to have one of each, of its half, and so on.
    """
    shares = list(shares)
    present = [place for place, share in enumerate(shares) if share > 0]
    while divisor > 1 and total // divisor < len(present):
        divisor //= 2
    if divisor > 1:
        counts = [divisor * count for count in apportion(total // divisor, shares)]
        counts[present[-1]] += total % divisor
        return counts
    quotas = [total * share for share in shares]
    counts = [int(quota + 1e-9) for quota in quotas]  # shares in floating point may end a hair too low
    left = total - sum(counts)
    if left:
        excess = [round(count - quota, 9) for count, quota in zip(counts, quotas, strict=True)]
        for _ in range(left):
            i = excess.index(min(excess))
            counts[i] += 1
            excess[i] = 1.0
    return counts


@dataclass(frozen=True)
class Architecture:
    """A network: a backbone and what is different in it. What is None is as the backbone has it."""

    backbone: str
    """vgg11, vgg13, vgg16, vgg19, googlenet, nin, nin_3x3, or timm:NAME for any CNN of timm."""
    layers: Mapping[str, Allocation] = field(default_factory=dict)
    """Allocation by layer name; "*" is every k×k layer not named. Others are the backbone's own."""
    pool: Pool | None = None
    """Final pooling over the whole map: max or avg; none keeps the map (VGG's own 7×7 head)."""
    stem_stride: int | None = None
    """Stride of the first convolution: 1, 2 or 4."""
    batch_norm: bool | None = None
    """Batch norm after every convolution but the classifier's; their biases, useless then, go."""
    classifier: str | None = None
    """linear, mlp (VGG's two hidden layers; mlp:512 for 512 wide), conv (NiN's 1×1)."""
    divisor: int | None = None
    """Numbers of filters are multiples of this: of a layer that is not as wide as the backbone's own, and of a group of
    a composite one. With 8, in half precision, groups begin at whole 16 bytes, as GPUs read them best. The backbone's
    own widths stay; a layer too narrow for a multiple of each shape has multiples of a half of it, and so on."""

    def __post_init__(self) -> None:
        if not isinstance(self.backbone, str) or not self.backbone:
            raise InvalidArchitecture(f"backbone is a name; got {self.backbone!r}; try vgg11")
        if not isinstance(self.layers, Mapping):
            raise InvalidArchitecture(f"layers maps names to allocations; got {self.layers!r}")
        for name, allocation in self.layers.items():
            if not isinstance(name, str) or not isinstance(allocation, Allocation):
                raise InvalidArchitecture(f"layers maps names to Allocations; got {name!r}: {allocation!r}")
        object.__setattr__(self, "layers", MappingProxyType(dict(sorted(self.layers.items()))))
        if self.pool is not None:
            check_one_of("pool", self.pool, get_args(Pool))
        if self.stem_stride is not None:
            check_one_of("stem_stride", self.stem_stride, (1, 2, 4))
        if self.batch_norm is not None and not isinstance(self.batch_norm, bool):
            raise InvalidArchitecture(f"batch_norm is true or false; got {self.batch_norm!r}")
        if self.classifier is not None:
            parse_classifier(self.classifier)
        if self.divisor is not None:
            check_divisor(self.divisor)
            object.__setattr__(self, "divisor", None if self.divisor == 1 else self.divisor)

    def __hash__(self) -> int:
        return hash((self.backbone, tuple(self.layers.items()), self.pool, self.stem_stride))

    def __reduce__(self) -> tuple[Any, ...]:  # a read-only mapping does not pickle
        return Architecture.from_dict, (self.to_dict(),)

    @classmethod
    def from_dict(cls, data: object, where: str = "architecture") -> Architecture:
        """From the JSON form; `where` (a file's name, say) stands at the head of messages."""
        version = data.get("version", VERSION) if isinstance(data, Mapping) else VERSION
        if not isinstance(version, int) or isinstance(version, bool) or version < 1:
            raise InvalidArchitecture(f"{where}: version is a whole number from 1; got {version!r}")
        if version > VERSION:  # before the keys, which a newer version may well have more of
            raise InvalidArchitecture(
                f"{where}: this lrnas reads architectures up to version {VERSION}; got version {version}; upgrade lrnas"
            )
        data = check_keys(data, {"version"} | {item.name for item in fields(cls)}, where)
        data.pop("version", None)
        if "backbone" not in data:
            raise InvalidArchitecture(f"{where}: an architecture names its backbone; got none; add one, like vgg11")
        layers = data.pop("layers", {})
        if not isinstance(layers, Mapping):
            raise InvalidArchitecture(f'{where}: layers is an object like {{"conv1_1": {{…}}}}; got {layers!r}')
        allocations = {name: Allocation.from_dict(value, f"{where}: {name}") for name, value in layers.items()}
        return located(where, lambda: cls(layers=allocations, **data))

    def to_dict(self) -> dict[str, Any]:
        data: dict[str, Any] = {"version": VERSION, "backbone": self.backbone}
        for name in ("pool", "stem_stride", "batch_norm", "classifier", "divisor"):
            if (value := getattr(self, name)) is not None:
                data[name] = value
        data["layers"] = {name: allocation.to_dict() for name, allocation in self.layers.items()}
        return data

    @classmethod
    def from_json(cls, text: str, where: str = "architecture") -> Architecture:
        try:
            data = json.loads(text, object_pairs_hook=without_repeats)
        except InvalidArchitecture as error:
            raise InvalidArchitecture(f"{where}: {error}") from None
        except (ValueError, RecursionError) as error:
            raise InvalidArchitecture(f"{where}: not JSON, {error}; see the README for the form") from None
        return cls.from_dict(data, where)

    def to_json(self, indent: int | None = None) -> str:
        return json.dumps(self.to_dict(), indent=indent)

    @classmethod
    def load(cls, path: str | Path) -> Architecture:
        """From a JSON file."""
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not a text file"
            raise InvalidArchitecture(f"cannot read {path}: {reason}; give a JSON file") from None
        return cls.from_json(text, str(path))


def _whole(multiple: float, base: int, divisor: int = 1) -> int:
    """A multiple of a width, in steps; the width itself stays, and a part of it is no more."""
    if multiple == 1:
        return base
    number = max(1, math.floor(multiple * base / divisor + 0.5)) * divisor
    return number if multiple > 1 else min(number, base)


DENSE = Allocation()
"""A layer as the backbone has it."""
