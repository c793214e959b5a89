"""The backbones as functions over shapes: the order and widths of their layers, and the sizes of their maps.

Such a function, a walk, is a forward pass that computes only the sizes of maps. It does not need torch and builds no
model, so the cost of an architecture takes only a few dozen multiplications (see `lrnas.models.plan`). The models
themselves are in `lrnas.models.backbones`; tests compare the two layer by layer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, NamedTuple

from lrnas.arch.architecture import DENSE, Allocation, Architecture, Mix, Pool
from lrnas.arch.cost import LayerCost, Role, cheapest_form, mix_cost
from lrnas.errors import InvalidArchitecture

Map = tuple[int, int, int]
"""Channels, rows and columns of a feature map."""


class Choices(NamedTuple):
    """The settings of the whole network; defaults are filled in."""

    pool: Pool
    stem_stride: int
    batch_norm: bool
    classifier: Literal["linear", "mlp", "conv"]
    hidden: int | None
    """Width of the hidden layers of an MLP classifier; None for other classifiers."""


class Layer(NamedTuple):
    """The filters of a convolution of a backbone."""

    width: int
    kernel: int


class NinBlock(NamedTuple):
    """The layers of a block of NiN by name: spatial convolutions, then 1×1 convolutions that mix their channels."""

    spatial: Mapping[str, Layer]
    mixing: Mapping[str, Layer]


class PlannedConv(NamedTuple):
    """A convolution of the backbone, and its filters in the planned network."""

    name: str
    path: str
    """Path of the module in the built model."""
    kernel: int
    """Kernel size of the backbone's layer."""
    mix: Mix
    stride: int
    in_channels: int
    keeps_width: bool = False
    """Whether other parts of a timm model need its number of outputs."""
    block: str = ""
    """The block of a timm model that contains it and that can be left out."""


class Step(NamedTuple):
    """A part of the forward pass that takes time, with everything that its time depends on."""

    name: str
    kind: Literal["conv", "head", "linear", "max pool", "avg pool", "global pool", "local norm", "concat", "bare conv"]
    input: tuple[int, ...]
    """Shape for one image: channels, rows, columns; or features."""
    output: tuple[int, ...]
    settings: tuple[object, ...] = ()
    """Depends on the kind. conv: filters, kernel, stride, batch norm; a ReLU follows. head: kernel, padding; a ReLU
    follows. max pool and avg pool: kernel, stride, padding, whether partial windows have an output. global pool:
    max or avg. concat: the widths. bare conv (a convolution of a timm model): filters and further arguments of
    `make_conv`."""
    macs: int = 0
    params: int = 0
    role: Role = "body"

    @property
    def key(self) -> str:
        """A text that is the same for all steps with the same kind, shapes and settings, which take the same time."""
        settings = ", ".join(map(str, self.settings))
        return f"{self.kind} {'x'.join(map(str, self.input))} to {'x'.join(map(str, self.output))} [{settings}]"


