"""YAML by PyYAML's library in C, or without it by the slower one in Python."""

from typing import Any

import yaml

LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""Loads no Python objects, so it is safe for any text."""


def load(text: str | bytes) -> Any:
    """Return the document of a text. Raises yaml.YAMLError."""
    return yaml.load(text, Loader=LOADER)  # noqa: S506 - a safe loader
