"""The screen: literal text, with or without a terminal, colour or Unicode."""

import contextlib
import errno
import io
import os
import re
import select
import sys
import termios
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO

from rich.console import Console
from rich.table import Table
from rich.text import Text

_UNICODE = {"done": "✓", "failed": "✗", "busy": "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏", "more": "…", "dot": "·"}
_ASCII = {"done": "ok", "failed": "!!", "busy": "-\\|/", "more": "...", "dot": "-"}


class Screen(Console):
    """A console that prints text literally, and raises an exception when its output is closed."""

    def __init__(self, file: IO[str], *, plain: bool = False) -> None:
        unicode = _supports_unicode(file)
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
        raise BrokenPipeError(errno.EPIPE, "the output is closed")

    def mute(self) -> None:
        """Stop printing: the reader of the output has ended."""
        self.quiet = True
        with contextlib.suppress(OSError, ValueError):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self.file.fileno())  # so that Python's flush at exit does not fail
            os.close(null)

    def check_open(self) -> None:
        """Raise OSError if the reader of the output, or the terminal, has gone since the last line."""
        with contextlib.suppress(ValueError, io.UnsupportedOperation):  # no file descriptor
            watch = select.poll()
            watch.register(self.file.fileno(), 0)
            if watch.poll(0) and not self.quiet:
                self.on_broken_pipe()

    def agrees(self, question: str) -> bool:
        """Ask for confirmation; `y` and `yes` confirm. Input from before the question is discarded."""
        with contextlib.suppress(termios.error, ValueError, io.UnsupportedOperation):  # no terminal
            termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)
        with contextlib.suppress(EOFError):
            return self.input(f"{question} [y/N] ", markup=False).strip().lower() in ("y", "yes")
        return False

    @contextmanager
    def working(self, text: str) -> Iterator[None]:
        """Show a spinner inside the context, on a terminal."""
        if not self.is_terminal:
            yield
            return
        spinner = "dots" if self.glyphs is _UNICODE else "line"
        with self.status(Text(text, "dim"), spinner=spinner, spinner_style="cyan"):
            yield

    def say(self, *parts: str | tuple[str, str], cut: bool = False) -> None:
        """Print one line; `cut` shortens it to the width, else the terminal wraps it and it can be copied whole."""
        text = Text.assemble(*parts)
        if cut and self.is_terminal:
            text = shorten(text, self.width, self.glyphs["more"])
        self.print(text, soft_wrap=True)

    def numbers(self, titles: Sequence[str], rows: Sequence[Sequence[Text]], narrowest: int | None = None) -> None:
        """Print a table of names with numbers; without a terminal as aligned text. `narrowest` is of the names."""
        if not self.is_terminal:
            lines = [[*titles], *([cell.plain for cell in row] for row in rows)]
            widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
            for line in lines:
                numbers = [f"{cell:>{width}}" for cell, width in zip(line[1:], widths[1:], strict=True)]
                self.say("  ".join([f"{line[0]:<{widths[0]}}", *numbers]))
            return
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
        table.add_column(titles[0], overflow="fold", min_width=narrowest)
        for title in titles[1:]:
            table.add_column("\n".join(title.rsplit(" ", 1)), justify="right", vertical="bottom", no_wrap=True)
        for row in rows:
            table.add_row(*row)
        self.print(table)

    def hang(self, head: tuple[str, str], text: str) -> None:
        """Print a styled heading and text beside it; on a terminal the text wraps in its own column."""
        if not self.is_terminal:
            self.say(head, text)
            return
        table = Table.grid()
        table.add_column(width=len(head[0]))
        table.add_column(overflow="fold")
        table.add_row(Text(*head), Text(text))
        self.print(table)


def _supports_unicode(file: IO[str]) -> bool:
    """Return whether check marks can be shown. Ignore C.UTF-8 in LC_CTYPE: Python itself sets it (PEP 538)."""
    locale = (
        os.environ.get("LC_ALL") or os.environ.get("LC_CTYPE", "").replace("C.UTF-8", "") or os.environ.get("LANG", "")
    )
    return "utf" in locale.lower() and "utf" in (getattr(file, "encoding", None) or "").lower()


def shorten(text: Text, width: int, more: str) -> Text:
    if text.cell_len <= width:
        return text
    text = text[: max(0, width - len(more))]
    return text.append(more)


def at_commas(text: str, width: int) -> str:
    """Return text in lines of at most `width`, broken only after commas, so that no name is split."""
    lines = [""]
    for part in re.split(r"(?<=,)", text):
        if lines[-1] and len(lines[-1] + part.rstrip()) > width:
            lines.append(part.lstrip())
        else:
            lines[-1] += part
    return "\n".join(line.rstrip() for line in lines)