@dataclass
class Walk:
    """Follows the map of one image through a network and records every layer's filters and cost."""

    architecture: Architecture
    choices: Choices
    image: Map
    num_classes: int
    deployed: bool = False
    """Whether every layer takes its cheapest form; see `lrnas.arch.cost`."""
    costs: list[LayerCost] = field(default_factory=list)
    convs: list[PlannedConv] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    used: set[str] = field(default_factory=set)
    """The keys of the architecture's `layers` that are layers of the network."""
    left_out: list[str] = field(default_factory=list)
    """The first layer that is left out of each chain."""

    def conv(self, x: Map, name: str, width: int, kernel: int = 1, stride: int = 1, path: str = "") -> Map:
        """Add a convolution with "same" padding, which an architecture can change, and its batch norm.

        Args:
            x: The input map.
            name: Name of the layer.
            width: Number of filters of the backbone's layer.
            kernel: Kernel size of the backbone's layer.
            stride: Stride of the layer.
            path: Path of the module in the built model; by default the name with ".conv".

        Returns:
            The output map.
        """
        path = path or f"{name}.conv"
        allocation = self._find_allocation(name, path, kernel)
        if not allocation.width:
            raise InvalidArchitecture(f"{name} cannot be left out; got width 0; choose a width above 0")
        mix = allocation.at(kernel, width, self.architecture.divisor or 1)
        channels, height, columns = x
        norm = self.choices.batch_norm
        rows, columns = (height - 1) // stride + 1, (columns - 1) // stride + 1
        if self.deployed and mix.second:
            sizes = (channels, height, rows, columns)
            mix = cheapest_form(mix, lambda form: mix_cost(form, *sizes, bias=not norm).macs, halves_fold=norm)
        macs, params, biases, out_channels = mix_cost(mix, channels, height, rows, columns, bias=not norm)
        out = (out_channels, rows, columns)
        self.convs.append(PlannedConv(name, path, kernel, mix, stride, channels))
        self.costs.append(LayerCost(name, mix.kind, macs, params, biases, out))
        self.steps.append(Step(name, "conv", x, out, (mix, kernel, stride, norm), macs, params))
        if norm:
            self.costs.append(LayerCost(name + ".norm", "norm", 0, 2 * out_channels, 0, out))
        return out

    def chain(
        self,
        x: Map,
        layers: Mapping[str, Layer],
        stride: int = 1,
        needed: int = 0,
        path_of: Callable[[str, int], str] = lambda name, _: f"{name}.conv",
    ) -> Map:
        """Add convolutions one after the other. The architecture can leave out the last ones.

        A layer with width 0 is left out, and so are all layers after it. So every network has one description.

        Args:
            x: The input map.
            layers: The layers of the backbone by name, in order.
            stride: Stride of the first layer.
            needed: The number of layers that cannot be left out.
            path_of: Returns the path of a module in the built model, given the name and the index of a layer.

        Returns:
            The output map.
        """
        names = list(layers)
        for i, (name, (width, kernel)) in enumerate(layers.items()):
            if i >= needed and not self._find_allocation(name, path_of(name, i), kernel).width:
                self.used.update(key for j in range(i, len(names)) for key in (names[j], path_of(names[j], j)))
                self.left_out.append(name)
                break
            x = self.conv(x, name, width, kernel, 1 if i else stride, path_of(name, i))
        return x

    def width_of(self, name: str, kernel: int) -> float:
        """Number of filters of a layer as a multiple of the backbone's; 0 if it is left out."""
        return self._find_allocation(name, f"{name}.conv", kernel).width

    def _find_allocation(self, name: str, path: str, kernel: int) -> Allocation:
        """The allocation of a layer. The architecture can refer to the layer by its name or by its path."""
        layers = self.architecture.layers
        key = name if name in layers else path
        allocation = layers.get(key)
        if allocation is None:
            return layers.get("*", DENSE) if kernel > 1 else DENSE
        if key == name and path in layers:
            raise InvalidArchitecture(f"{name} and {path} are the same layer; got both; remove one")
        if kernel == 1 and (allocation.form != "dense" or allocation.join is not None):
            raise InvalidArchitecture(
                f'{name} is a 1×1 convolution, in which only the width can change; got form "{allocation.form}"'
                f"{' with a join' if allocation.join else ''}; leave these out"
            )
        self.used.add(key)
        return allocation

    def plain(self, x: Map, name: str, width: int, kernel: int = 1, role: Role = "body") -> Map:
        """Add a convolution of a head. It has a bias and no padding, and architectures cannot change it."""
        out = (width, x[1] - kernel + 1, x[2] - kernel + 1)
        weights = x[0] * kernel * kernel * width
        macs = weights * out[1] * out[2]
        self.costs.append(LayerCost(name, "dense", macs, weights + width, width, out, role))
        self.steps.append(Step(name, "head", x, out, (kernel, 0), macs, weights + width, role))
        return out

    def linear(self, features: int, name: str, width: int, role: Role) -> None:
        """Add a linear layer with bias."""
        weights = features * width
        self.costs.append(LayerCost(name, "linear", weights, weights + width, width, (width,), role))
        self.steps.append(Step(name, "linear", (features,), (width,), (), weights, weights + width, role))

    def pool(
        self,
        x: Map,
        name: str,
        kernel: int,
        stride: int,
        padding: int = 0,
        ceil: bool = True,
        kind: Literal["max pool", "avg pool"] = "max pool",
    ) -> Map:
        """Add a pooling layer; with `ceil` there is an output for the last, partial window, as in Caffe."""
        extra = 2 * padding - kernel + (stride - 1 if ceil else 0)
        out = (x[0], (x[1] + extra) // stride + 1, (x[2] + extra) // stride + 1)
        if min(out) < 1:
            raise InvalidArchitecture(
                f"a {kernel}×{kernel} pool needs a map of at least this size; got {x[1]}×{x[2]} at input "
                f"{self.image[1]}; choose a larger input"
            )
        self.steps.append(Step(name, kind, x, out, (kernel, stride, padding, ceil)))
        return out

    def pool_all(self, x: Map) -> None:
        """Add the pool over the whole map."""
        self.steps.append(Step("global_pool", "global pool", x, (x[0],), (self.choices.pool,)))


VGG_STAGES: dict[str, tuple[tuple[int, ...], ...]] = {
    "vgg11": ((64,), (128,), (256,) * 2, (512,) * 2, (512,) * 2),
    "vgg13": ((64,) * 2, (128,) * 2, (256,) * 2, (512,) * 2, (512,) * 2),
    "vgg16": ((64,) * 2, (128,) * 2, (256,) * 3, (512,) * 3, (512,) * 3),
    "vgg19": ((64,) * 2, (128,) * 2, (256,) * 4, (512,) * 4, (512,) * 4),
    "vgg_deep": ((64,) * 3, (128,) * 3, (256,) * 3, (512,) * 3, (512,) * 3),
}
"""Widths of the convolutions of each stage, as in `timm.models.vgg.cfgs`; vgg_deep is not in timm.

An architecture can leave out all but the first layer of a stage."""


def _walk_vgg(stages: tuple[tuple[int, ...], ...], walk: Walk) -> None:
    choices = walk.choices
    x, index = walk.image, 0
    step = 3 if choices.batch_norm else 2
    for stage, widths in enumerate(stages, start=1):
        layers = {f"conv{stage}_{i}": Layer(width, 3) for i, width in enumerate(widths, start=1)}
        num, stride = len(walk.convs), choices.stem_stride if stage == 1 else 1
        x = walk.chain(x, layers, stride, 1, lambda _, i, first=index: f"features.{first + i * step}")  # type: ignore[misc]
        index += step * (len(walk.convs) - num)
        if walk.left_out and (paths := [key for key in walk.architecture.layers if key.startswith("features.")]):
            raise InvalidArchitecture(
                f"without {walk.left_out[0]}, the layers after it have other paths; got {paths[0]}; give names such as "
                "conv3_1"
            )
        if stage < len(stages) or choices.pool == "none":
            x = walk.pool(x, f"pool{stage}", 2, 2, ceil=False)
            index += 1
    if choices.pool != "none":
        walk.pool_all(x)
        x = (x[0], 1, 1)
    if choices.hidden is not None:
        if choices.pool == "none":  # timm enlarges smaller maps to 7×7
            x = walk.plain((x[0], max(x[1], 7), max(x[2], 7)), "fc6", choices.hidden, kernel=7)
        else:
            x = walk.plain(x, "fc6", choices.hidden)
        x = walk.plain(x, "fc7", choices.hidden)
    walk.linear(x[0], "fc8", walk.num_classes, "classifier")


INCEPTION_PARTS = ("conv1x1", "reduce3x3", "conv3x3", "reduce5x5", "conv5x5", "pool_proj")
"""The layers of an inception module."""
GOOGLENET_HEADS = ("4a", "4d")
"""The inception modules that an auxiliary head follows, if they are there."""
GOOGLENET_MODULES: dict[str, tuple[int, int, int, int, int, int]] = {
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
"""Widths of the layers of each inception module, in the order of `INCEPTION_PARTS`, as in Caffe's bvlc_googlenet.

The digit is the stage. An architecture can leave out all but the first module of a stage: a module without 3×3 layer is
left out, and so are the modules after it in its stage."""


class GoogLeNetPools(NamedTuple):
    """The pools of stride 2 of a GoogLeNet."""

    has_first: bool = True
    """Whether there is one after the first layer. Without it, all maps after this layer have twice as many rows."""
    padding: int = 0


GOOGLENET_POOLS = {
    "googlenet": GoogLeNetPools(),
    "googlenet_3pools": GoogLeNetPools(has_first=False),  # for small images
    "googlenet_padded": GoogLeNetPools(padding=1),  # with the maps that the paper used to count its googlenet-lr
}
"""The pools of each GoogLeNet."""


def _walk_googlenet(pools: GoogLeNetPools, walk: Walk) -> None:
    if pools.padding and (walk.image[1], walk.choices.stem_stride) != (224, 2):
        raise InvalidArchitecture(
            f"googlenet_padded needs input 224 and stem_stride 2, as in the paper; got {walk.image[1]} and "
            f"{walk.choices.stem_stride}; use googlenet"
        )

    def local_norm(x: Map, name: str) -> None:
        if not walk.choices.batch_norm:
            walk.steps.append(Step(name, "local norm", x, x))

    x = walk.conv(walk.image, "conv1", 64, 7, walk.choices.stem_stride)
    if pools.has_first:
        x = walk.pool(x, "pool1", 3, 2, pools.padding)
    local_norm(x, "norm1")
    x = walk.conv(x, "conv2_reduce", 64)
    x = walk.conv(x, "conv2", 192, 3)
    local_norm(x, "norm2")
    left_out = ""
    for module, widths in GOOGLENET_MODULES.items():
        stage, name = module[0], f"inception_{module}"
        if module.endswith("a"):
            x = walk.pool(x, f"pool{int(stage) - 1}", 3, 2, pools.padding)
        elif left_out == stage or not walk.width_of(f"{name}.conv3x3", 3):
            if left_out != stage:
                walk.left_out.append(name)
            left_out = stage
            walk.used.update(f"{name}.{part}{end}" for part in INCEPTION_PARTS for end in ("", ".conv"))
            continue
        branches = (
            walk.conv(x, f"{name}.conv1x1", widths[0]),
            walk.conv(walk.conv(x, f"{name}.reduce3x3", widths[1]), f"{name}.conv3x3", widths[2], 3),
            walk.conv(walk.conv(x, f"{name}.reduce5x5", widths[3]), f"{name}.conv5x5", widths[4], 5),
            walk.conv(walk.pool(x, f"{name}.pool", 3, 1, 1), f"{name}.pool_proj", widths[5]),
        )
        x = (sum(branch[0] for branch in branches), x[1], x[2])
        walk.steps.append(Step(f"{name}.concat", "concat", x, x, tuple(branch[0] for branch in branches)))
        if module in GOOGLENET_HEADS:
            grid = 4 + pools.padding
            head = walk.plain((x[0], grid, grid), f"aux_{module}.conv", 128, role="auxiliary")
            walk.linear(head[0] * grid * grid, f"aux_{module}.fc1", 1024, "auxiliary")
            walk.linear(1024, f"aux_{module}.fc2", walk.num_classes, "auxiliary")
    walk.pool_all(x)
    # with padded pools, Caffe's fixed 7×7 window pools the 8×8 map to 2×2, and the classifier gets all four values
    walk.linear(x[0] * (4 if pools.padding else 1), "classifier", walk.num_classes, "classifier")


def _nin_blocks(*kernels: Mapping[str, int]) -> tuple[NinBlock, ...]:
    mixing = ({"cccp1": 160, "cccp2": 96}, {"cccp3": 192, "cccp4": 192}, {"cccp5": 192})
    return tuple(
        NinBlock({name: Layer(192, k) for name, k in own.items()}, {name: Layer(n, 1) for name, n in after.items()})
        for own, after in zip(kernels, mixing, strict=True)
    )


NIN_BLOCKS: dict[str, tuple[NinBlock, ...]] = {
    "nin": _nin_blocks({"conv1": 5}, {"conv2": 5}, {"conv3": 3}),
    "nin_3x3": _nin_blocks({"conv1": 3}, {"conv2_1": 3, "conv2_2": 3}, {"conv3": 3}),  # of the paper's nin-c3
    "nin_deep": _nin_blocks(*({f"conv{block}_{i}": 3 for i in (1, 2, 3)} for block in (1, 2, 3))),
}
"""The blocks of each NiN. An architecture can leave out 1×1 layers, and all but the first spatial layer of a block."""


def _walk_nin(blocks: tuple[NinBlock, ...], walk: Walk) -> None:
    x, stride = walk.image, walk.choices.stem_stride
    for i, block in enumerate(blocks, start=1):
        x = walk.chain(x, block.spatial, stride, needed=1)
        x = walk.chain(x, block.mixing)
        if i < len(blocks):
            x = walk.pool(x, f"pool{i}", 3, 2, kind="max pool" if i == 1 else "avg pool")
        stride = 1
    walk.pool_all(walk.plain(x, "cccp6", walk.num_classes, role="classifier"))


class Backbone(NamedTuple):
    """A backbone, and the settings that it allows. The first pool and the first classifier are the defaults."""

    walk: Callable[[Walk], None]
    input_size: int
    """The input size for which the paper gives counts."""
    pools: tuple[Pool, ...]
    classifiers: tuple[Literal["linear", "mlp", "conv"], ...]
    stem_stride: int = 1
    num_classes: int = 1000


BACKBONES = {
    **{
        name: Backbone(partial(_walk_vgg, stages), 224, ("none", "max", "avg"), ("mlp", "linear"))
        for name, stages in VGG_STAGES.items()
    },
    **{
        name: Backbone(
            partial(_walk_googlenet, pools),
            224,
            ("avg",) if pools.padding else ("avg", "max"),
            ("linear",),
            stem_stride=2,
        )
        for name, pools in GOOGLENET_POOLS.items()
    },
    **{
        name: Backbone(partial(_walk_nin, blocks), 30, ("avg", "max"), ("conv",), num_classes=10)
        for name, blocks in NIN_BLOCKS.items()
    },
}


def smallest_input(backbone: str) -> int:
    """The smallest number of rows and columns of images for a backbone. Smaller images are enlarged to it."""
    return 8 if backbone.startswith("nin") else 32
