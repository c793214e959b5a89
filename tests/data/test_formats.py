"""Data sets of Hugging Face, WebDataset and TensorFlow Datasets."""

import importlib.util
import io
import json
import struct
import subprocess
import sys
import tarfile
import types
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from pictures import COLOURS, write_set
from PIL import Image

from lrnas.arch.architecture import Architecture
from lrnas.cli.main import main
from lrnas.data import formats as readers
from lrnas.data.catalog import load_set
from lrnas.data.names import short_name
from lrnas.data.packed import PackedSet
from lrnas.errors import DataError, MissingExtra
from lrnas.recipes import Recipe
from lrnas.training.job import Job

CPU = torch.device("cpu")


def load(name: str, folder: Path) -> PackedSet:
    data = load_set(name, folder, image_size=7)
    assert isinstance(data, PackedSet)
    return data


def check_colours(data: PackedSet) -> None:
    """Check that every image has the colour of its class."""
    for split in (data.train, data.val, data.test()):
        number = 0
        for images, labels in data.eval_batches(split, Recipe(), CPU, None):
            assert torch.equal(2 - images.mean((2, 3)).argmax(1), labels)
            number += len(labels)
        assert number == len(split)


def write_shards(pictures: Path, root: Path, spoilt: str = "") -> Path:
    """Write the images of a folder as shards of 8."""
    root.mkdir()
    for split in (path.name for path in pictures.iterdir()):
        files = sorted((pictures / split).glob("*/*.png"), key=lambda file: (file.name, file.parent.name))
        for i in range(0, len(files), 8):
            with tarfile.open(root / f"small-{split}-{i // 8:04}.tar", "w") as tar:
                for file in files[i : i + 8]:
                    key = f"{file.parent.name}_{file.stem}"
                    image = b"no picture" if key == spoilt else file.read_bytes()
                    label = str(sorted(COLOURS).index(file.parent.name)).encode()
                    for name, content in ((f"{key}.cls", label), (f"{key}.json", b"{}"), (f"{key}.png", image)):
                        member = tarfile.TarInfo(name)
                        member.size = len(content)
                        tar.addfile(member, io.BytesIO(content))
    return root


