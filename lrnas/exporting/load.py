"""Loading of trained networks for use in Python."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from torch import nn

from lrnas._arguments import checked
from lrnas._messages import show_messages
from lrnas.exporting.sample_inputs import image_config
from lrnas.exporting.sources import ExportError, find_source

if TYPE_CHECKING:
    from lrnas.study.study import Trial


@checked
def load_model(
    source: str | Path | Trial,
    *,
    architecture: str | Path | None = None,
    studies: str | Path = "studies",
    storage: str | None = None,
) -> nn.Module:
    """Load a trained network, for use or for further training in Python.

    Args:
        source: A trial; a checkpoint or an export in timm's format (folder or file); STUDY:TRIAL, where TRIAL is a
            number, the name of a network, or best; or STUDY@RECIPE:NETWORK for a retrained network. A trial has the
            weights of its own training. STUDY:TRIAL has those of the full training, if the search made one.
        architecture: JSON file with the architecture, for a file of weights that does not contain it.
        studies: Folder that holds the studies, for STUDY:TRIAL.
        storage: Database URL, or journal:FILE, that holds the study; None for the file in its folder.

    Returns:
        The network with its weights, in evaluation mode on the CPU. `timm.data.resolve_model_data_config(model)` says
        how images must be prepared for it.
    """
    show_messages()
    found = find_source(source, architecture=architecture, studies=studies, storage=storage, fresh=None)
    if found.weights is None:
        raise ExportError(f"a trained network is needed; got {found.name}, which is not; use lrnas.create_model")
    model: Any
    model, channels = found.create_model()
    own: dict[str, Any] = dict(model.pretrained_cfg)
    images = image_config(found, (channels, *own["input_size"][1:]))
    if images["input_size"][1:] != own["input_size"][1:]:
        own.pop("pool_size", None)  # the size of the last map belongs to the other size
    model.pretrained_cfg = model.default_cfg = own | {"num_classes": model.num_classes} | images
    return cast(nn.Module, model)
