"""Run the command line: the only module that turns exceptions into messages and exit codes."""

import contextlib
import errno
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn

from clusterctl import __version__
from clusterctl.cli.app import app
from clusterctl.util.errors import ClusterctlError, Interrupted


def _show(error: ClusterctlError) -> None:
    """Print an error on stderr."""
    from clusterctl.ui import report
    from clusterctl.ui.screen import Screen
    from clusterctl.util.errors import InputError, PreflightError
    from clusterctl.util.text import plural

    screen = Screen(sys.stderr)
    match error:
        case PreflightError():
            nodes = report.findings(screen, error.problems)
            screen.say(("Not ready", "bold red"), f": {plural(nodes, 'node')}. Nothing was changed on any node.")
            if error.hint:
                screen.say(error.hint)
        case InputError():
            for problem in error.problems:
                screen.say(str(problem))
            screen.say((plural(len(error.problems), "problem"), "bold red"), "; no node was contacted.")
        case _:
            screen.say(("clusterctl: ", "bold red"), str(error))


def _bug(error: BaseException) -> None:
    handle, path = tempfile.mkstemp(prefix="clusterctl-bug-", suffix=".txt")
    with os.fdopen(handle, "w", encoding="utf-8", errors="replace") as file:
        file.write(f"clusterctl {__version__}, Python {sys.version}\n{''.join(traceback.format_exception(error))}")
    text = " ".join("".join(c if c.isprintable() else " " for c in str(error)[:300]).split())
    print(
        f"clusterctl: internal error: {type(error).__name__}: {text}\nReport it as a bug and attach {path}",
        file=sys.stderr,
    )


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main() -> NoReturn:
    """Run the command line and exit."""
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115, PTH123 - closed by the caller (>&-)
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115, PTH123
    for stream in (sys.stdout, sys.stderr):
        if reconfigure := getattr(stream, "reconfigure", None):
            reconfigure(errors="replace")  # print a question mark for characters that the terminal does not support
    signal.signal(signal.SIGTERM, _interrupt)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        signal.signal(signal.SIGHUP, _interrupt)
    code = 0
    with _handling_output_errors():
        try:
            app()
        except ClusterctlError as error:
            code = error.exit_code
            _show(error)
        except KeyboardInterrupt:
            code = Interrupted.exit_code
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BrokenPipeError:
            code = Interrupted.exit_code
            raise
        except Exception as error:
            code = ClusterctlError.exit_code
            if _is_full(error):
                raise
            _bug(error)
        try:
            sys.stdout.flush()
        except OSError as error:
            if _is_full(error):
                code = code or ClusterctlError.exit_code
            raise
    sys.exit(code)


def _is_full(error: Exception) -> bool:
    """Return whether an error is a failed write to stdout or stderr (no file name), other than a closed pipe."""
    full = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
    return isinstance(error, OSError) and error.errno in full and error.filename is None


@contextlib.contextmanager
def _handling_output_errors() -> Iterator[None]:
    """Ignore a closed output, and report an output that cannot be written."""
    try:
        yield
    except OSError as error:
        if _is_full(error):
            with contextlib.suppress(OSError):
                print(f"clusterctl: cannot write the output: {error.strerror}", file=sys.stderr)
        null = os.open(os.devnull, os.O_WRONLY)
        for descriptor in (1, 2):
            os.dup2(null, descriptor)
