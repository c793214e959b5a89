"""The paper's backbones as plain timm models: VGG with global pooling, GoogLeNet, Network in Network.

They know nothing of mixed-shape filters: `lrnas.models.build` puts those in. Each takes the width of every
convolution, because an architecture may change it, and follows timm's conventions: `forward_features`,
`forward_head`, `get_classifier`, `reset_classifier`, `num_features`, `feature_info`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from timm.layers import ClassifierHead, SelectAdaptivePool2d, get_device_dtype
from timm.models.vgg import VGG, ConvMlp
from torch import Tensor, nn

from lrnas.arch.backbone_shapes import GOOGLENET_MODULES
from lrnas.layers.conv import ConvBlock


def vgg_layers(stages: Sequence[Sequence[int]], last_pool: bool) -> list[int | str]:
    """Widths by stage in the spelling of `timm.models.vgg`: 64, "M", 128, …"""
    layers: list[int | str] = []
    for widths in stages:
        layers += [*widths, "M"]
    return layers if last_pool else layers[:-1]


class VggGlobalPool(VGG):
    """timm's VGG whose fifth pool is replaced by one over the whole map, before the classifier.

    The classifier is VGG's MLP on 1×1 maps, `hidden` wide, or linear where `hidden` is None.
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
        if hidden:
            self.pre_logits = ConvMlp(self.num_features, hidden, kernel_size=1, drop_rate=drop_rate, **place)
        else:
            self.pre_logits = nn.Identity()  # type: ignore[assignment]
        self.head = ClassifierHead(
            self.head_hidden_size,
            num_classes,
            pool_type="avg" if global_pool else "",  # nothing is left to pool: it drops the 1×1 map
            drop_rate=drop_rate,
            **place,
        )

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


class _TimmModel(nn.Module):
    """What the two backbones below have in common for timm."""

    num_classes: int
    in_chans: int
    num_features: int
    head_hidden_size: int
    feature_info: list[dict[str, Any]]

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        assert not enable, "gradient checkpointing not supported"

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Every child module is a group of its own, in order; timm's layer decay uses this."""
        names = [name for name, child in self.named_children() if any(True for _ in child.parameters())]
        return {
            "stem": rf"^{names[0]}",
            "blocks": [(rf"^{name}\.", (i,)) for i, name in enumerate(names[1:])],
        }


class Inception(nn.Module):
    """1×1, 3×3 and 5×5 convolutions and a pooled projection side by side."""

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
        """The convolutions that read the module's input: to the gradient they are one layer."""
        return [block.conv for block in (self.conv1x1, self.reduce3x3, self.reduce5x5, self.pool_proj)]

    def forward(self, x: Tensor) -> Tensor:
        branches = [
            self.conv1x1(x),
            self.conv3x3(self.reduce3x3(x)),
            self.conv5x5(self.reduce5x5(x)),
            self.pool_proj(self.pool(x)),
        ]
        return torch.cat(branches, dim=1)


class AuxiliaryHead(nn.Module):
    """A classifier half-way up that helps the gradients in training."""

    is_auxiliary = True
    """Not part of the network in use."""

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
        # Caffe's window on the map of a 224×224 image, of which it leaves just this grid
        if x.shape[-2] == x.shape[-1] == self.grid + 10:
            x = F.avg_pool2d(x, 5, 3, ceil_mode=True)
        x = F.adaptive_avg_pool2d(x, self.grid)
        x = F.relu(self.conv(x)).flatten(1)
        return cast(Tensor, self.fc2(self.drop(F.relu(self.fc1(x)))))


