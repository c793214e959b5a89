import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

import lrnas
from lrnas._messages import hide_passwords, logger, printable, show_messages


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


def test_a_name_cannot_forge_a_message_or_reach_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    show_messages()
    logger.info("cannot read a\nlrnas: all is well\x1b[2J\x9b1m\x7f\r.png, × and ü")
    assert capsys.readouterr().err == "cannot read a\\nlrnas: all is well\\x1b[2J\\x9b1m\\x7f\\r.png, × and ü\n"
    assert printable("\udcff") == "\\udcff"  # a byte of a file name that is not UTF-8


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:secret@host/db", "postgresql://me:***@host/db"),
        ("postgresql://me:s@cr/et@host/db", "postgresql://me:***@host/db"),
        ("postgresql://host/db?password=secret&user=me", "postgresql://host/db?password=***&user=me"),
        ("mysql://host/db?user=me&PassWd=secret", "mysql://host/db?user=me&PassWd=***"),
        ("sqlite:///studies/nin@full/study.db", "sqlite:///studies/nin@full/study.db"),
        ("https://host:80/db and me@host", "https://host:80/db and me@host"),
    ],
)
def test_passwords_in_urls_are_hidden(url: str, shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert hide_passwords(f"the storage {url} cannot be reached") == f"the storage {shown} cannot be reached"
    show_messages()
    logger.warning(url)
    assert capsys.readouterr().err == f"{shown}\n"


def test_functions_show_messages_in_a_new_process(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = {"input": 8, "device": "cpu", "threads": 1}
    lrnas.profile("nin-c3", batch=1, training=False, layers=False, **options)  # type: ignore[arg-type]
    assert capsys.readouterr().err.startswith("measuring 2 networks on ")
    logger.handlers, logger.level = [], logging.NOTSET
    lrnas.export("nin-c3-lr", out=tmp_path / "random", classes=6, **options)  # type: ignore[arg-type]
    assert "nin-c3-lr has random weights" in capsys.readouterr().err
