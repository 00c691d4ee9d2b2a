"""What is asked of a person on a terminal, a real one."""

import io
import os
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from clusterctl.ui.screen import Screen


@pytest.fixture
def keyboard(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """What is written here is typed on the terminal that standard input is."""
    keys, terminal = os.openpty()
    with open(terminal, encoding="utf-8") as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        yield keys
    os.close(keys)


def answered(keys: int, answer: str) -> bool:
    """Ask, and type the answer once the question is there."""
    told = io.StringIO()

    def types() -> None:
        while "[y/N]" not in told.getvalue():
            time.sleep(0.01)
        os.write(keys, answer.encode())

    typist = threading.Thread(target=types)
    typist.start()
    try:
        return Screen(told).agrees("Remove gpu01?")
    finally:
        typist.join()


@pytest.mark.proves("faults", "`y` and `yes` agree, all else does not.")
@pytest.mark.parametrize(
    ("answer", "agrees"),
    [("y\n", True), ("YES\n", True), ("n\n", False), ("\n", False), ("yse\n", False), ("\x04", False)],
)
def test_question__answer__is_consent_if_it_says_so(keyboard: int, answer: str, agrees: bool) -> None:
    assert answered(keyboard, answer) is agrees


@pytest.mark.proves("faults", "What was typed before a question does not answer it.")
def test_question__typed_ahead__is_no_answer(keyboard: int) -> None:
    os.write(keyboard, b"yes\n")
    assert answered(keyboard, "n\n") is False
