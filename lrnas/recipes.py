"""Training recipes: how a network is trained, as data. Every field can be set on the command line or in a TOML file.

The recipe `paper` follows Ioannou et al.; where they write "standard hyper-parameters", it has the values that the
authors of each model used. The recipe `fast` is the shortest training whose accuracies rank networks like full
trainings do, and `full` is such a full training; both were chosen by measurement on CIFAR-10 (docs/proxy.md).
"""

from __future__ import annotations

import dataclasses
import difflib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

from lrnas._files import parse_toml, read_text
from lrnas.errors import LrnasError, UnknownName, closest

Schedule = Literal["paper", "polynomial", "one_cycle"]
RECIPES = ("paper", "fast", "full")
SMALLEST_BATCH = 8
"""Smallest batch that is chosen. Smaller ones train worse, above all with batch norm."""
EARLY_SHARE = 0.75
"""Share of the epochs with crops of `early_crop`, rounded; the last epoch never has them."""
OTHER_NAMES = {"learning_rate": "lr", "wd": "weight_decay", "batch": "batch_size", "dropout": "drop_rate"}
"""Names that fields of recipes have elsewhere."""
_INIT_RULES = ("composite", "fan_in", "fan_out", "default")
_TYPE_NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "a word"}
_RULES = (
    (("epochs", "patience"), "from 1 to 100000", lambda v: 1 <= v <= 100_000),
    (("batch_size",), "from 1 to 1000000", lambda v: 1 <= v <= 1_000_000),
    (("lr",), "above 0 and at most 1000", lambda v: 0 < v <= 1_000),
    (("min_area",), "from 0 to 1", lambda v: 0 <= v <= 1),
    (("momentum", "label_smoothing", "drop_rate", "warmup", "drop_at"), "at least 0 and below 1", lambda v: 0 <= v < 1),
    (("weight_decay", "power", "drops", "clip", "aux_weight"), "from 0 to 100000", lambda v: 0 <= v <= 100_000),
    (("crop", "early_crop", "pad"), "from 0 to 100000", lambda v: 0 <= v <= 100_000),
    (("schedule",), f"one of {', '.join(get_args(Schedule))}", lambda v: v in get_args(Schedule)),
    (("init",), f"one of {', '.join(_INIT_RULES)}", lambda v: v in _INIT_RULES),
)
"""Names of fields, a description of their allowed values, and a function that checks a value."""


class InvalidRecipe(LrnasError, ValueError):
    """A recipe with a value that is not allowed."""


