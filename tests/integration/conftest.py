from collections.abc import Iterator

import pytest
from searches import nothing_left


@pytest.fixture
def no_processes_left() -> Iterator[None]:
    with nothing_left():
        yield
