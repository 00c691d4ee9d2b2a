"""A run while it goes on: a live line for the role under way, a line that stays for each that has ended."""

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Group
from rich.live import Live
from rich.text import Text

from clusterctl.ansible.events import LOST, Event, Result
from clusterctl.ansible.outcome import Ledger, Stage
from clusterctl.ansible.runner import Output
from clusterctl.ui.screen import Screen, shorten
from clusterctl.util.text import duration, strip_controls

_FRAMES = 5  # a second; a live line changes no faster
# How Ansible's own display ends a difference: with the host that it is of.
_HOST_LINE = re.compile(r"^(?:changed|ok|fatal|failed|skipping): \[([^\]]+)\].*")


class Progress:
    """Shows a run while it goes on.

    On a terminal the role under way is a line that lives; a role that has ended is a line that stays, there and
    everywhere else.
    """

    def __init__(
        self,
        screen: Screen,
        ledger: Ledger,
        *,
        verbose: bool = False,
        diff: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._screen, self._ledger, self._clock = screen, ledger, clock
        self._verbose, self._diff = verbose, diff
        self._live: Live | None = None
        self._drawn = 0.0
        self._play = ""
        self._headed = False
        self._notice = ""
        self._noticed = True
        self._diff_lines: list[str] = []

    @contextmanager
    def running(self) -> Iterator[None]:
        """Show the live line meanwhile, where there is a terminal."""
        if not self._screen.is_terminal:
            yield
            return
        with Live(console=self._screen, auto_refresh=False, transient=True, redirect_stdout=False) as self._live:
            yield
        self._live = None

    def show(self, item: Event | Output | None) -> None:
        """Take in what a run yields, and print what it brings to an end. Raises OSError where nobody listens."""
        if item is None:
            self._screen.check_heard()
        elif isinstance(item, Output):
            self._output(item.text)
        else:
            ended = self._ledger.add(item)
            if ended:
                self._stage_line(ended)
            if isinstance(item, Result) and item.status in (*LOST, "behind"):
                self._failure_line(item)
        if self._live:
            self._tick(self._live)
        elif not self._noticed:
            self._noticed = True
            self._screen.say(self._notice)

    def stopping(self, at_once: bool) -> None:
        """Say with the next line that an end was asked for. Only sets a text: it is called by a signal's handler."""
        if at_once:
            self._notice = "Stopping at once."
        else:
            self._notice = "Stopping when the tasks under way have ended; Ctrl-C again stops at once."
        self._noticed = False

    def _output(self, text: str) -> None:
        """Show Ansible's own lines: all with -v, the differences alone with --diff."""
        text = strip_controls(text)
        if self._verbose:
            self._screen.say((f"    {text}", "dim"))
        elif self._diff:
            if text.startswith("--- before") or (self._diff_lines and not _HOST_LINE.match(text)):
                self._diff_lines.append(text)
            elif self._diff_lines:
                host = _HOST_LINE.sub(r"\1", text)
                for line in (f"{host}:", *self._diff_lines):
                    style = {"+": "green", "-": "red", "@": "cyan"}.get(line[:1], "")
                    self._screen.say((f"    {line}", style))
                self._diff_lines.clear()

    def _tick(self, live: Live) -> None:
        """Redraw the live line if it is time."""
        now = self._clock()
        if now - self._drawn < 1 / _FRAMES:
            return
        self._drawn = now
        stage, glyphs = self._ledger.stage, self._screen.glyphs
        mark = (glyphs["busy"][int(now * _FRAMES) % len(glyphs["busy"])], "cyan")
        lines = [self._row(stage, mark, len(stage.answered), stage.task) if stage else Text.assemble("   ", mark)]
        if stage and stage.play != self._play:
            lines.insert(0, Text(f"  {stage.play}", "bold"))
        plays, begun = self._ledger.plays, self._ledger.plays - len(self._ledger.plays_to_come)
        if plays > 1 and begun:
            lines.append(Text(f"  play {begun} of {plays}", "dim"))
        if self._notice:
            lines.append(Text(f"  {self._notice}", "yellow"))
        width = self._screen.width - 1
        live.update(Group(*(shorten(line, width, glyphs["more"]) for line in lines)), refresh=True)

    def _heading(self, play: str) -> None:
        """Print the columns' names once, and the play's name where it is another than before."""
        if not self._headed:
            self._headed = True
            self._screen.say()
            self._screen.say((f"    {'Role':<18}{'Hosts':>8}{'Changed':>9}{'Failed':>8}{'Time':>11}", "dim"), cut=True)
        if play != self._play:
            self._play = play
            self._screen.say(("  " + play, "bold"), cut=True)

    def _stage_line(self, stage: Stage) -> None:
        if self._live:  # what it shows is of this stage, and would be drawn once more below its line
            self._live.update(Text(""), refresh=True)
            self._drawn = float("-inf")
        self._heading(stage.play)
        glyphs = self._screen.glyphs
        mark = (glyphs["failed"], "red") if stage.failed else (glyphs["done"], "green")
        row = self._row(stage, mark, len(stage.hosts - stage.failed), "")
        self._screen.print(shorten(row, self._screen.width, glyphs["more"]) if self._screen.is_terminal else row)

    def _row(self, stage: Stage, mark: tuple[str, str], done: int, task: str) -> Text:
        changed, failed = len(stage.changed), len(stage.failed)
        return Text.assemble(
            f"  {'' if len(mark[0]) > 1 else ' '}",
            mark,
            f" {shorten(Text(stage.label), 17, self._screen.glyphs['more']).plain:<17}",
            f"{f'{done}/{stage.total}':>8}",
            (f"{changed or '-':>9}", "yellow" if changed else "dim"),
            (f"{failed or '-':>8}", "red" if failed else "dim"),
            (f"{duration(stage.seconds(self._clock())):>11}", "dim"),
            (f"   {task}" if task else "", "dim"),
        )

    def _failure_line(self, result: Result) -> None:
        if stage := self._ledger.stage:
            self._heading(stage.play)
        first = result.message.splitlines()[0] if result.message else "no message"
        where = f"{result.role}: {result.task}" if result.role else result.task
        if result.status == "behind":
            first += "; they go on, and it follows at the end"
        mark, style = (self._screen.glyphs["failed"], "red") if result.status in LOST else ("", "yellow")
        self._screen.say((f"{mark:>4} {result.host}", style), f"  {where}: {first}", cut=True)