class GoogLeNet(_TimmModel):
    """GoogLeNet as Caffe's bvlc_googlenet has it, local response norms included.

    While training it returns `(logits, auxiliary_4a, auxiliary_4d)`, in use `logits`; with
    `aux_logits=False` it has no auxiliary heads and always returns logits. With batch norm the local
    response norms go. `pool_padding=1` makes the maps on which the paper counted its low-rank
    variants: 112, 57, 29, 15, 8, for inputs of 224×224 only.
    """

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
        pool_padding: int = 0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        widths = widths or {}
        place: dict[str, Any] = {"device": device, "dtype": dtype}
        block = {"batch_norm": batch_norm, **place}
        self.num_classes = num_classes
        self.in_chans = in_chans
        self.pool_padding = pool_padding

        def norm() -> nn.Module:
            return nn.Identity() if batch_norm else nn.LocalResponseNorm(5, alpha=1e-4, beta=0.75)

        def pool() -> nn.Module:
            return nn.MaxPool2d(3, stride=2, padding=pool_padding, ceil_mode=True)

        stem = (widths.get("conv1", 64), widths.get("conv2_reduce", 64), widths.get("conv2", 192))
        self.conv1 = ConvBlock(in_chans, stem[0], 7, stem_stride, **block)
        self.pool1 = pool()
        self.norm1 = norm()
        self.conv2_reduce = ConvBlock(stem[0], stem[1], 1, **block)
        self.conv2 = ConvBlock(stem[1], stem[2], 3, **block)
        self.norm2 = norm()
        self.feature_info = [
            {"num_chs": stem[0], "reduction": stem_stride, "module": "conv1"},
            {"num_chs": stem[2], "reduction": 2 * stem_stride, "module": "norm2"},
        ]
        channels, reduction, aux_channels = stem[2], 2 * stem_stride, {}
        self.body = ["conv1", "pool1", "norm1", "conv2_reduce", "conv2", "norm2"]
        parts = ("conv1x1", "reduce3x3", "conv3x3", "reduce5x5", "conv5x5", "pool_proj")
        for module, own in GOOGLENET_MODULES.items():
            if module in ("3a", "4a", "5a"):
                self.body.append(f"pool{int(module[0]) - 1}")
                self.add_module(self.body[-1], pool())
                reduction *= 2
            name = f"inception_{module}"
            inception = Inception(
                channels,
                [widths.get(f"{name}.{part}", width) for part, width in zip(parts, own, strict=True)],
                **block,
            )
            self.add_module(name, inception)
            self.body.append(name)
            channels = aux_channels[module] = inception.out_chs
            if module in ("3b", "4e", "5b"):
                self.feature_info.append({"num_chs": channels, "reduction": reduction, "module": name})
        self.num_features = self.head_hidden_size = channels
        self.global_pool = self._make_pool(global_pool)
        self.head_drop = nn.Dropout(drop_rate)
        self.fc = self._make_fc(num_classes, **place)
        self.aux_logits = aux_logits and num_classes > 0
        if self.aux_logits:
            grid = 4 + pool_padding
            self.aux_4a = AuxiliaryHead(aux_channels["4a"], num_classes, grid, aux_drop_rate, **place)
            self.aux_4d = AuxiliaryHead(aux_channels["4d"], num_classes, grid, aux_drop_rate, **place)

    def _make_pool(self, pool_type: str) -> nn.Module:
        if self.pool_padding:  # Caffe's fixed window, which leaves 2×2 of the 8×8 map
            assert pool_type == "avg", "padded pools are the paper's, with its average pool"
            return nn.Sequential(nn.AvgPool2d(7, stride=1), nn.Flatten())
        return SelectAdaptivePool2d(pool_type=pool_type, flatten=bool(pool_type))

    def _make_fc(self, num_classes: int, **place: Any) -> nn.Module:
        features = self.num_features * (4 if self.pool_padding else 1)
        return nn.Linear(features, num_classes, **place) if num_classes else nn.Identity()

    def get_classifier(self) -> nn.Module:
        return self.fc

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """A new last layer; the auxiliary heads, which know the old classes only, get one too."""
        place = get_device_dtype(self)
        self.num_classes = num_classes
        if global_pool is not None:
            self.global_pool = self._make_pool(global_pool)
        self.fc = self._make_fc(num_classes, **place)
        self.aux_logits = self.aux_logits and num_classes > 0
        for name in ("aux_4a", "aux_4d") if hasattr(self, "aux_4a") else ():
            if self.aux_logits:
                head = getattr(self, name)
                head.fc2 = nn.Linear(head.fc2.in_features, num_classes, **place)
            else:  # features alone have nothing to be helped with
                delattr(self, name)

    def forward_features(self, x: Tensor) -> Tensor:
        for name in self.body:
            x = getattr(self, name)(x)
        return x

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        x = self.head_drop(self.global_pool(x))
        return x if pre_logits else self.fc(x)

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, ...]:
        if not (self.training and self.aux_logits):
            return self.forward_head(self.forward_features(x))
        auxiliary = []
        for name in self.body:
            x = getattr(self, name)(x)
            if name in ("inception_4a", "inception_4d"):
                auxiliary.append(getattr(self, name.replace("inception", "aux"))(x))
        return (self.forward_head(x), *auxiliary)


