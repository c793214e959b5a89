"""Sets in the formats that timm reads: `hfds/NAME`, `wds/FOLDER` and `tfds/NAME`.

Hugging Face's are read by timm's own reader. timm's readers of WebDataset shards and of TFDS go through their files
from front to back, and shuffle within a window; the same files are read here by position instead, after one look for
where each image lies. So every set, whatever its format, has the same stratified split, names what cannot be read and
goes on after a stop as if nothing had been.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import json
import re
import struct
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from lrnas._files import write_atomically
from lrnas.data.names import Progress
from lrnas.data.splits import Indices
from lrnas.data.workers import Source
from lrnas.errors import DataError

Found = tuple[tuple[str, ...], dict[str, Source]]
"""The classes, and the splits train and val or test or both."""
Entry = tuple[int, int, int]
"""Where an image lies in its file, how many bytes it has, and its class."""

SPLITS = {"train": ("train", "training"), "val": ("val", "valid", "validation", "dev"), "test": ("test",)}
"""What others call them."""
IMAGE_KEYS = ("jpg", "jpeg", "png", "webp")


def find_hfds(name: str, root: Path | None) -> Found:
    """A set of Hugging Face's hub or a folder that its library understands; `root` is where it is cached."""
    _need("datasets", "hfds", "datasets")
    import datasets
    from timm.data.readers.reader_hfds import ReaderHfds

    where = None if root is None else str(root)
    try:
        loaded = datasets.load_dataset(name, cache_dir=where)
        features = next(iter(loaded.values())).features
        image, label = _columns(f"hfds/{name}", features, datasets.Image, datasets.ClassLabel)
        readers = {
            split: ReaderHfds(name, where, theirs, input_key=image, target_key=label)
            for split, theirs in _known_splits(f"hfds/{name}", list(loaded)).items()
        }
        # of the files and their revision on the hub; of a folder's files, where they lie and when they were changed
        prints = {split: f"{name} {loaded[reader.split]._fingerprint}" for split, reader in readers.items()}
    except DataError:
        raise
    except Exception as error:  # of the hub, of the network, of the files
        raise _cannot_load(f"hfds/{name}", error, "check its name, or whether its folder is one of images") from None
    sources = {
        split: HfSplit(f"hfds/{name} {split}", reader, _labels(reader), prints[split])
        for split, reader in readers.items()
    }
    return tuple(features[label].names), _with_labels(f"hfds/{name}", sources)


@dataclass(frozen=True, slots=True)
class HfSplit:
    """A split as timm's reader gives it."""

    title: str
    reader: Any
    labels: Indices
    fingerprint: str
    """Another set, or another revision of it, has another one."""

    def name(self, index: int) -> str:
        return f"{self.title}[{index}] {self.reader.filename(index) or ''}".strip()

    def open(self, index: int) -> BinaryIO:
        file: BinaryIO = self.reader[index][0]
        return file

    def contents(self) -> Iterable[bytes]:
        yield self.fingerprint.encode() + self.labels.tobytes()


def _labels(reader: Any) -> Indices:
    return np.asarray(reader.dataset[reader.label_key][:], dtype=np.int64)


def find_wds(root: Path, cache: Path, progress: Progress | None = None) -> Found:
    """Shards `*.tar` with images KEY.jpg beside their class KEY.cls; _info.json, or their names, tell the splits."""
    if not root.is_dir():
        raise DataError(f"wds/ takes a folder of shards; got {root}, which is no folder; give wds/FOLDER")
    info = next((root / name for name in ("_info.json", "info.json") if (root / name).is_file()), None)
    if info is not None:
        try:
            splits = json.loads(info.read_text(encoding="utf-8"))["splits"]
            files = {split: [root / file for file in splits[split]["filenames"]] for split in splits}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{info} lists the files of every split; got {error!r}; mend it or remove it") from None
    else:
        files = _shards_by_name(sorted(root.glob("*.tar")))
    known = _known_splits(f"wds/{root}", [split for split, shards in files.items() if shards])
    sources: dict[str, Source] = {}
    for split, theirs in known.items():
        shards = tuple(files[theirs])
        sources[split] = TarSplit(shards, *_index(shards, _tar_entries, "tar", cache, progress))
    number = 1 + max(int(source.labels.max()) for source in sources.values())
    return tuple(map(str, range(number))), _with_labels(f"wds/{root}", sources)


