"""The cluster's secrets: generated once, kept encrypted in the cluster's directory, replaced only on request.

A role declares its secrets in meta/secrets.yml. `secrets.yml` in the cluster's directory is one YAML mapping, encrypted
as a whole with Ansible Vault; its header carries a label, and the password lies in a 0600 file of that name under the
user's config directory, so that a clone of the directory tells nobody anything.
"""

import base64
import hmac
import os
import re
import secrets as random
import stat
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from clusterctl.util import files, paths
from clusterctl.util.errors import ClusterctlError, InputError, Problem
from clusterctl.util.files import make_private_directory, write_atomically
from clusterctl.util.redaction import Redactor

FILE = "secrets.yml"
NEXT = "_next"
"""What the name of a secret ends in that is to take another's place."""
MIN_BYTES = 32
BCRYPT_COST = 10
MIN_PASSWORD = 16
_LABEL_BYTES = 4

_HEADER = re.compile(rb"\$ANSIBLE_VAULT;1\.2;AES256;([a-z0-9-]{1,80})\r?\n")
_ENCODINGS: Mapping[str, Callable[[bytes], str]] = {
    "base64": lambda data: base64.b64encode(data).decode(),
    "hex": bytes.hex,
    "urlsafe": lambda data: base64.urlsafe_b64encode(data).rstrip(b"=").decode(),
}


def ensure(directory: Path, cluster_name: str, content: Path | None = None) -> None:
    """Create each secret that the roles in `content` (default: ours) declare and that the cluster does not have yet.

    What exists is never changed. Raises InputError where the file or its password is lost or damaged.
    """
    path = directory / FILE
    check(directory, cluster_name)
    if path.exists():
        label, known = _label(path), values(directory)
    else:
        _refuse_second_set(directory)
        label, known = f"{cluster_name}-{random.token_hex(_LABEL_BYTES)}", {}
    missing = {name: spec for name, spec in _declared(content or paths.content()).items() if name not in known}
    if not missing and path.exists():
        return
    generated = {name: _generate(**spec) for name, spec in missing.items() if "bcrypt_of" not in spec}
    plain = known | generated
    hashes = {name: _bcrypt(plain[spec["bcrypt_of"]]) for name, spec in missing.items() if "bcrypt_of" in spec}
    _write(path, label, plain | hashes)


def _write(path: Path, label: str, known: Mapping[str, str]) -> None:
    """Write the file, encrypted with the label's password, which the first one gets now."""
    with files.writing(path):
        password = _password(label, create=not path.exists())
        encrypted = _vault(label, password).encrypt(yaml.safe_dump(dict(known)).encode(), vault_id=label)
        write_atomically(path, encrypted, replace=path.exists())


def names(content: Path | None = None) -> list[str]:
    """Return the names of all secrets that roles declare."""
    return list(_declared(content or paths.content()))


def rotatable(content: Path | None = None) -> list[str]:
    """Return the names of the secrets that can be replaced; a hash is replaced with what it is of."""
    return [name for name, spec in _declared(content or paths.content()).items() if "bcrypt_of" not in spec]


def propose(directory: Path, names: Collection[str], content: Path | None = None) -> None:
    """Generate a successor of each secret; until `adopt` the old ones count. An earlier proposal is forgotten."""
    declared, path = _declared(content or paths.content()), directory / FILE
    fresh = {name: _generate(**declared[name]) for name in names}
    fresh |= {name: _bcrypt(fresh[of]) for name, spec in declared.items() if (of := spec.get("bcrypt_of")) in fresh}
    known = {name: value for name, value in values(directory).items() if not name.endswith(NEXT)}
    _write(path, _label(path), known | {name + NEXT: value for name, value in fresh.items()})


def adopt(directory: Path) -> None:
    """Put the proposed secrets in the place of those that counted."""
    path, known = directory / FILE, values(directory)
    due = {name.removesuffix(NEXT): value for name, value in known.items() if name.endswith(NEXT)}
    _write(path, _label(path), {name: due.get(name, value) for name, value in known.items() if not name.endswith(NEXT)})


