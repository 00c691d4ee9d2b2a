"""Show the progress of a run: a live line for the current role, a permanent line for each finished role."""

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

_ROLE = 24  # columns; the longest name of a role
_FRAMES = 5  # updates of the live line per second, at most
# Ansible's display ends a difference with the line of its host.
_HOST_LINE = re.compile(r"^(?:changed|ok|fatal|failed|skipping): \[([^\]]+)\].*")


class Progress:
    """Show the progress of a run.

    Each finished role is a permanent line. On a terminal, the current role is a live line.
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
        """Show the live line inside the context, on a terminal."""
        if not self._screen.is_terminal:
            yield
            return
        with Live(console=self._screen, auto_refresh=False, transient=True, redirect_stdout=False) as self._live:
            yield
        self._live = None

    def show(self, item: Event | Output | None) -> None:
        """Record an item of a run, and print the stages that it ends. Raises OSError if the output is closed."""
        if item is None:
            self._screen.check_open()
        elif isinstance(item, Output):
            self._output(item.text)
        else:
            for ended in self._ledger.add(item):
                self._stage_line(ended)
            if isinstance(item, Result) and item.status in (*LOST, "behind"):
                self._failure_line(item)
        if self._live:
            self._tick(self._live)
        elif not self._noticed:
            self._noticed = True
            self._screen.say(self._notice)

    def stopping(self, at_once: bool) -> None:
        """Print with the next line that the run is stopping. Only sets a text, because a signal handler calls it."""
        if at_once:
            self._notice = "Stopping now."
        else:
            self._notice = "Stopping when the running tasks have ended. Press Ctrl-C again to stop now."
        self._noticed = False

    def _output(self, text: str) -> None:
        """Print Ansible's own lines: all of them with -v, only the differences with --diff."""
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
        """Redraw the live line, at most _FRAMES times per second."""
        now = self._clock()
        if now - self._drawn < 1 / _FRAMES:
            return
        self._drawn = now
        stage, glyphs = self._ledger.stage or self._ledger.awaited, self._screen.glyphs
        mark = (glyphs["busy"][int(now * _FRAMES) % len(glyphs["busy"])], "cyan")
        lines = [self._row(stage, mark, len(stage.answered), stage.task) if stage else Text.assemble("   ", mark)]
        if stage and stage.play != self._play:
            lines.insert(0, Text(f"  {stage.play}", "bold"))
        plays, started = self._ledger.plays, self._ledger.plays - len(self._ledger.plays_to_come)
        if plays > 1 and started:
            lines.append(Text(f"  play {started} of {plays}", "dim"))
        if self._notice:
            lines.append(Text(f"  {self._notice}", "yellow"))
        width = self._screen.width - 1
        live.update(Group(*(shorten(line, width, glyphs["more"]) for line in lines)), refresh=True)

    def _heading(self, play: str) -> None:
        """Print the column headings once, and the play's name when it changes."""
        if not self._headed:
            self._headed = True
            self._screen.say()
            heading = f"    {'Role':<{_ROLE + 1}}{'Hosts':>8}{'Changed':>9}{'Failed':>8}{'Time':>11}"
            self._screen.say((heading, "dim"), cut=True)
        if play != self._play:
            self._play = play
            self._screen.say(("  " + play, "bold"), cut=True)

    def _stage_line(self, stage: Stage) -> None:
        """Print the line of a stage; none for a role whose tasks were skipped on all hosts."""
        if stage.role and not stage.busy and not stage.failed:
            return
        if self._live:  # else the live line of this stage is drawn again below its permanent line
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
            f" {shorten(Text(stage.label), _ROLE, self._screen.glyphs['more']).plain:<{_ROLE}}",
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
            first += "; the others continue, this host follows at the end"
        mark, style = (self._screen.glyphs["failed"], "red") if result.status in LOST else ("", "yellow")
        self._screen.say((f"{mark:>4} {result.host}", style), f"  {where}: {first}", cut=True)
