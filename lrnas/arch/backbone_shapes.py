"""The backbones as walks over shapes: what follows what, how wide, on maps of which size.

A walk is a forward pass in which only sizes flow. It needs no torch and builds nothing, so the cost of
an architecture is a few dozen products (see `lrnas.models.plan`). The modules that compute with real numbers
are in `lrnas.models.backbones`; the tests hold the two against each other layer by layer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

from lrnas.arch.architecture import DENSE, Allocation, Mix, Pool
from lrnas.arch.cost import LayerCost, Role, mix_cost
from lrnas.errors import InvalidArchitecture

Map = tuple[int, int, int]
"""Channels, rows and columns of a feature map."""


class Choices(NamedTuple):
    """The choices that concern the whole network, none left open."""

    pool: Pool
    stem_stride: int
    batch_norm: bool
    classifier: Literal["linear", "mlp", "conv"]
    hidden: int | None
    """Width of an MLP classifier's hidden layers."""


class PlannedConv(NamedTuple):
    """A convolution of the backbone and the whole filters it is to have."""

    name: str
    path: str
    """Where the module sits in the built model."""
    kernel: int
    """The backbone's own kernel size."""
    mix: Mix
    stride: int


class Step(NamedTuple):
    """Something that takes time in a forward pass, with all that decides how much: a layer and what goes with it."""

    name: str
    kind: Literal["conv", "head", "linear", "max pool", "avg pool", "global pool", "local norm", "concat", "bare conv"]
    input: tuple[int, ...]
    """Of one image: channels, rows, columns; or features."""
    output: tuple[int, ...]
    settings: tuple[object, ...] = ()
    """conv: filters, kernel, stride, batch norm (a ReLU follows). head: kernel, padding (likewise). Pools: kernel,
    stride, padding, whether partial windows count; for the global one, max or avg. concat: the widths. bare conv, one
    of timm's with nothing after it: filters and what else `make_conv` takes."""
    macs: int = 0
    params: int = 0
    role: Role = "body"

    @property
    def key(self) -> str:
        """The same for all that take the same time."""
        settings = ", ".join(map(str, self.settings))
        return f"{self.kind} {'x'.join(map(str, self.input))} to {'x'.join(map(str, self.output))} [{settings}]"