def check(directory: Path, cluster_name: str | None) -> None:
    """Refuse (InputError) a file that is not the cluster's own (None: its name is not known), password or not.

    The header chooses the password. Were it not held against the cluster's name, a directory from a stranger would
    have the password of any cluster of yours used for it.
    """
    path = directory / FILE
    if not os.path.lexists(path):
        return
    label = _label(path)
    owner, _, end = label.rpartition("-")
    if cluster_name is not None and (owner != cluster_name or len(end) != 2 * _LABEL_BYTES):
        raise _refusal(
            path,
            f'is that of another cluster, got "{label}", expected "{cluster_name}-" and {2 * _LABEL_BYTES} digits',
            "a cluster keeps its name; where no node was set up yet, delete the file and new secrets are made",
        )


def values(directory: Path) -> dict[str, str]:
    """Return all secrets of the cluster by name; InputError where file or password are missing or do not fit."""
    path = directory / FILE
    label = _label(path)
    password = _password(label)
    try:
        data = yaml.safe_load(_vault(label, password).decrypt(_sealed(path)))
    except Exception as error:  # Ansible raises many kinds; none of their texts may be shown, they can quote content
        message = f"cannot be decrypted with the password in {_password_path(label)} ({type(error).__name__})"
        raise _refusal(path, message, _RESTORE) from None
    if not isinstance(data, dict) or not all(isinstance(text, str) for pair in data.items() for text in pair):
        raise _refusal(path, "is damaged: its content is not a mapping of names to texts", _RESTORE)
    return data


def vault_password_file(directory: Path) -> Path:
    """Return the file with the vault password of the cluster, checked to be one that can be used."""
    label = _label(directory / FILE)
    _password(label)
    return _password_path(label)


def password_of(file: Path) -> str:
    """Return the password in a file of the user's: its first line. InputError where others could read or replace it."""
    return _first_line(file.expanduser(), "a password").decode(errors="replace")


def forget(directory: Path) -> None:
    """Forget head and vault password of a cluster that is gone for good.

    A password file of the user's own choice stays, and so does what is kept about the head that got that password.
    """
    if not (directory / FILE).exists() or "CLUSTERCTL_VAULT_PASSWORD_FILE" in os.environ:
        return
    path = _password_path(_label(directory / FILE))
    if path.exists():
        head_file(directory).unlink(missing_ok=True)
    path.unlink(missing_ok=True)


def head_file(directory: Path) -> Path:
    """Return the file of this machine that keeps who the cluster's head is (known_head.py).

    It is named by an HMAC of the vault password. The label in the directory is not authenticated: with another label
    and the same password (CLUSTERCTL_VAULT_PASSWORD_FILE) another file would be read.
    """
    mark = hmac.digest(_password(_label(directory / FILE)), b"clusterctl: the head", "sha256")
    return configuration() / "heads" / f"{mark.hex()}.json"


def old_head_file(directory: Path) -> Path:
    """Return where an earlier clusterctl kept the same: named by the label."""
    return configuration() / "heads" / f"{_label(directory / FILE)}.json"


def redactor(directory: Path, sudo_password: str | None = None) -> Redactor:
    """Return what takes the cluster's secrets out of text, and the passwords of its vault and of sudo with them."""
    password = _password(_label(directory / FILE)).decode(errors="replace")
    return Redactor([*values(directory).values(), password, sudo_password or ""])


# --- what the roles declare -----------------------------------------------------------------------------------------


def _declared(content: Path) -> dict[str, dict[str, Any]]:
    """Return each secret's declaration; ClusterctlError where two roles disagree or one asks for too little."""
    found: dict[str, dict[str, Any]] = {}
    for file in sorted(content.glob("roles/*/meta/secrets.yml")):
        for name, spec in (yaml.safe_load(file.read_bytes()) or {}).items():
            if found.setdefault(name, spec) != spec:
                raise ClusterctlError(f"{file}: {name} is declared otherwise by another role")
            generated = spec.get("bytes", 0) >= MIN_BYTES and spec.get("encoding") in _ENCODINGS
            if not generated and "bcrypt_of" not in spec:
                raise ClusterctlError(f"{file}: {name} needs at least {MIN_BYTES} bytes and a known encoding")
    if unknown := {spec["bcrypt_of"] for spec in found.values() if "bcrypt_of" in spec} - found.keys():
        raise ClusterctlError(f"bcrypt_of names secrets that no role declares: {', '.join(sorted(unknown))}")
    return found


