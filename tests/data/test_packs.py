"""Packs: their pixels, resuming, changed images, unreadable images, full disks and several processes."""

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from pictures import spoil, write_set
from PIL import Image
from torchvision.io import decode_jpeg, encode_jpeg

from lrnas.data import packs
from lrnas.data.folders import find_folders
from lrnas.data.names import PACKS, Progress
from lrnas.data.packs import Pack, estimate_pack, open_pack
from lrnas.data.sources import read_pixels_quickly, read_rgb
from lrnas.errors import DataError

SIZE = 14
SHORT = 16


def pack(root: Path, cache: Path, size: int = SIZE, progress: Progress | None = None, kind: str | None = None) -> Pack:
    found = find_folders(str(root))
    return open_pack(found, found.bytes_hash, size, cache, progress, kind)


def image(made: Pack, number: int) -> np.ndarray:
    _, rows, columns = made.table[:, number]
    data = made.data[made.bounds[number] : made.bounds[number + 1]].copy()
    if made.kind == "pixels":
        return data.reshape(rows, columns, 3)
    return decode_jpeg(torch.from_numpy(data)).permute(1, 2, 0).numpy()


def files(cache: Path) -> list[str]:
    return sorted(file.suffix for file in (cache / "packs").iterdir())


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    return write_set(tmp_path / "set", {"train": 8, "val": 2, "test": 2}, size=20)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packs, "BLOCK", 4)
    monkeypatch.setattr(packs, "SAVE_SECONDS", 0.0)


def originals(root: Path) -> Iterator[Image.Image]:
    for split in ("test", "train", "val"):
        for file in sorted((root / split).glob("*/*")):
            with file.open("rb") as stream:
                yield read_rgb(stream)


def assert_close(pixels: np.ndarray, others: np.ndarray) -> None:
    """Equal up to how numbers are rounded."""
    assert pixels.shape == others.shape and np.abs(pixels.astype(int) - others).max() <= 1


