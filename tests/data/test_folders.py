"""Data sets in folders: layouts, errors in layouts, identities, and images of every mode."""

import io
import os
import re
import shutil
from pathlib import Path

import numpy as np
import optuna
import pytest
from pictures import spoil, write_set
from PIL import Image

from lrnas.arch.architecture import Architecture
from lrnas.cli.main import main
from lrnas.data import folders
from lrnas.data.catalog import load_set
from lrnas.data.names import data_folder, pin_data_folder, short_name, shown_name, with_absolute_paths
from lrnas.data.packed import PackedSet
from lrnas.data.sources import read_rgb
from lrnas.errors import DataError, UnknownName
from lrnas.recipes import Recipe
from lrnas.study.manifest import StudyError, check_manifest
from lrnas.training.checkpoint import difference
from lrnas.training.job import Job


def load(root: Path) -> PackedSet:
    data = load_set(f"folder:{root}", image_size=8)
    assert isinstance(data, PackedSet)
    return data


def test_val_and_test_are_used_as_they_are_named(tmp_path: Path) -> None:
    data = load(write_set(tmp_path, {"train": 20, "val": 3, "test": 2}))
    assert data.classes == ("blue", "green", "red") and data.num_classes == 3 and data.channels == 3
    assert (len(data.train), len(data.val), len(data.test())) == (60, 9, 6)
    assert data.val.source.name(0) == str(tmp_path / "val" / "blue" / "000.png")
    assert data.test().source.name(5) == str(tmp_path / "test" / "red" / "001.png")


@pytest.mark.parametrize("kept", ["val", "test"])
def test_the_only_other_split_is_kept_for_the_end(kept: str, tmp_path: Path) -> None:
    data = load(write_set(tmp_path, {"train": 20, kept: 3}))
    assert (len(data.train), len(data.val), len(data.test())) == (54, 6, 9)
    assert f"/{kept}/" in data.test().source.name(0)
    assert np.bincount(data.val.source.labels[data.val.where]).tolist() == [2, 2, 2]  # a tenth of every class
    assert not set(data.train.where) & set(data.val.where)
    assert data.val.source is data.train.source
    assert np.array_equal(load(tmp_path).val.where, data.val.where)  # always the same


def test_other_files_are_ignored_and_test_classes_may_be_missing(tmp_path: Path) -> None:
    root = write_set(tmp_path, {"train": 4, "val": 2})
    shutil.rmtree(root / "val" / "red")
    (root / "train" / "notes.txt").write_text("")
    (root / "train" / "red" / "notes.txt").write_text("")
    (root / "train" / "red" / "._000.png").write_bytes(b"of another system")
    (root / "train" / ".hidden").mkdir()
    (root / "train" / "red" / "LAST.JPEG").write_bytes(b"")  # an image by its suffix
    data = load(root)
    assert len(data.train.source.labels) == 13 and len(data.test()) == 4
    assert data.train.source.name(12) == str(root / "train" / "red" / "LAST.JPEG")
    assert data.remarks()[0] == (
        "train/red/notes.txt is ignored (1 .txt), because an image ends in .jpg, .jpeg, .jfif, .png, .webp, .bmp, "
        ".tif, .tiff, .gif, .ppm or .pgm"
    )


def test_files_that_are_not_used_are_told(tmp_path: Path) -> None:
    root = write_set(tmp_path, {"train": 4, "val": 2})
    assert load(root).remarks() == []
    (root / "train" / "blue" / "more" / "2024").mkdir(parents=True)
    for name in ("000.png", "2024/001.jpg", "2024/list.csv"):
        (root / "train" / "blue" / "more" / name).write_bytes(b"")
    for name in ("a.heic", "b.HEIC", "c.avif", "d"):
        (root / "val" / "green" / name).write_bytes(b"")
    others, deeper = load(root).remarks()
    assert others.startswith("4 files, such as val/green/a.heic, are ignored (2 .heic, 1 .avif, 1 no ending), because")
    assert deeper == (
        "2 files, such as train/blue/more/000.png, are ignored, because images must be directly in the folder of their "
        "class"
    )