class NiN(_TimmModel):
    """Network in Network for small images: spatial convolutions, each followed by 1×1 ones.

    `kernels` are the sizes of conv1, of the one or two convolutions of block 2, and of conv3. The last
    1×1 convolution has one channel per class; they are pooled over the whole map.
    """

    def __init__(
        self,
        widths: Mapping[str, int] | None = None,
        kernels: Sequence[int] = (5, 5, 3),
        num_classes: int = 10,
        in_chans: int = 3,
        stem_stride: int = 1,
        batch_norm: bool = False,
        global_pool: str = "avg",
        drop_rate: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        widths = widths or {}
        place: dict[str, Any] = {"device": device, "dtype": dtype}
        self.num_classes = num_classes
        self.in_chans = in_chans
        self.feature_info = []
        self.body: list[str] = []
        channels, reduction = in_chans, stem_stride

        def add(name: str, width: int, kernel: int = 1, stride: int = 1) -> None:
            nonlocal channels
            width = widths.get(name, width)
            self.body.append(name)
            self.add_module(name, ConvBlock(channels, width, kernel, stride, batch_norm, **place))
            channels = width

        def end_block(module: str) -> None:
            self.feature_info.append({"num_chs": channels, "reduction": reduction, "module": module})

        add("conv1", 192, kernels[0], stem_stride)
        add("cccp1", 160)
        add("cccp2", 96)
        end_block("cccp2")
        self.pool1 = nn.MaxPool2d(3, stride=2, ceil_mode=True)
        self.drop1 = nn.Dropout(drop_rate)
        self.body += ["pool1", "drop1"]
        reduction *= 2
        middle = kernels[1:-1]
        for i, kernel in enumerate(middle, start=1):
            add("conv2" if len(middle) == 1 else f"conv2_{i}", 192, kernel)
        add("cccp3", 192)
        add("cccp4", 192)
        end_block("cccp4")
        self.pool2 = nn.AvgPool2d(3, stride=2, ceil_mode=True)
        self.drop2 = nn.Dropout(drop_rate)
        self.body += ["pool2", "drop2"]
        reduction *= 2
        add("conv3", 192, kernels[-1])
        add("cccp5", 192)
        end_block("cccp5")
        self.num_features = self.head_hidden_size = channels
        self.cccp6 = self._make_classifier(num_classes, **place)
        self.act6 = nn.ReLU()
        self.global_pool = SelectAdaptivePool2d(pool_type=global_pool, flatten=bool(global_pool))

    def _make_classifier(self, num_classes: int, **place: Any) -> nn.Module:
        if not num_classes:
            return nn.Identity()
        classifier = nn.Conv2d(self.num_features, num_classes, 1, **place)
        # a ReLU follows: a class that starts at or below zero everywhere gets no gradient, ever
        classifier.initial_bias = 1.0  # type: ignore[assignment]  # a plain attribute, for lrnas.layers.init
        nn.init.constant_(classifier.bias, 1.0)  # type: ignore[arg-type]
        return classifier

    def get_classifier(self) -> nn.Module:
        return self.cccp6

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        self.num_classes = num_classes
        if global_pool is not None:
            self.global_pool = SelectAdaptivePool2d(pool_type=global_pool, flatten=bool(global_pool))
        self.cccp6 = self._make_classifier(num_classes, **get_device_dtype(self))

    def forward_features(self, x: Tensor) -> Tensor:
        for name in self.body:
            x = getattr(self, name)(x)
        return x

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        if not pre_logits:
            x = self.act6(self.cccp6(x))
        return cast(Tensor, self.global_pool(x))

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(x))