def test_shards_are_read_by_position(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shards = write_shards(write_set(tmp_path / "set", {"train": 20, "val": 4}, size=7), tmp_path / "shards")
    data = load(f"wds/{shards}", tmp_path / "cache")
    assert (len(data.train), len(data.val), len(data.test())) == (54, 6, 12)
    assert data.classes == ("0", "1", "2") and short_name(data.name) == "wds-shards"
    assert np.bincount(data.val.source.labels[data.val.where]).tolist() == [2, 2, 2]
    check_colours(data)
    assert len(list((tmp_path / "cache" / "indices").iterdir())) == 2
    again = load("wds/shards", tmp_path)  # a path relative to the data folder
    assert again.identity == data.identity and again.name == data.name

    for file in (tmp_path / "cache" / "indices").iterdir():
        file.write_bytes(b"half")
    assert load(f"wds/{shards}", tmp_path / "cache").identity == data.identity  # the damaged index is made again
    assert main(["data", f"wds/{shards}", "--data-dir", str(tmp_path)]) == 0
    told = f"wds/{shards}: 54 training, 6 validation and 12 test images, 3 classes: 0, 1, 2\n"
    assert capsys.readouterr().out.startswith(told)


def test_splits_from_the_info_file_and_a_damaged_image(tmp_path: Path) -> None:
    pictures = write_set(tmp_path / "set", {"train": 4, "val": 2, "test": 2}, size=7)
    shards = write_shards(pictures, tmp_path / "shards", spoilt="red_001")
    listed = {theirs: sorted(shards.glob(f"*{ours}*")) for ours, theirs in (("val", "train"), ("test", "validation"))}
    info = {"splits": {name: {"filenames": [file.name for file in files]} for name, files in listed.items()}}
    (shards / "_info.json").write_text(json.dumps(info))
    data = load(f"wds/{shards}", tmp_path)
    assert (len(data.train), len(data.val), len(data.test())) == (3, 3, 6)
    with pytest.raises(DataError, match=r"small-test-0000.tar, red_001.png \(cannot identify image file\)"):
        list(data.eval_batches(data.test(), Recipe(), CPU, None))


def test_a_split_with_secret_classes_is_not_used(tmp_path: Path) -> None:
    shards = write_shards(write_set(tmp_path / "set", {"train": 4, "val": 2}, size=7), tmp_path / "shards")
    with tarfile.open(shards / "small-test-0000.tar", "w") as tar:
        for name, content in (("a.cls", b"-1"), ("a.png", b"")):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    data = load(f"wds/{shards}", tmp_path)
    assert len(data.classes) == 3 and data.num_images[2] == 6
    assert "the split test is not used: classes of its images are secret (-1)" in data.remarks()


def test_bad_shards_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"needs a folder of shards; got .*nowhere, which is not a folder"):
        load("wds/nowhere", tmp_path)
    with pytest.raises(DataError, match="must be written as wds/FOLDER; got 'wds/'; add the missing part"):
        load("wds/", tmp_path)
    shards = write_shards(write_set(tmp_path / "set", {"train": 4}, size=7), tmp_path / "shards")
    with pytest.raises(
        DataError, match=r"in the splits train and validation or test; got train for .*shards; rename the splits"
    ):
        load(f"wds/{shards}", tmp_path)
    (shards / "small-test-0000.tar").write_bytes(b"no tar at all" * 100)
    with pytest.raises(DataError, match=r"small-test-0000.tar cannot be read .*; fetch it again"):
        load(f"wds/{shards}", tmp_path)
    with tarfile.open(shards / "small-test-0000.tar", "w") as tar:
        tar.add(tmp_path / "set" / "train" / "red" / "000.png", "a.png")
    with pytest.raises(DataError, match=r"cannot be read \(a has no .cls file with its class\)"):
        load(f"wds/{shards}", tmp_path)
    (tmp_path / "a.cls").write_text(30 * "9")
    with tarfile.open(shards / "small-test-0000.tar", "a") as tar:
        tar.add(tmp_path / "a.cls", "a.cls")
    with pytest.raises(DataError, match=r"\(a class must be a whole number from 0 to 999,999; got 9{30}\); fetch it"):
        load(f"wds/{shards}", tmp_path)
    (shards / "_info.json").write_text("{}")
    with pytest.raises(DataError, match=r"_info.json must list the files of every split; got KeyError\('splits'\)"):
        load(f"wds/{shards}", tmp_path)


@pytest.mark.parametrize("name", ["contest", "carnival", "latest", "trainval"])
def test_splits_are_whole_words(name: str, tmp_path: Path) -> None:
    shards = write_shards(write_set(tmp_path / "set", {"train": 20, "val": 4}, size=7), tmp_path / "shards")
    expected = load(f"wds/{shards}", tmp_path)
    for changes in (
        (("small", name),),
        (("train-", "TRAINING_"), ("val-0", "dev1.")),
    ):  # then other usual names of splits
        for file in list(shards.glob("*.tar")):
            for before, after in changes:
                file = file.rename(shards / file.name.replace(before, after))
        data = load(f"wds/{shards}", tmp_path)
        for split, other in ((data.train, expected.train), (data.val, expected.val), (data.test(), expected.test())):
            assert len(split) == len(other) and np.array_equal(split.source.labels, other.source.labels)

    (shards / f"{name}-train-test-0000.tar").write_bytes(b"")
    with pytest.raises(
        DataError, match=rf"must contain one split; got .*{name}-train-test-0000.tar, with train and test; rename"
    ):
        load(f"wds/{shards}", tmp_path)
    (shards / f"{name}-train-test-0000.tar").rename(shards / f"{name}-0000.tar")
    with pytest.raises(DataError, match=rf"the word train, val or test; got .*{name}-0000.tar; rename or remove it"):
        load(f"wds/{shards}", tmp_path)


