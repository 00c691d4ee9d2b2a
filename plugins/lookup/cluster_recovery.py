"""Lookup of everything that a lost controller would lose, as one archive."""

from __future__ import annotations

import base64
import io
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleError
from ansible.parsing.vault import AnsibleVaultError, VaultLib, parse_vaulttext_envelope
from ansible.plugins.lookup import LookupBase

from clusterctl.workspace import hardware

DOCUMENTATION = r"""
name: cluster_recovery
author: the clusterctl authors
short_description: The cluster's directory and its vault password, as one archive
description:
  - Returns a tar archive, in base64, of the cluster's directory (the inventory, group_vars, host_vars, hardware
    records, known_hosts and the encrypted secrets) and, as C(vault/LABEL), of the vault password.
  - The same files give the same archive, byte for byte, on any controller.
  - Other files in the directory (runs, keys, notes) are not included.
options:
  _terms:
    description: Further files that the inventory refers to, relative to the directory.
    required: false
"""

EXAMPLES = r"""
- name: Keep the copy
  node_state:
    files:
      - dest: /root/recovery.tar
        content_base64: "{{ lookup('cluster_recovery') }}"
        mode: "0600"
        secret: true
"""

RETURN = r"""
_raw:
  description: The archive, in base64.
  type: list
  elements: str
"""

VARIABLES = ("group_vars/**/*.y*ml", "host_vars/**/*.y*ml")
PATTERNS = (*VARIABLES, "hardware/*.json", "known_hosts", ".gitignore", "secrets.yml")


class LookupModule(LookupBase):
    """Makes the archive at each call; it is not stored on the controller."""

    def run(self, terms: list[str], variables: dict[str, Any] | None = None, **_kwargs: Any) -> list[str]:
        """Return the archive. Raises AnsibleError without secrets or password, because such a copy would be useless."""
        known = variables or {}
        inventory, directory = Path(str(known["inventory_file"])), Path(str(known["inventory_dir"]))
        secrets = directory / "secrets.yml"
        if not secrets.is_file():
            raise AnsibleError(f"{secrets}: the cluster's secrets do not exist; `clusterctl bootstrap` creates them")
        found = {inventory, *(directory / term for term in terms)}
        for path in (path for pattern in PATTERNS for path in directory.glob(pattern)):
            hidden = path.name != ".gitignore" and any(part[0] == "." for part in path.relative_to(directory).parts)
            found |= {path} if path.is_file() and not hidden else set()
        # The inventory and its variables were checked before; targets of other links were not.
        for path in sorted(found - {inventory}):
            checked = {directory / "group_vars", directory / "host_vars"} & set(path.parents)
            if not checked and not path.resolve().is_relative_to(directory.resolve()):
                raise AnsibleError(f"{path}: is a link out of the cluster's directory, expected a file in it")
        # Records with these layouts are written at the end of the run.
        layouts = known.get("__gpu_config_layouts") or {}
        label, password = self._password(secrets)
        members = [(f"vault/{label}", password + b"\n")]
        for path in sorted(found):
            content = path.read_bytes()
            if layouts.get(path.stem) and path.parent == directory / hardware.DIRECTORY:
                content = hardware.written(hardware.learned(hardware.load(path), layouts[path.stem])).encode()
            members.append((f"{directory.name}/{path.relative_to(directory)}", content))
        return [base64.b64encode(archive(members)).decode()]

    def _password(self, secrets: Path) -> tuple[str, bytes]:
        """Return the label of the secrets, and that of Ansible's vault passwords that decrypts them."""
        sealed = secrets.read_bytes()
        for name, secret in self._loader._vault.secrets or ():
            try:
                VaultLib([(name, secret)]).decrypt(sealed)
            except AnsibleVaultError:
                continue
            return str(parse_vaulttext_envelope(sealed)[3]), bytes(secret.bytes).strip()
        raise AnsibleError(f"{secrets}: no given vault password decrypts it")


def archive(members: Iterable[tuple[str, bytes]]) -> bytes:
    """Return a tar archive of files with mode 0600, independent of clock, user and host."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), 0o600
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()
