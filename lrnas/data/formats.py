"""Data sets in the formats that timm reads: `hfds/NAME`, `wds/FOLDER` and `tfds/NAME`.

Hugging Face data sets are read by timm's own reader. timm's readers of WebDataset shards and of TFDS cannot be used for
packing: they need the packages webdataset and TensorFlow, know the number of images only from a file of metadata, and
skip images that they cannot decode, so that images have no fixed numbers. (The library `datasets` reads shards by
number, but first copies all of them to its cache.) Here, one pass finds where each image lies, and then images are read
by position. So all formats have the same features: a stratified split, packing with all cores that can be interrupted,
and messages that name unreadable images.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import os
import re
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from lrnas._files import open_regular, read_json
from lrnas.data.cache import write_cache
from lrnas.data.names import Progress, data_folder
from lrnas.data.sources import Found, Source
from lrnas.data.splits import Indices
from lrnas.errors import DataError, MissingExtra, error_line

Entry = tuple[int, int, int]
"""An image inside a file: its first byte, its number of bytes, and its class."""
Entries = Callable[[Path], Iterable[Entry]]
"""Function that finds the images inside a file."""

SPLITS = {"train": ("train", "training"), "val": ("val", "valid", "validation", "dev"), "test": ("test",)}
"""Our names of the splits, and the names that data sets use for them."""
IMAGE_KEYS = ("jpg", "jpeg", "png", "webp")
MAX_CLASSES = 1_000_000
SECRET = -1
"""Class of images whose class is not told, as in competitions."""


def find_hfds(name: str, folder: str | None, progress: Progress | None = None) -> Found:
    """Open a Hugging Face data set.

    Args:
        name: Name on the hub, or a folder that the `datasets` library understands.
        folder: Where the data set is cached; None for the library's default.
        progress: Progress callback; not used.

    Returns:
        The data set.
    """
    _need("datasets", "hfds", "datasets")
    import datasets
    from timm.data.readers.reader_hfds import ReaderHfds

    sources: dict[str, Source] = {}
    try:
        loaded = datasets.load_dataset(name, cache_dir=folder)
        features = next(iter(loaded.values())).features
        image, label = _columns(f"hfds/{name}", features, datasets.Image, datasets.ClassLabel)
        for split, theirs in _known_splits(f"hfds/{name}", list(loaded)).items():
            reader = ReaderHfds(name, folder, theirs, input_key=image, target_key=label)
            labels = np.asarray(reader.dataset[label][:], dtype=np.int64)
            # on the hub, it depends on the files and the revision; for a folder, on paths and modification times
            fingerprint = f"{name} {loaded[theirs]._fingerprint}"
            sources[split] = HfSplit(f"hfds/{name} {split}", reader, labels, fingerprint)
    except DataError:
        raise
    except Exception as error:  # from the hub, the network or the files
        advice = "check its name, or whether its folder contains images"
        raise DataError(f"hfds/{name} cannot be loaded ({error_line(error)}); {advice}") from None
    return _with_labels(f"hfds/{name}", features[label].names, sources)


@dataclass(frozen=True, slots=True)
class HfSplit:
    """A split that timm's reader of Hugging Face data sets reads."""

    title: str
    reader: Any
    labels: Indices
    fingerprint: str

    def name(self, index: int) -> str:
        return f"{self.title}[{index}] {self.reader.filename(index) or ''}".strip()

    def open(self, index: int) -> BinaryIO:
        file: BinaryIO = self.reader[index][0]
        return file

    def contents(self) -> Iterable[bytes]:
        yield self.fingerprint.encode() + self.labels.tobytes()

    def version(self) -> bytes:
        return b""  # the fingerprint is complete


def find_wds(path: str, folder: str | None, progress: Progress | None = None) -> Found:
    """Open a folder of WebDataset shards: `*.tar` files with images KEY.jpg beside their class KEY.cls.

    Args:
        path: The folder. The split of each shard is listed in `_info.json`, or is a word in the name of the shard.
        folder: Where data sets are kept. A relative `path` starts there, and the index of the images is cached there.
        progress: Callback that shows the progress of indexing.

    Returns:
        The data set.
    """
    root = (Path(folder or "") / Path(path).expanduser()).resolve()
    if not root.is_dir():
        raise DataError(f"wds/ needs a folder of shards; got {root}, which is not a folder; give wds/FOLDER")
    info = next((root / name for name in ("_info.json", "info.json") if (root / name).is_file()), None)
    if info is not None:
        try:
            splits = read_json(info)["splits"]
            files = {split: [root / file for file in splits[split]["filenames"]] for split in splits}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{info} must list the files of every split; got {error!r}; correct or remove it") from None
    else:
        files = _shards_by_name(sorted(root.glob("*.tar")))
    known = _known_splits(f"wds/{root}", [split for split, shards in files.items() if shards])
    sources: dict[str, Source] = {
        split: TarSplit(tuple(files[theirs]), *_index(files[theirs], _tar_entries, "tar", folder, progress))
        for split, theirs in known.items()
    }
    number = 1 + max(int(source.labels.max()) for source in sources.values())
    return _with_labels(f"wds/{root}", map(str, range(number)), sources)