def test_shards_are_indexed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The key of the cached index is the same in every process: it contains no memory address."""
    shards = write_shards(write_set(tmp_path / "set", {"train": 4, "val": 2}, size=7), tmp_path / "shards")
    looked: list[Path] = []
    original = readers._tar_entries
    for _ in range(2):
        monkeypatch.setattr(readers, "_tar_entries", lambda file: looked.append(file) or original(file))
        load(f"wds/{shards}", tmp_path / "cache")
    assert len(looked) == len(set(looked)) == 3
    assert len(list((tmp_path / "cache" / "indices").iterdir())) == 2
    file = sorted(shards.iterdir())[0]
    file.write_bytes(file.read_bytes() + bytes(512))  # a changed size makes the index outdated
    load(f"wds/{shards}", tmp_path / "cache")
    assert len(looked) == 5 and set(looked[3:]) == set(shards.glob("*train*"))


def test_splits_without_images_are_left_out(tmp_path: Path) -> None:
    shards = write_shards(write_set(tmp_path / "set", {"train": 20, "val": 4}, size=7), tmp_path / "shards")
    splits = {name: [file.name for file in shards.glob(f"*{name}*")] for name in ("train", "val")} | {"test": []}
    info = shards / "_info.json"
    info.write_text(json.dumps({"splits": {name: {"filenames": files} for name, files in splits.items()}}))
    data = load(f"wds/{shards}", tmp_path)
    assert (len(data.train), len(data.val), len(data.test())) == (54, 6, 12)
    info.write_text(json.dumps({"splits": {name: {"filenames": []} for name in splits}}))
    with pytest.raises(DataError, match=r"got none for wds/.*; rename the splits, or choose another data set"):
        load(f"wds/{shards}", tmp_path)

    labels = {"train": np.zeros(3, np.int64), "val": np.zeros(0, np.int64), "test": np.zeros(1, np.int64)}
    sources = {split: readers.HfSplit(split, None, numbers, "") for split, numbers in labels.items()}
    assert readers._with_labels("hfds/x", "ab", sources).sources.keys() == {"train", "test"}
    del sources["test"]
    with pytest.raises(
        DataError, match=r"in the splits train and validation or test; got train for hfds/x; rename the splits"
    ):
        readers._with_labels("hfds/x", "ab", sources)


def test_missing_columns_are_an_error() -> None:
    with pytest.raises(
        DataError, match="and one of classes; got text for hfds/x; choose another data set, or save its images"
    ):
        readers._columns("hfds/x", {"text": "text"}, int, int)


def test_a_damaged_record_is_a_one_line_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another protobuf message replaces the example of TFDS; the error comes from protobuf."""
    from google.protobuf import struct_pb2

    proto = types.SimpleNamespace(tf_example_pb2=types.SimpleNamespace(Example=struct_pb2.Struct))
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", types.ModuleType("tensorflow_datasets"))
    monkeypatch.setitem(sys.modules, "tensorflow_datasets.proto", proto)
    file = tmp_path / "small-train.tfrecord-00000-of-00001"
    file.write_bytes(struct.pack("<Q", 4) + bytes(4) + b"\xff" * 4 + bytes(4))
    with pytest.raises(DataError, match=r"00001 cannot be read \(a record is not an example: .*\); fetch it again"):
        readers._index([file], partial(readers._record_entries, label="label"), "tfrecord label", tmp_path, None)


