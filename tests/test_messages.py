import logging
from collections.abc import Iterator

import pytest

from lrnas._messages import logger, show_messages


@pytest.fixture(autouse=True)
def untouched_logger() -> Iterator[None]:
    """The logger without handlers; it is restored after the test."""
    handlers, level = logger.handlers[:], logger.level
    logger.handlers, logger.level = [], logging.NOTSET
    yield
    logger.handlers = handlers
    logger.setLevel(level)


def test_messages_are_shown_once_after_several_calls(capsys: pytest.CaptureFixture[str]) -> None:
    show_messages()
    logger.setLevel(logging.WARNING)  # as if another program had set it
    show_messages()
    logger.info("one line")
    assert capsys.readouterr().err == "one line\n"


def test_a_program_that_handles_messages_itself_is_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    handler = logging.NullHandler()
    logger.addHandler(handler)
    show_messages()
    logger.info("one line")
    assert capsys.readouterr().err == "" and logger.handlers == [handler] and logger.level == logging.NOTSET
