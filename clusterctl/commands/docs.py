"""`docs`: show a page of the installed documentation."""

import pydoc
import sys
from collections.abc import Collection
from pathlib import Path

from clusterctl.util import paths
from clusterctl.util.errors import InputError, Problem
from clusterctl.util.text import did_you_mean


def pages_by_name() -> dict[str, Path]:
    """Return the pages by their names, those of a directory after it: `monitoring`, `runbooks/GpuXid`.

    Examples are pages by their full names: `examples/slurm/ddp.sh`.
    """
    folder = paths.content() / "docs"
    found = {str(path.relative_to(folder).with_suffix("")): path for path in folder.rglob("*.md")}
    found |= {str(path.relative_to(folder)): path for path in folder.glob("examples/*/*")}
    return dict(sorted(found.items(), key=lambda item: ("/" in item[0], item[0])))


def _hint(page: str, pages: Collection[str]) -> str:
    """Return the nearest page, also for the name of an alert without its directory; else the pages at the top."""
    known = {word.lower(): name for name in pages for word in (name, name.rpartition("/")[2])}
    near = did_you_mean(page.lower(), known)
    for word, name in known.items():
        if near == f"did you mean {word}?":
            return f"did you mean {name}?"
    return ", ".join(name for name in pages if "/" not in name)


def docs_command(page: str) -> None:
    """Print a page, on a terminal through a pager; without a name, list all pages. Raises InputError."""
    pages = pages_by_name()
    if page and page not in pages:
        raise InputError([Problem(None, "PAGE", f'no page "{page}"', _hint(page, pages))])
    text = pages[page].read_text(encoding="utf-8") if page else "".join(f"{name}\n" for name in pages)
    if page and sys.stdout.isatty():
        pydoc.pager(text)
    else:
        print(text, end="")