def _shards_by_name(shards: Sequence[Path]) -> dict[str, list[Path]]:
    """Group shards by split, which is a whole word in their names: contest-train-0001.tar belongs to `train`."""
    files: dict[str, list[Path]] = {}
    for shard in shards:
        words = set(re.split(r"[^a-z]+", shard.stem.lower()))
        fitting = [split for split, names in SPLITS.items() if words & set(names)]
        if len(fitting) > 1:
            raise DataError(
                f"the name of a shard must contain one split; got {shard}, with {' and '.join(fitting)}; rename it, or "
                "list the files of every split in _info.json"
            )
        files.setdefault(fitting[0] if fitting else "", []).append(shard)
    if "" in files and len(files) > 1:
        raise DataError(
            f"the name of a shard must contain the word train, val or test; got {files[''][0]}; rename or remove it, "
            "or list the files of every split in _info.json"
        )
    files.pop("", None)
    return files


def find_tfds(name: str, folder: str | None, progress: Progress | None = None) -> Found:
    """Open a data set that was prepared by TensorFlow Datasets.

    Args:
        name: Its name in TensorFlow Datasets.
        folder: The folder in which it was prepared; the index of the images is cached there too. None for the defaults.
        progress: Callback that shows the progress of indexing.

    Returns:
        The data set.
    """
    _need("tensorflow_datasets", "tfds", "tensorflow-datasets")
    import tensorflow_datasets as tfds

    try:
        builder = tfds.builder(name, data_dir=folder)
        infos = dict(builder.info.splits)
        features = builder.info.features
        image, label = _columns(f"tfds/{name}", features, tfds.features.Image, tfds.features.ClassLabel)
        known = _known_splits(f"tfds/{name}", [split for split in infos if infos[split].num_examples])
        files = {split: tuple(Path(path) for path in infos[theirs].filepaths) for split, theirs in known.items()}
        kind = builder.info.file_format.value
    except DataError:
        raise
    except Exception as error:  # from the library or the files
        advice = f"prepare it with `tfds build {name}`, or give --data-dir"
        raise DataError(f"tfds/{name} cannot be loaded ({error_line(error)}); {advice}") from None
    if kind != "tfrecord":
        raise DataError(f"tfds/ reads only the file format tfrecord; got {kind} for {name}; prepare it again")
    entries, key = partial(_record_entries, label=label), f"tfrecord {label}"
    sources: dict[str, Source] = {
        split: RecordSplit(shards, *_index(shards, entries, key, folder, progress), image)
        for split, shards in files.items()
    }
    return _with_labels(f"tfds/{name}", features[label].names, sources)


@dataclass(frozen=True, slots=True)
class ShardSplit:
    """A split whose images lie inside larger files, at known positions."""

    files: tuple[Path, ...]
    labels: Indices
    shards: Indices
    """Index of the file of every image."""
    starts: Indices
    lengths: Indices

    def name(self, index: int) -> str:
        return f"{self.files[int(self.shards[index])]} at byte {self.starts[index]}"

    def open(self, index: int) -> BinaryIO:
        return io.BytesIO(self._read(index))

    def contents(self) -> Iterable[bytes]:
        yield "\n".join(file.name for file in self.files).encode()
        yield self.labels.tobytes() + self.lengths.tobytes()

    def version(self) -> bytes:
        return repr([int(file.stat().st_mtime) for file in self.files]).encode()

    def _read(self, index: int) -> bytes:
        with self.files[int(self.shards[index])].open("rb") as file:
            file.seek(int(self.starts[index]))
            return file.read(int(self.lengths[index]))


class TarSplit(ShardSplit):
    """A split of a WebDataset: every image is a file in a tar archive."""

    __slots__ = ()

    def name(self, index: int) -> str:
        file = self.files[int(self.shards[index])]
        with file.open("rb") as stream:
            stream.seek(int(self.starts[index]) - tarfile.BLOCKSIZE)
            header = stream.read(tarfile.BLOCKSIZE)
        return f"{file}, {tarfile.TarInfo.frombuf(header, 'utf-8', 'replace').name}"


@dataclass(frozen=True, slots=True)
class RecordSplit(ShardSplit):
    """A split of TFDS: every image is a field of a record."""

    image: str

    def open(self, index: int) -> BinaryIO:
        return io.BytesIO(_parse_record(self._read(index))[self.image].bytes_list.value[0])


def _tar_entries(file: Path) -> Iterator[Entry]:
    """Yield the images of a shard."""
    images: dict[str, tuple[int, int]] = {}
    labels: dict[str, int] = {}
    with open_regular(file) as stream, tarfile.open(fileobj=stream, mode="r:") as tar:
        for member in tar:
            folder, _, name = member.name.rpartition("/")
            stem, _, suffix = name.partition(".")
            key = f"{folder}/{stem}"
            if suffix.lower() in IMAGE_KEYS:
                images.setdefault(key, (member.offset_data, member.size))
            elif suffix == "cls" and (content := tar.extractfile(member)) is not None:
                labels[key] = int(content.read())
    if unlabelled := sorted(images.keys() - labels.keys()):
        raise ValueError(f"{unlabelled[0].lstrip('/')} has no .cls file with its class")
    for key, (start, length) in images.items():
        yield start, length, labels[key]


