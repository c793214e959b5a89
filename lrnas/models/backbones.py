"""The paper's backbones as ordinary timm models: VGG with global pooling, GoogLeNet, Network in Network.

All their convolutions are k×k; `lrnas.models.build` replaces them by mixed-shape layers. The width of every convolution
is an argument, because an architecture can change it. The models follow timm's conventions: `forward_features`,
`forward_head`, `forward_intermediates`, `prune_intermediate_layers`, `set_grad_checkpointing`, `get_classifier`,
`reset_classifier`, `num_features`, `feature_info`.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, cast

import torch
import torch.nn.functional as F
from timm.layers import ClassifierHead, SelectAdaptivePool2d, get_device_dtype
from timm.models import checkpoint, register_notrace_module
from timm.models._features import feature_take_indices
from timm.models.vgg import VGG, ConvMlp
from torch import Tensor, nn
from torch.fx import GraphModule, Proxy, Tracer

from lrnas.arch.backbone_shapes import (
    GOOGLENET_HEADS,
    GOOGLENET_MODULES,
    GOOGLENET_POOLS,
    INCEPTION_PARTS,
    NIN_BLOCKS,
    GoogLeNetPools,
    NinBlock,
)
from lrnas.layers.conv import ConvBlock


def vgg_layers(stages: Sequence[Sequence[int]], last_pool: bool) -> list[int | str]:
    """The widths of all stages in the format of `timm.models.vgg`: 64, "M", 128, …

    Args:
        stages: The widths of the convolutions of each stage.
        last_pool: Whether the last stage ends with a pool.
    """
    layers: list[int | str] = []
    for widths in stages:
        layers += [*widths, "M"]
    return layers if last_pool else layers[:-1]


class _LayerTracer(Tracer):
    """Traces how a network calls its layers, and not what happens inside them."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return True


class _LayerGraph(GraphModule):
    """A network as a graph of its layers, in the mode (training or evaluation) that it is in."""

    def __init__(self, network: nn.Module) -> None:
        graph = _LayerTracer().trace(network)
        graph.output_node().type = None  # TorchScript has no type for GoogLeNet's one or several outputs
        super().__init__(network, graph)


