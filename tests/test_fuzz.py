"""Damaged files of every kind: each is read, or refused with one line, within a second.

`make fuzz` tries 50 times as many.
"""

import io
import json
import os
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_studies import SPACE, make_search

from lrnas._files import read_json
from lrnas.arch.architecture import Architecture
from lrnas.data.catalog import load_set
from lrnas.data.packed import PackedSet
from lrnas.data.packs import _Packing
from lrnas.errors import LrnasError
from lrnas.exporting.sources import find_source
from lrnas.models.plan import make_plan
from lrnas.recipes import get_recipe
from lrnas.reporting.paper.records import group_by_recipe, read_runs
from lrnas.reporting.report import make_report
from lrnas.searching.settings import gather_settings
from lrnas.spaces.space import load_space
from lrnas.study.manifest import MANIFEST, read_manifest

ROOT = Path(__file__).parents[1]
ASSETS = ROOT / "tests" / "assets" / "formats-1"
SPACE_FILE = """[space]
backbone = ["nin", "nin_3x3"]
pool = ["max", "avg"]
granularity = "stage"
divisor = 8
baseline = "mine"
[space.stages]
early = ["conv1", "cccp1", "cccp2"]
late = ["conv2*", "conv3*", "cccp[3-5]"]
[space.tied]
both = ["conv2*", "conv3*"]
[[space.vary]]
layers = ["conv*"]
square = {from = 0, to = 1, step = "1/8"}
vertical = [0.25, 0.5, 0.75]
join = ["none", 1, "1/2"]
form = ["mixed", "separable"]
[points.mine]
backbone = "nin"
pool = "max"
layers.conv1 = {form = "composite", shares = {kx1 = 0.25, 1xk = 0.25, kxk = 0.5}, join = 1}
"""
RECIPE_FILE = 'base = "paper"\nepochs = 3\nlr = 0.05\nnesterov = true\nschedule = "paper"\ndrop_at = 0.75\ncrop = 30\n'
STUDY_FILE = (ROOT / "studies" / "nin-cifar10.toml").read_text() + "[set]\nlr = 0.05\nmirror = false\n"
VALUES = (None, True, -1, 0, 7, 0.5, -0.0, 1e308, float("nan"), 10**30, "", "x", "3/8", "é\n", [], [[]], {}, {"x": 1})
"""Values that are put in place of others in JSON."""
TOKENS = (
    *(bytes([each]) for each in b"\x00\xff\n\"'\\=,.#[]{}-"),
    *(b"nan", b"true", b"null", b"1e999", b"0x", b"[[", b'"""', "\N{SNOWMAN}".encode()),
    *(b"9" * 5_000, b"[" * 2_000, b"a." * 200),
)
"""Bytes that are put into files."""


def read_architecture(file: Path) -> None:
    make_plan(Architecture.load(file), 32, 10, 3)


def read_space(file: Path) -> None:
    load_space(str(file)).to_dict()


def read_recipe(file: Path) -> None:
    get_recipe(str(file), "nin", 32, 45_000)


def read_study_file(file: Path) -> None:
    gather_settings(str(file), {"budget": 3})


def read_checkpoint(file: Path) -> None:
    find_source(str(file.parent)).create_model()


def read_record(file: Path) -> None:
    group_by_recipe(read_runs(file.parent))


STUDY = make_search()


def read_stored_manifest(file: Path) -> None:
    try:
        manifest = read_json(file)
    except ValueError:
        return  # Optuna's storage has only JSON
    STUDY.optuna_study.set_user_attr(MANIFEST, manifest)
    STUDY.manifest = read_manifest(STUDY.optuna_study)
    if STUDY.manifest:
        make_report([STUDY]).to_dict()


def read_pack(file: Path) -> None:
    """A pack that is damaged is made again; one that is used must have all its images within its file."""
    data = load_set(f"folder:{ASSETS / 'pictures'}", file.parents[1], image_size=8)
    assert isinstance(data, PackedSet)
    pack = _Packing(data.pack.found, data.identity, 8, file.parent).read()
    if pack is not None:
        ends = pack.table[0] + pack.table[1] * pack.table[2]
        assert pack.table.shape == (3, 12) and pack.table.min() >= 0 and ends.max() <= len(pack.pixels)


def small_manifest() -> bytes:
    space = {**SPACE.to_dict(), "parameters": [], "groups": []}
    space |= {part: dict(list(space[part].items())[:1]) for part in ("points", "seeds")}
    return json.dumps({**STUDY.manifest, "space": space}).encode()


