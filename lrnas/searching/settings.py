"""The settings of a search, each defined once.

The options of `lrnas search`, the arguments of `lrnas.search`, the keys of study files and the key "settings" of a
study's manifest all come from the fields of `SearchSettings`.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import operator
import os
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from lrnas._arguments import short_repr
from lrnas._field_docs import field_docs
from lrnas._files import parse_toml, read_text
from lrnas._quantities import read_number, read_quantity, read_time
from lrnas.data.names import IMAGE_MEMORY, PACKS, SETS, is_in_files, unknown_set
from lrnas.errors import LrnasError, UnknownName, is_command
from lrnas.models.plan import TIMM
from lrnas.recipes import OTHER_NAMES, Recipe, check_recipe
from lrnas.spaces.space import SearchSpace, load_space
from lrnas.study.location import DATABASE
from lrnas.study.objectives import pick_objectives

PINNED = "what is searched (pinned: cannot change when the study continues)"
FREE = "how it is searched (may change when the study continues)"
PLACE = "where things are"


MAX_FINALS = 0.95
"""Largest share of the training time that can go to the later levels."""
MAX_PIXELS = 4096
"""Largest number of rows and columns of images."""


class InvalidSettings(LrnasError, ValueError):
    """A setting that is missing or has a value of the wrong kind."""


class Kind(NamedTuple):
    """A kind of value of settings and options."""

    rule: str
    """Name of the kind in messages."""
    example: str
    """An example in messages."""
    read: Callable[[Any], Any]
    """Returns the value, given as text or as itself; raises ValueError, TypeError or OverflowError."""


def setting(kind: Kind, metavar: str, default: Any = None, *, group: str = PINNED) -> Any:
    """A field of `SearchSettings`; the text under the field is its help.

    Args:
        kind: What values it takes.
        metavar: Name of its value in the help.
        default: Its default; MISSING if it is required.
        group: PINNED, FREE or PLACE.
    """
    return dataclasses.field(default=default, metadata={"kind": kind, "metavar": metavar, "group": group})


class Setting(NamedTuple):
    """Type, default, help and kind of one field of `SearchSettings`."""

    type: str
    default: Any
    help: str
    kind: Kind
    metavar: str
    group: str


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _whole(value: Any) -> int:
    if isinstance(value, bool):
        raise TypeError
    return int(value) if isinstance(value, str) else operator.index(value)


def _share(value: Any) -> float:
    number = read_number(value)
    if not 0 < number <= 1:
        raise ValueError
    return number


def _flag(value: Any) -> bool:
    if isinstance(value, str):
        value = {"true": True, "yes": True, "false": False, "no": False}.get(value.lower())
    if not isinstance(value, bool):
        raise TypeError
    return value


def _shape(value: Any) -> tuple[int, int, int]:
    channels, rows, columns = value.lower().replace("×", "x").split("x") if isinstance(value, str) else value
    return _whole(channels), _whole(rows), _whole(columns)


def _pixels(value: Any) -> int:
    sides = value.lower().replace("×", "x").split("x") if isinstance(value, str) else [value]
    if len(sides) > 2 or sides[0] != sides[-1] or (number := _whole(sides[0])) > MAX_PIXELS:
        raise ValueError
    return number


def _pack(value: Any) -> str:
    if value not in PACKS:
        raise ValueError
    return _text(value)


def _names(value: Any) -> tuple[str, ...]:
    return tuple(_text(name).strip() for name in (value.split(",") if isinstance(value, str) else value))


def _changes(value: Any) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return dict(value)
    name, equals, text = _text(value).partition("=")
    if not equals:
        raise ValueError
    return {name: text}


def _function(value: Any) -> Any:
    return value if callable(value) else _text(value)


TEXT = Kind("text in quotes", '"nin"', _text)
DATA = Kind("text in quotes", '"cifar10" or "folder:my_images"', _text)
PATH = Kind("a path", "studies", lambda value: _text(os.fspath(value)))
FILE = Kind("a file", "resnet18.safetensors", lambda value: str(Path(value).absolute()))
SOURCE = Kind("a space or a study file", "nin or studies/nin-cifar10.toml", PATH.read)
WHOLE = Kind("a whole number", "20", _whole)
FEW = WHOLE._replace(example="4")
SIDE = WHOLE._replace(example="224")
NUMBER = Kind("a number", "0.5", read_number)
FLAG = Kind("True or False", '"true"', _flag)
SHARE = Kind("a number above 0 and up to 1", "0.6", _share)
QUANTITY = Kind("a number of at least 1", "120M or 1.5e8", read_quantity)
MILLISECONDS = Kind("milliseconds above 0", "2.5", functools.partial(read_time, "ms"))
SECONDS = Kind("seconds above 0", "600", functools.partial(read_time, "s"))
PIXELS = Kind(f"pixels of a side of a square image, up to {MAX_PIXELS}", "64 or 64x64", _pixels)
SHAPE = Kind("channels, rows and columns", "3x64x64", _shape)
NAMES = Kind("names separated by commas", "accuracy,macs", _names)
CHANGES = Kind("FIELD=VALUE", "lr=0.05", _changes)
IN_PYTHON = Kind("a mapping", '{"lr": 0.05}', _changes)
"""`CHANGES` in messages about an argument of a function."""
SAMPLERS = ("front", "tpe", "gp", "nsga2", "random")
"""Names of the samplers."""
PACK = Kind(" or ".join(PACKS), PACKS[-1], _pack)
FUNCTION = Kind("MODULE:FUNCTION, or from Python a function", "my_code:train", _function)


@dataclass(frozen=True, kw_only=True)
class SearchSettings:
    """All settings of a search. Values are checked; those given as text are converted."""

    space: str = setting(TEXT, "NAME", MISSING)
    """Search space: a name from `lrnas spaces`, FILE.toml, or timm:MODEL for any CNN of timm."""
    budget: int = setting(WHOLE, "N", MISSING, group=FREE)
    """Train N networks in all, including those named in the space; fewer than a study has leave it as it is."""
    data: str | None = setting(DATA, "NAME")
    """Data set: digits, cifar10, folder:PATH, or hfds/NAME, wds/FOLDER, tfds/NAME as in timm (default: cifar10 with a
    GPU, digits without)."""
    image_size: int | None = setting(PIXELS, "PIXELS")
    """Rows and columns of images that are read from files, e.g. 64 (default: the network's own; 32 for nin, 224 for
    vgg11 and googlenet)."""
    recipe: str = setting(TEXT, "NAME", "fast")
    """Training recipe: fast, full, paper or FILE.toml."""
    epochs: int | None = setting(WHOLE, "N")
    """Train a network for N epochs unless it is stopped early (default: the recipe's; 3 on digits)."""
    set: Mapping[str, Any] | None = setting(CHANGES, "FIELD=VALUE")
    """Change fields of the recipe, e.g. lr=0.05 (see `lrnas recipes`): one option for each; in a study file a table, in
    Python a mapping, e.g. {"lr": 0.05}."""
    final_epochs: int | None = setting(WHOLE, "N")
    """Train networks in full for N epochs, with the recipe full (default: the recipe's, 9 on digits, but at most 8
    times the epochs of the search)."""
    min_epochs: int | None = setting(WHOLE, "N")
    """Train every network for at least N epochs before early stopping (default: no early stopping with the schedule
    one_cycle, whose accuracies mean little before its end; else one ninth of --epochs)."""
    start_from: str | None = setting(FILE, "FILE")
    """Start every network from trained weights of the model of the space, timm:MODEL: layers with other filters
    approximate those of the model (default: random weights)."""
    batch_norm: bool | None = setting(FLAG, "")
    """Put batch norm into every network (default: set by the file of the space, else yes; models of timm keep their own
    norms)."""
    granularity: str | None = setting(TEXT, "NAME")
    """Vary layers together: network (all alike), stage (alike in each stage) or layer (each by itself) (default: set by
    the space)."""
    divisor: int | None = setting(FEW, "N")
    """Round filter counts to multiples of N; 1: no rounding (default: set by the space)."""
    stem_stride: int | None = setting(FEW, "N")
    """Give the first layer of all networks this stride, also of reference networks: 1, 2 or 4. With 1, networks that
    were made for large images keep more of small ones (default: set by the space)."""
    objectives: tuple[str, ...] = setting(NAMES, "A,B", ("accuracy", "macs"))
    """What to optimise: accuracy and one or more of macs, params, latency."""
    latency_device: str | None = setting(TEXT, "NAME")
    """Measure latency on cpu or cuda (default: cuda if there is a GPU)."""
    latency_batch: int = setting(WHOLE, "N", 1)
    """Measure latency for batches of N images."""
    seed: int = setting(WHOLE, "N", 0)
    """Random seed of the sampler and of every training."""
    trainable: str | Callable[..., object] | None = setting(FUNCTION, "MODULE:FUNCTION")  # noqa: RUF009
    """Train with a function of your own (see docs/own_training.md)."""
    input: tuple[int, int, int] | None = setting(SHAPE, "CxHxW")
    """Channels, rows and columns of the images, if the function of --trainable loads its own images."""
    classes: int | None = setting(WHOLE, "N")
    """Number of classes, if the function of --trainable loads its own images."""
    sampler: str = setting(TEXT, "NAME", "front", group=FREE)
    """Sampler that proposes networks: front, tpe, gp, nsga2 or random."""
    beat: float | None = setting(SHARE, "SHARE", group=FREE)
    """Look for networks that cost at most this share of a reference network and are more accurate, e.g. 0.6 (default:
    look at all costs between those of the named networks); only with the sampler front. Reference networks: the paper's
    in the spaces of lrnas, else the unchanged model."""
    max_macs: int | None = setting(QUANTITY, "N", group=FREE)
    """Skip networks with more than N multiply-accumulates, e.g. 120M."""
    min_macs: int | None = setting(QUANTITY, "N", group=FREE)
    """Skip networks with fewer than N multiply-accumulates, e.g. 120M."""
    max_params: int | None = setting(QUANTITY, "N", group=FREE)
    """Skip networks with more than N parameters, e.g. 2M."""
    max_latency: float | None = setting(MILLISECONDS, "MS", group=FREE)
    """Skip networks that take more than MS milliseconds for a batch, e.g. 2.5."""
    warm_start: str | None = setting(TEXT, "STUDY", group=FREE)
    """Take over the networks that STUDY completed; apart from the space, its pinned settings must be the same."""
    finals: float = setting(NUMBER, "SHARE", 0.5, group=FREE)
    """Use this share of the training time to train the best networks longer, and the front in full; 0: do not."""
    final_seeds: int = setting(WHOLE, "N", 3, group=FREE)
    """Train networks on the front N times in full, with different seeds, as far as the time of --finals allows."""
    concurrency: int | None = setting(FEW, "N", group=FREE)
    """Train at most N networks at a time (default: as many as fit)."""
    cpus_per_trial: float = setting(NUMBER, "N", 1, group=FREE)
    """Reserve N CPU cores for each network in training."""
    gpus_per_trial: float | None = setting(NUMBER, "N", group=FREE)
    """Reserve N GPUs for each network in training, e.g. 0.25 (default: measured before the first training, so that as
    many networks share a GPU as train fastest together; 0.25 without CUDA MPS or with --trainable; 0 without a GPU)."""
    trial_timeout: float | None = setting(SECONDS, "SECONDS", group=FREE)
    """End a training that hangs: one that finishes no epoch within SECONDS, the time for loading the images included.
    It is tried again, 3 times in all (default: wait)."""
    image_memory: float = setting(NUMBER, "SHARE", IMAGE_MEMORY, group=FREE)
    """Keep images from files in GPU memory, once for all networks in training, if they take at most this share of it;
    else, or with 0, read them from the disk."""
    pack: str | None = setting(PACK, "KIND", group=FREE)
    """Pack images from files as pixels or as jpeg: JPEGs take a fraction of the room on the disk, but are decoded again
    for every batch (default: the pack that exists; else pixels, or jpeg if the disk has no room for pixels)."""
    name: str | None = setting(TEXT, "STUDY", group=PLACE)
    """Name of the study (default: SPACE-DATA, e.g. nin-digits)."""
    studies: str = setting(PATH, "FOLDER", "studies", group=PLACE)
    """Folder that holds the studies."""
    storage: str | None = setting(TEXT, "URL", group=PLACE)
    """Database URL, or journal:FILE, that holds the study (default: SQLite in its folder)."""
    data_dir: str | None = setting(PATH, "FOLDER", group=PLACE)
    """Folder that holds data sets (default: $LRNAS_DATA or ~/.cache/lrnas)."""
    address: str | None = setting(TEXT, "ADDRESS", group=PLACE)
    """Address of a Ray cluster (default: this machine alone)."""

    def __post_init__(self) -> None:
        for name in SETTINGS:
            object.__setattr__(self, name, _read_setting(name, getattr(self, name)))
        if self.budget < 1:
            raise InvalidSettings(f"the budget must be at least 1 network; got {self.budget}; for example 20")
        if self.seed < 0:
            raise InvalidSettings(f"the seed must be at least 0; got {self.seed}; for example 1")
        if not 0 <= self.finals <= MAX_FINALS:
            raise InvalidSettings(
                f"the share of the finals must be from 0 to {MAX_FINALS}; got {self.finals:g}; for example 0.5"
            )
        if self.final_seeds < 1:
            raise InvalidSettings(f"finals need at least 1 seed; got {self.final_seeds}; for example 3")

    def to_dict(self) -> dict[str, Any]:
        """The settings that are not at their defaults, for a manifest.

        Those in the group PLACE are left out: they say nothing about results, and a URL may hold a password.
        """
        values = {name: getattr(self, name) for name, item in SETTINGS.items() if item.group != PLACE}
        return {
            name: f"{value.__module__}:{value.__qualname__}" if callable(value) else value
            for name, value in values.items()
            if value != SETTINGS[name].default
        }


_HELP = field_docs(SearchSettings)
SETTINGS = {
    item.name: Setting(str(item.type), item.default, " ".join(_HELP[item.name].split()), **item.metadata)
    for item in dataclasses.fields(SearchSettings)
}
"""All settings by name."""


def read_value(kind: Kind, value: Any, label: str, default: Any = None) -> Any:
    """Check a value, and convert it if it is text.

    Args:
        kind: Kind of value that is expected.
        value: What was given.
        label: How an error message names the setting or option.
        default: Its default, the example in the message if it is a number.

    Raises:
        InvalidSettings: The value is not of that kind.
    """
    try:
        return kind.read(value)
    except (ValueError, TypeError, OverflowError):
        rule, example, _ = IN_PYTHON if kind is CHANGES and label == "set" else kind
        example = str(default) if type(default) in (int, float) else example
        raise InvalidSettings(f"{label} takes {rule}; got {short_repr(value)}; for example {example}") from None


def _read_setting(name: str, value: Any, prefix: str = "") -> Any:
    item = SETTINGS[name]
    if value is None and "None" in item.type:
        return None
    return read_value(item.kind, value, f"{prefix}{name}", item.default)


def gather_settings(source: str | Path | SearchSettings | None, given: Mapping[str, Any]) -> SearchSettings:
    """The settings of one search, from a study file and from arguments.

    Args:
        source: A study file; or a space; or settings to change.
        given: Settings by name. They win over those of the file; fields in `set` win one by one.

    Returns:
        The settings, with defaults for those that are neither in the source nor given.
    """
    own = _read_all(given, "setting", "")
    if isinstance(source, SearchSettings):
        return dataclasses.replace(source, **own)
    from_file = {} if source is None else _read_source(read_value(SOURCE, source, "space"))
    if "space" in own and from_file.get("space") == str(source):  # the source is a space, not a study file
        raise InvalidSettings(f"a search has one space; got {source} and --space {own['space']}; give one of them")
    changes = {**from_file.get("set", {}), **(own.get("set") or {})}
    values = {**from_file, **own, "set": changes or None}
    for name in ("space", "budget"):
        if name not in values:
            if name == "budget":
                check_settings(SearchSettings(**values, budget=1))  # wrong values are told before what is missing
            raise InvalidSettings(f"a search needs a {name}; got none; give --{name}, or a study file that sets it")
    return SearchSettings(**values)


def _read_source(source: str) -> dict[str, Any]:
    """The settings in a study file; only `space` if the source is the name or the file of a space."""
    if not source.endswith(".toml"):
        return {"space": source}
    try:
        data = parse_toml(read_text(source))
    except OSError as error:
        raise InvalidSettings(f"cannot read {source}: {error.strerror}; give a study file or a space") from None
    except ValueError as error:
        raise InvalidSettings(f"{source}: not TOML, {error}; see studies/demo.toml for an example") from None
    if isinstance(data.get("space"), dict):  # a space's file has a table of that name
        return {"space": source}
    return _read_all(data, f"setting in {source}", f"{source}: ")


def _read_all(values: Mapping[str, Any], what: str, prefix: str) -> dict[str, Any]:
    fields = Recipe().to_dict()
    for name in values:
        if name not in SETTINGS:
            if (field := OTHER_NAMES.get(name, name)) in fields:
                value = values[name]
                shown = json.dumps(value, default=str) if prefix else short_repr(value)  # as in TOML, or in Python
                example = f"{field} = {shown} below [set]" if prefix else f"set={{{field!r}: {shown}}}"
                raise InvalidSettings(f"{prefix}{name} is a field of the recipe, not a setting; write {example}")
            listed = "`lrnas search --help`" if prefix else "help(lrnas.search)"
            raise UnknownName(what, name, SETTINGS, f" ({listed} lists all)")
    return {name: _read_setting(name, value, prefix) for name, value in values.items()}


def with_default(text: str, default: Any) -> str:
    """A help text with its default appended, unless there is no default or the text already states it."""
    shown = ",".join(default) if isinstance(default, tuple) else "yes" if default is True else default
    is_complete = default is None or default is MISSING or "(default" in text
    return text.removesuffix(".") + ("." if is_complete else f" (default: {shown}).")


Function = TypeVar("Function", bound=Callable[..., Any])


def _annotation(item: Setting) -> str:
    """The types that an argument can have: that of the setting, and text, which is converted."""
    own = item.type.replace("tuple[str, ...]", "Sequence[str]").split(" | ")
    kinds = [*own, "str", *["Path"] * (item.kind in (PATH, FILE))]
    return " | ".join(sorted(dict.fromkeys(kinds), key="None".__eq__))  # None is the last


def takes_settings(function: Function) -> Function:
    """Decorator for a function that takes settings as `**settings`: adds each to its signature and its docstring.

    In the signature they follow the first parameter. In the docstring they replace the line `{settings}`.
    """
    signature = inspect.signature(function)
    first, *others = (one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD)
    added, lines = [], []
    for name, item in SETTINGS.items():
        if name != first.name:
            default = first.empty if item.default is MISSING else item.default
            added.append(inspect.Parameter(name, first.KEYWORD_ONLY, default=default, annotation=_annotation(item)))
            lines.append(f"    {name}: {with_default(item.help, item.default)}")
    text = re.sub(r"--([a-z-]+)", lambda option: option[1].replace("-", "_"), "\n".join(lines))
    vars(function)["__signature__"] = signature.replace(parameters=[first, *added, *others])
    function.__doc__ = (inspect.getdoc(function) or "").replace("    {settings}", text)
    return function


def check_settings(settings: SearchSettings) -> None:
    """Raise an error if a setting of a search has a wrong value, as far as that is known without training packages."""
    check_sampler(settings.sampler, settings.beat)
    pick_objectives(settings.objectives)
    check_training(settings.recipe, settings.set, settings.epochs, settings.data)
    if settings.final_epochs is not None:
        check_recipe("full", {"epochs": settings.final_epochs})
    if settings.latency_device is not None and settings.latency_device.partition(":")[0] not in ("cpu", "cuda"):
        raise LrnasError(f"--latency-device must be cpu or cuda; got {settings.latency_device!r}; choose one")
    if not settings.space.startswith(TIMM):  # timm needs torch
        try:
            load_searched(settings)
        except UnknownName:
            if (Path(settings.studies) / settings.space / DATABASE).exists():
                _refuse_study(settings)
            raise


def load_searched(settings: SearchSettings) -> SearchSpace:
    """The space of a search."""
    load = functools.partial(
        load_space,
        settings.space,
        granularity=settings.granularity,
        divisor=settings.divisor,
        stem_stride=settings.stem_stride,
    )
    space = load(batch_norm=settings.batch_norm)
    if space.batch_norm is None and not any(backbone.startswith(TIMM) for backbone in space.backbones):
        space = load(batch_norm=True)
    return space


def _refuse_study(settings: SearchSettings) -> None:
    """Raise an error that says how to continue a study whose name is given as a space."""
    from lrnas.study.levels import FULL, level_study  # with Optuna
    from lrnas.study.manifest import read_manifest
    from lrnas.study.open import open_search

    study = open_search(settings.space, studies=settings.studies)
    manifest = study.manifest
    data = {"data": manifest["data"]} if manifest["data"] in SETS else {}
    begun = {"space": manifest["source"], **data, **manifest.get("settings", {})}
    last = {**dataclasses.asdict(study.limits), "beat": study.beat}  # it was begun, perhaps, with other limits
    begun = {name: value for name, value in begun.items() if name not in last}
    begun |= {name: value for name, value in last.items() if value is not None}
    finals = level_study(study, FULL)
    if finals is not None:  # the first command may have had other settings of finals, and need not have had any
        begun = {name: value for name, value in begun.items() if name != "finals" or value}
        begun["final_epochs"] = read_manifest(finals)["recipe"]["epochs"]
    now = {"name": settings.space, "budget": max(settings.budget, study.budget), "studies": settings.studies}
    values = begun | {name: value for name, value in now.items() if value != SETTINGS[name].default}
    raise InvalidSettings(
        f"a search takes a space or a study file; got {settings.space}, a study; continue it with "
        f"`{_as_command(values) if is_command() else _as_call(values)}`"
    )


def _as_command(values: Mapping[str, Any]) -> str:
    """The command of a search with these settings."""
    words = ["lrnas search"]
    for name, value in values.items():
        option = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{option}" if value else f"--no-{option}")
        elif isinstance(value, Mapping):
            words += [f"--{option} {shlex.quote(f'{field}={one}')}" for field, one in value.items()]
        else:
            between = "x" if name == "input" else ","
            text = between.join(map(str, value)) if isinstance(value, list | tuple) else str(value)
            words.append(f"--{option} {shlex.quote(text)}")
    return " ".join(words)


def _as_call(values: Mapping[str, Any]) -> str:
    """The call of a search with these settings."""
    return f"lrnas.search({', '.join(f'{name}={value!r}' for name, value in values.items())})"


def check_training(recipe: str, changes: Mapping[str, Any] | None, epochs: int | None, data: str | None) -> None:
    """Raise an error if a recipe or a data set does not exist, or if a changed field has a wrong name or value."""
    check_recipe(recipe, {**(changes or {}), **({} if epochs is None else {"epochs": epochs})})
    if data is not None and data not in SETS and not is_in_files(data):
        raise unknown_set(data)


def check_sampler(name: str, beat: float | None = None) -> None:
    """Raise an error if there is no sampler of this name, or if it cannot be used with --beat."""
    if name not in SAMPLERS:
        raise UnknownName("sampler", name, SAMPLERS)
    if beat is not None and name != "front":
        raise LrnasError(f"--beat needs the sampler front; got --sampler {name}; leave out one of the two")
