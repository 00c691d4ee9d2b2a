"""The screen: text as it is, with or without a terminal, colour or Unicode."""

import contextlib
import errno
import io
import os
import re
import select
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from rich.console import Console
from rich.table import Table
from rich.text import Text

_UNICODE = {"done": "✓", "failed": "✗", "busy": "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏", "more": "…", "dot": "·"}
_ASCII = {"done": "ok", "failed": "!!", "busy": "-\\|/", "more": "...", "dot": "-"}


class Screen(Console):
    """A console that prints text as it is, and says by an exception when nobody listens any more."""

    def __init__(self, file: IO[str], *, plain: bool = False) -> None:
        unicode = _speaks_unicode(file)
        super().__init__(
            file=file,
            markup=False,
            highlight=False,
            emoji=False,
            safe_box=not unicode,
            force_terminal=False if plain else None,
            soft_wrap=False,
        )
        self.glyphs = _UNICODE if unicode else _ASCII

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError(errno.EPIPE, "nobody reads the output")

    def mute(self) -> None:
        """Print nothing any more: who read it has gone away."""
        self.quiet = True
        with contextlib.suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.file.fileno())  # so that flushing it at the end of Python is no error
            os.close(nowhere)

    def check_heard(self) -> None:
        """Raise OSError where the reader of our output, or the terminal, has gone away since the last line."""
        with contextlib.suppress(ValueError, io.UnsupportedOperation):  # not a file of the system
            watch = select.poll()
            watch.register(self.file.fileno(), 0)
            if watch.poll(0) and not self.quiet:
                self.on_broken_pipe()

    def agrees(self, question: str) -> bool:
        """Ask a person; `y` and `yes` agree. What was typed before the question stood there is no answer."""
        with contextlib.suppress(termios.error, ValueError, io.UnsupportedOperation):  # no terminal
            termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)
        with contextlib.suppress(EOFError):
            return self.input(f"{question} [y/N] ", markup=False).strip().lower() in ("y", "yes")
        return False

    @contextmanager
    def working(self, text: str) -> Iterator[None]:
        """Show that something goes on, where there is a terminal."""
        if not self.is_terminal:
            yield
            return
        spinner = "dots" if self.glyphs is _UNICODE else "line"
        with self.status(Text(text, "dim"), spinner=spinner, spinner_style="cyan"):
            yield

    def say(self, *parts: str | tuple[str, str], cut: bool = False) -> None:
        """Print one line; `cut` shortens it to the width, else a terminal wraps it and a copy of it stays whole."""
        text = Text.assemble(*parts)
        if cut and self.is_terminal:
            text = shorten(text, self.width, self.glyphs["more"])
        self.print(text, soft_wrap=True)

    def hang(self, head: tuple[str, str], text: str) -> None:
        """Print text after a head with its style; on a terminal it wraps at words, and below itself."""
        if not self.is_terminal:
            self.say(head, text)
            return
        table = Table.grid()
        table.add_column(width=len(head[0]))
        table.add_column(overflow="fold")
        table.add_row(Text(*head), Text(text))
        self.print(table)


def _speaks_unicode(file: IO[str]) -> bool:
    """Tell whether check marks can be shown. C.UTF-8 in LC_CTYPE is Python's own doing (PEP 538), nobody's wish."""
    wish = (
        os.environ.get("LC_ALL") or os.environ.get("LC_CTYPE", "").replace("C.UTF-8", "") or os.environ.get("LANG", "")
    )
    return "utf" in wish.lower() and "utf" in (getattr(file, "encoding", None) or "").lower()


def shorten(text: Text, width: int, more: str) -> Text:
    if text.cell_len <= width:
        return text
    text = text[: max(0, width - len(more))]
    return text.append(more)


def at_commas(text: str, width: int) -> str:
    """Return text in lines of at most `width`, broken after commas alone: a name in two pieces is no name."""
    lines = [""]
    for part in re.split(r"(?<=,)", text):
        if lines[-1] and len(lines[-1] + part.rstrip()) > width:
            lines.append(part.lstrip())
        else:
            lines[-1] += part
    return "\n".join(line.rstrip() for line in lines)
