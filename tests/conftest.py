import os
from collections.abc import Iterator

import pytest
import torch
from hypothesis import HealthCheck, settings

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before Triton is imported: kernels then run on the CPU, slowly

settings.register_profile("lrnas", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("lrnas")


@pytest.fixture(autouse=True, scope="session")
def data_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep packs and other files of data sets in a temporary folder, unless $LRNAS_DATA is set."""
    with pytest.MonkeyPatch.context() as patch:
        if "LRNAS_DATA" not in os.environ:
            patch.setenv("LRNAS_DATA", str(tmp_path_factory.mktemp("data")))
        yield


@pytest.fixture
def no_processes_left() -> Iterator[None]:
    """At the end of the test, all processes that it started are killed."""
    from searches import nothing_left

    with nothing_left():
        yield