def test_pixels_are_those_of_torchvision(tmp_path: Path) -> None:
    from torchvision import transforms  # takes seconds

    root = write_set(tmp_path / "set", {"train": 2, "val": 1, "test": 1}, size=20)
    rng = np.random.default_rng(1)
    for name, shape in {
        "tall": (93, 31),
        "wide": (33, 77),
        "small": (5, 9),
        "long": (20, 331),
        "thin": (257, 20),
    }.items():
        pixels = rng.integers(0, 256, (*shape, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(root / "train" / "red" / f"{name}.png")
    for name, mode in {"grey": "L", "colours": "RGB", "print": "CMYK"}.items():
        smooth = Image.fromarray(rng.integers(0, 256, (5, 4, 3), dtype=np.uint8)).resize((30, 40))
        smooth.convert(mode).save(root / "train" / "red" / f"{name}.jpg")
    made = pack(root, tmp_path)
    resize, centre = transforms.Resize(SHORT), transforms.CenterCrop(SIZE)
    shapes = set()
    for number, original in enumerate(originals(root)):
        pixels, whole = image(made, number), np.asarray(resize(original))
        shapes.add(pixels.shape[:2])
        if max(whole.shape) <= packs.LONGEST * SHORT:
            assert_close(pixels, whole)
        assert_close(np.asarray(centre(Image.fromarray(pixels))), np.asarray(centre(resize(original))))
    assert {(48, 16), (16, 37), (16, 28), (16, 64), (64, 16), (21, 16)} <= shapes
    assert made.counts == {"test": 3, "train": 14, "val": 3} and made.first("val") == 17 and not made.unreadable


def test_a_pack_is_made_once_per_size(pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = pack(pictures, tmp_path)
    assert pack(pictures, tmp_path, 7).file != made.file
    assert files(tmp_path) == sorted([".lock", ".npz", ".pack"] * 2)
    monkeypatch.setattr(packs, "_processes", lambda images: pytest.fail("packed twice"))
    assert pack(pictures, tmp_path).file == made.file
    moved = tmp_path / "elsewhere" / "set"
    shutil.copytree(pictures, moved)
    assert pack(moved, tmp_path).file == made.file  # the same images


def test_changed_images_are_packed_again(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    first, other_size = pack(pictures, tmp_path), pack(pictures, tmp_path, 7)
    write_set(tmp_path / "copy" / "set", {"train": 2, "val": 1, "test": 1})
    namesake = pack(tmp_path / "copy" / "set", tmp_path)
    changed = pictures / "train" / "red" / "003.png"
    Image.new("RGB", (30, 20), "white").save(changed)
    second = pack(pictures, tmp_path)
    assert (image(second, 6 + 19) == 255).all() and second.file != first.file
    assert "the images of folder:set have changed: removing their earlier pack" in caplog.messages
    assert not first.file.exists() and other_size.file.exists() and namesake.file.exists()

    monkeypatch.setattr("lrnas.data.folders.WHOLE", 0)  # a large set: only a part of its bytes is hashed
    monkeypatch.setattr("lrnas.data.folders.SAMPLE", 1)
    third = pack(pictures, tmp_path)
    assert pack(pictures, tmp_path).file == third.file
    os.utime(changed, (0, 0))  # beyond the sample, a file of the same size with another time
    assert pack(pictures, tmp_path).file != third.file


def test_jpegs_in_packs_are_the_resized_images(pictures: Path, tmp_path: Path) -> None:
    made, pixels = pack(pictures, tmp_path, kind="jpeg"), pack(pictures, tmp_path, kind="pixels")
    assert np.array_equal(made.table, pixels.table) and made.counts == pixels.counts
    for number in range(36):
        data = made.data[made.bounds[number] : made.bounds[number + 1]]
        expected = encode_jpeg(torch.from_numpy(image(pixels, number)).permute(2, 0, 1), 95)
        assert np.array_equal(data, expected.numpy()) and image(made, number).shape == image(pixels, number).shape
    assert made.bounds[-1] == made.file.stat().st_size and made.gpu_bytes == 0 < pixels.gpu_bytes


@pytest.mark.parametrize("kind", PACKS)
@pytest.mark.parametrize("damage", ["index", "bounds", "short", "missing"])
def test_a_damaged_pack_is_made_again(damage: str, kind: str, pictures: Path, tmp_path: Path) -> None:
    made = pack(pictures, tmp_path, kind=kind)
    expected = made.file.read_bytes()
    index = made.file.with_suffix(".npz")
    if damage == "index":
        index.write_bytes(b"half")
    elif damage == "bounds":
        arrays = dict(np.load(index))
        arrays |= {"bounds": made.bounds[::-1], "table": made.table if kind == "jpeg" else made.table[:, ::-1]}
        np.savez(index, **arrays)
    elif damage == "short":
        made.file.write_bytes(expected[:-1])
    else:
        made.file.unlink()
    assert pack(pictures, tmp_path, kind=kind).file.read_bytes() == expected


@pytest.mark.parametrize("kind", PACKS)
def test_unreadable_images_are_noted_and_tried_again(kind: str, pictures: Path, tmp_path: Path) -> None:
    before = pack(pictures, tmp_path / "before", kind=kind)
    spoil(pictures / "train" / "blue" / "001.png")  # its header can be read
    good = (pictures / "val" / "red" / "001.png").read_bytes()
    found = find_folders(str(pictures))
    (pictures / "val" / "red" / "001.png").unlink()
    (pictures / "val" / "red" / "000.png").write_bytes(b"no picture")
    Image.new("RGB", (202, 2)).save(pictures / "val" / "green" / "001.png")
    made = open_pack(found, "same", SIZE, tmp_path, kind=kind)
    long = "2×202 pixels, a side is more than 100 times the other"
    reasons = {
        7: "image file is truncated",
        33: long,
        34: "cannot identify image file",
        35: "No such file or directory",
    }
    assert made.unreadable == reasons and made.table[:, 34:].tolist() == [[made.table[0, 33]] * 2, [0, 0], [0, 0]]
    assert all(np.array_equal(image(made, number), image(before, number)) for number in range(32) if number != 7)
    assert kind == "pixels" or (np.diff(made.bounds) == 0).nonzero()[0].tolist() == [*reasons]
    assert open_pack(found, "same", SIZE, tmp_path).unreadable == reasons  # of either kind
    (pictures / "val" / "red" / "001.png").write_bytes(good)  # found again, without a change of the set
    again = open_pack(found, "same", SIZE, tmp_path, kind=kind)
    assert again.unreadable.keys() == {7, 33, 34} and again.table[1, 35] > 0


@pytest.mark.skipif(sys.platform != "linux", reason="the processes are not forked, so they do not have the patch")
def test_a_disk_may_take_less_than_it_is_given(pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = pack(pictures, tmp_path / "whole", kind="pixels")
    monkeypatch.setattr(packs, "_write_together", lambda file, pieces: os.write(file, b"".join(pieces)[:1000]))
    monkeypatch.setattr(packs, "_start_writing", None)
    assert np.array_equal(pack(pictures, tmp_path / "parts", kind="pixels").data, whole.data)


def test_what_libjpeg_says_about_an_image_is_not_shown(
    pictures: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    file = pictures / "train" / "red" / "odd.jpg"
    Image.fromarray(noise).save(file)
    data = file.read_bytes()
    file.write_bytes(data[:-2] + b"more bytes" + data[-2:])
    read_pixels_quickly(BytesIO(file.read_bytes()))
    assert "extraneous bytes" in capfd.readouterr().err
    assert not pack(pictures, tmp_path).unreadable and "extraneous bytes" not in capfd.readouterr().err


SLOW = """
import sys, time
from pathlib import Path
sys.path[:0] = [{tests!r}]
from test_packs import pack
from lrnas.data import packs
from lrnas._messages import show_messages
show_messages()
packs.BLOCK, packs.SAVE_SECONDS = 4, 0.0
decode = packs.Images.decode
def slow(self, *args):
    time.sleep(0.1)
    return decode(self, *args)
packs.Images.decode = slow
pack(Path(sys.argv[1]), Path(sys.argv[2]), kind=sys.argv[3])
"""


def start_packing(root: Path, cache: Path, kind: str = "pixels") -> subprocess.Popen[str]:
    code = SLOW.format(tests=str(Path(__file__).parent))
    path = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    return subprocess.Popen(
        [sys.executable, "-c", code, str(root), str(cache), kind],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )


def wait_for_lines(cache: Path, number: int) -> Path:
    """Wait until the journal has entries."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        for journal in (cache / "packs").glob("*.journal"):
            if journal.read_text().count("\n") > number:
                return journal
        time.sleep(0.02)
    raise TimeoutError


@pytest.mark.parametrize("kind", ["pixels", pytest.param("jpeg", marks=pytest.mark.slow)])
def test_a_killed_packing_goes_on(
    kind: str, pictures: Path, tmp_path: Path, small_blocks: None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    whole = pack(pictures, tmp_path / "whole", kind=kind)
    cache = tmp_path / "cache"
    process = start_packing(pictures, cache, kind)
    journal = wait_for_lines(cache, 2)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not list((cache / "packs").glob("*.npz")) and not list((cache / "packs").glob("*.pack"))
    with journal.open("a") as stream:
        stream.write('[12, [[13, "half an en')  # an entry that was not completed
    done = {json.loads(line)[0] for line in journal.read_text().splitlines()[1:-1]}
    counts: list[int] = []
    made = pack(pictures, cache, progress=lambda what, number, total: counts.append(number) if "pack" in what else None)
    assert f"continuing after {4 * len(done)} images that are packed already" in caplog.messages
    assert 2 <= len(done) < 9 and counts == list(range(4 * len(done) + 4, 37, 4))  # the other blocks
    assert made.file.read_bytes() == whole.file.read_bytes() and np.array_equal(made.table, whole.table)
    assert made.kind == kind and np.array_equal(made.bounds, whole.bounds)  # the kind that was begun
    assert files(cache) == [".lock", ".npz", ".pack"]


def die_before_the_index(root: Path, cache: Path, kind: str) -> None:
    class Killed(BaseException):
        pass

    def die(*args: object) -> None:
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packs, "write_cache", die)
        with pytest.raises(Killed):
            pack(root, cache, kind=kind)
    assert files(cache) == [".journal", ".lock", ".pack"]


@pytest.mark.parametrize("kind", PACKS)
def test_a_kill_before_the_index_is_written_costs_nothing(
    kind: str, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    die_before_the_index(pictures, tmp_path, kind)
    monkeypatch.setattr(packs, "_pack_block", lambda files, task: pytest.fail("decoded twice"))
    made = pack(pictures, tmp_path)
    assert made.table.shape == (3, 36) and made.kind == kind and files(tmp_path) == [".lock", ".npz", ".pack"]


def test_a_pack_of_jpegs_is_the_same_after_an_interruption_at_any_block(
    pictures: Path, tmp_path: Path, small_blocks: None
) -> None:
    spoil(pictures / "train" / "blue" / "001.png")
    whole = pack(pictures, tmp_path / "whole", kind="jpeg")
    data, cache = whole.file.read_bytes(), tmp_path / "cache"
    die_before_the_index(pictures, cache, "jpeg")
    journal = next((cache / "packs").glob("*.journal"))
    header, *lines = journal.read_text().splitlines(keepends=True)
    assert len(lines) == 9
    for number in range(10):
        for file in (cache / "packs").glob("*.[np]*"):
            file.unlink()
        journal.write_text("".join([header, *lines[:number]]) + "[4, [], [70")  # an entry that was not completed
        part = data[: whole.bounds[4 * number]] + b"bytes of a block that is not in the journal" * 40
        journal.with_suffix(".part").write_bytes(part)
        made = pack(pictures, cache)
        assert made.file.read_bytes() == data and np.array_equal(made.bounds, whole.bounds)
        assert made.unreadable == whole.unreadable and made.unreadable.keys() == {7}
        assert files(cache) == [".lock", ".npz", ".pack"]


def test_a_packing_of_other_images_does_not_go_on(pictures: Path, tmp_path: Path, small_blocks: None) -> None:
    cache = tmp_path / "cache"
    process = start_packing(pictures, cache)
    wait_for_lines(cache, 1)
    process.kill()
    process.communicate()
    Image.new("RGB", (60, 20), "white").save(pictures / "test" / "blue" / "000.png")
    made = pack(pictures, cache)
    assert files(cache) == [".lock", ".npz", ".pack"]
    assert made.file.read_bytes() == pack(pictures, tmp_path / "whole").file.read_bytes()


def test_two_processes_pack_once(pictures: Path, tmp_path: Path) -> None:
    processes = [start_packing(pictures, tmp_path / "cache") for _ in range(2)]
    logs = [process.communicate(timeout=100)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], logs
    assert sum("packing the 36 images of folder:set, once, in " in log for log in logs) == 1
    assert sum(log == "waiting for another process, which is packing the images of folder:set\n" for log in logs) == 1
    made = pack(pictures, tmp_path / "whole")
    assert next((tmp_path / "cache" / "packs").glob("*.pack")).read_bytes() == made.file.read_bytes()


def test_a_disk_that_is_too_small_is_refused(pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=10_000))
    monkeypatch.setattr(packs, "_pack_block", lambda files, task: pytest.fail("decoded"))
    start, end = (
        "the images of folder:set take 0.0 GB as pixels",
        r" when packed; .*packs has room for 0.0 GB; make room",
    )
    with pytest.raises(DataError, match=f"{start} or up to 0.0 GB as JPEGs{end}"):
        pack(pictures, tmp_path)
    with pytest.raises(DataError, match=start + end):
        pack(pictures, tmp_path, kind="pixels")
    found = find_folders(str(pictures))
    assert estimate_pack(found, "", SIZE, tmp_path).kind == "jpeg"  # a dry run shows the smaller one


@pytest.fixture
def large_pictures(tmp_path: Path) -> Path:
    """Images that are much smaller as JPEGs."""
    root = write_set(tmp_path / "set", {"train": 8, "val": 2, "test": 2}, size=10)
    for file in root.glob("*/*/*.png"):
        Image.new("RGB", (100, 100), "red").save(file)
    return root


def leave_free(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=number))


def test_images_are_packed_as_jpegs_if_there_is_no_room_for_pixels(
    large_pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    found, cache, needed = find_folders(str(large_pictures)), tmp_path / "cache", 3 * 36 * 102**2
    with monkeypatch.context() as patch:
        leave_free(patch, needed - 1)
        expected = estimate_pack(found, found.bytes_hash, 90, cache)
        assert expected.kind == "jpeg" and expected.seconds > 0 == expected.gpu_bytes and not cache.exists()
        jpegs = pack(large_pictures, cache, 90)
    line = "packing up to 0.0 GB as JPEGs, not 0.0 GB as pixels: the disk has room for 0.0 GB"
    assert jpegs.kind == "jpeg" and line in caplog.messages
    assert expected.num_bytes == jpegs.bounds[-1] < needed / 5
    assert pack(large_pictures, cache, 90).file == jpegs.file  # because it exists
    assert estimate_pack(found, found.bytes_hash, 90, cache) == ("jpeg", jpegs.bounds[-1], 0.0)
    leave_free(monkeypatch, needed)
    pixels = pack(large_pictures, cache, 90, kind="pixels")
    assert pixels.kind == "pixels" and caplog.messages[-1].startswith("packed: 1.12 MB of pixels in ")
    assert pack(large_pictures, cache, 90).file == pixels.file and jpegs.file.exists()  # preferred
    assert pack(large_pictures, cache, 90, kind="jpeg").file == jpegs.file
    Image.new("RGB", (100, 100), "white").save(large_pictures / "test" / "red" / "000.png")
    assert pack(large_pictures, cache, 90).kind == "pixels" and files(cache) == [".lock", ".npz", ".pack"]


def test_jpegs_need_room_for_a_margin(large_pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = find_folders(str(large_pictures))
    size = estimate_pack(found, found.bytes_hash, 90, tmp_path, "jpeg").num_bytes
    leave_free(monkeypatch, int(1.2 * size) - 1)
    with pytest.raises(DataError, match=r"as pixels or up to 0.0 GB as JPEGs when packed"):
        pack(large_pictures, tmp_path, 90)
    leave_free(monkeypatch, int(1.2 * size) + 1)
    assert pack(large_pictures, tmp_path, 90).kind == "jpeg"


def test_an_incomplete_pack_of_pixels_makes_room_for_jpegs(
    large_pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    die_before_the_index(large_pictures, tmp_path, "pixels")
    file = next((tmp_path / "packs").glob("*.pack"))
    file.rename(file.with_suffix(".part"))
    leave_free(monkeypatch, 0)
    made = pack(large_pictures, tmp_path, kind="jpeg")
    assert made.kind == "jpeg" and files(tmp_path) == [".lock", ".npz", ".pack"]


FULL = """
import shutil, sys
from pathlib import Path
sys.path[:0] = [{tests!r}]
from test_packs import pack
from lrnas.data import packs
from lrnas.errors import DataError
packs.BLOCK = 4
usage = shutil.disk_usage("/")
packs.shutil.disk_usage = lambda path: usage._replace(free=10**12)  # another program fills the disk later
try:
    pack(Path(sys.argv[1]), Path(sys.argv[2]), kind=sys.argv[3])
except DataError as error:
    print(error, *(file.suffix for file in sorted(Path(sys.argv[2], "packs").iterdir())))
"""


@pytest.mark.parametrize("kind", ["pixels", pytest.param("jpeg", marks=pytest.mark.slow)])
def test_a_disk_that_becomes_full_is_one_line(kind: str, pictures: Path, tmp_path: Path, small_blocks: None) -> None:
    """A file system of 24 KB is full before the pack is complete; with more room, the packing goes on."""
    disk = tmp_path / "disk"
    disk.mkdir()
    own_mounts = ["unshare", "--user", "--map-root-user", "--mount"]
    if subprocess.run([*own_mounts, "mount", "-t", "tmpfs", "tmpfs", str(disk)], capture_output=True).returncode:
        pytest.skip("this system does not allow a process to mount a file system of its own")
    python = f'"{sys.executable}" -c "$2" "$3" "$1" "$4"'
    small, large = 'mount -t tmpfs -o size=24k tmpfs "$1"', 'mount -o remount,size=1m "$1"'
    script = f'{small} && {python} && {large} && {python} && ls "$1"/packs'
    code = FULL.format(tests=str(Path(__file__).parent))
    path = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    result = subprocess.run(
        [*own_mounts, "sh", "-c", script, "sh", str(disk), code, str(pictures), kind],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert result.returncode == 0, result.stderr
    error, *listed = result.stdout.splitlines()
    assert (
        error.startswith(f"cannot write {disk}/packs/folder-set-14-")
        and ": No space left on device; make room" in error
    )
    assert error.endswith(".journal .part .lock")
    assert [Path(name).suffix for name in listed] == [".npz", ".pack", ".lock"]


def test_the_size_of_a_pack_is_known_before_it_is_made(tmp_path: Path) -> None:
    write_set(tmp_path / "set", {"train": 6, "val": 2, "test": 2})
    found, cache = find_folders(str(tmp_path / "set")), tmp_path / "cache"
    kind, size, seconds = estimate_pack(found, found.bytes_hash, SIZE, cache)
    assert kind == "pixels" and seconds > 0 and not cache.exists()
    made = pack(tmp_path / "set", cache)
    assert size == made.gpu_bytes == made.pixels.nbytes  # there are fewer images than are sampled
    assert estimate_pack(found, found.bytes_hash, SIZE, cache) == ("pixels", size, 0.0)
