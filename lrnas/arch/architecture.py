"""Descriptions of networks: the numbers and shapes of the filters in each layer.

An `Architecture` names a backbone and, for every layer that differs from the backbone, an `Allocation`: which share of
the layer's filters is k×1, 1×k, k×k or of another shape, how wide the layer is, and whether a 1×1 join follows. Both
are immutable and checked when they are created. They are stored as JSON:

    {"version": 1, "backbone": "vgg11", "pool": "max",
     "layers": {"*": {"form": "composite", "shares": {"kx1": 0.5, "1xk": 0.5}, "join": 1},
                "conv1_1": {"form": "dense"}}}

"*" stands for every k×k layer without an entry of its own. This module does not know which layers a backbone has:
`lrnas.models.plan` combines the two.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields
from fractions import Fraction
from functools import lru_cache
from numbers import Real
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, get_args

from lrnas._arguments import checked
from lrnas._files import read_text
from lrnas._notebook import NotebookView
from lrnas.errors import InvalidArchitecture, closest

VERSION = 1
"""Version of the JSON format. Newer versions are refused."""
MAX_DIVISOR = 64
SEE = "see docs/networks.md for the format"
MAX_PRINTED = 160
"""Largest number of characters of its JSON that are printed of an architecture."""
Form = Literal["dense", "composite", "separable"]
Pool = Literal["max", "avg", "none"]

_SPELLINGS = {"vertical": "kx1", "horizontal": "1xk", "square": "kxk"}
_FRACTION = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?|[0-9]{1,9}/0*[1-9][0-9]{0,8}")
_SHAPE = re.compile(r"(k|[1-9][0-9]?)x(k|[1-9][0-9]?)")


class Filters(NamedTuple):
    """A number of filters of one shape, rows × columns as in `torch.nn.Conv2d`."""

    height: int
    width: int
    num: int

    @property
    def shape(self) -> str:
        """The shape as text, such as 3x1."""
        return f"{self.height}x{self.width}"


class Mix(NamedTuple):
    """The filters of one layer in whole numbers: groups side by side, then possibly a second convolution.

    The second convolution is the 1×1 join of a composite layer or the k×1 half of a separable layer. There is no
    activation before it. A plain convolution has one group and no second convolution. Two layers are the same if
    and only if their mixes are equal.
    """

    groups: tuple[Filters, ...]
    second: Filters | None = None

    @property
    def out_channels(self) -> int:
        """Number of output channels of the layer."""
        return self.second.num if self.second else sum(group.num for group in self.groups)

    @property
    def kernel(self) -> int:
        """The largest number of rows or columns of the groups."""
        return max(max(group.height, group.width) for group in self.groups)

    @property
    def is_plain(self) -> bool:
        """Whether the layer is a single ordinary convolution."""
        return len(self.groups) == 1 and self.second is None

    @property
    def is_separable(self) -> bool:
        """Whether the layer is 1×k filters followed by k×1 filters."""
        return self.second is not None and self.second.height > 1

    @property
    def folded(self) -> Mix:
        """One convolution that computes the same as the groups and the second convolution together.

        Both are linear, and all kernels are centred, so its kernel is the smallest that contains all of them. Without a
        second convolution this is the mix itself.
        """
        if self.second is None:
            return self
        parts = (*self.groups, self.second)
        return Mix((Filters(max(part.height for part in parts), max(part.width for part in parts), self.second.num),))

    @property
    def kind(self) -> Form:
        """The form of the layer."""
        return "dense" if self.is_plain else "separable" if self.is_separable else "composite"

    def __str__(self) -> str:
        groups = " || ".join(f"{group.shape},{group.num}" for group in self.groups)
        return f"{groups} > {self.second.shape},{self.second.num}" if self.second else groups


@dataclass(frozen=True, slots=True)
class FilterGroup:
    """The share of a layer's filters that has one shape.

    Args:
        shape: Rows x columns, where k is the kernel size of the layer: "kx1" (or "vertical"), "1xk" ("horizontal"),
            "kxk" ("square"), or numbers, such as "5x1".
        share: Share of the layer's filters, from 0 to 1.

    Example:
        >>> FilterGroup("vertical", 0.5)
        FilterGroup(shape='kx1', share=0.5)
    """

    shape: str
    share: float

    def __post_init__(self) -> None:
        shape = str(self.shape).strip().lower().replace("×", "x").replace(" ", "")
        shape = _SPELLINGS.get(shape, shape)
        if not _SHAPE.fullmatch(shape):
            raise InvalidArchitecture(
                f"a shape must be kx1, 1xk, kxk or rows x columns in numbers up to 99; got {self.shape!r}; write for "
                "example 5x1"
            )
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "share", _read_number(self.share, f"the share of {shape} filters"))
        if not 0 <= self.share <= 1:
            raise InvalidArchitecture(
                f"a share must be from 0 to 1; got {self.share:g} for {shape}; give the part of the layer's filters "
                "that has this shape"
            )


@dataclass(frozen=True, slots=True)
class Allocation:
    """The filters of one layer, relative to the layer of the backbone that it replaces.

    Args:
        form: "dense" (k×k filters), "composite" (groups of several shapes side by side) or "separable" (1×k filters,
            then k×1 filters).
        groups: The groups of a composite layer, in any order; their shares sum to 1.
        width: Number of filters as a multiple of the backbone's; in a separable layer the number of k×1 filters. 0: the
            layer is left out, which some layers of VGG, NiN, GoogLeNet and timm's models can be.
        join: Output channels of a 1×1 join as a multiple of the backbone's width; None: no join.
        middle: Number of 1×k filters of a separable layer as a multiple of the backbone's; None: the same as `width`.

    Example:
        >>> groups = (FilterGroup("kx1", 0.5), FilterGroup("1xk", 0.5))
        >>> print(Allocation("composite", groups, join=1).at(kernel=3, width=64))
        3x1,32 || 1x3,32 > 1x1,64
    """

    form: Form = "dense"
    groups: tuple[FilterGroup, ...] = ()
    width: float = 1.0
    join: float | None = None
    middle: float | None = None

    def __post_init__(self) -> None:
        _check_one_of("form", self.form, get_args(Form))
        for name in ("width", "join", "middle"):
            if (value := getattr(self, name)) is not None or name == "width":
                number = _read_number(value, name)
                if not (0 < number <= 64 or self._is_left_out(name, number)):
                    raise InvalidArchitecture(
                        f"{name} must be a multiple of the backbone's width, above 0 and at most 64; got {number:g}; "
                        "1 keeps the width"
                    )
                object.__setattr__(self, name, number)
        if not isinstance(self.groups, Iterable):
            raise InvalidArchitecture(f"groups must be FilterGroups; got {self.groups!r}; use FilterGroup('kx1', 0.5)")
        object.__setattr__(self, "groups", tuple(self.groups))
        if self.form == "composite":
            self._check_groups()
        elif self.groups:
            raise InvalidArchitecture(f'shares need form "composite"; got form {self.form!r}; leave the shares out')
        if self.form == "separable" and self.join is not None:
            raise InvalidArchitecture(
                "a separable layer has no join, since its k×1 filters combine all channels; got join "
                f"{self.join:g}; set width to change the number of outputs"
            )
        if self.form != "separable" and self.middle is not None:
            raise InvalidArchitecture(f'middle needs form "separable"; got form {self.form!r}; leave middle out')

    def _is_left_out(self, name: str, number: float) -> bool:
        """Whether a number is the width 0 of a layer that is left out, which has no filters to describe."""
        return name == "width" and number == 0 and self.form == "dense" and self.join is None

    def _check_groups(self) -> None:
        if not all(isinstance(group, FilterGroup) for group in self.groups):
            raise InvalidArchitecture(f"groups must be FilterGroups; got {self.groups!r}; use FilterGroup('kx1', 0.5)")
        groups = tuple(sorted(self.groups, key=lambda group: group.shape))
        shapes = [group.shape for group in groups]
        if len(set(shapes)) < len(shapes):
            raise InvalidArchitecture(f"each shape can be given once; got {', '.join(shapes)}; add up its shares")
        total = math.fsum(group.share for group in groups)
        if abs(total - 1) > 1e-6:
            listed = ", ".join(f"{group.shape} {group.share:g}" for group in groups) or "no shares"
            raise InvalidArchitecture(f"the shares of a layer must sum to 1; got {listed}, sum {total:g}; change one")
        object.__setattr__(self, "groups", groups)

    @classmethod
    @checked
    def composite(
        cls,
        *,
        vertical: float = 0.0,
        horizontal: float = 0.0,
        square: float = 0.0,
        width: float = 1.0,
        join: float | None = None,
    ) -> Allocation:
        """A composite layer of k×1, 1×k and k×k filters, as in the paper.

        Args:
            vertical: Share of k×1 filters.
            horizontal: Share of 1×k filters.
            square: Share of k×k filters.
            width: Number of filters as a multiple of the backbone's.
            join: Output channels of a 1×1 join as a multiple of the backbone's width; None: no join.

        Returns:
            The allocation; shapes with share 0 are left out.
        """
        shares = {"kx1": vertical, "1xk": horizontal, "kxk": square}
        groups = tuple(FilterGroup(shape, share) for shape, share in shares.items() if share)
        return cls("composite", groups, width, join)

    @classmethod
    def from_dict(cls, data: object, where: str = "an allocation") -> Allocation:
        """Read an allocation from its JSON form.

        Args:
            data: The JSON object.
            where: The place that error messages begin with.
        """
        data = _check_keys(data, ["form", "join", "middle", "shares", "width"], where)
        shares = data.pop("shares", {})
        if not isinstance(shares, Mapping):
            raise InvalidArchitecture(f'{where}: shares must be an object such as {{"kx1": 0.5}}; got {shares!r}')
        flat = [part for item in shares.items() for part in item]
        with _located(where):
            try:
                return _make_allocation(*flat, **data)
            except TypeError:  # a value such as a list, which cannot be looked up, and which is refused
                return _make_allocation.__wrapped__(*flat, **data)

    def to_dict(self) -> dict[str, Any]:
        """The JSON form, without settings that are the same as in the backbone."""
        data: dict[str, Any] = {"form": self.form}
        if self.groups:
            data["shares"] = {group.shape: _json_number(group.share) for group in self.groups}
        multiples = {"width": None if self.width == 1 else self.width, "join": self.join, "middle": self.middle}
        return data | {name: _json_number(value) for name, value in multiples.items() if value is not None}

    def at(self, kernel: int, width: int, divisor: int = 1) -> Mix:
        """The filters of this allocation in one layer, in whole numbers.

        Args:
            kernel: Kernel size k of the backbone's layer.
            width: Number of filters of the backbone's layer.
            divisor: Filter counts are multiples of this number; see `Architecture`.
        """
        return _fill_layer(self, kernel, width, divisor)


@lru_cache(maxsize=4096, typed=True)  # the networks of a study have few different layers; True == 1, but is refused
def _make_allocation(*shares: Any, **others: Any) -> Allocation:
    """An allocation from its shapes, each followed by its share, and its other fields."""
    groups = tuple(FilterGroup(shape, share) for shape, share in zip(shares[::2], shares[1::2], strict=True))
    return Allocation(groups=groups, **others)


@lru_cache(maxsize=4096)
def _fill_layer(allocation: Allocation, kernel: int, width: int, divisor: int) -> Mix:
    """The filters of an allocation in one layer; see `Allocation.at`."""
    filters = scale_width(allocation.width, width, divisor)
    if allocation.form == "separable":
        middle = filters if allocation.middle is None else scale_width(allocation.middle, width, divisor)
        return Mix((Filters(1, kernel, middle),), Filters(kernel, 1, filters))
    join = None if allocation.join is None else Filters(1, 1, scale_width(allocation.join, width, divisor))
    if allocation.form == "dense":
        return Mix((Filters(kernel, kernel, filters),), join)
    shapes, places = _order_groups(tuple([group.shape for group in allocation.groups]), kernel)
    shares = [0.0] * len(shapes)
    for group, place in zip(allocation.groups, places, strict=True):
        shares[place] += group.share
    counts = apportion(filters, shares, divisor)
    groups = [Filters(rows, columns, n) for (rows, columns), n in zip(shapes, counts, strict=True) if n]
    return Mix(tuple(groups), join)


@lru_cache(maxsize=4096)
def _order_groups(shapes: tuple[str, ...], k: int) -> tuple[list[tuple[int, int]], list[int]]:
    """The kernel sizes of a k×k layer's groups in the order of their outputs, and the index of each shape in this list.

    Two shapes can be the same kernel size: "kx1" and "3x1" where k is 3.
    """
    kernels = []
    for shape in shapes:
        rows, columns = shape.split("x")
        kernels.append((k if rows == "k" else int(rows), k if columns == "k" else int(columns)))
    ordered = sorted(set(kernels), key=concatenation_order)
    return ordered, [ordered.index(kernel) for kernel in kernels]


def concatenation_order(kernel: tuple[int, int]) -> tuple[int, int, int]:
    """Sort key for the groups of a layer: vertical, then horizontal, then other kernels; small before large."""
    height, width = kernel
    place = 0 if height > width == 1 else 1 if width > height == 1 else 2
    return (place, height, width)


def apportion(total: int, shares: Iterable[float], divisor: int = 1) -> list[int]:
    """Divide a number of filters in proportion to shares, by the largest-remainder rule.

    If remainders are equal, the first of their shares is rounded up first.

    Args:
        total: The number of filters.
        shares: Shares that sum to 1.
        divisor: All counts are multiples of this number, except the last, which gets the rest. If there are too few
            filters for one multiple per share, the divisor is halved until there are enough.

    Returns:
        One whole number per share; they sum to `total`.
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
    counts = [int(quota + 1e-9) for quota in quotas]  # rounding errors can make a whole quota slightly too small
    left = total - sum(counts)
    if left:
        excess = [round(count - quota, 9) for count, quota in zip(counts, quotas, strict=True)]
        for _ in range(left):
            i = excess.index(min(excess))
            counts[i] += 1
            excess[i] = 1.0
    return counts