PACK = next((ASSETS / "packs").glob("*.npz"))
KINDS: dict[str, tuple[Callable[[Path], None], str, bytes, Path | None]] = {
    "architecture": (read_architecture, "network.json", (ASSETS / "architecture.json").read_bytes(), None),
    "space": (read_space, "space.toml", SPACE_FILE.encode(), None),
    "recipe": (read_recipe, "recipe.toml", RECIPE_FILE.encode(), None),
    "study file": (read_study_file, "study.toml", STUDY_FILE.encode(), None),
    "record": (
        read_record, "run.json", (ROOT / "results/reproduce/nin-digits-fast-seed0.json").read_bytes(), None,
    ),
    "manifest": (read_stored_manifest, "manifest.json", small_manifest(), None),
    "checkpoint": (
        read_checkpoint, "checkpoint.json", (ASSETS / "checkpoint/checkpoint.json").read_bytes(), ASSETS / "checkpoint",
    ),
    "tensors": (
        read_checkpoint,
        "epoch-1.safetensors",
        (ASSETS / "checkpoint/epoch-1.safetensors").read_bytes(),
        ASSETS / "checkpoint",
    ),
    "pack": (read_pack, f"packs/{PACK.name}", PACK.read_bytes(), ASSETS),
}  # fmt: skip
"""By the kind of file: the function that reads it, its name, its content, and the folder with files beside it."""
NUMBER = int(os.environ.get("LRNAS_FUZZ", "2000")) // len(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_file_is_read_or_refused_with_one_line(kind: str, tmp_path: Path) -> None:
    read, name, whole, beside = KINDS[kind]
    if beside is not None:
        shutil.copytree(beside, tmp_path, dirs_exist_ok=True)
    file = tmp_path / name
    file.write_bytes(whole)
    read(file)  # whole, it is accepted
    refused = 0
    for seed in range(NUMBER):
        damaged = damage(whole, name, random.Random(f"{kind} {seed}"))
        file.write_bytes(damaged)
        message, start = "", time.process_time()
        try:
            read(file)
        except LrnasError as error:
            message = str(error)
            refused += 1
        except BaseException as error:
            raise AssertionError(f"{kind} {seed}: {damaged[:2_000]!r}") from error
        seconds = time.process_time() - start
        assert "\n" not in message and seconds < 1, f"{kind} {seed}: {seconds:.1f} s, {message[:200]!r}"
    assert refused or kind == "pack"


def damage(whole: bytes, name: str, rng: random.Random) -> bytes:
    """The content of a file with one to four changes, in its text or, every other time, in its values."""
    if name.endswith(".json") and rng.random() < 0.5:
        data = json.loads(whole)
        for _ in range(rng.randint(1, 4)):
            data = with_another_value(data, rng)
        return json.dumps(data).encode()
    if name.endswith(".npz") and rng.random() < 0.5:
        return with_other_arrays(whole, rng)
    for _ in range(rng.randint(1, 4)):
        start, end = sorted(rng.randrange(len(whole) + 1) for _ in range(2))
        end = min(end, start + rng.choice((1, 1, 8, 64, len(whole))))
        middle = rng.choice((b"", whole[start:end] * 2, rng.randbytes(end - start), rng.choice(TOKENS), whole[end:]))
        whole = (whole[:start] + middle + whole[end:])[: 2**16]
    return whole


def with_another_value(data: Any, rng: random.Random) -> Any:
    """A copy of JSON values in which one value, at any depth, is replaced or removed."""
    items = list(data.items()) if isinstance(data, dict) else list(enumerate(data)) if isinstance(data, list) else []
    if not items or rng.random() < 0.1:
        return rng.choice(VALUES)
    key, value = rng.choice(items)
    kept = {other: each for other, each in items if other != key}
    if rng.random() < 0.9:
        kept = {other: with_another_value(value, rng) if other == key else each for other, each in items}
    return kept if isinstance(data, dict) else list(kept.values())


def with_other_arrays(whole: bytes, rng: random.Random) -> bytes:
    """A valid index of a pack with another table or another description."""
    arrays = dict(np.load(io.BytesIO(whole)))
    table = arrays["table"]
    changed = table.copy()
    changed[rng.randrange(3), rng.randrange(table.shape[1])] = rng.choice((-1, 0, 5, 2**62))
    tables = (changed, table[:2], table[:, :5], table.T, table.astype(np.float32), table[0], np.array(3), -table)
    arrays["table"] = rng.choice((table, *tables))
    arrays["about"] = np.array(json.dumps(with_another_value(json.loads(str(arrays["about"])), rng)))
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    return stream.getvalue()
