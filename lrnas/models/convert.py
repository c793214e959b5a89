"""Puts mixed-shape filters into any CNN: finds its k×k convolutions and replaces them.

    model = timm.create_model("resnet50")
    report = lrnas.convert(model)           # half 3×1, half 1×3 filters, everywhere
    print(report)

A replacement has the same input and output shapes, device and dtype, so the rest of the model does not change.
Convolutions that cannot be replaced are kept and listed with the reason.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Literal, get_args

import torch
from timm.layers import Conv2dSame
from torch import nn
from torch.nn.utils import parametrize

from lrnas._arguments import checked, short_repr
from lrnas._messages import logger, show_messages
from lrnas._notebook import NotebookView
from lrnas.arch.architecture import Allocation, Filters, Mix
from lrnas.errors import ConversionError, InvalidArgument, closest
from lrnas.layers.conv import CompositeConv2d, SeparableConv2d, WindowConv2d, make_conv
from lrnas.layers.init import Rule, initialise
from lrnas.models.pretrained import approximate, read_images

LOW_RANK = Allocation.composite(vertical=0.5, horizontal=0.5)
"""Half k×1, half 1×k filters: the basic layer of the paper."""


@dataclass(frozen=True, slots=True)
class Conversion(NotebookView):
    """The result of `convert`."""

    model: nn.Module
    """The converted model. This is the given model, unless it was a single convolution."""
    replaced: dict[str, Mix]
    """The new filters, by path."""
    left: dict[str, str]
    """The reason why a convolution was not replaced, by path."""
    errors: dict[str, float] = field(default_factory=dict)
    """With `init="pretrained"`: the squared error of a new layer's output, as a share of the output's own square, by
    path. Without calibration images, this is the error for smooth noise."""

    def __repr__(self) -> str:
        return f"<Conversion: {self.title}>"

    def __str__(self) -> str:
        lines = [f"  {path}: {mix}{self._error(path)}" for path, mix in self.replaced.items()]
        lines += [f"  {path}: left, {reason}" for path, reason in self.left.items()]
        return "\n".join([self.title, *lines])

    @property
    def title(self) -> str:
        """How many convolutions were replaced, and how their weights begin."""
        number = len(self.replaced)
        start = "approximate the old ones" if self.errors else "begin with random weights"
        if number == 1:
            start = "approximates the old one" if self.errors else "begins with random weights"
        begin = f", which {start}" if number else ""
        return f"{number} convolution{'s' * (number != 1)} replaced{begin}, {len(self.left)} left as they were"

    def _error(self, path: str) -> str:
        return f", error {self.errors[path]:.3f}" if path in self.errors else ""


@checked
def convert(
    model: nn.Module,
    allocation: Allocation | Mapping[str, Allocation] = LOW_RANK,
    *,
    init: Rule | Literal["pretrained"] = "composite",
    calibration: Iterable[Any] = (),
    divisor: int = 1,
) -> Conversion:
    """Replace the k×k convolutions of a model by mixed-shape ones, in place, with new weights.

    All new weights can be trained, even if the old weights were frozen. Methods of a model that read the weight of a
    convolution directly, such as timm's re-parameterisation of RepVGG, do not work after the conversion.

    Args:
        model: Any model with `torch.nn.Conv2d` layers.
        allocation: The filters of every k×k convolution, or a dict from paths or patterns ("layer4.*") to allocations;
            a path wins over patterns, a pattern over later ones, and "*" stands for all other paths. Each replacement
            must have as many output channels as the original. A convolution that cuts its input into patches, with a
            stride as large as its kernel, is replaced only if its path is given.
        init: The rule for the new weights: "pretrained" to approximate the old weights, or a rule for random weights;
            see `initialise`.
        calibration: Some batches of training images for `init="pretrained"`, as the model gets them in training; about
            1,000 images in batches of at least 64. The outputs of new layers are then fitted to those of the old layers
            for these images, and the statistics of batch norms are measured again. A batch may also be a tuple that
            begins with the images, as from a data loader.
        divisor: Filter counts are multiples of this number, as in `Architecture`.

    Returns:
        The model, and which convolutions were replaced or left as they were.

    Raises:
        ConversionError: If a path is not a k×k convolution, or if a replacement changes the number of outputs, or if
            the calibration images do not fit. After this or any other error, the model is unchanged.

    Example:
        >>> import lrnas, timm
        >>> report = lrnas.convert(timm.create_model("resnet18"), divisor=8)
        >>> len(report.replaced), str(report.replaced["conv1"])
        (17, '7x1,32 || 1x7,32')
    """
    convs, left = find_convs(model)
    by_path: dict[Any, Any] = {"*": allocation} if isinstance(allocation, Allocation) else dict(allocation)
    for path, chosen in by_path.items():
        if not isinstance(path, str) or not isinstance(chosen, Allocation):
            given = f"{short_repr(path)}: {short_repr(chosen)}"
            raise InvalidArgument(f"allocation takes Allocations by path; got {given}; see help(lrnas.Allocation)")
        if path in left:
            raise ConversionError(f"{path} cannot be replaced: {left[path]}; leave it out")
        if path != "*" and not any(fnmatchcase(conv, path) for conv in convs):
            some = f"; it has {', '.join([*convs][:3])} and {len(convs) - 3} others" if len(convs) > 3 else ""
            raise ConversionError(f"the model has no k×k convolution {path!r}{closest(path, convs) or some}")
    replaced = {}
    for path, conv in convs.items():
        keys = sorted(by_path, key=lambda key: (key != path, key == "*"))
        chosen = next((by_path[key] for key in keys if fnmatchcase(path, key)), None)
        if chosen is None:
            left[path] = "no allocation is given for it"
        elif path not in by_path and cuts_patches(conv):
            left[path] = "it cuts its input into patches (give its path to replace it)"
        elif (mix := mix_at(path, conv, chosen, divisor)) == own_mix(conv):
            left[path] = "its allocation is the same as before"
        else:
            replaced[path] = mix
    images = _check_start(model, init, calibration)
    teacher = _run_copy(model, images[0]) if images else None
    if images and replaced:
        show_messages()
        number, layers = sum(map(len, images)), f"{len(replaced)} new layer{'s' * (len(replaced) != 1)}"
        logger.info(f"fitting {layers} to {number:,} images, one after another; this can take minutes")
    converted = model
    try:
        for path, mix in replaced.items():
            converted = replace_conv(converted, path, mix)
            initialise(converted.get_submodule(path), "composite" if init == "pretrained" else init)
        originals = {path: convs[path] for path in replaced}
        errors = approximate(converted, originals, teacher, images) if init == "pretrained" else {}
    except BaseException:  # also Ctrl-C: a fit to images can take minutes
        for path in replaced:
            _put(model, model.get_submodule(path), convs[path])
        raise
    return Conversion(converted, replaced, left, errors)


def _run_copy(model: nn.Module, images: torch.Tensor) -> nn.Module:
    """A copy of the model in evaluation mode, which is known to run on images like these."""
    teacher = copy.deepcopy(model).eval()
    try:
        with torch.no_grad():
            teacher(images)
    except Exception as error:
        raise ConversionError(
            f"the model must run on the calibration images; got {tuple(images.shape)}, for which it fails with "
            f"{' '.join(str(error).split())!r}; give batches as the model gets them in training"
        ) from error
    return teacher


def _check_start(model: nn.Module, init: str, calibration: Iterable[Any]) -> list[torch.Tensor]:
    """Check the arguments of `convert` about weights; returns the calibration images."""
    rules = ("pretrained", *get_args(Rule))
    if init not in rules:
        raise ConversionError(f"init must be one of {', '.join(rules)}; got {init!r}; choose one")
    if init == "pretrained":
        if any(parameter.is_meta for parameter in model.parameters()):
            raise ConversionError('init="pretrained" needs weights; got a model on the meta device; load weights first')
        return read_images(calibration, model)
    if next(iter(calibration), None) is not None:
        raise ConversionError(f'calibration needs init="pretrained"; got init={init!r}; leave calibration out')
    return []


def find_convs(model: nn.Module) -> tuple[dict[str, nn.Conv2d], dict[str, str]]:
    """Find the convolutions of a model that can be replaced.

    Args:
        model: Any model.

    Returns:
        Two dicts by path: the k×k convolutions that can be replaced, and the reasons why other convolutions cannot.
    """
    convs: dict[str, nn.Conv2d] = {}
    left: dict[str, str] = {}
    skipped: list[str] = []
    shared = _shared_weights(model)
    for path, module in model.named_modules():
        if path.startswith(tuple(skipped)):
            continue
        if isinstance(module, CompositeConv2d | SeparableConv2d):
            left[path] = "it has mixed-shape filters already"
            skipped.append(path + "." if path else "")
        elif (reason := reason_to_leave(module)) is not None:
            left[path] = reason
        elif isinstance(module, nn.Conv2d) and id(module.weight) in shared:
            left[path] = "it shares its weight with another layer"
        elif isinstance(module, nn.Conv2d):
            convs[path] = module
    return convs, left


def _shared_weights(model: nn.Module) -> set[int]:
    """The ids of parameters that belong to more than one module."""
    owners = Counter(id(weight) for module in model.modules() for weight in module.parameters(recurse=False))
    return {weight for weight, number in owners.items() if number > 1}


def reason_to_leave(module: nn.Module) -> str | None:
    """The reason why a convolution cannot be replaced; None if it can, or if the module is no convolution."""
    if isinstance(module, nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d):
        return "it is transposed"
    if isinstance(module, nn.Conv1d | nn.Conv3d):
        return "it is not two-dimensional"
    if isinstance(module, WindowConv2d):
        return "it has another shape already"
    if not isinstance(module, nn.Conv2d):
        return None
    if module.groups == module.in_channels > 1:
        return "it is depthwise"
    if module.groups > 1:
        return f"it is grouped (groups={module.groups})"
    rows, columns = module.kernel_size
    if rows == columns == 1:
        return "it is 1×1"
    if rows != columns:
        return f"its {rows}×{columns} kernel is not square"
    if parametrize.is_parametrized(module):
        return "its weight is parametrised"
    if module._forward_pre_hooks or module._forward_hooks:
        return "hooks are attached to it (a norm of its weight, a pruning mask)"
    if type(module) not in (nn.Conv2d, Conv2dSame):
        return f"{type(module).__name__} does more than convolve"
    return None


def cuts_patches(conv: nn.Conv2d) -> bool:
    """Whether the windows of a convolution do not overlap: filters of one row or column would not see most pixels."""
    return conv.stride == conv.kernel_size


def own_mix(conv: nn.Conv2d) -> Mix:
    """The filters that a k×k convolution has now."""
    return Mix((Filters(conv.kernel_size[0], conv.kernel_size[0], conv.out_channels),))


def mix_at(path: str, conv: nn.Conv2d, allocation: Allocation, divisor: int = 1, can_shrink: bool = False) -> Mix:
    """The filters of an allocation that replaces a convolution, in whole numbers.

    Args:
        path: Path of the convolution, for error messages.
        conv: The convolution.
        allocation: The new filters.
        divisor: Filter counts are multiples of this number, as in `Architecture`.
        can_shrink: Whether it may have fewer output channels.

    Raises:
        ConversionError: If the number of output channels would change, or grow.
    """
    if not allocation.width:
        raise ConversionError(f"{path} cannot be left out; got width 0; choose a width above 0")
    mix = allocation.at(conv.kernel_size[0], conv.out_channels, divisor)
    if mix.out_channels == conv.out_channels:
        return mix
    if not can_shrink:
        raise ConversionError(
            f"{path} must keep its {conv.out_channels} output channels, because the next layers need them; got "
            f"{mix.out_channels}; set width to 1, or add a join of 1"
        )
    if mix.out_channels > conv.out_channels:
        raise ConversionError(
            f"{path} can have at most its {conv.out_channels} output channels; got {mix.out_channels}; set width to 1 "
            "or less"
        )
    return mix


def halves_fold(conv: nn.Conv2d) -> bool:
    """Whether a separable layer in place of a convolution is exactly one convolution; see `cheapest_form`."""
    pads_rows = conv.padding == "same" if isinstance(conv.padding, str) else conv.padding[0] > 0
    pads_zeros = isinstance(conv, Conv2dSame) or (conv.padding_mode == "zeros" and pads_rows)
    return conv.bias is None or not pads_zeros


def replace_conv(model: nn.Module, path: str, mix: Mix) -> nn.Module:
    """Replace one convolution wherever it occurs in the model. The caller must initialise the new weights.

    Args:
        model: The model, which is changed in place.
        path: Path of the convolution; "" if the model itself is one.
        mix: The new filters.

    Returns:
        The model, or the new layer if `path` is "".
    """
    conv = model.get_submodule(path)
    assert isinstance(conv, nn.Conv2d) and reason_to_leave(conv) is None, f"{path} cannot be replaced"
    padding = "tf_same" if isinstance(conv, Conv2dSame) else conv.padding
    geometry = (conv.kernel_size[0], conv.stride, padding, conv.dilation, conv.bias is not None, conv.padding_mode)
    settings: Any = (*geometry, conv.weight.device, conv.weight.dtype)
    new = make_conv(conv.in_channels, mix, *settings)
    if conv.weight.is_contiguous(memory_format=torch.channels_last) and not conv.weight.is_contiguous():
        new = new.to(memory_format=torch.channels_last)
    new.train(conv.training)
    if not path:
        return new
    _put(model, conv, new)
    return model


def _put(model: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """Put a module in place of another one, wherever that one occurs inside the model."""
    for name, module in list(model.named_modules(remove_duplicate=False)):
        if name and module is old:
            model.set_submodule(name, new)
