"""Triton kernel for the loss of a training step: cross-entropy, its gradient and the number of correct answers.

PyTorch needs many kernels for these, most of them for a single number. In small networks, the number of
kernels decides how long a step takes.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024
"""Number of logits that a program computes, unless a row has more."""


@triton.jit
def _cross_entropy_kernel(
    logits_ptr, labels_ptr, grad_ptr, loss_ptr, correct_ptr, number, num_classes, smoothing, weight, batch_size,
    COUNT: tl.constexpr, ROWS: tl.constexpr, CLASSES: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    classes = tl.arange(0, CLASSES)
    exists = rows < number
    real = tl.broadcast_to((classes < num_classes)[None, :], (ROWS, CLASSES))
    at, here = rows[:, None] * num_classes + classes[None, :], real & exists[:, None]
    label = tl.load(labels_ptr + rows, mask=exists, other=0)
    logits = tl.load(logits_ptr + at, mask=here, other=0.0).to(tl.float32)
    logits = tl.where(real, logits, float("-inf"))
    apart = logits - tl.max(logits, 1)[:, None]
    total = tl.sum(tl.exp(apart), 1)[:, None]
    target = tl.where(classes[None, :] == label[:, None], 1.0 - smoothing, 0.0) + smoothing / num_classes
    loss = -tl.sum(tl.where(here & (target > 0), target * (apart - tl.log(total)), 0.0), 1)
    grad = (tl.exp(apart) / total - target) * (weight / batch_size)
    tl.store(grad_ptr + at, grad.to(grad_ptr.dtype.element_ty), mask=here)
    # float32 numbers add up almost exactly in float64, so that the order of the programs does not matter
    tl.atomic_add(loss_ptr, tl.sum(loss.to(tl.float64), 0) * weight)
    if COUNT:
        hits = (tl.argmax(logits, 1).to(tl.int64) == label) & exists
        tl.atomic_add(correct_ptr, tl.sum(hits.to(tl.int64), 0))


def cross_entropy(
    logits: Tensor,
    labels: Tensor,
    batch_size: int,
    loss: Tensor,
    correct: Tensor | None = None,
    *,
    smoothing: float = 0.0,
    weight: float = 1.0,
) -> Tensor:
    """Return the gradient of the mean cross-entropy of a batch, and add the loss of each image to a total.

    Args:
        logits: Outputs of the network, [images, classes].
        labels: Class of each image, int64.
        batch_size: Number of images of the mean. It is larger than the number of these images if they are only a part
            of the batch.
        loss: Total to which the losses of all images are added, one number in float64.
        correct: Total to which the number of images is added whose largest logit is that of their class, one int64
            number; None: do not count them.
        smoothing: Share of the target that is spread over all classes.
        weight: Factor of the losses and of the gradient.

    Returns:
        The gradient of the logits, with their dtype.
    """
    number, num_classes = logits.shape
    grad = torch.empty(logits.shape, dtype=logits.dtype, device=logits.device)
    columns = triton.next_power_of_2(num_classes)
    rows = max(1, BLOCK // columns)
    _cross_entropy_kernel[(triton.cdiv(number, rows),)](
        logits.detach().contiguous(), labels.contiguous(), grad, loss, loss if correct is None else correct,
        number, num_classes, smoothing, weight, batch_size, correct is not None, rows, columns,
    )  # fmt: skip
    return grad