def _record_entries(file: Path, label: str) -> Iterator[Entry]:
    """Yield the records of a file, with the class in the field `label`."""
    size = file.stat().st_size
    with open_regular(file) as stream:
        while header := stream.read(12):  # the length and its checksum
            start = stream.tell()
            length = int.from_bytes(header[:8], "little")
            if len(header) < 12 or start + length + 4 > size:
                raise ValueError("the file ends within a record")
            record = stream.read(length)
            stream.seek(4, os.SEEK_CUR)  # its checksum
            yield start, length, _parse_record(record)[label].int64_list.value[0]


def _parse_record(record: bytes) -> Any:
    from google.protobuf.message import DecodeError
    from tensorflow_datasets.proto import tf_example_pb2

    try:
        return tf_example_pb2.Example.FromString(record).features.feature
    except DecodeError as error:
        raise ValueError(f"a record is not an example: {error}") from None


def _index(
    files: Sequence[Path], entries: Entries, key: str, folder: str | None, progress: Progress | None
) -> tuple[Indices, Indices, Indices, Indices]:
    """Return the labels, files, starts and lengths of all images, and cache them.

    `key` says what `entries` looks for: it is part of the name of the cache file.
    """
    try:
        stats = [file.stat() for file in files]
    except OSError as error:
        raise DataError(f"cannot read {error.filename}: {error.strerror}; fetch the missing files") from None
    facts = [(str(file.resolve()), stat.st_size, stat.st_mtime_ns) for file, stat in zip(files, stats, strict=True)]
    cached = data_folder(folder) / "indices" / f"{hashlib.sha256(repr((facts, key)).encode()).hexdigest()[:24]}.npy"
    if cached.exists():
        try:
            labels, shards, starts, lengths = np.load(cached, allow_pickle=False)
            return labels, shards, starts, lengths
        except (OSError, ValueError, EOFError):  # damaged: make it again
            cached.unlink()
    rows: list[tuple[int, int, int, int]] = []
    done, total = 0, sum(stat.st_size for stat in stats)
    for i, (file, stat) in enumerate(zip(files, stats, strict=True)):
        if progress is not None:
            progress(f"looking for images in {file.parent}", done, total)
        try:
            for start, length, label in entries(file):
                if not (0 <= label < MAX_CLASSES or label == SECRET):
                    raise ValueError(f"a class must be a whole number from 0 to {MAX_CLASSES - 1:,}; got {label}")
                rows.append((label, i, start, length))
        except (OSError, ValueError, tarfile.TarError, KeyError, IndexError) as error:
            raise DataError(f"{file} cannot be read ({error}); fetch it again") from None
        done += stat.st_size
    if not rows:
        raise DataError(f"a split must have images; got none in {files[0].parent}; store each as KEY.jpg and KEY.cls")
    table = np.ascontiguousarray(np.array(rows, dtype=np.int64).T)
    write_cache(cached, lambda stream: np.save(stream, table))
    labels, shards, starts, lengths = table
    return labels, shards, starts, lengths


def _need(module: str, kind: str, package: str) -> None:
    if importlib.util.find_spec(module) is None:
        raise MissingExtra(f"a data set {kind}/NAME", package, "readers")


def _columns(name: str, features: Any, image: type, label: type) -> tuple[str, str]:
    """Return the names of the first column of images and the first column of classes, preferably `label`."""
    images = [key for key in features if isinstance(features[key], image)]
    labels = sorted((key for key in features if isinstance(features[key], label)), key=lambda key: key != "label")
    if not images or not labels:
        raise DataError(
            f"a data set needs a column of images and one of classes; got {', '.join(features) or 'none'} for {name}; "
            "choose another data set, or save its images as folder:PATH"
        )
    return images[0], labels[0]


def _known_splits(name: str, theirs: list[str]) -> dict[str, str]:
    """Map our names of the splits to those of the data set."""
    found = {ours: next((word for word in words if word in theirs), None) for ours, words in SPLITS.items()}
    known = {ours: word for ours, word in found.items() if word is not None}
    if "train" not in known or len(known) < 2:
        raise DataError(
            f"a data set needs images in the splits train and validation or test; got {', '.join(theirs) or 'none'} "
            f"for {name}; rename the splits, or choose another data set"
        )
    return known


def _with_labels(name: str, classes: Iterable[str], sources: Mapping[str, Source]) -> Found:
    """Return the data set without empty splits and without splits whose classes are secret."""
    labelled = {split: source for split, source in sources.items() if len(source.labels) and source.labels.min() >= 0}
    _known_splits(name, list(labelled))
    secret = [split for split, source in sources.items() if len(source.labels) and split not in labelled]
    remarks = tuple(f"the split {split} is not used: classes of its images are secret ({SECRET})" for split in secret)
    return Found(name, tuple(classes), labelled, remarks=remarks)