class Walk:
    """Follows one image through a network, noting every layer's cost and filters on the way."""

    def __init__(
        self,
        layers: Mapping[str, Allocation],
        choices: Choices,
        input_size: int,
        in_chans: int,
        num_classes: int,
        check_fit: bool,
        divisor: int = 1,
    ) -> None:
        self.allocations = layers
        self.divisor = divisor
        self.default = layers.get("*", DENSE)
        self.choices = choices
        self.image: Map = (in_chans, input_size, input_size)
        self.num_classes = num_classes
        self.check_fit = check_fit
        self.costs: list[LayerCost] = []
        self.convs: list[PlannedConv] = []
        self.steps: list[Step] = []
        self.num_pools = 0
        self.used: set[str] = set()

    def conv(self, x: Map, name: str, path: str, width: int, kernel: int, stride: int = 1) -> Map:
        """A convolution with "same" padding that an architecture may change, and its batch norm."""
        allocation = self._allocation(name, path)
        if allocation is None:
            allocation = self.default if kernel > 1 else DENSE
        elif kernel == 1 and (allocation.form != "dense" or allocation.join is not None):
            raise InvalidArchitecture(
                f"{name} is a 1×1 convolution, of which only the width can change; got form "
                f'"{allocation.form}"' + (" with a join" if allocation.join else "") + "; leave these out"
            )
        mix = allocation.at(kernel, width, self.divisor)
        norm = self.choices.batch_norm
        self.convs.append(PlannedConv(name, path, kernel, mix, stride))
        out = self._count(x, name, mix, kernel, stride, bias=not norm)
        layer = self.costs[-1]
        self.steps.append(Step(name, "conv", x, out, (mix, kernel, stride, norm), layer.macs, layer.params))
        if norm:
            self.costs.append(LayerCost(name + ".norm", "norm", 0, 2 * out[0], 0, out))
        return out

    def plain(self, x: Map, name: str, width: int, kernel: int = 1, padding: int = 0, role: Role = "body") -> Map:
        """A convolution with bias that is as it is: part of a head."""
        channels, height, columns = x
        out = (width, height + 2 * padding - kernel + 1, columns + 2 * padding - kernel + 1)
        weights = channels * kernel * kernel * width
        macs = weights * out[1] * out[2]
        self.costs.append(LayerCost(name, "dense", macs, weights + width, width, out, role))
        self.steps.append(Step(name, "head", x, out, (kernel, padding), macs, weights + width, role))
        return out

    def linear(self, features: int, name: str, width: int, role: Role = "body") -> None:
        weights = features * width
        self.costs.append(LayerCost(name, "linear", weights, weights + width, width, (width,), role))
        self.steps.append(Step(name, "linear", (features,), (width,), (), weights, weights + width, role))

    def pool(
        self,
        x: Map,
        kernel: int,
        stride: int,
        padding: int = 0,
        ceil: bool = True,
        kind: Literal["max pool", "avg pool"] = "max pool",
        name: str | None = None,
    ) -> Map:
        """A pooling window; with `ceil` the last, partial window counts, as in Caffe."""
        channels, height, width = x
        extra = stride - 1 if ceil else 0
        rows = (height + 2 * padding - kernel + extra) // stride + 1
        columns = (width + 2 * padding - kernel + extra) // stride + 1
        if rows < 1 or columns < 1:
            raise InvalidArchitecture(
                f"a {kernel}×{kernel} pool needs a map at least that large; at input {self.image[1]} it gets "
                f"{height}×{width}; choose a larger input"
            )
        out = (channels, rows, columns)
        if name is None:
            self.num_pools += 1
            name = f"pool{self.num_pools}"
        self.steps.append(Step(name, kind, x, out, (kernel, stride, padding, ceil)))
        return out

    def pool_all(self, x: Map) -> None:
        """The pool over the whole map."""
        self.steps.append(Step("global_pool", "global pool", x, (x[0],), (self.choices.pool,)))

    def _allocation(self, name: str, path: str) -> Allocation | None:
        """What the architecture says of a layer, under its name or its path."""
        by_name, by_path = self.allocations.get(name), self.allocations.get(path)
        if by_name is not None and by_path is not None:
            raise InvalidArchitecture(f"{name} and {path} are the same layer; got both; remove one")
        if by_name is not None:
            self.used.add(name)
        elif by_path is not None:
            self.used.add(path)
        return by_name or by_path

    def _count(self, x: Map, name: str, mix: Mix, kernel: int, stride: int, bias: bool) -> Map:
        channels, height, width = x
        if self.check_fit:
            check_kernels(name, mix, kernel, height, width, self.image[1])
        rows, columns = (height - 1) // stride + 1, (width - 1) // stride + 1
        macs, params, biases, out_channels = mix_cost(mix, channels, height, rows, columns, bias)
        out = (out_channels, rows, columns)
        self.costs.append(LayerCost(name, mix.kind, macs, params, biases, out))
        return out


def check_kernels(name: str, mix: Mix, kernel: int, height: int, width: int, input_size: int) -> None:
    """Refuse kernels larger than the backbone's own that do not fit the map: their ends would see only padding."""
    for filters in mix.groups:
        rows, columns, _ = filters
        if (rows > kernel and rows > height) or (columns > kernel and columns > width):
            raise InvalidArchitecture(
                f"{name}: a kernel larger than the layer's own {kernel}×{kernel} must fit the map; {filters.shape} "
                f"meets {height}×{width} at input {input_size}; choose a smaller shape or a larger input"
            )


