#!/usr/bin/python
"""Ansible module: import archives of container images for the kubelet, once."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.node_state.tools import write

DOCUMENTATION = r"""
module: kubernetes_images
author: the clusterctl authors
short_description: Import archives of container images for the kubelet
description:
  - Imports archives from C(/var/lib/clusterctl/images) into containerd's namespace C(k8s.io), and deletes the files.
  - The images are marked as pinned, so that the kubelet does not delete them when the disk is full.
  - An archive is missing if it was not imported, if another one with its name was, or if containerd lacks one of its
    images.
options:
  archives:
    description: File name to SHA-256 of all archives whose images the node needs.
    type: dict
    required: true
  look:
    description: Only report which archives are missing.
    type: bool
    default: false
attributes:
  check_mode:
    support: full
    description: Imports nothing.
"""

EXAMPLES = r"""
- name: Find what is missing
  kubernetes_images:
    archives: "{{ lookup('image_archives', '/srv/images') }}"
    look: true
  register: images
"""

RETURN = r"""
missing:
  description: Names of the archives that were missing.
  type: list
  returned: always
imported:
  description: Names of the images that were imported.
  type: list
  returned: always
"""

FOLDER = Path("/var/lib/clusterctl/images")
RECORD = Path("/var/lib/clusterctl/kubernetes-images.json")
CTR = ("ctr", "--namespace", "k8s.io", "images")
PINNED = "io.cri-containerd.pinned=pinned"
# Of an index of the Open Container Initiative: containerd's own name, and a name that may be only a tag.
ANNOTATIONS = ("io.containerd.image.name", "org.opencontainers.image.ref.name")


def full(name: str) -> str:
    """Return an image's name as containerd has it: `busybox:1` is docker.io/library/busybox:1."""
    first, slash, _ = name.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        return name
    return f"docker.io/{name}" if slash else f"docker.io/library/{name}"


def names(manifest: Any, index: Any) -> list[str]:
    """Return the names of images in an archive's `manifest.json` (docker) and `index.json` (OCI), or None of either."""
    found = [tag for image in manifest or [] for tag in image.get("RepoTags") or []]
    for entry in (index or {}).get("manifests", []):
        given = [entry.get("annotations", {}).get(key, "") for key in ANNOTATIONS]
        found += [name for name in given if ":" in name.rpartition("/")[2]][:1]
    return sorted({full(name) for name in found})


def names_in(archive: Path) -> list[str]:
    """Return the names of the images in an archive. Raises ValueError if it has none: no pod could ask for them."""
    with tarfile.open(archive) as tar:
        there = [name for name in ("manifest.json", "index.json") if name in tar.getnames()]
        read = {name: json.load(tar.extractfile(name) or io.BytesIO(b"null")) for name in there}
    found = names(read.get("manifest.json"), read.get("index.json"))
    if not found:
        raise ValueError(f"{archive.name} has no image with a name and a tag: save it with docker save NAME:TAG")
    return found


def missing(archives: Mapping[str, str], record: Mapping[str, Any], present: Iterable[str]) -> list[str]:
    """Return the archives whose images are not all there, by what was imported before."""
    there = set(present)
    return [
        name
        for name, digest in sorted(archives.items())
        if record.get(name, {}).get("sha256") != digest or not set(record[name].get("images", [""])) <= there
    ]


def load() -> dict[str, Any]:
    """Return what was imported before; nothing if the record is damaged, so that all is imported again."""
    try:
        found = json.loads(RECORD.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def main() -> None:
    """Import what is missing."""
    module = AnsibleModule(
        {"archives": {"type": "dict", "required": True}, "look": {"type": "bool", "default": False}},
        supports_check_mode=True,
    )
    archives, record = module.params["archives"], load()
    # In check mode containerd may not be installed yet.
    found = module.get_bin_path("ctr", required=not module.check_mode)
    listed = module.run_command([*CTR, "list", "--quiet"], check_rc=not module.check_mode)[1] if found else ""
    wanted = missing(archives, record, listed.split())
    if module.params["look"] or module.check_mode:
        module.exit_json(changed=bool(wanted) and not module.params["look"], missing=wanted, imported=[])
    imported: list[str] = []
    for name in wanted:
        archive = FOLDER / name
        try:
            images = names_in(archive)
        except (OSError, ValueError, tarfile.TarError) as error:
            module.fail_json(msg=f"{name}: {error}")
        module.run_command([*CTR, "import", str(archive)], check_rc=True)
        for image in images:
            module.run_command([*CTR, "label", image, PINNED], check_rc=True)
        record[name] = {"sha256": archives[name], "images": images}
        write(str(RECORD), json.dumps(record).encode(), mode=0o600)
        archive.unlink()
        imported += images
    module.exit_json(changed=bool(wanted), missing=wanted, imported=imported)


if __name__ == "__main__":
    main()
