"""The ceilings of tests/costs.yml: what a count may come to, and when its ceiling is to follow it down."""

import math
from pathlib import Path

import yaml

FILE = Path(__file__).parents[1] / "costs.yml"
# By section of the file: the share of a ceiling below which the ceiling is too high, and what to add to a new count.
LOWEST = {"exact": 0.9, "varying": 0.8}
HEADROOM = {"exact": 0.0, "varying": 0.1}


def read(path: Path = FILE) -> dict[str, dict[str, int]]:
    """Return the ceilings by section. Raises ValueError for a name that is in both, or a ceiling that is no count."""
    document = yaml.safe_load(path.read_text())
    if set(document) != set(LOWEST):
        raise ValueError(f"{path}: got sections {sorted(document)}, expected {sorted(LOWEST)}")
    if both := set(document["exact"]) & set(document["varying"]):
        raise ValueError(f"{path}: {sorted(both)} is in both sections")
    for section in LOWEST:
        for name, ceiling in document[section].items():
            if type(ceiling) is not int or ceiling < 0:
                raise ValueError(f"{path}: {section}: {name}: got {ceiling!r}, expected a count")
    return {section: dict(document[section]) for section in LOWEST}


def complaint(name: str, count: int, path: Path = FILE) -> str:
    """Compare a count with its ceiling; return what is wrong and what to do about it, empty if nothing is."""
    ceilings = read(path)
    section = next(section for section in LOWEST if name in ceilings[section])
    ceiling, fitting = ceilings[section][name], math.ceil(count * (1 + HEADROOM[section]))
    line = f"{path.name}: {section}: {name}"
    if count > ceiling:
        return (
            f"{name}: got {count}, the ceiling is {ceiling}. Find what added the difference and avoid it; "
            f"if it is worth its cost, set {line}: {fitting}, and give the reason in the comment."
        )
    if count < ceiling * LOWEST[section]:
        return f"{name}: got {count}, far below its ceiling of {ceiling}. Keep what was gained: set {line}: {fitting}."
    return ""


def check(counts: dict[str, int], details: str = "") -> None:
    """Assert that each count is at its ceiling or a little below; `details` says what was counted."""
    complaints = [text for name, count in counts.items() if (text := complaint(name, count))]
    assert not complaints, "\n".join([*complaints, *filter(None, [details])])
