"""Crops of images, taken on the device that trains.

A crop is six numbers: its first pixel among the pixels of all images, the pixels from one of its rows to the next, its
rows and columns, whether it is mirrored, and the class of the image. So a batch of crops is one operation that gathers
pixels by their numbers, without any work per image.

The pixels are those of all images in memory, those of a whole pack, on the device or in the memory map (`WholePack`),
those of the next batch, which threads copy from the memory map to the device (`NextBatches`), or those of the images of
a batch, decoded from a pack of JPEGs (`DecodedBatches`).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lrnas.data.splits import Indices
from lrnas.layers.kernels import available
from lrnas.layers.layout import fastest_layout

ATTEMPTS = 10
"""Number of random boxes that are tried for an image before its middle is taken, as in torchvision and timm."""
ASPECTS = (3 / 4, 4 / 3)
"""Smallest and largest aspect ratio of random boxes, as in torchvision and timm."""
CHUNK = 256 * 2**20
"""Number of pixels that are copied to the device at a time."""
THREADS = 8
"""Number of threads that copy crops from the memory map, or decode images."""

Boxes = tuple[Tensor, Tensor, Tensor, Tensor]
"""First row, first column, number of rows and number of columns of crops."""


def random_boxes(rows: Tensor, columns: Tensor, size: int, generator: torch.Generator) -> Boxes:
    """Draw boxes of a fixed size, anywhere in their images.

    Args:
        rows: Rows of the images.
        columns: Columns of the images.
        size: Rows and columns of the boxes.
        generator: Source of random numbers.
    """
    length = torch.full_like(rows, size)
    return _draw(rows - length, generator), _draw(columns - length, generator), length, length


def random_resized_boxes(rows: Tensor, columns: Tensor, min_area: float, generator: torch.Generator) -> Boxes:
    """Draw boxes of random area and aspect ratio, as `RandomResizedCrop` of torchvision and timm does.

    Args:
        rows: Rows of the images.
        columns: Columns of the images.
        min_area: Smallest share of the image's area.
        generator: Source of random numbers.
    """
    # in the middle of an image, if no attempt succeeds
    height = rows.minimum((columns / ASPECTS[0]).round().long())
    width = columns.minimum((rows * ASPECTS[1]).round().long())
    top, left = (rows - height) // 2, (columns - width) // 2
    without = torch.arange(len(rows))
    for _ in range(ATTEMPTS):
        area, aspect = torch.rand(2, len(without), generator=generator, dtype=torch.float64)
        area = rows[without] * columns[without] * (min_area + (1 - min_area) * area)
        low, high = map(math.log, ASPECTS)
        aspect = (low + (high - low) * aspect).exp()
        tall, wide = (area / aspect).sqrt().round().long(), (area * aspect).sqrt().round().long()
        room, space = rows[without] - tall, columns[without] - wide
        offsets = _draw(room.clamp(min=0), generator), _draw(space.clamp(min=0), generator)
        fits = (room >= 0) & (space >= 0) & (tall > 0) & (wide > 0)
        for target, values in zip((top, left, height, width), (*offsets, tall, wide), strict=True):
            target[without[fits]] = values[fits]
        without = without[~fits]
    return top, left, height, width


def _draw(most: Tensor, generator: torch.Generator) -> Tensor:
    """Draw a whole number from 0 to `most`, for each of its entries."""
    share = torch.rand(len(most), generator=generator, dtype=torch.float64)
    return (share * (most + 1)).long().minimum(most)


def middle_boxes(rows: Tensor, columns: Tensor, size: int) -> Boxes:
    """Return boxes of a fixed size in the middle of their images, as `CenterCrop` of torchvision does.

    Args:
        rows: Rows of the images.
        columns: Columns of the images.
        size: Rows and columns of the boxes.
    """
    top, left = (((lengths - size) / 2).round().long() for lengths in (rows, columns))
    length = torch.full_like(rows, size)
    return top, left, length, length


def make_places(images: Indices, labels: Indices, boxes: Boxes, mirrored: Tensor) -> Tensor:
    """Return crops as the six numbers of `take`, [6, number of crops].

    Args:
        images: First pixel, rows and columns of the image of each crop: columns of the pack's table.
        labels: Class of each image.
        boxes: Place of each crop in its image.
        mirrored: Whether each crop is mirrored, 0 or 1.
    """
    first, _, columns = torch.from_numpy(images)
    top, left, height, width = boxes
    return torch.stack([first + top * columns + left, columns, height, width, mirrored, torch.from_numpy(labels)])


def take(
    pixels: Tensor, places: Tensor, size: int, resize: bool, shift: Tensor, scale: Tensor, dtype: torch.dtype
) -> Tensor:
    """Return crops as the input of a network, [number, channels, size, size].

    Args:
        pixels: The pixels that `places` refer to, uint8 [number, channels].
        places: Crops, as from `make_places`.
        size: Rows and columns of the result.
        resize: Whether crops have to be resized, with bilinear interpolation; otherwise, they all have this size.
        shift: Number that is added to every channel, after the multiplication.
        scale: Number that every channel is multiplied by.
        dtype: Type of the result.
    """
    if available(pixels.device):
        from lrnas.layers.kernels.crops import crop_and_normalise  # needs Triton

        return crop_and_normalise(pixels, places, size, resize, shift, scale, dtype)
    return normalise(gather(pixels, places, size, resize), shift, scale, dtype)


def gather(pixels: Tensor, places: Tensor, size: int, resize: bool) -> Tensor:
    """Return crops, [number, size, size, channels]: as the pixels are, or float32 if they are resized.

    Args:
        pixels: The pixels that `places` refer to, [number, channels].
        places: Crops, as from `make_places`.
        size: Rows and columns of the result.
        resize: Whether crops have to be resized, with bilinear interpolation; otherwise, they all have this size.
    """
    first, stride, height, width, mirrored = places[:5].unsqueeze(2)
    along = torch.arange(size, device=places.device)
    across = torch.where(mirrored > 0, size - 1 - along, along)
    if not resize:
        return pixels[(first + along * stride).unsqueeze(2) + across.unsqueeze(1)]
    upper, lower, down = _interpolate(along, height, size)
    left, right, along_row = _interpolate(across, width, size)

    def blend(row: Tensor) -> Tensor:
        start = (first + row * stride).unsqueeze(2)
        first_part, second_part = (pixels[start + column.unsqueeze(1)].float() for column in (left, right))
        return torch.lerp(first_part, second_part, along_row[:, None, :, None])

    return torch.lerp(blend(upper), blend(lower), down[:, :, None, None])


def normalise(batch: Tensor, shift: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Return bytes [batch, rows, columns, channels] as a network's input, with a shift and a scale per channel."""
    return channels_first(torch.addcmul(shift, batch.float(), scale).to(dtype))