@pytest.mark.parametrize(
    ("names", "advice"),
    [
        (("train", "valid", "test"), "rename valid/ to val/$"),
        (("train", "val", "Test"), "rename Test/ to test/$"),
        (("Train", "Test"), "rename Test/ to test/ and Train/ to train/"),
        (("training", "validation"), "rename training/ to train/ and validation/ to val/"),
        (("Train", "val"), "rename Train/ to train/$"),
    ],
)
def test_splits_with_other_names_should_be_renamed(names: tuple[str, ...], advice: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"splits are called train/, val/ and test/; got others in .*; {advice}"):
        load(write_set(tmp_path, dict.fromkeys(names, 3)))


def test_a_folder_beside_splits_that_are_named_right_is_left_alone(tmp_path: Path) -> None:
    root = write_set(tmp_path, {"train": 4, "val": 2, "test": 2, "valid": 2})
    assert load(root).counts == (12, 6, 6)


def test_names_of_classes_are_in_utf_8(tmp_path: Path) -> None:
    root = write_set(tmp_path, {"train": 4, "val": 2})
    try:
        os.rename(root / "train" / "red", os.fsencode(root / "train") + b"/caf\xe9")  # noqa: PTH104
    except OSError:
        pytest.skip("this file system has only names in UTF-8")
    with pytest.raises(DataError, match=r"need names in UTF-8; got b'caf\\xe9' in .*train; rename it"):
        load(root)


def test_the_identity_depends_on_files_not_on_their_folder(tmp_path: Path) -> None:
    first = load(write_set(tmp_path / "a", {"train": 4, "val": 2}))
    second = load(write_set(tmp_path / "b", {"train": 4, "val": 2}))
    assert first.identity == second.identity and first.identity.startswith("folder:")
    (tmp_path / "b" / "train" / "red" / "003.png").rename(tmp_path / "b" / "train" / "red" / "004.png")
    assert load(tmp_path / "b").identity != first.identity
    assert shown_name(f"folder:{tmp_path}/a/") == shown_name(f"folder:{tmp_path}/b/../a") == "folder:a"
    assert [shown_name(name) for name in ("hfds/user/name", "tfds/x", "digits")] == [
        "hfds/user/name",
        "tfds/x",
        "digits",
    ]
    assert short_name(first.name) == "folder-a" and short_name("cifar10") == "cifar10"


