"""Initial weights of mixed-shape layers that approximate the k×k convolutions they replace.

A convolution multiplies every patch x of its input (the values of all channels under its kernel) by a matrix: y = W x.
In a mixed-shape layer, a group of filters sees only some taps of the patch, and a second convolution limits the rank of
the whole. The best weights V are those with the least mean of |y - V x|² over all patches; they depend only on the
moments E[x xᵀ] and E[y xᵀ] of the patches:

- Without images, patches are taken to be smooth noise: channels are independent, and the correlation of two taps falls
  with their distance, as in natural images.
- With images, x is the input of the new layer in the new model, but y is the output of the old layer in the old model.
  Layers are fitted in the order in which they run, so each of them also corrects errors of the layers before it. A
  little white noise is added, so that there is one solution even if there are fewer patches than weights.

The least squares are solved for each kind of layer:

- Groups side by side: each filter by itself is a linear regression on the taps that its group sees.
- Groups and a join: the regression on the taps of one group, of limited rank, for one group after another until the
  error stays the same. Every such step is optimal for its group.
- A separable layer: 1×k filters by a regression of limited rank in which the rows of a patch count as independent, then
  the best k×1 filters for them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from lrnas.errors import ConversionError
from lrnas.layers.conv import CompositeConv2d, SeparableConv2d, WindowConv2d, output_convs

CORRELATION = 0.8
"""Correlation of neighbouring taps of a patch, if there are no images."""
NOISE = 1e-2
"""Variance of the white noise that is added to patches, relative to their own variance."""
SWEEPS = 10
"""Largest number of times that each group before a join is fitted."""
RESOLUTION = 1e-6
"""Variances below this share of the mean square are rounding errors."""
TOLERANCE = 1e-3
"""The groups before a join are fitted until the relative error decreases by less than this."""
CHUNK = 1 << 25
"""Largest number of values in the patches that are in memory at once."""


@torch.no_grad()
def approximate(
    model: nn.Module,
    originals: Mapping[str, nn.Conv2d],
    teacher: nn.Module | None = None,
    images: Sequence[Tensor] = (),
) -> dict[str, float]:
    """Set the weights of mixed-shape layers so that they approximate the convolutions they replaced.

    Args:
        model: A model with mixed-shape layers, which is changed in place.
        originals: The convolutions that were replaced, by path.
        teacher: A copy of the model from before the conversion, which is only run; needed with images.
        images: Batches of images; none without a teacher. The statistics of batch norms that run are measured again
            with them.

    Returns:
        The relative error of each layer's output, by path: the mean of |y - V x|² as a share of that of |y|².
    """
    layers = {path: _Layer(conv, model.get_submodule(path)) for path, conv in originals.items()}
    calls = Counter[str]() if teacher is None else _calls(teacher.eval(), layers, images[0])
    # a layer that runs several times also gets outputs of its own, so it needs weights before it is fitted to images
    errors = {path: layer.fit(layer.smooth_noise()) for path, layer in layers.items() if calls[path] != 1}
    if teacher is None:
        return errors
    modes = {module: module.training for module in model.modules()}
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    momenta = [norm.momentum for norm in norms]
    statistics = {norm: [values.clone() for values in norm.buffers(recurse=False)] for norm in norms}
    unmeasured = norms  # if something fails, all of them
    model.eval()
    try:
        for norm in norms:  # with the statistics of each batch, as in the training that follows
            norm.train()
            norm.momentum = 0.0
        for path, num_calls in calls.items():
            moments = layers[path].no_moments()
            for batch in images:
                inputs = [x for x, _ in _record(model, path, batch, num_calls)]
                outputs = [y for _, y in _record(teacher, path, batch, num_calls)]
                for x, y in zip(inputs, outputs, strict=True):
                    layers[path].add_patches(moments, x, y)
            errors[path] = layers[path].fit(layers[path].with_noise(moments))
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None  # the mean over all batches
        for batch in images:
            model(batch)
        unmeasured = [norm for norm in norms if norm.num_batches_tracked == 0]  # they do not run in evaluation
    finally:
        for norm in unmeasured:
            for now, before in zip(norm.buffers(recurse=False), statistics[norm], strict=True):
                now.copy_(before)
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
        for module, mode in modes.items():
            module.training = mode
    return {path: errors[path] for path in layers}


def read_images(calibration: Iterable[Any], model: nn.Module) -> list[Tensor]:
    """The images of calibration batches, on the device of the model and in its dtype.

    Args:
        calibration: Batches of images, or tuples that begin with them, as from a data loader.
        model: The model.

    Raises:
        ConversionError: If a batch has another type or shape, or images of another size than the first batch.
    """
    weight = next(model.parameters(), torch.empty(0))
    batches: list[Tensor] = []
    for batch in calibration:
        images = batch[0] if isinstance(batch, list | tuple) and batch else batch
        if not isinstance(images, Tensor) or images.ndim != 4 or len(images) < 2 or not images.is_floating_point():
            got = f"{tuple(images.shape)} {images.dtype}" if isinstance(images, Tensor) else type(images).__name__
            raise ConversionError(
                "a calibration batch must be at least 2 images as floats [number, channels, rows, columns], or a tuple "
                f"that begins with them; got {got}; give batches as the model gets them in training"
            )
        if batches and images.shape[1:] != batches[0].shape[1:]:
            raise ConversionError(
                f"all calibration images must have the same shape; got {tuple(batches[0].shape[1:])} and "
                f"{tuple(images.shape[1:])}; give batches as the model gets them in training"
            )
        batches.append(images.to(weight.device, weight.dtype))
    return batches


class _Reached(Exception):
    """Ends a forward pass when everything has been recorded."""


def _record(model: nn.Module, path: str, images: Tensor, num_calls: int) -> list[tuple[Tensor, Tensor]]:
    """The inputs and outputs of the first calls of a layer in one forward pass, which then ends."""
    found: list[tuple[Tensor, Tensor]] = []

    def note(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        found.append((inputs[0].clone(), output.clone()))  # an activation may overwrite them
        if len(found) == num_calls:
            raise _Reached

    handle = model.get_submodule(path).register_forward_hook(note)
    try:
        with suppress(_Reached):
            model(images)
    finally:
        handle.remove()
    return found


def _calls(model: nn.Module, paths: Iterable[str], images: Tensor) -> Counter[str]:
    """How often layers run in one forward pass, in the order in which they first run."""
    calls: Counter[str] = Counter()
    handles = [
        model.get_submodule(path).register_forward_hook(lambda *_, path=path: calls.update([path])) for path in paths
    ]
    try:
        model(images)
    finally:
        for handle in handles:
            handle.remove()
    return calls


@dataclass
class _Moments:
    """Sums over patches x, and the outputs y wanted for them; after `with_noise`, means."""

    xx: Tensor
    """[inputs, inputs]. An input is a tap of a channel."""
    yx: Tensor
    """[outputs, inputs]."""
    yy: float
    x: Tensor
    y: Tensor
    number: int = 0
    x_origin: Tensor | None = None
    """What was subtracted from all patches, so that little is lost where they hardly vary; None: nothing."""
    y_origin: Tensor | None = None
    least: float = 1e-30
    """Errors are shares of at least this mean of |y|²: outputs that hardly vary count as constant."""


class _Layer:
    """A mixed-shape layer and the convolution that it replaced.

    Args:
        conv: The old convolution.
        new: The new layer.
    """

    def __init__(self, conv: nn.Conv2d, new: nn.Module) -> None:
        assert isinstance(new, CompositeConv2d | SeparableConv2d | WindowConv2d)
        self.conv, self.new = conv, new
        self.dtype = torch.float32 if conv.weight.device.type == "mps" else torch.float64
        groups = [] if isinstance(new, SeparableConv2d) else list(new.group_convs())
        shapes = [_size(group) for group in groups] or [_size(conv)]
        rows, columns = (max(shape[axis] for shape in [*shapes, _size(conv)]) for axis in (0, 1))
        self.window = rows, columns
        seen = [_middle(shape, self.window) for shape in shapes]
        self.taps = sorted(set().union(*seen))
        """The taps of the window that any filter sees, counted row by row."""
        places = torch.arange(conv.in_channels)[:, None] * len(self.taps)
        self.seen = [(places + torch.tensor([self.taps.index(tap) for tap in taps])).flatten() for taps in seen]
        """For each group, the inputs that it sees."""
        self.full = torch.zeros(conv.out_channels, conv.in_channels, rows * columns).to(conv.weight.device, self.dtype)
        """The old weight in the window: [outputs, channels, taps of the window]."""
        self.full[:, :, _middle(_size(conv), self.window)] = conv.weight.to(self.dtype).flatten(2)
        self.weight = self.full[:, :, self.taps].flatten(1)
        """The old weight, as far as the filters see it: [outputs, inputs]."""

    def no_moments(self) -> _Moments:
        outputs, inputs = self.weight.shape
        new = self.weight.new_zeros
        return _Moments(new(inputs, inputs), new(outputs, inputs), 0.0, new(inputs), new(outputs))

    def smooth_noise(self) -> _Moments:
        """The moments of patches of smooth noise with mean 0 and variance 1."""
        moments, rows, columns = self.no_moments(), *self.window
        places = torch.cartesian_prod(torch.arange(rows), torch.arange(columns)).to(self.full)
        correlation = CORRELATION ** torch.cdist(places, places)
        same_channel = torch.eye(self.conv.in_channels).to(self.full)
        moments.xx = torch.kron(same_channel, correlation[self.taps][:, self.taps].contiguous())
        response = self.full @ correlation
        moments.yx = response[:, :, self.taps].flatten(1)
        moments.yy = float((response * self.full).sum())
        if self.conv.bias is not None:
            moments.y += self.conv.bias
        return moments

    def add_patches(self, moments: _Moments, x: Tensor, y: Tensor) -> None:
        """Add the patches of an input, and the outputs wanted for them."""
        positions = y.shape[2] * y.shape[3]
        at_once = max(1, CHUNK // (positions * len(moments.x)))
        for part, wanted in zip(x.split(at_once), y.split(at_once), strict=True):
            patches = self._patches(part).float()
            wanted = wanted.flatten(2).transpose(1, 2).flatten(0, 1).float()
            if self.conv.bias is not None:
                if moments.x_origin is None or moments.y_origin is None:
                    moments.x_origin, moments.y_origin = patches.mean(0), wanted.mean(0)
                patches, wanted = patches - moments.x_origin, wanted - moments.y_origin
            moments.xx += patches.T @ patches
            moments.yx += wanted.T @ patches
            moments.yy += float(wanted.square().sum())
            moments.x += patches.sum(0)
            moments.y += wanted.sum(0)
            moments.number += len(patches)

    def _patches(self, x: Tensor) -> Tensor:
        """The patches of a map, [positions, inputs]."""
        conv, new = self.conv, self.new
        pads_input = not isinstance(new, WindowConv2d) and new.pads_input
        x = new.pad_input(x) if pads_input else x  # type: ignore[operator]
        padding: Any = 0 if pads_input else conv.padding
        around = WindowConv2d(1, 1, self.window, _size(conv), 1, padding, _pair(conv.dilation), device="meta").margins
        x = F.pad(x, (*around[1], *around[0]))
        values = F.unfold(x, self.window, _pair(conv.dilation), 0, _pair(conv.stride))
        seen: Tensor = values.unflatten(1, (conv.in_channels, -1))[:, :, self.taps]
        return seen.flatten(1, 2).transpose(1, 2).flatten(0, 1)

    def with_noise(self, sums: _Moments) -> _Moments:
        """The means, with a little white noise added to patches. The moments are central if a bias can shift y."""
        n = sums.number
        means = _Moments(sums.xx / n, sums.yx / n, sums.yy / n, sums.x / n, sums.y / n)
        if self.conv.bias is None:
            means.x.zero_()
            means.y.zero_()
        scale, scale_y = float(means.xx.diagonal().mean()), means.yy
        if sums.x_origin is not None and sums.y_origin is not None:
            scale += float(sums.x_origin.square().mean())
            scale_y += float(sums.y_origin.square().sum())
        means.xx -= means.x[:, None] * means.x
        means.yx -= means.y[:, None] * means.x
        means.yy = max(means.yy - float(means.y.square().sum()), RESOLUTION * scale_y)
        noise = max(NOISE * float(means.xx.diagonal().mean()), RESOLUTION * scale, 1e-12)
        means.xx.diagonal().add_(noise)
        means.yx += noise * self.weight
        means.yy += noise * float(self.full.square().sum())
        means.least = max(1e-3 * scale_y, means.least)
        if sums.x_origin is not None and sums.y_origin is not None:
            means.x += sums.x_origin
            means.y += sums.y_origin
        return means

    def fit(self, moments: _Moments) -> float:
        """Set the weights of the new layer to the least squares solution; returns its relative error."""
        new = self.new
        if isinstance(new, SeparableConv2d):
            found = self._fit_separable(new, moments)
        elif isinstance(new, CompositeConv2d) and new.join is not None:
            found = self._fit_join(new, moments)
        else:
            found = self._fit_groups(list(new.group_convs()), moments)
        bias, start = moments.y - found @ moments.x, 0
        for conv in output_convs(new):
            if conv.bias is not None:
                conv.bias.copy_(bias[start : start + conv.out_channels])
            start += conv.out_channels
        return _error(found, moments)

    def _fit_groups(self, groups: Sequence[nn.Conv2d], moments: _Moments) -> Tensor:
        found, start = torch.zeros_like(self.weight), 0
        for group, seen in zip(groups, self.seen, strict=True):
            rows = slice(start, start := start + group.out_channels)
            values = _solve(moments.xx[seen][:, seen], moments.yx[rows, seen])
            group.weight.copy_(values.reshape(group.weight.shape))
            found[rows, seen] = values
        return found

    def _fit_join(self, new: CompositeConv2d, moments: _Moments) -> Tensor:
        assert new.join is not None
        groups, xx = list(new.group_convs()), moments.xx
        found = torch.zeros_like(self.weight)
        parts, bases = [found] * len(groups), [found[:, :0]] * len(groups)
        factors = [torch.linalg.cholesky(xx[seen][:, seen]) for seen in self.seen]
        before, error = 2.0, 1.0
        for _ in range(SWEEPS):
            for i, (group, seen) in enumerate(zip(groups, self.seen, strict=True)):
                others = found - parts[i]
                rest = moments.yx[:, seen] - others @ xx[:, seen]
                best = torch.cholesky_solve(rest.T, factors[i]).T
                bases[i] = _largest(best @ rest.T, group.out_channels)
                parts[i] = torch.zeros_like(found)
                parts[i][:, seen] = bases[i] @ (bases[i].T @ best)
                found = others + parts[i]
            before, error = error, _error(found, moments)
            if before - error < TOLERANCE * before:
                break
        new.join.weight.zero_()
        start = 0
        for group, seen, part, basis in zip(groups, self.seen, parts, bases, strict=True):
            filters, mixing = _balanced(basis.T @ part[:, seen], basis)
            # if these are fewer than the group has, the others keep their random weights, and the join ignores them
            group.weight[: len(filters)] = filters.to(group.weight.dtype).reshape(-1, *group.weight.shape[1:])
            new.join.weight[:, start : start + len(filters), 0, 0] = mixing.to(group.weight.dtype)
            start += group.out_channels
            if group.bias is not None:
                group.bias.zero_()
        return found

    def _fit_separable(self, new: SeparableConv2d, moments: _Moments) -> Tensor:
        (rows, columns), channels, outputs = self.window, self.conv.in_channels, self.conv.out_channels
        # inputs by row: [row, channel and column]
        order = torch.arange(channels * rows * columns).view(channels, rows, columns).transpose(0, 1).flatten()
        xx = moments.xx[order][:, order].reshape(rows, channels * columns, rows, channels * columns)
        yx = moments.yx[:, order].reshape(outputs, rows, channels * columns)
        full = _solve(moments.xx, moments.yx)[:, order].reshape(outputs * rows, channels * columns)
        one_row = xx.diagonal(dim1=0, dim2=2).sum(-1)
        across = _largest(full @ one_row @ full.T, new.middle).T @ full  # [middle, channel and column]
        middle = len(across)
        within = torch.einsum("mp,ipjq,nq->minj", across, xx, across).reshape(middle * rows, middle * rows)
        down = _solve(within, torch.einsum("oip,mp->omi", yx, across).flatten(1)).reshape(outputs, middle, rows)
        filters, mixing = _balanced(across, down.transpose(1, 2).flatten(0, 1))
        first, second = new.halves()
        second.weight.zero_()
        first.weight[:middle] = filters.to(first.weight.dtype).reshape(middle, channels, 1, columns)
        second.weight[:, :middle, :, 0] = mixing.reshape(outputs, rows, middle).transpose(1, 2).to(first.weight.dtype)
        if first.bias is not None:
            first.bias.zero_()
        found = torch.einsum("omi,mcj->ocij", down, across.reshape(middle, channels, columns))
        return found.flatten(1)


def _pair(values: tuple[int, ...]) -> tuple[int, int]:
    return values[0], values[1]


def _size(conv: nn.Conv2d) -> tuple[int, int]:
    return _pair(conv.kernel_size)


def _middle(shape: tuple[int, int], window: tuple[int, int]) -> list[int]:
    """The taps of a shape in the middle of a window, where `WindowConv2d` puts it, in ascending order."""
    rows, columns = (
        range(first := (size - 1) // 2 - (own - 1) // 2, first + own) for own, size in zip(shape, window, strict=True)
    )
    return [row * window[1] + column for row, column in product(rows, columns)]


def _solve(xx: Tensor, yx: Tensor) -> Tensor:
    """The weights V with V xx = yx, for a symmetric positive `xx`."""
    solution: Tensor = torch.cholesky_solve(yx.T, torch.linalg.cholesky(xx)).T
    return solution


def _largest(matrix: Tensor, number: int) -> Tensor:
    """The eigenvectors of a symmetric matrix with the largest eigenvalues, as columns; at most as many as its rank."""
    values, vectors = torch.linalg.eigh((matrix + matrix.T) / 2)
    rank = int((values > 1e-10 * values[-1]).sum())
    largest: Tensor = vectors[:, -min(number, max(1, rank)) :]
    return largest


def _balanced(filters: Tensor, mixing: Tensor) -> tuple[Tensor, Tensor]:
    """The same product of `mixing` and `filters`, in which each filter has the norm of its column of `mixing`."""
    norms = mixing.norm(dim=0), filters.norm(dim=1)
    scale = torch.where((norms[0] > 0) & (norms[1] > 0), (norms[0] / norms[1]).sqrt(), 1.0)
    return scale[:, None] * filters, mixing / scale


def _error(weight: Tensor, moments: _Moments) -> float:
    """The mean of |y - weight · x|², as a share of that of |y|²."""
    lost = moments.yy - 2 * (weight * moments.yx).sum() + ((weight @ moments.xx) * weight).sum()
    return max(0.0, float(lost)) / max(moments.yy, moments.least)
