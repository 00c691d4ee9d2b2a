"""Lookup of the archives of container images in a directory of the controller."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleLookupError
from ansible.plugins.lookup import LookupBase

DOCUMENTATION = r"""
name: image_archives
author: the clusterctl authors
short_description: List the archives of container images in a directory
description:
  - Returns one dictionary, file name to SHA-256, of the files C(*.tar) in a directory of the controller. It reads each
    file completely, so call it once for all hosts.
options:
  _terms:
    description: The directory.
    required: true
"""

EXAMPLES = r"""
- name: Find the archives
  ansible.builtin.set_fact:
    archives: "{{ lookup('image_archives', '/srv/images') }}"
  run_once: true
"""

RETURN = r"""
_raw:
  description: File name to SHA-256.
  type: list
  elements: dict
"""

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*\.tar")


def archives(directory: Path) -> dict[str, str]:
    """Return the archives of a directory. Raises ValueError with what is wrong with it."""
    found = sorted(directory.glob("*.tar"))
    if not found:
        raise ValueError(f"{directory} has no image archives (*.tar)")
    if wrong := [path.name for path in found if not NAME.fullmatch(path.name)]:
        raise ValueError(f"{directory}: bad file name {wrong[0]!r}, expected letters, digits and . _ + -")
    digests = {}
    for path in found:
        with path.open("rb") as file:
            digests[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
    return digests


class LookupModule(LookupBase):
    """Reads the directory at each call."""

    def run(self, terms: list[str], variables: dict[str, Any] | None = None, **_kwargs: Any) -> list[dict[str, str]]:
        """Return the archives of each directory."""
        try:
            return [archives(Path(term)) for term in terms]
        except (OSError, ValueError) as error:
            raise AnsibleLookupError(f"kubernetes_node_images_directory: {error}") from error
