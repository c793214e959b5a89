"""Result files of trainings: lines of JSON while they are made, one small packed file to keep.

    python -m benchmarks.table.records results/table/a.jsonl results/table/b.jsonl --out results/table/NAME.json.xz

A record has `what`, `network`, `recipe` (all fields), `seed`, `images` (for training), `status`, `curves` (one value
per epoch), `test` (accuracy after a full training), `images_per_second`, `seconds`, `date` and `run` (command, commit,
versions, hardware). A packed file has each network, recipe and run once, and records refer to them by number.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import lzma
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from lrnas.recipes import Recipe
from lrnas.training.provenance import provenance

Record = dict[str, Any]
FOLDER = Path(__file__).parents[2] / "results" / "table"
SHARED = ("network", "recipe", "run")
"""The parts of records that a packed file stores once, in lists of their own."""
STAND_IN_FILES = (FOLDER / "pilot.json.xz", FOLDER / "trainings.json.xz")
"""What the stand-in for training is made from: always the same, so that runs of samplers can be compared."""


def key_of(record: Record) -> str:
    """Text that is the same for records of the same training."""
    recipe, other = Recipe.complete(record["recipe"]), record.get("other", {})
    return json.dumps([record["network"]["id"], recipe, other, record["seed"], record["images"]], sort_keys=True)


def known_files() -> list[Path]:
    return [*sorted(FOLDER.glob("*.json.xz")), *sorted(FOLDER.glob("*.jsonl"))]


def read_records(files: Iterable[Path]) -> list[Record]:
    """The records in packed files and in files of lines; of records with the same key, the first."""
    found: dict[str, Record] = {}
    for file in files:
        for record in _read_packed(file) if file.suffix == ".xz" else _read_lines(file):
            found.setdefault(key_of(record), record)
    return list(found.values())


def _read_packed(file: Path) -> list[Record]:
    packed = json.loads(lzma.decompress(file.read_bytes()))
    if "records" not in packed:  # the list of networks
        return []
    return [{**r, **{part: packed[f"{part}s"][r[part]] for part in SHARED}} for r in packed["records"]]


def _read_lines(file: Path) -> list[Record]:
    found = []
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
        with contextlib.suppress(ValueError):  # the last line, if the program was killed while it wrote
            found.append(json.loads(line))
    return found


def append_record(record: Record, file: Path) -> None:
    """Append a record to a file of lines, at once; a line that was cut off before stays alone."""
    with file.open("a", encoding="utf-8") as stream:
        stream.write("\n" + json.dumps(record, separators=(",", ":")))


def pack(records: Sequence[Record], origin: dict[str, Any], file: Path) -> None:
    """Write a packed file.

    Args:
        records: The records, in the order in which they are kept.
        origin: The provenance of the file.
        file: Where to write it.
    """
    parts: dict[str, dict[str, Any]] = {part: {} for part in SHARED}
    small = []
    for record in records:
        numbers = {}
        for part, known in parts.items():
            text = json.dumps(record[part], sort_keys=True)
            known.setdefault(text, record[part])
            numbers[part] = list(known).index(text)
        small.append({**record, **numbers})
    packed = {"provenance": origin, **{f"{part}s": list(known.values()) for part, known in parts.items()}}
    text = json.dumps({**packed, "records": small}, separators=(",", ":"))
    file.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))
    print(f"{file}: {len(records)} records, {file.stat().st_size:,} bytes")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("files", nargs="+", type=Path, help="files of lines, or packed ones")
    parser.add_argument("--out", type=Path, required=True, help="the packed file to write")
    args = parser.parse_args()
    records = read_records(args.files)
    command = f"python -m benchmarks.table.records {' '.join(f.name for f in args.files)} --out {args.out.name}"
    note = "each record's run has the command, commit, versions and hardware of its training"
    origin = provenance(command=command, n=len(records), seeds=sorted({r["seed"] for r in records}), note=note)
    pack(records, origin, args.out)


if __name__ == "__main__":
    main()
