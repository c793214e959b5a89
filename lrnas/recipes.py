"""How a network is trained, as data. Every field can be set from the command line or a TOML file.

`paper` is what Ioannou et al. state, filled in where they say "standard hyper-parameters" with what each model's
authors used. `fast` is a short one-cycle schedule: as little training as it takes to tell good networks from bad.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

from lrnas.errors import LrnasError, UnknownName, closest

Schedule = Literal["paper", "polynomial", "one_cycle"]


class InvalidRecipe(LrnasError, ValueError):
    """A recipe that breaks a rule."""


@dataclass(frozen=True)
class Recipe:
    """One way to train. The line under each field is what `lrnas recipes` prints."""

    epochs: int = 20
    """Passes over the training images, at most."""
    batch_size: int = 128
    """Images per step."""
    lr: float = 0.1
    """Learning rate at its highest."""
    momentum: float = 0.9
    """Of SGD."""
    nesterov: bool = False
    """Nesterov's form of momentum."""
    weight_decay: float = 5e-4
    """L2 penalty, on weights but not on biases and norms."""
    schedule: Schedule = "one_cycle"
    """Paper: lr/(1+lr*wd*t), a tenth on each plateau; polynomial; one_cycle."""
    power: float = 0.5
    """Polynomial only: exponent of the decay."""
    patience: int = 10
    """Paper only, where drop_at is 0: epochs without a better validation accuracy that make a plateau."""
    drops: int = 2
    """Paper only: times the learning rate is divided by 10; where drop_at is 0, one more plateau ends training."""
    drop_at: float = 0.0
    """Paper only: share of the epochs before the first drop, the others follow evenly; 0 to watch for plateaus."""
    warmup: float = 0.25
    """One_cycle only: share of the steps in which the learning rate rises."""
    clip: float = 0.0
    """Largest norm of the gradient, 0 for no limit."""
    label_smoothing: float = 0.0
    """Share of the target spread over all classes."""
    drop_rate: float = 0.0
    """Dropout, where the backbone has it."""
    aux_weight: float = 0.3
    """Weight of each auxiliary loss, where the backbone has heads for it."""
    crop: int = 0
    """Rows and columns of the random crops; 0 for the image size."""
    pad: int = 0
    """Margin added to every side before cropping."""
    mirror: bool = True
    """Mirror half of the images."""
    whiten: bool = False
    """Global contrast normalisation and ZCA whitening instead of mean and deviation."""
    all_images: bool = False
    """Train on the validation images too, once nothing is left to choose by them."""
    init: str = "composite"
    """Composite, fan_in, fan_out or default, see lrnas.layers.init."""

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            kind = type(item.default)
            if kind is float and isinstance(value, int) and not isinstance(value, bool):
                object.__setattr__(self, item.name, value := float(value))
            if type(value) is not kind:
                raise InvalidRecipe(f"{item.name} is {_KINDS[kind]}; got {value!r}; see `lrnas recipes`")
        self._check_range("epochs", 1, 100_000)
        self._check_range("batch_size", 1, 1_000_000)
        self._check_range("lr", 0, 1_000, above=True)
        self._check_range("patience", 1, 100_000)
        for name in ("momentum", "label_smoothing", "drop_rate", "warmup", "drop_at"):
            self._check_range(name, 0, 1, below=True)
        for name in ("weight_decay", "power", "drops", "clip", "aux_weight", "crop", "pad"):
            self._check_range(name, 0, 100_000)
        for name, known in (("schedule", get_args(Schedule)), ("init", ("composite", "fan_in", "fan_out", "default"))):
            if getattr(self, name) not in known:
                raise InvalidRecipe(f"{name} is one of {', '.join(known)}; got {getattr(self, name)!r}; choose one")
        if self.drop_at and self.schedule != "paper":
            raise InvalidRecipe(
                f'drop_at belongs to schedule "paper"; got {self.drop_at} with {self.schedule!r}; leave it out'
            )
        if self.all_images and self.watches_validation:
            raise InvalidRecipe(
                "a schedule that watches the validation images cannot train on them; got all_images with drop_at 0; "
                "set drop_at"
            )

    def _check_range(self, name: str, low: float, high: float, above: bool = False, below: bool = False) -> None:
        value = getattr(self, name)
        if not low <= value <= high or (above and value == low) or (below and value == high):
            edges = f"{'above' if above else 'from'} {low} {'to below' if below else 'to'} {high}"
            raise InvalidRecipe(f"{name} lies {edges}; got {value}; choose another")

    def check_fits(self, image_size: int, num_images: int) -> None:
        """Whether this recipe can be used on such images at all."""
        if self.crop > image_size + 2 * self.pad:
            raise InvalidRecipe(
                f"a crop is at most the image with its margins, {image_size} + 2·{self.pad}; got {self.crop}; "
                "set crop to 0 or pad to more"
            )
        if self.batch_size > num_images:
            raise InvalidRecipe(f"a batch is at most the {num_images} training images; got {self.batch_size}; set less")

    @property
    def watches_validation(self) -> bool:
        """Whether the learning rate follows the validation accuracy."""
        return self.schedule == "paper" and not self.drop_at

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def complete(cls, record: Mapping[str, Any]) -> dict[str, Any]:
        """A recorded recipe, with the fields that did not exist yet at their defaults: what they were then."""
        return {**cls().to_dict(), **record}

    def changed(self, changes: Mapping[str, Any]) -> Recipe:
        """This recipe with some fields set; text is read as the field's type."""
        known = {item.name: item for item in fields(self)}
        values = {}
        for name, value in changes.items():
            if name not in known:
                raise InvalidRecipe(f"a recipe has no field {name!r}{closest(name, known)} (`lrnas recipes` lists all)")
            values[name] = _read(value, type(known[name].default), name) if isinstance(value, str) else value
        return dataclasses.replace(self, **values)


_KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a word"}


def _read(text: str, kind: type, name: str) -> Any:
    try:
        if kind is bool:
            return {"true": True, "false": False}[text.lower()]
        return kind(text)
    except (ValueError, KeyError):
        raise InvalidRecipe(f"{name} is {_KINDS[kind]}; got {text!r}; write {name}=VALUE") from None


_PAPER = {
    # Network in Network's authors: 128 images, momentum 0.9, lr 0.1, weight decay 1e-4, dropout 0.5 after each pool;
    # as they did, the drops were set once by the validation images, and the last training is on all images
    "nin": Recipe(
        epochs=160,
        batch_size=128,
        lr=0.1,
        weight_decay=1e-4,
        schedule="paper",
        drop_at=0.75,
        drop_rate=0.5,
        crop=30,
        whiten=True,
        all_images=True,
    ),
    # Caffe's bvlc_googlenet: 2.4 million steps of 32 images are 60 passes over ILSVRC
    "googlenet": Recipe(
        epochs=60, batch_size=32, lr=0.01, weight_decay=2e-4, schedule="polynomial", power=0.5, drop_rate=0.4
    ),
    # Simonyan and Zisserman: 74 passes over ILSVRC
    "vgg": Recipe(epochs=74, batch_size=256, lr=0.01, weight_decay=5e-4, schedule="paper", drop_rate=0.5),
}
# He's fan-in rule and a limit on the gradient: the networks without batch norm get going within an epoch
_FAST = Recipe(epochs=10, batch_size=128, lr=0.03, nesterov=True, label_smoothing=0.1, clip=2.0, init="fan_in")

RECIPES = {
    "paper": "what the paper states, per backbone; hours on ILSVRC, minutes on CIFAR-10 with a GPU",
    "fast": "a dozen epochs of one-cycle SGD, for ranking networks",
}


def get_recipe(
    name: str,
    backbone: str,
    image_size: int,
    num_images: int,
    changes: Mapping[str, Any] | None = None,
    *,
    own_crops: bool = False,
) -> Recipe:
    """A recipe by name, or from a TOML file (whose key `base` names the one it changes), for a data set.

    What a recipe leaves to the data: an epoch has at least 32 steps, a crop of the paper's is for images that have
    room for it, and `fast` pads by an eighth of the image; data with `own_crops` get neither crop, margin nor
    whitening. `changes` have the last word.
    """
    changes = dict(changes or {})
    if name.endswith(".toml"):
        path = Path(name)
        base, settings = _read_file(path)
        try:
            return get_recipe(base, backbone, image_size, num_images, {**settings, **changes}, own_crops=own_crops)
        except InvalidRecipe as error:
            raise InvalidRecipe(f"{path}: {error}") from None
    if name == "paper":
        family = next((family for family in _PAPER if backbone.startswith(family)), "vgg")
        recipe = _PAPER[family]
        if recipe.crop != image_size - 2:  # not the paper's images: crops of full size, from a margin
            recipe = dataclasses.replace(recipe, crop=0, whiten=False, all_images=False, pad=image_size // 8)
    elif name == "fast":
        recipe = dataclasses.replace(_FAST, pad=image_size // 8)
    else:
        raise UnknownName("recipe", name, RECIPES, " (or give FILE.toml)")
    if own_crops:
        recipe = dataclasses.replace(recipe, crop=0, pad=0, whiten=False, all_images=False)
    most = max(1, 1 << max(0, (num_images // 32).bit_length() - 1))
    recipe = dataclasses.replace(recipe, batch_size=min(recipe.batch_size, most))
    recipe = recipe.changed(changes)
    recipe.check_fits(image_size, num_images)
    return recipe


def _read_file(path: Path) -> tuple[str, dict[str, Any]]:
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidRecipe(f"cannot read {path}: {error.strerror}; give a TOML file or a recipe's name") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidRecipe(f"{path}: not TOML, {error}") from None
    base = data.pop("base", "fast")
    if base not in RECIPES:
        raise UnknownName(f"base recipe in {path}", str(base), RECIPES)
    return str(base), data


def named_recipes() -> dict[str, Recipe]:
    """The recipes as they are written here, before they meet a data set."""
    return {"fast": _FAST, **{f"paper, {family}": recipe for family, recipe in _PAPER.items()}}


def field_docs() -> dict[str, str]:
    """The line that stands under every field above."""
    body = ast.parse(inspect.getsource(Recipe)).body[0]
    assert isinstance(body, ast.ClassDef)
    docs = {}
    for node, after in zip(body.body, body.body[1:], strict=False):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and isinstance(after, ast.Expr):
            docs[node.target.id] = str(ast.literal_eval(after.value))
    return docs
