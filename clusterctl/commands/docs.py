"""`docs`: show a page of the installed documentation."""

import pydoc
import sys

from clusterctl.util import paths
from clusterctl.util.errors import InputError, Problem
from clusterctl.util.text import did_you_mean


def docs_command(page: str) -> None:
    """Print a page, on a terminal through a pager; without a name, list all pages. Raises InputError."""
    pages = dict(sorted((path.stem, path) for path in (paths.content() / "docs").glob("*.md")))
    if page and page not in pages:
        raise InputError([Problem(None, "PAGE", f'no page "{page}"', did_you_mean(page, pages) or ", ".join(pages))])
    text = pages[page].read_text(encoding="utf-8") if page else "".join(f"{name}\n" for name in pages)
    if page and sys.stdout.isatty():
        pydoc.pager(text)
    else:
        print(text, end="")