def _shards_by_name(shards: Sequence[Path]) -> dict[str, list[Path]]:
    """By the whole words of their names: contest-train-0001.tar is for training."""
    files: dict[str, list[Path]] = {}
    strays: list[Path] = []
    for shard in shards:
        words = set(re.split(r"[^a-z]+", shard.stem.lower()))
        fitting = [split for split, names in SPLITS.items() if words & set(names)]
        if len(fitting) > 1:
            raise DataError(
                f"a shard's name tells its only split; got {shard}, of {' and '.join(fitting)}; rename it, or list the "
                "files of every split in _info.json"
            )
        if fitting:
            files.setdefault(fitting[0], []).append(shard)
        else:
            strays.append(shard)
    if files and strays:
        raise DataError(
            f"a shard's name has a word that tells its split, train, val or test; got {strays[0]}; rename or remove "
            "it, or list the files of every split in _info.json"
        )
    return files


def find_tfds(name: str, root: Path | None, cache: Path, progress: Progress | None = None) -> Found:
    """A set that TensorFlow Datasets has prepared, in `root` or where it keeps its sets."""
    _need("tensorflow_datasets", "tfds", "tensorflow-datasets")
    import tensorflow_datasets as tfds

    try:
        builder = tfds.builder(name, data_dir=None if root is None else str(root))
        infos = dict(builder.info.splits)
        features = builder.info.features
        image, label = _columns(f"tfds/{name}", features, tfds.features.Image, tfds.features.ClassLabel)
        known = _known_splits(f"tfds/{name}", [split for split in infos if infos[split].num_examples])
        files = {split: tuple(Path(path) for path in infos[theirs].filepaths) for split, theirs in known.items()}
        kind = builder.info.file_format.value
    except DataError:
        raise
    except Exception as error:  # of the library, of the files
        raise _cannot_load(f"tfds/{name}", error, f"prepare it with `tfds build {name}`, or give --data-dir") from None
    if kind != "tfrecord":
        raise DataError(f"tfds/ reads files of the format tfrecord; got {kind} for {name}; prepare it once more")
    entries, key = _RecordEntries(label), f"tfrecord {label}"
    sources: dict[str, Source] = {
        split: RecordSplit(shards, *_index(shards, entries, key, cache, progress), image)
        for split, shards in files.items()
    }
    return tuple(features[label].names), _with_labels(f"tfds/{name}", sources)


@dataclass(frozen=True, slots=True)
class ShardSplit:
    """Images inside of larger files, found by position."""

    files: tuple[Path, ...]
    labels: Indices
    shards: npt.NDArray[np.int64]
    """Which file."""
    starts: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]

    def name(self, index: int) -> str:
        return f"{self.files[int(self.shards[index])]} at byte {self.starts[index]}"

    def open(self, index: int) -> BinaryIO:
        return io.BytesIO(self._read(index))

    def contents(self) -> Iterable[bytes]:
        yield "\n".join(file.name for file in self.files).encode()
        yield self.labels.tobytes() + self.lengths.tobytes()

    def _read(self, index: int) -> bytes:
        with self.files[int(self.shards[index])].open("rb") as file:
            file.seek(int(self.starts[index]))
            return file.read(int(self.lengths[index]))


class TarSplit(ShardSplit):
    """Of a WebDataset: every image is a file in a tar."""

    __slots__ = ()

    def name(self, index: int) -> str:
        file = self.files[int(self.shards[index])]
        with file.open("rb") as stream:
            stream.seek(int(self.starts[index]) - tarfile.BLOCKSIZE)
            header = stream.read(tarfile.BLOCKSIZE)
        return f"{file}, {tarfile.TarInfo.frombuf(header, 'utf-8', 'replace').name}"


@dataclass(frozen=True, slots=True)
class RecordSplit(ShardSplit):
    """Of TFDS: every image is a field of a record."""

    image: str

    def open(self, index: int) -> BinaryIO:
        return io.BytesIO(_example(self._read(index))[self.image].bytes_list.value[0])


def _tar_entries(file: Path) -> Iterator[Entry]:
    """The images of a shard whose class is told."""
    images: dict[str, tuple[int, int]] = {}
    labels: dict[str, int] = {}
    with tarfile.open(file, "r:") as tar:
        for member in tar:
            folder, _, name = member.name.rpartition("/")
            stem, _, suffix = name.partition(".")
            key = f"{folder}/{stem}"
            if suffix.lower() in IMAGE_KEYS:
                images.setdefault(key, (member.offset_data, member.size))
            elif suffix == "cls" and (content := tar.extractfile(member)) is not None:
                labels[key] = int(content.read())
    if lacking := sorted(images.keys() - labels.keys()):
        raise ValueError(f"{lacking[0].lstrip('/')} has no class, a file .cls")
    for key, (start, length) in images.items():
        yield start, length, labels[key]