def _generate(bytes: int, encoding: str) -> str:
    return _ENCODINGS[encoding](random.token_bytes(bytes))


def _bcrypt(value: str) -> str:
    import bcrypt

    return bcrypt.hashpw(value.encode(), bcrypt.gensalt(BCRYPT_COST)).decode()


# --- the vault ------------------------------------------------------------------------------------------------------

_RESTORE = "restore both from a backup or another administrator; nothing is regenerated"


def _refusal(path: Path, message: str, hint: str = "") -> InputError:
    return InputError([Problem(None, str(path), message, hint)])


def _refuse_second_set(directory: Path) -> None:
    """Nodes that were set up hold the old secrets: a new set would lock every one of them out."""
    if any(directory.glob("hardware/*.json")):
        raise _refusal(directory / FILE, "is missing, but hardware/ shows that the cluster was set up before", _RESTORE)


def label(directory: Path) -> str:
    """Return the label of a cluster's secrets, which no other cluster has."""
    return _label(directory / FILE)


def _sealed(path: Path) -> bytes:
    try:
        return files.read(path, inside=path.parent)
    except files.UnfitError as error:
        raise _refusal(path, str(error), _RESTORE) from None


def _label(path: Path) -> str:
    if not (header := _HEADER.match(_sealed(path))):
        raise _refusal(path, "is damaged: it does not begin with the header of a vault that clusterctl wrote", _RESTORE)
    return header[1].decode()


def _password_path(label: str) -> Path:
    if override := os.environ.get("CLUSTERCTL_VAULT_PASSWORD_FILE"):
        return Path(override).expanduser().absolute()
    return configuration() / "vault" / label


def configuration() -> Path:
    """Return the directory of what the user keeps on this machine, apart from any cluster's directory."""
    configured = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    # The XDG base directory specification has relative paths ignored.
    return (configured if configured.is_absolute() else Path("~/.config").expanduser()) / "clusterctl"


def _password(label: str, create: bool = False) -> bytes:
    path = _password_path(label)
    if create and "CLUSTERCTL_VAULT_PASSWORD_FILE" not in os.environ:
        for parent in (path.parent.parent, path.parent):
            make_private_directory(parent)
        write_atomically(path, random.token_urlsafe(MIN_BYTES).encode() + b"\n")
    password = _first_line(path, f"the vault password of {FILE} ({label})", _RESTORE)
    if len(password) < MIN_PASSWORD:
        what = f"holds a weak vault password of {FILE}, got {len(password)} characters, expected {MIN_PASSWORD} or more"
        raise _refusal(path, what, "ansible-vault rekey changes it")
    return password


def _first_line(path: Path, what: str, hint: str = "") -> bytes:
    try:
        content = files.read(path).strip()
        mode = path.stat().st_mode
    except (files.UnfitError, OSError) as error:
        raise _refusal(path, f"{what} {error}", hint) from None
    if mode & 0o177:
        # Ansible would run an executable one to get the password.
        raise _refusal(path, f"holds {what}, got mode {stat.S_IMODE(mode):04o}, expected 0600", "chmod 600")
    if not content or b"\n" in content:
        raise _refusal(path, f"holds no {what.removeprefix('the ').removeprefix('a ')}, which is one line", hint)
    return content


def _vault(label: str, password: bytes) -> Any:
    with _no_ansible_settings():
        from ansible.parsing.vault import VaultLib, VaultSecret
    return VaultLib([(label, VaultSecret(password))])


@contextmanager
def _no_ansible_settings() -> Iterator[None]:
    """Ansible reads its settings once, when first imported: let it find ours and no other."""
    foreign = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("ANSIBLE_")}
    ours = {
        "ANSIBLE_CONFIG": str(paths.content() / "ansible.cfg"),
        "ANSIBLE_DEPRECATION_WARNINGS": "False",
        "ANSIBLE_LOCAL_TEMP": tempfile.gettempdir(),
    }
    os.environ.update(ours)
    try:
        yield
    finally:
        for name in ours:
            del os.environ[name]
        os.environ.update(foreign)