VGG_STAGES: dict[str, tuple[tuple[int, ...], ...]] = {
    "vgg11": ((64,), (128,), (256,) * 2, (512,) * 2, (512,) * 2),
    "vgg13": ((64,) * 2, (128,) * 2, (256,) * 2, (512,) * 2, (512,) * 2),
    "vgg16": ((64,) * 2, (128,) * 2, (256,) * 3, (512,) * 3, (512,) * 3),
    "vgg19": ((64,) * 2, (128,) * 2, (256,) * 4, (512,) * 4, (512,) * 4),
}
"""Widths by stage, as in `timm.models.vgg.cfgs`."""


def _vgg_outline(stages: tuple[tuple[int, ...], ...], batch_norm: bool) -> list[tuple[str, str, int] | None]:
    """Name, path and width of every convolution, None for a pool, in order."""
    outline: list[tuple[str, str, int] | None] = []
    index = 0
    for stage, widths in enumerate(stages, start=1):
        for i, width in enumerate(widths, start=1):
            outline.append((f"conv{stage}_{i}", f"features.{index}", width))
            index += 3 if batch_norm else 2
        outline.append(None)
        index += 1
    return outline


def _vgg(stages: tuple[tuple[int, ...], ...]) -> Callable[[Walk], None]:
    outlines = {batch_norm: _vgg_outline(stages, batch_norm) for batch_norm in (False, True)}

    def walk_vgg(walk: Walk) -> None:
        choices = walk.choices
        keeps_map = choices.pool == "none"
        x, stride = walk.image, choices.stem_stride
        for step in outlines[choices.batch_norm] if keeps_map else outlines[choices.batch_norm][:-1]:
            if step is None:
                x = walk.pool(x, 2, 2, ceil=False)
            else:
                name, path, width = step
                x = walk.conv(x, name, path, width, 3, stride)
                stride = 1
        features = x[0]
        if choices.hidden is not None:
            if keeps_map:  # timm brings smaller maps up to 7×7
                x = walk.plain((x[0], max(x[1], 7), max(x[2], 7)), "fc6", choices.hidden, kernel=7)
            else:
                walk.pool_all(x)
                x = walk.plain((x[0], 1, 1), "fc6", choices.hidden)
            x = walk.plain(x, "fc7", choices.hidden)
            features = x[0]
        else:
            walk.pool_all(x)
        walk.linear(features, "fc8", walk.num_classes, "classifier")

    return walk_vgg