@dataclass(frozen=True, slots=True)
class _RecordEntries:
    """The records of a file, each with the class that its field `label` tells."""

    label: str

    def __call__(self, file: Path) -> Iterator[Entry]:
        with file.open("rb") as stream:
            while header := stream.read(12):  # the length and its checksum
                (length,) = struct.unpack("<Q", header[:8])
                start = stream.tell()
                record = stream.read(length)
                if len(record) < length or len(stream.read(4)) < 4:
                    raise ValueError("it breaks off")
                yield start, length, _example(record)[self.label].int64_list.value[0]


def _example(record: bytes) -> Any:
    from google.protobuf.message import DecodeError
    from tensorflow_datasets.proto import tf_example_pb2

    try:
        return tf_example_pb2.Example.FromString(record).features.feature
    except DecodeError as error:
        raise ValueError(f"a record is no example: {error}") from None


def _index(
    files: Sequence[Path], entries: Callable[[Path], Iterable[Entry]], key: str, cache: Path, progress: Progress | None
) -> tuple[Indices, Indices, Indices, Indices]:
    """Labels, files, starts and lengths of all images; kept in `cache`, for files that stay as they are.

    `key` stands for what `entries` does: what another key found is not used.
    """
    try:
        stats = [file.stat() for file in files]
    except OSError as error:
        raise DataError(f"cannot read {error.filename}: {error.strerror}; fetch what the set lacks") from None
    facts = [(str(file.resolve()), stat.st_size, stat.st_mtime_ns) for file, stat in zip(files, stats, strict=True)]
    kept = cache / "indices" / f"{hashlib.sha256(repr((facts, key)).encode()).hexdigest()[:24]}.npy"
    if kept.exists():
        try:
            table = np.load(kept, allow_pickle=False)
            return table[0], table[1], table[2], table[3]
        except (OSError, ValueError, EOFError, IndexError, zipfile.BadZipFile):  # it is made again
            kept.unlink()
    rows: list[tuple[int, int, int, int]] = []
    done, total = 0, sum(stat.st_size for stat in stats)
    for i, (file, stat) in enumerate(zip(files, stats, strict=True)):
        if progress is not None:
            progress(f"looking for images in {file.parent}", done, total)
        try:
            rows += [(label, i, start, length) for start, length, label in entries(file)]
        except (OSError, ValueError, tarfile.TarError, KeyError, IndexError, struct.error) as error:
            raise DataError(f"{file} cannot be read ({error}); fetch it once more") from None
        done += stat.st_size
    if not rows:
        raise DataError(f"a split has images; got none in {files[0].parent}; each is KEY.jpg beside its KEY.cls")
    table = np.ascontiguousarray(np.array(rows, dtype=np.int64).T)
    _keep(kept, table)
    return table[0], table[1], table[2], table[3]


def _keep(file: Path, table: npt.NDArray[np.int64]) -> None:
    try:
        with write_atomically(file) as part, part.open("wb") as stream:
            np.save(stream, table)
    except OSError as error:
        raise DataError(f"cannot write {file}: {error.strerror}; choose another folder with --data-dir") from None


def _need(module: str, kind: str, package: str) -> None:
    if importlib.util.find_spec(module) is None:
        raise DataError(f"{kind}/ needs the package {package}; got none; pip install 'lrnas[readers]'")


def _columns(name: str, features: Any, image: type, label: type) -> tuple[str, str]:
    """The names of the first column of images and the first of classes; of several, `label`."""
    images = [key for key in features if isinstance(features[key], image)]
    labels = sorted((key for key in features if isinstance(features[key], label)), key=lambda key: key != "label")
    if not images or not labels:
        raise DataError(
            f"a set has a column of images and one of classes; got {', '.join(features) or 'none'} for {name}; choose "
            "another set, or write it out as folder:PATH"
        )
    return images[0], labels[0]


def _known_splits(name: str, theirs: list[str]) -> dict[str, str]:
    """Ours to theirs."""
    found = {ours: next((word for word in words if word in theirs), None) for ours, words in SPLITS.items()}
    known = {ours: word for ours, word in found.items() if word is not None}
    if "train" not in known or len(known) < 2:
        raise DataError(
            f"a set has images in the splits train and validation or test; got {', '.join(theirs) or 'none'} for "
            f"{name}; name them so, or choose another set"
        )
    return known


def _with_labels(name: str, sources: dict[str, Any]) -> dict[str, Source]:
    """Without what has no images, and without the test split of a competition, whose classes are kept secret."""
    told = {split: source for split, source in sources.items() if len(source.labels) and source.labels.min() >= 0}
    _known_splits(name, list(told))
    return told


def _cannot_load(name: str, error: Exception, advice: str) -> DataError:
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return DataError(f"{name} cannot be loaded ({reason.rstrip('.')}); {advice}")