@dataclass(frozen=True)
class Recipe:
    """Settings for training one network. `lrnas recipes` prints the line under each field.

    Example:
        >>> Recipe(epochs=5).changed({"lr": "0.05"}).lr
        0.05
    """

    epochs: int = 20
    """Largest number of passes over the training images."""
    batch_size: int = 128
    """Images per step; unless it is set, small data sets have a power of 2 for 32 steps per epoch, but at least 8."""
    lr: float = 0.1
    """Highest learning rate."""
    momentum: float = 0.9
    """Momentum of SGD."""
    nesterov: bool = False
    """Use Nesterov momentum."""
    weight_decay: float = 5e-4
    """L2 penalty on weights; biases and norms have none."""
    schedule: Schedule = "one_cycle"
    """Learning rate over time: one_cycle, polynomial, or paper: lr/(1+lr*wd*t), divided by 10 at each drop."""
    power: float = 0.5
    """Schedule polynomial only: exponent of the decay."""
    patience: int = 10
    """Schedule paper with drop_at 0: drop after this many epochs without a better validation accuracy."""
    drops: int = 2
    """Schedule paper only: number of drops; with drop_at 0, training ends at the plateau after the last drop."""
    drop_at: float = 0.0
    """Schedule paper only: share of the epochs before the first drop (others follow evenly); 0: drop at plateaus."""
    warmup: float = 0.25
    """Schedule one_cycle only: share of the steps in which the learning rate rises."""
    clip: float = 0.0
    """Largest norm of the gradient; 0: no limit."""
    label_smoothing: float = 0.0
    """Share of the target that is spread over all classes."""
    drop_rate: float = 0.0
    """Dropout rate, for backbones that have dropout."""
    aux_weight: float = 0.3
    """Weight of each auxiliary loss, for backbones with auxiliary heads."""
    crop: int = 0
    """Rows and columns of the random crops; 0: the image size."""
    early_crop: int = 0
    """Rows and columns of the crops in the first three quarters of the epochs, to save time; 0: as in the others."""
    pad: int = 0
    """Pixels added at every side before cropping."""
    min_area: float = 0.0
    """Images in files only: crops have at least this share of an image's area, and are resized; 0: not resized."""
    mirror: bool = True
    """Mirror half of the images."""
    whiten: bool = False
    """Use global contrast normalisation and ZCA whitening instead of mean and standard deviation."""
    all_images: bool = False
    """Train on the validation images too; only for final trainings, where no choice depends on them."""
    init: str = "composite"
    """Rule for the initial weights: composite, fan_in, fan_out or default; see lrnas.layers.init."""

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            expected = type(item.default)
            if expected is float and type(value) is int:
                object.__setattr__(self, item.name, value := float(value))
            if type(value) is not expected:
                raise InvalidRecipe(f"{item.name} must be {_TYPE_NAMES[expected]}; got {value!r}; see `lrnas recipes`")
        for names, rule, is_allowed in _RULES:
            for name in names:
                if not is_allowed(value := getattr(self, name)):
                    raise InvalidRecipe(f"{name} must be {rule}; got {value!r}; choose another value")
        if self.drop_at and self.schedule != "paper":
            raise InvalidRecipe(
                f'drop_at needs schedule "paper"; got {self.drop_at} with {self.schedule!r}; leave one of them out'
            )
        if self.all_images and self.watches_validation:
            raise InvalidRecipe(
                "a schedule that follows the validation accuracy cannot train on the validation images; got all_images "
                "with drop_at 0; set drop_at"
            )

    def check_fits(self, image_size: int, num_images: int) -> None:
        """Raise InvalidRecipe if the crop or the batch is too large for a data set.

        Args:
            image_size: Rows and columns of the images.
            num_images: Number of training images.
        """
        for name in ("crop", "early_crop"):
            if (size := getattr(self, name)) > image_size + 2 * self.pad:
                raise InvalidRecipe(
                    f"{name} must be at most the padded image, {image_size} + 2·{self.pad}; got {size}; set {name} to "
                    "0 or increase pad"
                )
        if self.batch_size > num_images:
            raise InvalidRecipe(
                f"batch_size must be at most {num_images}, the number of training images; got {self.batch_size}; "
                "set a smaller one"
            )

    def size_in(self, epoch: int, image_size: int) -> int:
        """Rows and columns of the crops in an epoch.

        Args:
            epoch: The epoch, counted from 0.
            image_size: Rows and columns of the images.
        """
        is_early = self.early_crop and epoch < min(round(EARLY_SHARE * self.epochs), self.epochs - 1)
        return self.early_crop if is_early else self.crop or image_size

    def num_epochs(self, image_size: int) -> dict[int, int]:
        """Number of epochs by rows and columns of their crops.

        Args:
            image_size: Rows and columns of the images.
        """
        return dict(Counter(self.size_in(epoch, image_size) for epoch in range(self.epochs)))

    def with_size(self, size: int) -> Recipe:
        """A copy with crops of this number of rows and columns in all epochs."""
        return dataclasses.replace(self, crop=size, early_crop=0)

    @property
    def watches_validation(self) -> bool:
        """Whether the learning rate depends on the validation accuracy."""
        return self.schedule == "paper" and not self.drop_at

    def to_dict(self) -> dict[str, Any]:
        """The fields by name, for JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def complete(cls, record: Mapping[str, Any]) -> dict[str, Any]:
        """All fields of a stored recipe, by name. Fields that are missing in the record have their defaults."""
        return {**cls().to_dict(), **record}

    def changed(self, changes: Mapping[str, Any]) -> Recipe:
        """A copy with some fields changed.

        Args:
            changes: New values by field. A text is converted to the field's type: "0.05", "true".
        """
        types = {item.name: type(item.default) for item in fields(self)}
        values = {}
        for name, value in changes.items():
            if name not in types:
                raise InvalidRecipe(
                    f"a recipe has no field {name!r}{_similar(name, types)} (`lrnas recipes` lists all)"
                )
            values[name] = _parse(value, types[name], name, getattr(self, name)) if isinstance(value, str) else value
        return dataclasses.replace(self, **values)


def _similar(name: str, known: Iterable[str]) -> str:
    other = difflib.get_close_matches(name.lower().replace("-", "_"), OTHER_NAMES, n=1, cutoff=0.8)
    return f"; did you mean {OTHER_NAMES[other[0]]}?" if other else closest(name, known)


def _parse(text: str, expected: type, name: str, example: object) -> Any:
    try:
        return {"true": True, "false": False}[text.lower()] if expected is bool else expected(text)
    except (ValueError, KeyError):
        raise InvalidRecipe(f"{name} must be {_TYPE_NAMES[expected]}; got {text!r}; for example {example}") from None


_PAPER = {
    # As in Network in Network: 128 images, lr 0.1 and momentum 0.9 (the defaults), dropout after each pool. We chose
    # the epochs of the drops once, by validation accuracy. The final training is on all images. Without the limit on
    # the length of gradients, some trainings go wrong in the first epochs.
    "nin": Recipe(
        epochs=320,
        clip=2.0,
        weight_decay=1e-4,
        schedule="paper",
        drop_at=0.75,
        drop_rate=0.5,
        crop=30,
        whiten=True,
        all_images=True,
    ),
    # Caffe's bvlc_googlenet: 2.4 million steps of 32 images are 60 passes over ILSVRC.
    "googlenet": Recipe(
        epochs=60, batch_size=32, lr=0.01, weight_decay=2e-4, schedule="polynomial", power=0.5, drop_rate=0.4
    ),
    # Simonyan and Zisserman: 74 passes over ILSVRC.
    "vgg": Recipe(epochs=74, batch_size=256, lr=0.01, weight_decay=5e-4, schedule="paper", drop_rate=0.5),
}
# The short recipe was chosen by how well it ranks networks of equal cost, see docs/proxy.md.
_FAST = Recipe(epochs=5, batch_size=128, lr=0.1, nesterov=True, label_smoothing=0.1, clip=2.0)
_FULL = dataclasses.replace(_FAST, epochs=40, batch_size=512, lr=0.5)
# Without norms, higher learning rates diverge, and with He's fan-in rule networks start to learn within one epoch.
_FAST_WITHOUT_NORMS = dataclasses.replace(_FAST, epochs=10, lr=0.03, init="fan_in")
_FULL_WITHOUT_NORMS = dataclasses.replace(_FAST_WITHOUT_NORMS, epochs=40)


def get_recipe(
    name: str,
    backbone: str,
    image_size: int,
    num_images: int,
    changes: Mapping[str, Any] | None = None,
    *,
    norms: bool = True,
    own_crops: bool = False,
) -> Recipe:
    """The recipe for training on a data set.

    Some settings follow from the data. Batches are small enough for 32 steps per epoch, but have at least 8 images; for
    networks with norms, `fast` and `full` then reduce the learning rate with the square root of the batch size. A batch
    size that is set is used as it is, with the recipe's learning rate. Images are padded before cropping, by a
    sixteenth of their size in these two cases and by an eighth in all others. The exception is NiN with the recipe
    `paper` on images of 32×32 pixels, as in the paper: they are whitened and cropped to 30×30, and the validation
    images are used for training too.

    Args:
        name: `paper`, `fast`, `full`, or a TOML file of fields, whose key `base` (default: fast) names the recipe to
            change.
        backbone: Name of the backbone; `paper` has one recipe per family.
        image_size: Rows and columns of the images.
        num_images: Number of training images.
        changes: New values by field, as in `Recipe.changed`.
        norms: Whether the networks have norms, with which `fast` and `full` have a higher learning rate.
        own_crops: Whether the data set crops images itself. The recipe then has no crop, padding or whitening.

    Returns:
        A recipe that fits the data set.
    """
    changes = changes or {}
    if name.endswith(".toml"):
        base, settings = _read_file(Path(name))
        try:
            changes = {**settings, **changes}
            return get_recipe(base, backbone, image_size, num_images, changes, norms=norms, own_crops=own_crops)
        except InvalidRecipe as error:
            raise InvalidRecipe(f"{name}: {error}") from None
    if name == "paper":
        recipe = next((_PAPER[family] for family in _PAPER if backbone.startswith(family)), _PAPER["vgg"])
        if recipe.crop != image_size - 2:  # not as in the paper: pad, then crop to the image size
            recipe = dataclasses.replace(recipe, crop=0, whiten=False, all_images=False, pad=image_size // 8)
    elif name in ("fast", "full") and norms:
        recipe = dataclasses.replace(_FAST if name == "fast" else _FULL, pad=max(1, image_size // 16))
    elif name in ("fast", "full"):
        recipe = _FAST_WITHOUT_NORMS if name == "fast" else _FULL_WITHOUT_NORMS
        recipe = dataclasses.replace(recipe, pad=image_size // 8)
    else:
        raise UnknownName("recipe", name, RECIPES, " (or give FILE.toml)")
    if own_crops:
        recipe = dataclasses.replace(recipe, crop=0, early_crop=0, pad=0, whiten=False, all_images=False)
    wanted = max(num_images // 32, min(num_images, SMALLEST_BATCH))
    largest_batch = 1 << max(0, wanted.bit_length() - 1)  # a power of 2
    if largest_batch < recipe.batch_size and "batch_size" not in changes:
        share = (largest_batch / recipe.batch_size) ** 0.5 if norms and name != "paper" else 1.0
        recipe = dataclasses.replace(recipe, batch_size=largest_batch, lr=share * recipe.lr)
    recipe = recipe.changed(changes)
    recipe.check_fits(image_size, num_images)
    return recipe


def tell_small_batches(recipe: Recipe, usual: Recipe, num_images: int) -> list[str]:
    """A remark on batches that are smaller than usual because there are few images; empty if they are not.

    Args:
        recipe: The recipe for these images.
        usual: The same recipe for many images.
        num_images: Number of training images.
    """
    if recipe.batch_size == usual.batch_size:
        return []
    rate = f", learning rate {recipe.lr:.3g} instead of {usual.lr:.3g}" if recipe.lr != usual.lr else ""
    few = f"because there are only {num_images:,} training images; --set batch_size=… changes that"
    return [f"images per step: {recipe.batch_size} instead of the recipe's {usual.batch_size}{rate}, {few}"]


def check_recipe(name: str, changes: Mapping[str, Any]) -> None:
    """Raise an error if there is no such recipe, or if a changed field has a wrong name or value.

    Args:
        name: As in `get_recipe`.
        changes: New values by field, as in `Recipe.changed`.
    """
    if name.endswith(".toml"):
        _read_file(Path(name))
    elif name not in RECIPES:
        raise UnknownName("recipe", name, RECIPES, " (or give FILE.toml)")
    for field, value in changes.items():  # one by one: whether they fit together depends on the recipe
        base = Recipe() if field == "schedule" else Recipe(schedule="paper", drop_at=0.5)
        base.changed({field: value})


def _read_file(path: Path) -> tuple[str, dict[str, Any]]:
    """Name of the base recipe and the settings in a TOML file."""
    try:
        data = parse_toml(read_text(path))
    except OSError as error:
        raise InvalidRecipe(f"cannot read {path}: {error.strerror}; give a TOML file or a recipe's name") from None
    except ValueError as error:
        raise InvalidRecipe(f"{path} is not a TOML file: {error}; see `lrnas recipes`") from None
    base = data.pop("base", "fast")
    if not isinstance(base, str) or base not in RECIPES:
        raise UnknownName(f"base recipe in {path}", str(base), RECIPES)
    return base, data


def named_recipes() -> dict[str, Recipe]:
    """All recipes by name, without the settings that follow from a data set."""
    short = {"fast": _FAST, "fast, without norms": _FAST_WITHOUT_NORMS}
    full = {"full": _FULL, "full, without norms": _FULL_WITHOUT_NORMS}
    return {**short, **full, **{f"paper, {family}": recipe for family, recipe in _PAPER.items()}}