@pytest.mark.parametrize(("kind", "package"), [("hfds", "datasets"), ("tfds", "tensorflow-datasets")])
def test_a_missing_package_is_named(kind: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    message = rf"a data set {kind}/NAME needs {package}, which is not installed; run pip install 'lrnas\[readers\]'"
    with pytest.raises(MissingExtra, match=message):
        load_set(f"{kind}/anything")


def test_hugging_face_data_sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("datasets", reason="datasets is not installed: pip install 'lrnas[test]'")
    write_set(tmp_path / "Set", {"train": 20, "validation": 4, "test": 2}, size=7)
    data = load(f"hfds/{tmp_path / 'Set'}", tmp_path / "cache")
    assert data.classes == ("blue", "green", "red")
    assert (len(data.train), len(data.val), len(data.test())) == (60, 12, 6)
    check_colours(data)
    assert data.test().source.name(0).startswith(f"hfds/{tmp_path / 'Set'} test[0]")
    assert load(f"hfds/{tmp_path / 'Set'}", tmp_path / "elsewhere").identity == data.identity
    with monkeypatch.context() as here:
        here.chdir(tmp_path)
        job = Job(Architecture("nin"), "hfds/Set", Recipe(), 0, data_dir="cache", image_size=7)
        assert load("hfds/Set", Path("cache")).identity == data.identity  # as in the search; below, as in its workers
    assert job.load_data().identity == data.identity and len(job.load_data().test()) == 6
    (tmp_path / "Set").rename(tmp_path / "Other")  # as many images of each class
    other = load(f"hfds/{tmp_path / 'Other'}", tmp_path / "cache")
    assert other.identity != data.identity and np.array_equal(other.train.source.labels, data.train.source.labels)
    Image.new("RGB", (7, 7)).save(tmp_path / "Other" / "train" / "red" / "000.png")
    assert load(f"hfds/{tmp_path / 'Other'}", tmp_path / "cache").identity != other.identity
    with pytest.raises(DataError, match=r"hfds/.*nowhere cannot be loaded \(.*\); check its name"):
        load(f"hfds/{tmp_path / 'nowhere'}", tmp_path / "cache")


WRITE_RECORDS = """
import sys
from pathlib import Path
import tensorflow as tf
import tensorflow_datasets as tfds

pictures, folder, names = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
image, label = tfds.features.Image(shape=(None, None, 3)), tfds.features.ClassLabel(names=names)

def examples(split):
    for file in sorted((pictures / split).glob("*/*.png")):
        yield {"image": tf.io.decode_png(tf.io.read_file(str(file))), "label": file.parent.name}

signature = {"image": tf.TensorSpec((None, None, 3), tf.uint8), "label": tf.TensorSpec((), tf.string)}
tfds.dataset_builders.store_as_tfds_dataset(
    name="small",
    version="1.0.0",
    features=tfds.features.FeaturesDict({"image": image, "label": label}),
    split_datasets={
        split: tf.data.Dataset.from_generator(lambda split=split: examples(split), output_signature=signature)
        for split in ("train", "test")
    },
    data_dir=folder,
)
"""
"""Run in a process of its own, since TensorFlow and PyTorch may conflict in one."""


def test_tensorflow_data_sets(tmp_path: Path) -> None:
    if not all(map(importlib.util.find_spec, ("tensorflow", "tensorflow_datasets"))):
        needed = "tensorflow tensorflow-datasets importlib_resources"
        pytest.skip(f"by hand: TFDS writes a set with TensorFlow, 300 MB; pip install {needed}")
    pictures = write_set(tmp_path / "set", {"train": 20, "test": 4}, size=7)
    arguments = [str(pictures), str(tmp_path / "tfds"), *sorted(COLOURS)]
    subprocess.run([sys.executable, "-c", WRITE_RECORDS, *arguments], check=True)
    data = load("tfds/small", tmp_path / "tfds")
    assert data.classes == ("blue", "green", "red")
    assert (len(data.train), len(data.val), len(data.test())) == (54, 6, 12)
    check_colours(data)
    assert "tensorflow" not in sys.modules  # reading does not need it
    with pytest.raises(DataError, match=r"tfds/nowhere cannot be loaded \(.*\); prepare it with `tfds build nowhere`"):
        load("tfds/nowhere", tmp_path / "tfds")