class _Intermediates(nn.Module, ABC):
    """Mixin with timm's methods for the outputs of layers in the middle of a network."""

    feature_info: list[dict[str, Any]]
    grad_checkpointing: bool = False

    @abstractmethod
    def _steps(self) -> Iterator[tuple[str, nn.Module]]:
        """The layers before the head, in order, by path."""

    def _parts(self) -> Iterator[tuple[str, nn.Module]]:
        """The layers before the head in parts that `_run` runs, by the path of the last layer of each part."""
        return self._steps()

    @abstractmethod
    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """Replace the last layer, and the pool if one is given."""

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Save memory in training: compute activations twice instead of keeping them."""
        self.grad_checkpointing = enable

    def _checkpoints(self, x: Tensor) -> bool:
        """Whether to keep no activations of this input; graphs of torch.fx always keep them."""
        return self.grad_checkpointing and self.training and not isinstance(x, Proxy)

    def _run(self, module: nn.Module, x: Tensor) -> Tensor:
        """The output of a part of the network, whose activations are not kept if gradient checkpointing is on."""
        return cast(Tensor, checkpoint(module, x) if self._checkpoints(x) else module(x))

    def __prepare_scriptable__(self) -> nn.Module:
        """The network as `torch.jit.script` can compile it, which cannot look up layers by name."""
        return _LayerGraph(self)

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | list[int] | None = None,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> list[Tensor] | tuple[Tensor, list[Tensor]]:
        """Compute the features and the maps at several resolutions.

        Args:
            x: Images.
            indices: Which maps of `feature_info`: these, the last n, or all if it is None.
            norm: Without effect, because the networks have no norm after their last layer.
            stop_early: Whether to skip the layers after the last map.
            output_fmt: Only "NCHW".
            intermediates_only: Whether to return only the maps.

        Returns:
            The output of the last layer before the head, and the maps; or only the maps.
        """
        assert output_fmt == "NCHW", "the maps of a CNN have the format NCHW"
        taken, last = feature_take_indices(len(self.feature_info), indices)
        wanted = {self.feature_info[i]["module"] for i in taken}
        maps = []
        for path, part in self._parts():
            x = self._run(part, x)
            if path in wanted:
                maps.append(x)
            if stop_early and path == self.feature_info[last]["module"]:
                break
        return maps if intermediates_only else (x, maps)

    def prune_intermediate_layers(
        self, indices: int | list[int] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        """Remove the layers that `forward_intermediates` does not need.

        Args:
            indices: As in `forward_intermediates`.
            prune_norm: Without effect.
            prune_head: Whether to remove the head too.

        Returns:
            The indices of the maps that are left.
        """
        taken, last = feature_take_indices(len(self.feature_info), indices)
        paths = [path for path, _ in self._steps()]
        for path in paths[paths.index(self.feature_info[last]["module"]) + 1 :]:
            self.set_submodule(path, nn.Identity())
        if prune_head:
            self.reset_classifier(0, "")
        return taken


class Vgg(_Intermediates, VGG):
    """timm's VGG with intermediate maps and gradient checkpointing."""

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        VGG.reset_classifier(self, num_classes, global_pool)

    def _steps(self) -> Iterator[tuple[str, nn.Module]]:
        return ((f"features.{name}", module) for name, module in self.features.named_children())

    def _parts(self) -> Iterator[tuple[str, nn.Module]]:
        """All layers from one map to the next are one part."""
        paths = [level["module"] for level in self.feature_info]
        ends = [int(path.removeprefix("features.")) + 1 for path in paths]
        return (
            (path, self.features[start:end]) for path, (start, end) in zip(paths, pairwise([0, *ends]), strict=True)
        )

    def prune_intermediate_layers(
        self, indices: int | list[int] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        if prune_head:
            self.pre_logits = nn.Identity()  # type: ignore[assignment]
        return super().prune_intermediate_layers(indices, prune_norm, prune_head)

    def forward_features(self, x: Tensor) -> Tensor:
        if not self._checkpoints(x):
            return cast(Tensor, self.features(x))
        for _, part in self._parts():
            x = self._run(part, x)
        return x


class VggGlobalPool(Vgg):
    """VGG with a pool over the whole map instead of the fifth pool.

    The classifier is VGG's MLP with `hidden` units per layer, on the 1×1 map; it is linear if `hidden` is None.
    """

    def __init__(
        self,
        cfg: list[int | str],
        num_classes: int = 1000,
        in_chans: int = 3,
        hidden: int | None = 4096,
        norm_layer: type[nn.Module] | None = None,
        global_pool: str = "max",
        drop_rate: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **kwargs: Any,
    ) -> None:
        place: dict[str, Any] = {"device": device, "dtype": dtype}
        super().__init__(cfg, num_classes, in_chans, norm_layer=norm_layer, **kwargs, **place)
        self.drop_rate = drop_rate
        self.head_hidden_size = hidden or self.num_features
        self.global_pool = _make_pool(global_pool)
        self.pre_logits = nn.Identity()  # type: ignore[assignment]
        if hidden:
            self.pre_logits = ConvMlp(self.num_features, hidden, kernel_size=1, drop_rate=drop_rate, **place)
        pool_type = "avg" if global_pool else ""  # the map is already 1×1; this pool only removes two dimensions
        self.head = ClassifierHead(self.head_hidden_size, num_classes, pool_type, drop_rate, **place)

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        if global_pool is not None:
            self.global_pool = _make_pool(global_pool)
        self.num_classes = num_classes
        pool_type = None if global_pool is None else "avg" if global_pool else ""
        self.head.reset(num_classes, pool_type, **get_device_dtype(self))

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        x = self.global_pool(x)  # B × C × H × W to B × C × 1 × 1
        x = self.pre_logits(x)
        return cast(Tensor, self.head(x, pre_logits=pre_logits))


def _make_pool(pool_type: str) -> nn.Module:
    return SelectAdaptivePool2d(pool_type=pool_type, flatten=False) if pool_type else nn.Identity()


class _Backbone(_Intermediates):
    """Base class of GoogLeNet and NiN: a chain of modules, a pool and a classifier, with timm's methods."""

    classifier_name: str
    num_features: int
    head_hidden_size: int
    global_pool: nn.Module

    def __init__(self, num_classes: int, in_chans: int) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.in_chans = in_chans
        self.feature_info: list[dict[str, Any]] = []
        self.body: list[str] = []
        """Names of the modules that `forward_features` runs, in order."""

    def _add(self, name: str, module: nn.Module) -> None:
        self.add_module(name, module)
        self.body.append(name)

    def _add_level(self, module: str, channels: int, reduction: int) -> None:
        self.feature_info.append({"num_chs": channels, "reduction": reduction, "module": module})

    def _make_pool(self, pool_type: str) -> nn.Module:
        return SelectAdaptivePool2d(pool_type=pool_type, flatten=bool(pool_type))

    @abstractmethod
    def _make_classifier(self, num_classes: int, **place: Any) -> nn.Module:
        """A new last layer."""

    def get_classifier(self) -> nn.Module:
        return self.get_submodule(self.classifier_name)

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """Replace the last layer, and the pool if one is given."""
        self.num_classes = num_classes
        if global_pool is not None:
            self.global_pool = self._make_pool(global_pool)
        setattr(self, self.classifier_name, self._make_classifier(num_classes, **get_device_dtype(self)))

    def _steps(self) -> Iterator[tuple[str, nn.Module]]:
        return ((name, self.get_submodule(name)) for name in self.body)

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Groups of parameters for timm's layer-wise decay: one group per child module, in order."""
        names = [name for name, child in self.named_children() if any(True for _ in child.parameters())]
        return {"stem": rf"^{names[0]}", "blocks": [(rf"^{name}\.", (i,)) for i, name in enumerate(names[1:])]}

    def forward_features(self, x: Tensor) -> Tensor:
        for _, module in self._steps():
            x = self._run(module, x)
        return x

    @abstractmethod
    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Logits from the last map, or the features before the classifier."""

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, ...]:
        return self.forward_head(self.forward_features(x))


class Inception(nn.Module):
    """Inception module: concatenates the outputs of 1×1, 3×3 and 5×5 convolutions and of a pool with a projection."""

    def __init__(self, in_chs: int, widths: Sequence[int], **block: Any) -> None:
        super().__init__()
        self.conv1x1 = ConvBlock(in_chs, widths[0], 1, **block)
        self.reduce3x3 = ConvBlock(in_chs, widths[1], 1, **block)
        self.conv3x3 = ConvBlock(widths[1], widths[2], 3, **block)
        self.reduce5x5 = ConvBlock(in_chs, widths[3], 1, **block)
        self.conv5x5 = ConvBlock(widths[3], widths[4], 5, **block)
        self.pool = nn.MaxPool2d(3, stride=1, padding=1)
        self.pool_proj = ConvBlock(in_chs, widths[5], 1, **block)
        self.out_chs = widths[0] + widths[2] + widths[4] + widths[5]

    def side_by_side(self) -> list[nn.Conv2d]:
        """The convolutions that read the input of the module; `lrnas.layers.init` treats them as one layer."""
        return [block.conv for block in (self.conv1x1, self.reduce3x3, self.reduce5x5, self.pool_proj)]

    def forward(self, x: Tensor) -> Tensor:
        branches = [
            self.conv1x1(x),
            self.conv3x3(self.reduce3x3(x)),
            self.conv5x5(self.reduce5x5(x)),
            self.pool_proj(self.pool(x)),
        ]
        return torch.cat(branches, dim=1)


@register_notrace_module  # torch.fx cannot trace its condition
class AuxiliaryHead(nn.Module):
    """A second classifier in the middle of the network, which improves the gradients in training."""

    is_auxiliary = True
    """Tells `lrnas.models.count` that the module is used in training only."""

    def __init__(self, in_chs: int, num_classes: int, grid: int, drop_rate: float, **place: Any) -> None:
        super().__init__()
        self.grid = grid
        self.conv = nn.Conv2d(in_chs, 128, 1, **place)
        self.fc1 = nn.Linear(128 * grid * grid, 1024, **place)
        self.drop = nn.Dropout(drop_rate)
        self.fc2 = nn.Linear(1024, num_classes, **place)

    def get_classifier(self) -> nn.Module:
        return self.fc2

    def forward(self, x: Tensor) -> Tensor:
        # Caffe's pooling window, which gives exactly this grid on the map of a 224×224 image
        if x.shape[-2] == x.shape[-1] == self.grid + 10:
            x = F.avg_pool2d(x, 5, 3, ceil_mode=True)
        x = F.adaptive_avg_pool2d(x, self.grid)
        x = F.relu(self.conv(x)).flatten(1)
        return self.fc2(self.drop(F.relu(self.fc1(x))))  # type: ignore[no-any-return]


class GoogLeNet(_Backbone):
    """GoogLeNet as in Caffe's bvlc_googlenet, including local response norms.

    In training it returns `(logits, auxiliary_4a, auxiliary_4d)`, without the last one if there is no module 4d; in
    evaluation `logits`. With `aux_logits=False` it has no auxiliary heads and always returns logits. With batch norm it
    has no local response norms. Inception modules whose 3×3 layer has width 0 are left out. With padded pools its maps
    have 112, 57, 29, 15 and 8 rows, for which the paper counted its low-rank variants; the input must then be 224×224.
    """

    classifier_name = "fc"

    def __init__(
        self,
        widths: Mapping[str, int] | None = None,
        num_classes: int = 1000,
        in_chans: int = 3,
        stem_stride: int = 2,
        batch_norm: bool = False,
        global_pool: str = "avg",
        drop_rate: float = 0.0,
        aux_logits: bool = True,
        aux_drop_rate: float = 0.7,
        pools: GoogLeNetPools = GOOGLENET_POOLS["googlenet"],
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(num_classes, in_chans)
        widths = widths or {}
        place: dict[str, Any] = {"device": device, "dtype": dtype}
        block = {"batch_norm": batch_norm, **place}
        self.pools = pools
        norm: Any = nn.Identity if batch_norm else partial(nn.LocalResponseNorm, 5, alpha=1e-4, beta=0.75)
        pool = partial(nn.MaxPool2d, 3, stride=2, padding=pools.padding, ceil_mode=True)
        stem = (widths.get("conv1", 64), widths.get("conv2_reduce", 64), widths.get("conv2", 192))
        reduction = stem_stride
        self._add("conv1", ConvBlock(in_chans, stem[0], 7, stem_stride, **block))
        if pools.has_first:
            self._add_level("conv1", stem[0], reduction)
            self._add("pool1", pool())
            reduction *= 2
        self._add("norm1", norm())
        self._add("conv2_reduce", ConvBlock(stem[0], stem[1], 1, **block))
        self._add("conv2", ConvBlock(stem[1], stem[2], 3, **block))
        self._add("norm2", norm())
        channels, aux_channels = stem[2], {}
        for module, own in GOOGLENET_MODULES.items():
            name = f"inception_{module}"
            wanted = [widths.get(f"{name}.{part}", width) for part, width in zip(INCEPTION_PARTS, own, strict=True)]
            if not wanted[INCEPTION_PARTS.index("conv3x3")]:
                continue
            if module.endswith("a"):
                self._add_level(self.body[-1], channels, reduction)
                self._add(f"pool{int(module[0]) - 1}", pool())
                reduction *= 2
            inception = Inception(channels, wanted, **block)
            self._add(name, inception)
            channels = aux_channels[name] = inception.out_chs
        self._add_level(self.body[-1], channels, reduction)
        self.num_features = self.head_hidden_size = channels
        self.global_pool = self._make_pool(global_pool)
        self.head_drop = nn.Dropout(drop_rate)
        self.fc = self._make_classifier(num_classes, **place)
        self.aux_logits = aux_logits and num_classes > 0
        self.heads = {
            f"inception_{name}": f"aux_{name}" for name in GOOGLENET_HEADS if f"inception_{name}" in self.body
        }
        """Names of the auxiliary heads by those of the modules before them."""
        for module, head in self.heads.items() if self.aux_logits else ():
            grid = 4 + pools.padding
            self.add_module(head, AuxiliaryHead(aux_channels[module], num_classes, grid, aux_drop_rate, **place))

    def _make_pool(self, pool_type: str) -> nn.Module:
        if self.pools.padding:  # Caffe's fixed window, which pools the 8×8 map to 2×2
            assert pool_type == "avg", "padded pools are for the paper's network, which has an average pool"
            return nn.Sequential(nn.AvgPool2d(7, stride=1), nn.Flatten())
        return super()._make_pool(pool_type)

    def _make_classifier(self, num_classes: int, **place: Any) -> nn.Module:
        features = self.num_features * (4 if self.pools.padding else 1)
        return nn.Linear(features, num_classes, **place) if num_classes else nn.Identity()

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """Replace the last layers of the network and of its auxiliary heads. With 0 classes the heads are removed."""
        super().reset_classifier(num_classes, global_pool)
        for name in self.heads.values() if self.aux_logits else ():
            if num_classes:
                head = getattr(self, name)
                head.fc2 = nn.Linear(head.fc2.in_features, num_classes, **get_device_dtype(self))
            else:
                delattr(self, name)
        self.aux_logits = self.aux_logits and num_classes > 0

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        x = self.head_drop(self.global_pool(x))
        return x if pre_logits else self.fc(x)

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, ...]:
        if not (self.training and self.aux_logits):
            return super().forward(x)
        auxiliary = []
        for name, module in self._steps():
            x = self._run(module, x)
            if name in self.heads:
                auxiliary.append(getattr(self, self.heads[name])(x))
        return (self.forward_head(x), *auxiliary)


class NiN(_Backbone):
    """Network in Network for small images: spatial convolutions, each followed by 1×1 convolutions.

    `widths` can have other widths than those of the blocks; layers with width 0 are left out. The last 1×1 convolution
    has one channel per class, which is pooled over the whole map.
    """

    classifier_name = "cccp6"

    def __init__(
        self,
        widths: Mapping[str, int] | None = None,
        blocks: Sequence[NinBlock] = NIN_BLOCKS["nin"],
        num_classes: int = 10,
        in_chans: int = 3,
        stem_stride: int = 1,
        batch_norm: bool = False,
        global_pool: str = "avg",
        drop_rate: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(num_classes, in_chans)
        place: dict[str, Any] = {"device": device, "dtype": dtype}
        channels, stride = in_chans, stem_stride
        for i, block in enumerate(blocks, start=1):
            for name, (own_width, kernel) in {**block.spatial, **block.mixing}.items():
                if width := (widths or {}).get(name, own_width):
                    self._add(name, ConvBlock(channels, width, kernel, stride, batch_norm, **place))
                    channels, stride = width, 1
            self._add_level(self.body[-1], channels, stem_stride * 2 ** (i - 1))
            if i < len(blocks):
                pool = nn.MaxPool2d if i == 1 else nn.AvgPool2d
                self._add(f"pool{i}", pool(3, stride=2, ceil_mode=True))
                self._add(f"drop{i}", nn.Dropout(drop_rate))
        self.num_features = self.head_hidden_size = channels
        self.cccp6 = self._make_classifier(num_classes, **place)
        self.act6 = nn.ReLU()
        self.global_pool = self._make_pool(global_pool)

    def _make_classifier(self, num_classes: int, **place: Any) -> nn.Module:
        if not num_classes:
            return nn.Identity()
        classifier = nn.Conv2d(self.num_features, num_classes, 1, **place)
        # a ReLU follows: a class whose output is at or below zero everywhere at the start would never get a gradient
        classifier.initial_bias = 1.0  # type: ignore[assignment]  # a plain attribute, for lrnas.layers.init
        nn.init.constant_(classifier.bias, 1.0)  # type: ignore[arg-type]
        return classifier

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        if not pre_logits:
            x = self.act6(self.cccp6(x))
        return cast(Tensor, self.global_pool(x))
