"""Daemons that were started and must stay up for a moment."""

from __future__ import annotations

import time

SETTLE_S = 0.3
TYPES = ("simple", "exec", "idle")
"""Types of services of which systemd cannot know when they are ready."""


class Watch:
    """The daemons of TYPES that a call has started: each must be the same process SETTLE_S later."""

    def __init__(self):
        self.first, self.until = {}, 0.0  # {name: properties}

    def add(self, found):
        """Watch those of these units, {name: properties}, from now."""
        found = {name: unit for name, unit in found.items() if unit.get("Type") in TYPES}
        if found:
            self.first.update(found)
            self.until = time.monotonic() + SETTLE_S

    def is_over(self):
        return bool(self.first) and time.monotonic() >= self.until

    def loosen(self):
        """Allow that others start them again from now on, as later calls do."""
        self.first = {name: {**unit, "InvocationID": None} for name, unit in self.first.items()}