def scale_width(multiple: float, width: int, divisor: int) -> int:
    """A multiple of a width, rounded to a multiple of the divisor; at most `width` if the multiple is below 1."""
    if multiple == 1:
        return width
    number = max(1, math.floor(multiple * width / divisor + 0.5)) * divisor
    return number if multiple > 1 else min(number, width)


@dataclass(frozen=True, repr=False)
class Architecture(NotebookView):
    """A network: a backbone and the differences from it. A setting of None means: the same as in the backbone.

    Args:
        backbone: vgg11, vgg13, vgg16, vgg19, vgg_deep, googlenet, googlenet_3pools (without the first pool), nin,
            nin_3x3, nin_deep, or timm:NAME for any CNN of timm.
        layers: Allocations by layer name; "*" is every k×k layer without an entry of its own.
        pool: Final pooling over the whole map: "max" or "avg"; "none" keeps the map (VGG's original 7×7 head).
        stem_stride: Stride of the first convolution: 1, 2 or 4; also of a timm model.
        batch_norm: Whether a batch norm follows every convolution outside the classifiers. A convolution before a batch
            norm has no bias.
        classifier: "linear", "mlp" (the two hidden layers of VGG; "mlp:512" makes them 512 wide) or "conv" (the 1×1
            convolution of NiN).
        divisor: Filter counts are multiples of this number. It applies to layer widths that differ from the backbone's
            and to every group of a composite layer. With 8, groups start at multiples of 16 bytes in half precision,
            which GPUs read fastest. If a layer is too narrow for one multiple per shape, the divisor is halved until it
            fits.

    Example:
        >>> half = Allocation.composite(vertical=0.5, horizontal=0.5)
        >>> Architecture("nin", {"*": half}).to_json()
        '{"version": 1, "backbone": "nin", "layers": {"*": {"form": "composite", "shares": {"1xk": 0.5, "kx1": 0.5}}}}'
    """

    backbone: str
    layers: Mapping[str, Allocation] = field(default_factory=dict)
    pool: Pool | None = None
    stem_stride: int | None = None
    batch_norm: bool | None = None
    classifier: str | None = None
    divisor: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.backbone, str) or not self.backbone:
            raise InvalidArchitecture(f"backbone must be a name; got {self.backbone!r}; write for example vgg11")
        if not isinstance(self.layers, Mapping):
            raise InvalidArchitecture(
                f'layers must be an object of allocations by layer, such as {{"conv1_1": {{…}}}}; got {self.layers!r}'
            )
        for name, allocation in self.layers.items():
            if not isinstance(name, str) or not isinstance(allocation, Allocation):
                raise InvalidArchitecture(f"layers must be Allocations by name; got {name!r}: {allocation!r}")
        object.__setattr__(self, "layers", MappingProxyType(dict(sorted(self.layers.items()))))
        for name, known in (("pool", get_args(Pool)), ("stem_stride", (1, 2, 4)), ("batch_norm", (True, False))):
            if (value := getattr(self, name)) is not None:
                _check_one_of(name, value, known)
        if self.classifier is not None:
            parse_classifier(self.classifier)
        if self.divisor is not None:
            check_divisor(self.divisor)
            object.__setattr__(self, "divisor", None if self.divisor == 1 else self.divisor)

    def __repr__(self) -> str:
        text = self.to_json()
        return f"Architecture({text if len(text) <= MAX_PRINTED else text[:MAX_PRINTED] + '…'})"

    def __str__(self) -> str:
        return self.to_json()

    def __hash__(self) -> int:
        return hash((self.backbone, tuple(self.layers.items()), self.pool, self.stem_stride))

    def __reduce__(self) -> tuple[Any, ...]:  # a MappingProxyType cannot be pickled
        return Architecture.from_dict, (self.to_dict(),)

    @classmethod
    def from_dict(cls, data: object, where: str = "architecture") -> Architecture:
        """Read an architecture from its JSON form.

        Args:
            data: The JSON object.
            where: The place, such as a file's name, that error messages begin with.
        """
        version = data.get("version", VERSION) if isinstance(data, Mapping) else VERSION
        if not isinstance(version, int) or isinstance(version, bool) or version < 1:
            raise InvalidArchitecture(f"{where}: version must be a whole number from 1; got {version!r}")
        if version > VERSION:  # checked before the keys, because a newer version can have more of them
            raise InvalidArchitecture(
                f"{where}: this lrnas reads architectures up to version {VERSION}; got version {version}; upgrade lrnas"
            )
        data = _check_keys(data, sorted(["version", *(item.name for item in fields(cls))]), where)
        data.pop("version", None)
        if "backbone" not in data:
            raise InvalidArchitecture(f"{where}: an architecture needs a backbone; got none; add one, such as vgg11")
        if isinstance(layers := data.get("layers"), Mapping):
            data["layers"] = {name: Allocation.from_dict(layer, f"{where}: {name}") for name, layer in layers.items()}
        with _located(where):
            return cls(**data)

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        data: dict[str, Any] = {"version": VERSION, "backbone": self.backbone}
        for name in ("pool", "stem_stride", "batch_norm", "classifier", "divisor"):
            if (value := getattr(self, name)) is not None:
                data[name] = value
        data["layers"] = {name: allocation.to_dict() for name, allocation in self.layers.items()}
        return data

    @classmethod
    def from_json(cls, text: str, where: str = "architecture") -> Architecture:
        """Read an architecture from JSON text; `where` is the place that error messages begin with."""
        try:
            return cls.from_dict(json.loads(text, object_pairs_hook=_refuse_repeated_keys), where)
        except InvalidArchitecture:
            raise
        except (
            ValueError,
            TypeError,
            RecursionError,
        ) as error:  # also if a message has a value of many brackets
            raise InvalidArchitecture(f"{where}: not valid JSON: {error}; {SEE}") from None

    def to_json(self, indent: int | None = None) -> str:
        """The JSON text; `indent` is the number of spaces per level, None for a single line."""
        return json.dumps(self.to_dict(), indent=indent)

    @classmethod
    def load(cls, path: str | Path) -> Architecture:
        """Read an architecture from a JSON file."""
        try:
            text = read_text(path)
        except (OSError, ValueError, TypeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not a text file"
            raise InvalidArchitecture(f"cannot read {path}: {reason}; give a JSON file") from None
        return cls.from_json(text, str(path))


def parse_classifier(classifier: object) -> tuple[str, int | None]:
    """The kind of a classifier, and the width of its hidden layers (None if no width is given)."""
    match = re.fullmatch(r"(linear|conv|mlp)(?:(?<=mlp):([1-9][0-9]{0,5}))?", str(classifier))
    if match is None or not isinstance(classifier, str):
        raise InvalidArchitecture(
            f"classifier must be linear, conv, mlp or mlp:WIDTH; got {classifier!r}; write for example mlp:512"
        )
    kind, width = match.groups()
    return kind, int(width) if width else None


def check_divisor(divisor: object) -> None:
    """Raise InvalidArchitecture if a divisor of filter counts is not valid."""
    if not isinstance(divisor, int) or isinstance(divisor, bool) or not 1 <= divisor <= MAX_DIVISOR:
        raise InvalidArchitecture(
            f"divisor must be a whole number from 1 to {MAX_DIVISOR}; got {divisor!r}; 8 suits GPUs in half precision"
        )


def _read_number(value: object, what: str) -> float:
    """A finite number, which can also be a fraction as text: "3/8"."""
    if isinstance(value, str) and _FRACTION.fullmatch(value.strip()):
        return float(Fraction(value.strip()))
    if not isinstance(value, bool) and isinstance(value, Real):
        with suppress(OverflowError):  # a whole number that is too large for a float
            if math.isfinite(number := float(value)):
                return number
    text = repr(value)
    raise InvalidArchitecture(
        f'{what} must be a number or a fraction such as "3/8"; got {text[:40]}{"…" * (len(text) > 40)}'
    )


def _json_number(value: float) -> float | int:
    """A whole number without a decimal point, any other number as it is."""
    return int(value) if value == int(value) else value


def _check_one_of(name: str, value: object, known: tuple[object, ...]) -> None:
    if value not in known or type(value) is not type(known[0]):  # True == 1 and 2.0 == 2, but they are not allowed
        choices = ", ".join(str(choice).lower() for choice in known)
        raise InvalidArchitecture(f"{name} must be one of {choices}; got {value!r}; choose one")


def _check_keys(data: object, known: list[str], where: str) -> dict[str, Any]:
    """A copy of a JSON object; raises InvalidArchitecture if it has an unknown key."""
    if not isinstance(data, Mapping):
        raise InvalidArchitecture(f"{where}: a JSON object is needed; got {data!r}; {SEE}")
    for key in data:
        if key not in known:
            raise InvalidArchitecture(f"{where}: unknown key {key!r}{closest(str(key), known)} ({SEE})")
    return dict(data)


def _refuse_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object as a dict; raises ValueError if a key is repeated, where `json.loads` would keep the last value."""
    data = dict(pairs)
    if len(data) < len(pairs):
        repeated = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"each key can be given once in an object; {repeated!r} is repeated; remove one")
    return data


@contextmanager
def _located(where: str) -> Iterator[None]:
    """Put the place in front of the message of an InvalidArchitecture."""
    try:
        yield
    except InvalidArchitecture as error:
        raise InvalidArchitecture(f"{where}: {error}") from None


DENSE = Allocation()
"""The allocation of a layer that is the same as in the backbone."""
