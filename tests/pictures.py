"""Terminal pictures of README and docs: real output of real commands on a lab, as SVG. Started by scripts/pictures.

Each command runs on a pseudo-terminal of its own; a terminal emulator makes the last screen of what it printed.
"""

import itertools
import os
import pty
import re
import select
import shlex
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fcntl import ioctl
from io import StringIO
from pathlib import Path
from termios import TIOCSWINSZ
from typing import Any

import pyte
from rich.console import Console
from rich.style import Style
from rich.terminal_theme import DEFAULT_TERMINAL_THEME, SVG_EXPORT_THEME
from rich.text import Text

from tests.labs import REPOSITORY

FOLDER = REPOSITORY / "docs/pictures"
LAB = "aurora"
COLUMNS, ROWS = 96, 200
LIMIT = 600  # seconds for one command
THEMES = {"light": DEFAULT_TERMINAL_THEME, "dark": SVG_EXPORT_THEME}
_COLOURS = {"brown": "yellow", "brightbrown": "bright_yellow"}  # as terminals had them


@dataclass(frozen=True)
class Picture:
    """One picture: the command that it shows, what comes before it, and after."""

    name: str
    words: str
    before: Sequence[str] = ()
    after: Sequence[str] = ()


_ON_GPU02 = f"lab ssh --name {LAB} gpu02 -- sudo sh -c"  # ssh joins its words: the script is quoted twice
PICTURES = (
    Picture("bootstrap", "clusterctl bootstrap"),
    Picture("status", "clusterctl status"),
    Picture(
        "health",
        "clusterctl health",
        [f"lab fault --name {LAB} --gpu 1 gpu02 nvlink-down"],
        [f"lab fault --name {LAB} gpu02 clear"],
    ),
    Picture(
        "plan",
        "clusterctl plan bootstrap",
        [f"{_ON_GPU02} \"'echo >> /etc/munge/munge.key; systemctl disable --now chrony'\""],
        ["bootstrap {inventory}"],
    ),
    Picture(
        "failure",
        "clusterctl bootstrap",
        [f"{_ON_GPU02} \"'rm /etc/chrony/chrony.conf; mkdir /etc/chrony/chrony.conf'\""],
        [f"{_ON_GPU02} \"'rmdir /etc/chrony/chrony.conf'\"", "bootstrap {inventory}"],
    ),
)


def screen(
    argv: Sequence[str],
    directory: Path,
    columns: int = COLUMNS,
    environment: Mapping[str, str] | None = None,
    answers: Sequence[str] = (),
) -> tuple[pyte.Screen, int]:
    """Run a command on a terminal, and return its last screen and its exit code.

    `answers` are typed, one at each question.
    """
    emulated = pyte.Screen(columns, ROWS)
    stream = pyte.ByteStream(emulated)
    ours, theirs = pty.openpty()
    ioctl(theirs, TIOCSWINSZ, struct.pack("HHHH", ROWS, columns, 0, 0))
    merged = {
        **os.environ,
        **(environment or {}),
        "TERM": "xterm-256color",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    process = subprocess.Popen(argv, stdin=theirs, stdout=theirs, stderr=theirs, cwd=directory, env=merged)
    os.close(theirs)
    deadline = time.monotonic() + LIMIT
    waiting = list(answers)
    while time.monotonic() < deadline:
        if select.select([ours], [], [], 1)[0]:
            try:
                stream.feed(os.read(ours, 1 << 16))
            except OSError:  # the other side is closed
                break
            if waiting and _before_cursor(emulated).endswith("[y/N] "):
                os.write(ours, f"{waiting.pop(0)}\n".encode())
        elif process.poll() is not None:
            break
    os.close(ours)
    return emulated, process.wait(10)


def _before_cursor(emulated: pyte.Screen) -> str:
    row = emulated.buffer[emulated.cursor.y]
    return "".join(row[column].data for column in range(emulated.cursor.x))


def _style(char: Any) -> Style:
    colour = _COLOURS.get(char.fg, char.fg)
    colour = f"#{colour}" if re.fullmatch(r"[0-9a-f]{6}", colour) else colour
    return Style(color=colour, bold=char.bold, italic=char.italics, underline=char.underscore)


def lines(emulated: pyte.Screen, columns: int = COLUMNS) -> Iterator[Text]:
    """Yield the lines of a screen with their colours, without empty ones at the end."""
    used = max((row for row, text in enumerate(emulated.display) if text.strip()), default=-1) + 1
    for row in range(used):
        text = Text()
        cells = (emulated.buffer[row][column] for column in range(columns))
        for style, chars in itertools.groupby(cells, key=_style):  # a span for each colour, not for each sign
            text.append("".join(char.data for char in chars), style)
        text.rstrip()
        yield text


def svg(title: str, shown: Sequence[Text], theme: str) -> str:
    """Return a picture of lines; it loads nothing from elsewhere."""
    console = Console(file=StringIO(), width=COLUMNS, record=True, force_terminal=True, color_system="truecolor")
    for line in shown:
        console.print(line, no_wrap=True, overflow="crop")
    text = console.export_svg(title=title, theme=THEMES[theme], unique_id="terminal")
    return re.sub(r"(?s)\s*@font-face \{.*?\}\s*(?=\n)|<!--.*?-->", "", text)


def main() -> int:
    """Make a lab, take the pictures, and remove it."""
    program = str(Path(sys.executable).parent / "clusterctl")
    wanted = [one for one in PICTURES if not sys.argv[1:] or one.name in sys.argv[1:]]
    FOLDER.mkdir(exist_ok=True)

    def run(words: str) -> None:
        argv = [program, *shlex.split(words.format(inventory=inventory))]
        subprocess.run(argv, check=False, stdout=subprocess.DEVNULL)

    made = subprocess.run([program, "lab", "up", "--name", LAB], check=True, capture_output=True, text=True)
    inventory = Path(re.findall(r"\S+/inventory\.yaml", made.stdout + made.stderr)[-1])
    try:
        if "bootstrap" not in {picture.name for picture in wanted}:  # whose picture is of the first one
            run("bootstrap {inventory}")
        for picture in wanted:
            for words in picture.before:
                run(words)
            emulated, _ = screen([program, *picture.words.split()[1:]], inventory.parent)
            shown = list(lines(emulated))
            for theme in THEMES:
                (FOLDER / f"{picture.name}-{theme}.svg").write_text(svg(picture.words, shown, theme))
            print(*(line.plain for line in shown), sep="\n")
            for words in picture.after:
                run(words)
    finally:
        run(f"lab down --name {LAB}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