GOOGLENET_MODULES: dict[str, tuple[int, int, int, int, int, int]] = {
    # 1×1, 3×3 reduce, 3×3, 5×5 reduce, 5×5, pool projection
    "3a": (64, 96, 128, 16, 32, 32),
    "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128),
    "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}
"""Widths of the inception modules, as in Caffe's bvlc_googlenet."""


def _googlenet(pool_padding: int) -> Callable[[Walk], None]:
    def walk_googlenet(walk: Walk) -> None:
        def conv(x: Map, name: str, width: int, kernel: int, stride: int = 1) -> Map:
            return walk.conv(x, name, f"{name}.conv", width, kernel, stride)

        def local_norm(x: Map, name: str) -> None:
            if not walk.choices.batch_norm:
                walk.steps.append(Step(name, "local norm", x, x))

        def auxiliary_head(x: Map, name: str) -> None:
            grid = 4 + pool_padding
            x = walk.plain((x[0], grid, grid), f"{name}.conv", 128, role="auxiliary")
            walk.linear(x[0] * grid * grid, f"{name}.fc1", 1024, "auxiliary")
            walk.linear(1024, f"{name}.fc2", walk.num_classes, "auxiliary")

        if pool_padding and (walk.image[1], walk.choices.stem_stride) != (224, 2):
            raise InvalidArchitecture(
                f"googlenet_padded is the paper's network for input 224 and stem_stride 2; got "
                f"{walk.image[1]} and {walk.choices.stem_stride}; use googlenet"
            )
        x = conv(walk.image, "conv1", 64, 7, walk.choices.stem_stride)
        x = walk.pool(x, 3, 2, pool_padding)
        local_norm(x, "norm1")
        x = conv(x, "conv2_reduce", 64, 1)
        x = conv(x, "conv2", 192, 3)
        local_norm(x, "norm2")
        for module, widths in GOOGLENET_MODULES.items():
            if module in ("3a", "4a", "5a"):
                x = walk.pool(x, 3, 2, pool_padding)
            name = f"inception_{module}"
            branches = (
                conv(x, f"{name}.conv1x1", widths[0], 1),
                conv(conv(x, f"{name}.reduce3x3", widths[1], 1), f"{name}.conv3x3", widths[2], 3),
                conv(conv(x, f"{name}.reduce5x5", widths[3], 1), f"{name}.conv5x5", widths[4], 5),
                conv(walk.pool(x, 3, 1, 1, name=f"{name}.pool"), f"{name}.pool_proj", widths[5], 1),
            )
            x = (sum(branch[0] for branch in branches), x[1], x[2])
            walk.steps.append(Step(f"{name}.concat", "concat", x, x, tuple(branch[0] for branch in branches)))
            if module in ("4a", "4d"):
                auxiliary_head(x, f"aux_{module}")
        walk.pool_all(x)
        # with padded pools Caffe's fixed 7×7 window leaves 2×2 of an 8×8 map, and all four are classified
        walk.linear(x[0] * (4 if pool_padding else 1), "classifier", walk.num_classes, "classifier")

    return walk_googlenet


NIN_KERNELS: dict[str, tuple[int, ...]] = {"nin": (5, 5, 3), "nin_3x3": (3, 3, 3, 3)}
"""Sizes of the spatial convolutions; the second has one more, as the paper's nin-c3."""


def _nin(kernels: tuple[int, ...]) -> Callable[[Walk], None]:
    """Network in Network. One kernel size per spatial convolution: conv1, those of block 2, conv3."""

    def walk_nin(walk: Walk) -> None:
        def conv(x: Map, name: str, width: int, kernel: int = 1, stride: int = 1) -> Map:
            return walk.conv(x, name, f"{name}.conv", width, kernel, stride)

        x = conv(walk.image, "conv1", 192, kernels[0], walk.choices.stem_stride)
        x = conv(x, "cccp1", 160)
        x = conv(x, "cccp2", 96)
        x = walk.pool(x, 3, 2)
        middle = kernels[1:-1]
        for i, kernel in enumerate(middle, start=1):
            x = conv(x, "conv2" if len(middle) == 1 else f"conv2_{i}", 192, kernel)
        x = conv(x, "cccp3", 192)
        x = conv(x, "cccp4", 192)
        x = walk.pool(x, 3, 2, kind="avg pool")
        x = conv(x, "conv3", 192, kernels[-1])
        x = conv(x, "cccp5", 192)
        walk.pool_all(walk.plain(x, "cccp6", walk.num_classes, role="classifier"))

    return walk_nin


class Backbone(NamedTuple):
    """A backbone's walk and what may be chosen in it; the first of each is its own."""

    walk: Callable[[Walk], None]
    input_size: int
    """The size the paper counts it at."""
    pools: tuple[Pool, ...]
    classifiers: tuple[Literal["linear", "mlp", "conv"], ...]
    stem_stride: int = 1
    num_classes: int = 1000


def _make_backbones() -> dict[str, Backbone]:
    table = {
        name: Backbone(_vgg(stages), 224, ("none", "max", "avg"), ("mlp", "linear"))
        for name, stages in VGG_STAGES.items()
    }
    table["googlenet"] = Backbone(_googlenet(0), 224, ("avg", "max"), ("linear",), stem_stride=2)
    # the maps on which the paper's googlenet-lr was counted: every stride-2 pool padded by 1
    table["googlenet_padded"] = Backbone(_googlenet(1), 224, ("avg",), ("linear",), stem_stride=2)
    for name, kernels in NIN_KERNELS.items():
        table[name] = Backbone(_nin(kernels), 30, ("avg", "max"), ("conv",), num_classes=10)
    return table


BACKBONES = _make_backbones()


def smallest_input(backbone: str) -> int:
    """Rows and columns that images must at least have for a backbone; smaller images are enlarged to this."""
    return 8 if backbone.startswith("nin") else 32