def flip(file: Path) -> None:
    """Change one byte in the middle of a file, but neither its name nor its size."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def test_the_identity_depends_on_all_bytes_of_a_small_set(tmp_path: Path) -> None:
    root = write_set(tmp_path, {"train": 4, "val": 2})
    before = load(root).identity
    for file in ("train/blue/002.png", "val/red/001.png"):
        flip(root / file)
        assert load(root).identity != before  # though every name and size is the same
        flip(root / file)
        assert load(root).identity == before


def test_the_identity_of_a_large_set_depends_on_sizes_and_a_sample_of_every_class(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = write_set(tmp_path, {"train": 9, "val": 2})
    monkeypatch.setattr(folders, "WHOLE", 1000)
    monkeypatch.setattr(folders, "SAMPLE", 6)  # two of each class: the first one, and one from the second half
    before = load(root).identity
    for file in ("train/blue/000.png", "train/red/004.png", "val/green/001.png"):
        flip(root / file)
        assert load(root).identity != before
        flip(root / file)
    flip(root / "train" / "red" / "005.png")
    assert load(root).identity == before
    with (root / "train" / "red" / "005.png").open("ab") as file:
        file.write(b"0")
    assert load(root).identity != before


def test_unreadable_files_have_no_size_and_do_not_prevent_an_identity(tmp_path: Path) -> None:
    root = write_set(tmp_path, {"train": 4, "val": 2})
    (root / "train" / "red" / "004.png").symlink_to(tmp_path / "nowhere")
    (root / "train" / "red" / "005.png").mkdir()
    assert load(root).train.source.sizes[-2:].tolist() == [-1, -1]
    assert load(root).identity == load(root).identity


def test_neither_a_study_nor_a_checkpoint_continues_with_other_images(tmp_path: Path) -> None:
    root = write_set(tmp_path, {"train": 4, "val": 2})
    before = load(root).identity
    study = optuna.create_study(study_name="s")
    settings = {"recipe": Recipe().to_dict(), "data": before}
    check_manifest(study, settings)
    flip(root / "val/red/001.png")
    after = load(root).identity
    with pytest.raises(StudyError, match="the images were those of"):
        check_manifest(study, {**settings, "data": after})
    assert difference({"data": before}, {"data": after}) == f"data was {repr(before)[:60]}, now {repr(after)[:60]}"


@pytest.mark.parametrize("is_inside_train", [False, True])
def test_images_that_are_not_split(
    is_inside_train: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LRNAS_DATA", str(tmp_path / "data"))
    root = write_set(tmp_path / "images", {"photos": 20})
    root = (root / "photos").rename(root / "train").parent if is_inside_train else root / "photos"
    data = load(root)
    train, val, test = (
        [split.source.name(split.where[i]) for i in range(len(split))] for split in (data.train, data.val, data._test)
    )
    assert (len(train), len(val), len(test)) == (42, 6, 12)  # 14, 2 and 4 of each of 3 classes
    assert len({*train, *val, *test}) == 60
    assert [load(root)._test.source.name(i) for i in range(12)] == test
    told = f"{root} has no {'test/' if is_inside_train else 'train/'}: a fixed fifth of every class is kept for tests"
    assert load(root).remarks() == [f"{told}, and a tenth of the others for validation"]
    assert main(["data", f"folder:{root}", "--image-size", "8"]) == 0
    captured = capsys.readouterr()
    assert "42 training, 6 validation and 12 test images, 3 classes" in captured.out and told in captured.err
    moved = root.rename(tmp_path / "moved")
    assert load(moved).identity == data.identity


def broken(root: Path, how: str) -> Path:
    if how == "no folder":
        return root / "nowhere"
    if how == "file":
        (root / "file").write_text("")
        return root / "file"
    write_set(root, {"train": 4, "val": 2})
    if how == "no train":
        shutil.rmtree(root / "train")
    elif how == "valid":
        (root / "val").rename(root / "valid")
    elif how == "eval":
        (root / "val").rename(root / "eval")
    elif how == "nothing":
        shutil.rmtree(root / "train")
        shutil.rmtree(root / "val")
    elif how == "only splits inside":
        (root / "train").rename(root / "a")
        (root / "val").rename(root / "b")
    elif how == "unknown class":
        (root / "val" / "violet").mkdir()
    elif how == "empty class":
        for file in (root / "train" / "green").iterdir():
            file.unlink()
    elif how == "nested":
        (root / "train" / "green").rename(root / "deeper")
        (root / "train" / "green").mkdir()
        (root / "deeper").rename(root / "train" / "green" / "light")
    elif how == "one class":
        shutil.rmtree(root / "train" / "green")
        shutil.rmtree(root / "train" / "red")
    elif how == "one image":
        for i in range(3):
            (root / "train" / "red" / f"{i:03}.png").unlink()
    elif how == "empty val":
        shutil.rmtree(root / "val")
        (root / "val").mkdir()
    return root


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("no folder", r"needs a folder; got .*nowhere, which does not exist; give a folder with PATH/CLASS"),
        ("file", "which is a file"),
        ("no train", r"a data set needs train/; .* has only val/; arrange the images as PATH/CLASS/.*, or PATH/train"),
        ("valid", "splits are called train/, val/ and test/; got others in .*; rename valid/ to val/"),
        ("eval", "beside train/, a data set has val/ or test/ or nothing; .* has eval; rename it"),
        ("nothing", "must have one folder per class, at least 2; got none; arrange the images as"),
        ("only splits inside", "got none for a, b in .*, only folders"),
        (
            "unknown class",
            r"every class needs a folder in train/; got violet only in .*val; add it to train/ or remove it",
        ),
        (
            "empty class",
            r"every class needs images directly in .*; got none for green in .*train; add images",
        ),
        ("nested", "got none for green in .*train, only folders; add images or remove"),
        ("one class", "must have one folder per class, at least 2; got blue; arrange the images"),
        (
            "one image",
            "every class needs at least 2 training images, .* got one for red",
        ),
        ("empty val", "must have one folder per class; got none; .*or remove it"),
    ],
)
def test_bad_layouts_are_one_line(how: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = broken(tmp_path, how)
    with pytest.raises(DataError, match=message):
        load(root)
    assert main(["data", f"folder:{root}"]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1


def test_classes_with_too_few_images_for_all_splits(tmp_path: Path) -> None:
    """The images are not split in the folder, so every class needs one for each split."""
    rule = "at least 3 images, one each for training, validation and tests; got fewer for a "
    for number in (1, 2):
        root = tmp_path / str(number)
        for label, count in (("a", number), ("b", 9)):
            (root / label).mkdir(parents=True)
            for i in range(count):
                Image.new("RGB", (40, 40)).save(root / label / f"{i}.png")
        with pytest.raises(DataError, match=rf"{rule}\({number}\) in "):
            load(root)


def test_sizes_shares_and_names() -> None:
    for given, least, rule in ((8, 32, "this network needs images of"), (0, 1, "^images must have")):
        with pytest.raises(DataError, match=f"{rule} at least {least}×{least} pixels; got {given}; give a larger `ima"):
            load_set("folder:x", image_size=given, min_size=least)
    with pytest.raises(DataError, match=r"memory for images must be from 0 to 1; got 2; try 0\.5"):
        load_set("folder:x", image_memory=2)
    with pytest.raises(
        DataError, match="images are packed as pixels or jpeg; got `pack` png; choose one, or leave it out"
    ):
        load_set("folder:x", pack="png")
    with pytest.raises(DataError, match="the images of digits have a fixed size; got `image_size` 32; leave it out"):
        load_set("digits", image_size=32)
    with pytest.raises(UnknownName, match=r"'imagenet'; known: digits, cifar10, folder:PATH, hfds/NAME"):
        load_set("imagenet")
    with pytest.raises(UnknownName, match="unknown data set 'folder/x'; did you mean folder:PATH"):
        load_set("folder/x")
    with pytest.raises(
        DataError, match="a folder data set must be written as folder:PATH; got 'folder:'; add the missing part"
    ):
        load_set("folder:")


@pytest.mark.parametrize("given", ["shapes", "./shapes", "../here/shapes", "shapes/"])
def test_a_folder_without_its_prefix_is_suggested(
    given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "here" / "shapes").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    assert main(["data", given]) == 2
    meant = given.removeprefix("./").removesuffix("/")
    assert capsys.readouterr().err == f"lrnas: unknown data set {given!r}; did you mean folder:{meant}?\n"


def test_the_data_command_says_what_is_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_set(tmp_path, {"train": 20, "val": 3})
    command = ["data", f"folder:{tmp_path}", "--image-size", "8", "--data-dir", str(tmp_path / "cache")]
    assert main(command) == 0
    expected = f"folder:{tmp_path}: 54 training, 6 validation and 9 test images, 3 classes: blue, green, red\n"
    expected += "Packed for training on images of 8×8 pixels\n"
    out, err = capsys.readouterr()
    assert out == expected
    assert re.fullmatch(
        r"packing the 69 images of folder:\S+, once, in \S+/cache/packs\npacked: [\d.]+ kB of pixels in \d+ s\n", err
    )
    assert main(command) == 0
    assert capsys.readouterr() == (expected, "")  # it is packed


def test_the_data_command_packs_for_a_space_and_says_the_size(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_set(tmp_path, {"train": 4, "val": 3})
    command = ["data", f"folder:{tmp_path}", "--data-dir", str(tmp_path / "cache")]
    assert main([*command, "--space", "nin"]) == 0
    assert capsys.readouterr().out.endswith("Packed for training on images of 32×32 pixels\n")
    assert main(command) == 0
    assert "images of 224×224 pixels; a search of nin uses 32×32: --space NAME" in capsys.readouterr().out
    assert main(["data", "digits", "--space", "nin"]) == 0  # the size of these images is fixed
    assert "Packed" not in capsys.readouterr().out


def test_classes_missing_in_a_split_are_mentioned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_set(tmp_path, {"train": 4, "val": 2, "test": 2})
    shutil.rmtree(tmp_path / "val" / "red")
    for name in ("blue", "green"):
        shutil.rmtree(tmp_path / "test" / name)
    assert main(["data", f"folder:{tmp_path}"]) == 0  # not every class has to be tested
    assert capsys.readouterr().err.splitlines()[:2] == [
        "lrnas: there are no validation images of red: the validation accuracy does not cover this class",
        "lrnas: there are no test images of blue, green: the test accuracy does not cover these classes",
    ]
    assert load_set("digits").remarks() == []


def test_the_data_command_opens_every_image(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_set(tmp_path, {"train": 101, "val": 3, "test": 3})
    bad = spoil(tmp_path / "train" / "red" / "000.png")
    assert main(["data", f"folder:{tmp_path}"]) == 1
    told, complaint = capsys.readouterr()
    assert f"\nan image cannot be read: {bad} (" in complaint
    complaint = complaint.splitlines(keepends=True)[-1]
    assert told.startswith(f"folder:{tmp_path}: 302 training, 9 validation and 9 test images")
    left_out = "lrnas: 1 of 303 training images cannot be read, and is left out: "
    assert complaint.startswith(f"{left_out}{bad} (") and complaint.endswith(
        "); repair or remove it, unless a study has begun with these images\n"
    )
    for name in ("000", "001", "002"):
        spoil(tmp_path / "test" / "blue" / f"{name}.png")
    spoil(tmp_path / "test" / "green" / "000.png")
    assert main(["data", f"folder:{tmp_path}"]) == 1
    first, second = capsys.readouterr().err.splitlines()[-2:]
    assert first.startswith(left_out)
    assert second.startswith("lrnas: 4 of 9 test images cannot be read, and more than 1 % end a run: ")
    assert second.count(".png") == 3 and "; …; repair" in second


def test_pipes_and_devices_are_unreadable_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_set(tmp_path, {"train": 101, "val": 3, "test": 3})
    pipe, endless = tmp_path / "train" / "red" / "pipe.png", tmp_path / "train" / "blue" / "endless.png"
    os.mkfifo(pipe)
    endless.symlink_to("/dev/zero")
    assert main(["data", f"folder:{tmp_path}"]) == 1
    complaint = capsys.readouterr().err.splitlines()[-1]
    assert complaint.startswith("lrnas: 2 of 305 training images cannot be read, and are left out: ")
    assert all(f"{file} (not a regular file)" in complaint for file in (pipe, endless))


def encoded(image: Image.Image, kind: str) -> io.BytesIO:
    file = io.BytesIO()
    image.save(file, kind)
    file.seek(0)
    return file


RGB = Image.fromarray(np.array([[[250, 10, 20], [10, 240, 30]]], dtype=np.uint8).repeat(8, 0).repeat(4, 1))


@pytest.mark.parametrize(
    ("picture", "kind", "expected"),
    [
        (RGB, "PNG", [250, 10, 20]),
        (RGB.convert("P", palette=Image.Palette.ADAPTIVE), "PNG", [250, 10, 20]),
        (RGB.convert("L"), "PNG", [83, 83, 83]),
        (RGB.convert("L").convert("1", dither=Image.Dither.NONE), "PNG", [0, 0, 0]),
        (RGB.convert("CMYK"), "JPEG", [250, 10, 20]),
        (RGB.convert("CMYK"), "TIFF", [250, 10, 20]),
        (RGB.convert("YCbCr"), "JPEG", [250, 10, 20]),
        (Image.fromarray(np.full((8, 8), 40_000, np.uint16)), "PNG", [155, 155, 155]),  # not cut off at 255
        (
            Image.merge("RGBA", (*RGB.split(), Image.new("L", RGB.size, 0))),
            "PNG",
            [255, 255, 255],
        ),  # wholly transparent
        (Image.merge("RGBA", (*RGB.split(), Image.new("L", RGB.size, 255))), "PNG", [250, 10, 20]),
        (Image.merge("LA", (RGB.convert("L"), Image.new("L", RGB.size, 255))), "PNG", [83, 83, 83]),
    ],
)
def test_image_modes_are_converted_to_rgb(picture: Image.Image, kind: str, expected: list[int]) -> None:
    image = read_rgb(encoded(picture, kind))
    assert image.mode == "RGB" and image.size == (8, 8)
    np.testing.assert_allclose(np.asarray(image)[4, 1], expected, atol=3 if kind != "JPEG" else 12)


def test_images_without_an_rgb_form_are_refused() -> None:
    with pytest.raises(ValueError, match="mode F, numbers without a known range"):
        read_rgb(encoded(Image.fromarray(np.ones((4, 4), np.float32)), "TIFF"))
    with pytest.raises(ValueError, match="mode I with values from -5 to -5"):
        read_rgb(encoded(Image.fromarray(np.full((4, 4), -5, np.int32)), "TIFF"))


def test_a_job_finds_its_images_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each worker of a search has its own current folder."""
    write_set(tmp_path / "here" / "set", {"train": 2, "test": 1})
    monkeypatch.chdir(tmp_path / "here")
    job = Job(Architecture("nin"), "folder:set", Recipe(), 0, data_dir="kept", image_size=8)
    monkeypatch.chdir(tmp_path)
    assert len(job.load_data().test()) == 3 and job.cache == tmp_path / "here" / "kept"


