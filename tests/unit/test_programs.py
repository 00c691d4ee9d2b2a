"""Programs that tests start: their limits, their ends, and what a failure shows of them."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import programs
from tests.labs import REPOSITORY


def is_gone(pid: str) -> bool:
    """Return whether a process has ended; one that its parent has not waited for yet has no command line."""
    path = Path(f"/proc/{pid}/cmdline")
    return not path.exists() or path.read_text() == ""


def test_tail__long_output__keeps_the_last_lines() -> None:
    text = "".join(f"line {n}\n" for n in range(250))
    rows = programs.tail(text).splitlines()
    assert (len(rows), rows[0], rows[1], rows[-1]) == (101, "[150 earlier lines]", "line 150", "line 249")
    assert programs.tail("a\nb\n") == programs.tail(b"a\nb\n") == "a\nb"
    assert programs.tail(None) == ""


def test_tail__long_line__is_cut() -> None:
    assert programs.tail("x" * 5000) == "x" * programs.CHARACTERS + " ..."


def test_call__beyond_its_limit__shows_command_and_output_so_far() -> None:
    script = "for n in $(seq 300); do echo out $n; done; echo err >&2; exec sleep 60"
    began = time.monotonic()
    with pytest.raises(AssertionError) as caught:
        programs.call(["sh", "-c", script], 1.0)
    assert time.monotonic() - began < programs.END_LIMIT
    text = str(caught.value)
    for words in ("no end after 1 s: sh -c ", "exec sleep 60", "[200 earlier lines]", "out 300", "\nerr"):
        assert words in text
    assert "out 200\n" not in text


def test_call__with_input__returns_both_outputs() -> None:
    code = "import sys; print(sys.stdin.read()); print('err', file=sys.stderr); sys.exit(3)"
    done = programs.call([sys.executable, "-c", code], 60.0, input="text")
    assert (done.returncode, done.stdout, done.stderr) == (3, "text\n", "err\n")
    assert programs.described(done).startswith("exit 3: ")


def test_call__child_of_another_session_keeps_the_output_open__is_not_waited_for() -> None:
    began = time.monotonic()
    with pytest.raises(AssertionError, match="said"):
        programs.call(["sh", "-c", "echo said; setsid sleep 5 & sleep 60"], 0.5)
    assert time.monotonic() - began < 4


@pytest.mark.parametrize("response", ["", "trap '' TERM;"], ids=["ends-when-asked", "ignores-sigterm"])
def test_call__program_hangs__is_ended_with_its_children(
    response: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "END_LIMIT", 0.5)
    script = f"{response} sleep 600 & echo $$ $! >{tmp_path}/pids; echo said; wait; sleep 600"
    with pytest.raises(AssertionError, match="said"):
        programs.call(["sh", "-c", script], 0.5)
    assert all(map(is_gone, (tmp_path / "pids").read_text().split()))


def test_started__exception__ends_the_program_with_its_children(tmp_path: Path) -> None:
    script = f"sleep 600 & echo $! >{tmp_path}/pid; echo; wait"
    with pytest.raises(KeyboardInterrupt):  # noqa: SIM117
        with programs.started(["sh", "-c", script], stdout=subprocess.PIPE) as process:
            assert process.stdout
            process.stdout.readline()
            raise KeyboardInterrupt
    assert is_gone((tmp_path / "pid").read_text().strip())


def test_start_for_test__test_fails__ends_the_program(tmp_path: Path) -> None:
    test = tmp_path / "test_that_fails.py"
    test.write_text(
        "from pathlib import Path\nfrom tests import programs\n\n\ndef test_it() -> None:\n"
        f"    process = programs.start_for_test(['sleep', '600'])\n"
        f"    Path({str(tmp_path / 'pid')!r}).write_text(str(process.pid))\n    raise AssertionError\n"
    )
    argv = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "tests.conftest",
        "-p",
        "no:cacheprovider",
        "-n",
        "0",
        str(test),
    ]
    done = programs.call(argv, 60.0, cwd=REPOSITORY)
    assert "1 failed" in done.stdout, done.stdout + done.stderr
    assert is_gone((tmp_path / "pid").read_text())


def test_output_of__program_fails__shows_its_end() -> None:
    assert programs.output_of(["echo", "1"], 60.0) == "1\n"
    with pytest.raises(AssertionError, match=r"exit 3: sh -c .*\n+its reason"):
        programs.output_of(["sh", "-c", "echo its reason >&2; exit 3"], 60.0)


def test_failure_of__each_end__is_named_and_the_output_kept(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("w") as file:
        assert programs.failure_of(["sh", "-c", "echo last >&2; exit 3"], 60, stdout=file, stderr=file) == "exit 3"
        assert programs.failure_of(["true"], 60) == ""
        assert programs.failure_of(["sleep", "600"], 0.5) == "no end after 0.5 s"
    assert log.read_text() == "last\n"


TALK = "echo ready; read word; echo got $word; exec sleep 60"


def test_conversation__lines_both_ways__ends_the_program_behind_it() -> None:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with programs.conversation(["sh", "-c", TALK], 60.0, **pipes) as process:
        assert process.stdin
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        process.stdin.write("word\n")
        process.stdin.flush()
        assert process.stdout.readline() == "got word\n"
    assert process.returncode == -15


@pytest.mark.parametrize("expected", ["", "another line"])
def test_conversation__a_line_that_does_not_come__ends_by_its_limit(expected: str) -> None:
    """Whether or not an assertion fails on the end of the output, the command is what the test fails with."""
    began = time.monotonic()
    with (
        pytest.raises(AssertionError, match=r"^no end after 0\.5 s: sh -c "),
        programs.conversation(["sh", "-c", TALK], 0.5, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as one,
    ):
        assert one.stdout
        assert one.stdout.readline() == "ready\n"
        assert one.stdout.readline() == expected
    assert time.monotonic() - began < programs.END_LIMIT


def test_conversation__an_assertion_fails_within_the_limit__is_shown_as_it_is() -> None:
    with pytest.raises(AssertionError, match="mine"), programs.conversation(["sleep", "60"], 30.0):
        raise AssertionError("mine")