def channels_first(pixels: Tensor) -> Tensor:
    """Return pixels [batch, rows, columns, channels] as a network's input."""
    return pixels.permute(0, 3, 1, 2).contiguous(memory_format=fastest_layout(pixels.device))


def _interpolate(where: Tensor, length: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the pixels before and after every point of a row or column of `length` pixels, and the second's weight."""
    position = ((where + 0.5) * (length / size) - 0.5).clamp(min=0)
    before = position.long()
    return before, (before + 1).minimum(length - 1), position - before


class Pixels(Protocol):
    """Pixels on a device, for crops that are taken batch after batch."""

    pixels: Tensor
    """uint8 [number, 3]. It stays at the same address, as CUDA graphs require."""

    def begin(self, places: Tensor, batches: Sequence[slice]) -> Tensor:
        """Announce the crops of all following batches. Returns `places` with the numbers of pixels in `pixels`."""

    def load(self, number: int) -> None:
        """Bring the pixels of a batch, counted from 0, to the device. Batches are loaded in order."""


class WholePack:
    """All pixels of a pack, on the device."""

    def __init__(self, pixels: Tensor) -> None:
        self.pixels = pixels

    def begin(self, places: Tensor, batches: Sequence[slice]) -> Tensor:
        return places

    def load(self, number: int) -> None:
        pass


def copy_pack(pixels: npt.NDArray[np.uint8], device: torch.device) -> Tensor:
    """Return all pixels of a pack on a device. For a CPU, this is the memory map itself.

    Args:
        pixels: The memory map.
        device: Where the pixels go.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the memory map is read-only, and nothing writes to it
        mapped = torch.from_numpy(pixels)
    if device.type == "cpu":
        return mapped
    copied = torch.empty(mapped.shape, dtype=torch.uint8, device=device)
    for part, target in zip(mapped.split(CHUNK), copied.split(CHUNK), strict=True):
        target.copy_(part)
    return copied


class NextBatches:
    """The pixels of the current batch. Threads copy those of the next one from the memory map meanwhile.

    On a GPU, they are copied from pinned memory on a stream of their own, while the GPU computes.

    Args:
        source: All pixels of the pack, in a memory map.
        capacity: Largest number of pixels of a batch.
        device: Where batches go.
    """

    def __init__(self, source: npt.NDArray[np.uint8], capacity: int, device: torch.device) -> None:
        self.source = source
        on_gpu = device.type == "cuda"
        self.pixels = torch.zeros(capacity, 3, dtype=torch.uint8, device=device)
        self.arriving = torch.empty_like(self.pixels) if on_gpu else self.pixels
        self.waiting = [torch.empty(capacity, 3, dtype=torch.uint8, pin_memory=on_gpu) for _ in range(2)]
        """The next two batches, which threads fill in turn."""
        self.stream = torch.cuda.Stream(device) if on_gpu else None
        self.sent = [torch.cuda.Event() for _ in self.waiting] if on_gpu else None
        """When the batches in `waiting` were copied to the device, and may be replaced."""
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream(device))  # the memory may still be in use there
        self.threads = ThreadPoolExecutor(THREADS)
        self.batches: list[Tensor] = []
        self.tasks: list[list[Future[None]]] = [[], []]

    def begin(self, places: Tensor, batches: Sequence[slice]) -> Tensor:
        wait([task for tasks in self.tasks for task in tasks])  # of a pass that ended early
        self.batches = [places[:4, batch] for batch in batches]
        moved = places.clone()
        for batch in batches:
            sizes = places[2, batch] * places[3, batch]
            moved[0, batch] = sizes.cumsum(0) - sizes
            moved[1, batch] = places[3, batch]
        if self.batches:
            self._fill(0)
        return moved

    def load(self, number: int) -> None:
        slot = number % 2
        for task in self.tasks[slot]:
            task.result()
        if self.stream is None or self.sent is None:
            self.pixels.copy_(self.waiting[slot])
        else:
            current = torch.cuda.current_stream(self.pixels.device)
            with torch.cuda.stream(self.stream):
                self.arriving.copy_(self.waiting[slot], non_blocking=True)
                self.sent[slot].record(self.stream)
            current.wait_stream(self.stream)
            self.pixels.copy_(self.arriving)
            self.stream.wait_stream(current)  # the next copy waits for this one
        if number + 1 < len(self.batches):
            self._fill(number + 1)

    def _fill(self, number: int) -> None:
        """Let threads copy the crops of a batch to pinned memory."""
        slot = number % 2
        if self.sent is not None:
            self.sent[slot].synchronize()
        first, stride, rows, columns = self.batches[number]
        sizes = rows * columns
        crops = torch.stack([first, stride, rows, columns, sizes.cumsum(0) - sizes]).T
        target = self.waiting[slot].numpy()
        self.tasks[slot] = [
            self.threads.submit(_copy_crops, self.source, target, part.tolist())
            for part in crops.chunk(THREADS)
            if len(part)
        ]


def _copy_crops(source: npt.NDArray[np.uint8], target: npt.NDArray[np.uint8], crops: list[list[int]]) -> None:
    """Copy crops, given by first pixel, stride, rows, columns and place in the target.

    Threads do this at the same time, because NumPy copies without the interpreter lock.
    """
    for first, stride, rows, columns, place in crops:
        shape = (rows, columns, 3)
        crop = np.ndarray(shape, np.uint8, source, 3 * first, (3 * stride, 3, 1))
        np.copyto(np.ndarray(shape, np.uint8, target, 3 * place), crop)


class DecodedBatches:
    """The pixels of whole images of the current batch, which are decoded from a pack of JPEGs when it is loaded.

    A GPU may still compute the step before meanwhile.

    Args:
        source: All bytes of the pack, in a memory map.
        table: First pixel, rows and columns of every image, if all images were decoded.
        bounds: First byte of every image, and the end of the last one.
        capacity: Largest number of pixels of the images of a batch.
        device: Where batches go.
        decoder: Where images are decoded: the same GPU, or a CPU.
    """

    def __init__(
        self,
        source: npt.NDArray[np.uint8],
        table: Indices,
        bounds: Indices,
        capacity: int,
        device: torch.device,
        decoder: torch.device,
    ) -> None:
        self.source, self.table, self.bounds, self.decoder = source, table, bounds, decoder
        self.pixels = torch.zeros(capacity, 3, dtype=torch.uint8, device=device)
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.decoded = self.pixels
        """Where threads decode images to."""
        if decoder != device:
            self.decoded = torch.empty(capacity, 3, dtype=torch.uint8, pin_memory=True)
        self.threads = ThreadPoolExecutor(THREADS)
        self.batches: list[tuple[Indices, Indices]] = []
        """The images of every batch by number, and the ends of their pixels in `pixels`."""

    def begin(self, places: Tensor, batches: Sequence[slice]) -> Tensor:
        moved = places.clone()
        self.batches = []
        for batch in batches:
            # an unreadable image without pixels begins where the next image begins, which is the one that is found
            images = np.searchsorted(self.table[0], places[0, batch].numpy(), side="right") - 1
            first, rows, columns = self.table[:, images]
            ends = (rows * columns).cumsum()
            moved[0, batch] += torch.from_numpy(ends - rows * columns - first)
            self.batches.append((images, ends))
        return moved

    def load(self, number: int) -> None:
        images, ends = self.batches[number]
        if self.stream is None:
            self._decode_with_threads(images, ends)
            return
        # nvJPEG writes without waiting for other work of the GPU. So its memory comes from a stream that does nothing
        # else, and the images that were decoded there before must have been copied.
        self.stream.synchronize()
        current = torch.cuda.current_stream(self.pixels.device)
        with torch.cuda.stream(self.stream):
            if self.decoder.type == "cuda":
                decoded = decode_jpegs([*self.threads.map(self._read, images)], self.decoder)
                self.stream.wait_stream(current)  # it may still take crops of the previous batch
                for image, end in zip(decoded, ends.tolist(), strict=True):
                    _place(self.pixels, image, end)
            else:
                self._decode_with_threads(images, ends)
                self.stream.wait_stream(current)
                self.pixels[: ends[-1]].copy_(self.decoded[: ends[-1]], non_blocking=True)
        current.wait_stream(self.stream)

    def _decode_with_threads(self, images: Indices, ends: Indices) -> None:
        def decode(image: int, end: int) -> None:
            (decoded,) = decode_jpegs([self._read(image)], self.decoder)
            _place(self.decoded, decoded, end)

        list(self.threads.map(decode, images.tolist(), ends.tolist()))  # raises errors of the threads

    def _read(self, image: int) -> Tensor:
        return torch.from_numpy(np.array(self.source[self.bounds[image] : self.bounds[image + 1]]))


def _place(pixels: Tensor, image: Tensor, end: int) -> None:
    """Copy an image, [3, rows, columns], to pixels, [number, 3], so that it ends at a pixel."""
    _, rows, columns = image.shape
    pixels[end - rows * columns : end].view(rows, columns, 3).copy_(image.permute(1, 2, 0))


def decode_jpegs(images: list[Tensor], device: torch.device) -> list[Tensor]:
    """Decode JPEGs as RGB, [3, rows, columns]. On a GPU, nvJPEG decodes them.

    Args:
        images: The bytes of every image, on a CPU.
        device: Where they are decoded.
    """
    from torchvision.io import ImageReadMode, decode_jpeg  # takes a second

    decoded: list[Tensor] = decode_jpeg(images, ImageReadMode.RGB, device)
    return decoded