def test_workers_use_the_same_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LRNAS_DATA", "kept")
    pin_data_folder()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert data_folder() == tmp_path / "kept"
    monkeypatch.delenv("LRNAS_DATA")
    pin_data_folder()
    assert "LRNAS_DATA" not in os.environ


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (("folder:set", None), ("folder:/here/set", None)),
        (("folder:../set", "kept"), ("folder:/here/../set", "/here/kept")),
        (("folder:~/set", None), ("folder:~/set", None)),
        (("wds/shards", None), ("wds//here/shards", None)),
        (("wds/shards", "kept"), ("wds/shards", "/here/kept")),  # within it
        (("hfds/name", None), ("hfds/name", None)),
        (("hfds/own", "kept"), ("hfds//here/own", "/here/kept")),  # there is such a folder
        (("hfds/own/../own", None), ("hfds//here/own/../own", None)),
        (("tfds/own", "kept"), ("tfds/own", "/here/kept")),  # a name, even if there is such a folder
        (("digits", "/kept"), ("digits", "/kept")),
    ],
)
def test_names_with_absolute_paths(
    given: tuple[str, str | None], expected: tuple[str, str | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own").mkdir()
    name, folder = with_absolute_paths(*given)
    assert (name.replace(str(tmp_path), "/here"), folder and folder.replace(str(tmp_path), "/here")) == expected
