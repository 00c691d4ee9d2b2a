"""The cluster's secrets: generated once, stored encrypted in the cluster's directory, replaced only on request.

A role declares its secrets in meta/secrets.yml. Those of services outside the cluster are `given`: a person sets them.
A `pattern` says which values the program that reads the secret can have, and `expected` says it in words.
`secrets.yml` in the cluster's directory is one YAML mapping, encrypted as a whole with Ansible Vault. Its header has a
label. The password is in a 0600 file of that name under the user's config directory, so that a clone of the cluster's
directory does not disclose the secrets.
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

from clusterctl.util import files, paths, yaml_text
from clusterctl.util.errors import ClusterctlError, InputError, Problem
from clusterctl.util.files import make_private_directory, write_atomically
from clusterctl.util.redaction import Redactor

FILE = "secrets.yml"
NEXT = "_next"
"""The suffix of a secret that will replace another one."""
MIN_BYTES = 32
BCRYPT_COST = 10
MIN_PASSWORD = 16
MIN_GIVEN, MAX_GIVEN = 8, 4096  # shorter ones would not be redacted in all encodings (util/redaction.py)
_LABEL_BYTES = 4

_HEADER = re.compile(rb"\$ANSIBLE_VAULT;1\.2;AES256;([a-z0-9-]{1,80})\r?\n")
_ENCODINGS: Mapping[str, Callable[[bytes], str]] = {
    "base64": lambda data: base64.b64encode(data).decode(),
    "hex": bytes.hex,
    "urlsafe": lambda data: base64.urlsafe_b64encode(data).rstrip(b"=").decode(),
}


def ensure(directory: Path, cluster_name: str, content: Path | None = None) -> None:
    """Create the missing secrets that the roles in `content` (default: clusterctl's) declare.

    Existing secrets never change. Raises InputError if the file or its password is lost or damaged.
    """
    path = directory / FILE
    check(directory, cluster_name)
    if path.exists():
        label, known = _label(path), values(directory)
    else:
        _refuse_second_set(directory)
        label, known = f"{cluster_name}-{random.token_hex(_LABEL_BYTES)}", {}
    declared = {name: spec for name, spec in _declared(content or paths.content()).items() if not spec.get("given")}
    missing = {name: spec for name, spec in declared.items() if name not in known}
    if not missing and path.exists():
        return
    generated = {name: _generate(**spec) for name, spec in missing.items() if "bcrypt_of" not in spec}
    plain = known | generated
    hashes = {name: _bcrypt(plain[spec["bcrypt_of"]]) for name, spec in missing.items() if "bcrypt_of" in spec}
    _write(path, label, plain | hashes)


def _write(path: Path, label: str, known: Mapping[str, str]) -> None:
    """Write the file, encrypted with the label's password; a new file gets a new password."""
    with files.writing(path):
        password = _password(label, create=not path.exists())
        encrypted = _vault(label, password).encrypt(yaml.safe_dump(dict(known)).encode(), vault_id=label)
        write_atomically(path, encrypted, replace=path.exists())


def names(content: Path | None = None) -> list[str]:
    """Return the names of all secrets that roles declare."""
    return list(_declared(content or paths.content()))


def rotatable(content: Path | None = None) -> list[str]:
    """Return the names of the secrets that can be replaced; a hash is replaced with its secret, a `fixed` one never."""
    declared = _declared(content or paths.content())
    return [name for name, spec in declared.items() if "bytes" in spec and not spec.get("fixed")]


def settable(content: Path | None = None) -> list[str]:
    """Return the names of the secrets that only a person can set."""
    return [name for name, spec in _declared(content or paths.content()).items() if spec.get("given")]


def set_given(directory: Path, name: str, value: str, content: Path | None = None) -> None:
    """Store a secret of a service outside the cluster. Raises InputError for a value that cannot be one."""
    spec = _declared(content or paths.content())[name]
    if not value.isprintable() or not MIN_GIVEN <= len(value) <= MAX_GIVEN:
        what = f"got {len(value)} characters, expected {MIN_GIVEN} to {MAX_GIVEN} printable ones on one line"
        raise InputError([Problem(None, name, what)])
    if not re.fullmatch(spec.get("pattern", ".*"), value):
        raise InputError([Problem(None, name, f"cannot be used, expected {spec['expected']}")])
    path = directory / FILE
    _write(path, _label(path), values(directory) | {name: value})


def require(directory: Path, needed: Mapping[str, str]) -> None:
    """Raise InputError unless all these secrets are set; `needed` has the part of the inventory that uses each."""
    known = values(directory)
    problems = [
        Problem(None, where, f"needs the secret {name}, which is not set", f"clusterctl secret set {name}")
        for name, where in needed.items()
        if name not in known
    ]
    if problems:
        raise InputError(problems)


def propose(directory: Path, names: Collection[str], content: Path | None = None) -> None:
    """Generate a successor of each secret, used from `adopt` on. An earlier proposal is discarded."""
    declared, path = _declared(content or paths.content()), directory / FILE
    fresh = {name: _generate(**declared[name]) for name in names}
    fresh |= {name: _bcrypt(fresh[of]) for name, spec in declared.items() if (of := spec.get("bcrypt_of")) in fresh}
    known = {name: value for name, value in values(directory).items() if not name.endswith(NEXT)}
    _write(path, _label(path), known | {name + NEXT: value for name, value in fresh.items()})


def adopt(directory: Path) -> None:
    """Replace the current secrets with the proposed ones."""
    path, known = directory / FILE, values(directory)
    due = {name.removesuffix(NEXT): value for name, value in known.items() if name.endswith(NEXT)}
    _write(path, _label(path), {name: due.get(name, value) for name, value in known.items() if not name.endswith(NEXT)})


def check(directory: Path, cluster_name: str | None) -> None:
    """Raise InputError for a file of another cluster, with or without its password (None: name not known).

    The header selects the password. Without this check, a directory from someone else could use the password of any
    of the user's clusters.
    """
    path = directory / FILE
    if not os.path.lexists(path):
        return
    label = _label(path)
    owner, _, end = label.rpartition("-")
    if cluster_name is not None and (owner != cluster_name or len(end) != 2 * _LABEL_BYTES):
        raise _refusal(
            path,
            f'belongs to another cluster, got "{label}", expected "{cluster_name}-" and {2 * _LABEL_BYTES} digits',
            "a cluster cannot be renamed; if no node was set up yet, delete the file: the next run makes new secrets",
        )


def values(directory: Path) -> dict[str, str]:
    """Return all secrets of the cluster by name. Raises InputError if file or password are missing or do not match."""
    path = directory / FILE
    label = _label(path)
    password = _password(label)
    try:
        data = yaml_text.load(_vault(label, password).decrypt(_sealed(path)))
    except Exception as error:  # Ansible raises many types; their messages may quote the content and must not be shown
        message = f"cannot be decrypted with the password in {_password_path(label)} ({type(error).__name__})"
        raise _refusal(path, message, _RESTORE) from None
    if not isinstance(data, dict) or not all(isinstance(text, str) for pair in data.items() for text in pair):
        raise _refusal(path, "is damaged: its content is not a mapping of names to texts", _RESTORE)
    return data


def vault_password_file(directory: Path) -> Path:
    """Return the checked file with the cluster's vault password."""
    label = _label(directory / FILE)
    _password(label)
    return _password_path(label)


def password_of(file: Path) -> str:
    """Return the first line of a user's password file. Raises InputError if others can read or replace it."""
    return _first_line(file.expanduser(), "a password").decode(errors="replace")


def forget(directory: Path) -> None:
    """Delete the stored head identity and vault password of a removed cluster.

    With CLUSTERCTL_VAULT_PASSWORD_FILE, the password file and the head's identity stay.
    """
    if not (directory / FILE).exists() or "CLUSTERCTL_VAULT_PASSWORD_FILE" in os.environ:
        return
    path = _password_path(_label(directory / FILE))
    if path.exists():
        head_file(directory).unlink(missing_ok=True)
    path.unlink(missing_ok=True)


def head_file(directory: Path) -> Path:
    """Return the file of this machine with the identity of the cluster's head (known_head.py).

    Its name is an HMAC of the vault password. The label in the directory is not authenticated: with another label and
    the same password (CLUSTERCTL_VAULT_PASSWORD_FILE), another file would be read.
    """
    mark = hmac.digest(_password(_label(directory / FILE)), b"clusterctl: the head", "sha256")
    return configuration() / "heads" / f"{mark.hex()}.json"


def old_head_file(directory: Path) -> Path:
    """Return the path of the same file in an older clusterctl, named after the label."""
    return configuration() / "heads" / f"{_label(directory / FILE)}.json"


def redactor(directory: Path, sudo_password: str | None = None) -> Redactor:
    """Return a redactor of the cluster's secrets and the passwords of its vault and of sudo."""
    password = _password(_label(directory / FILE)).decode(errors="replace")
    return Redactor([*values(directory).values(), password, sudo_password or ""])


# --- what the roles declare -----------------------------------------------------------------------------------------


def _declared(content: Path) -> dict[str, dict[str, Any]]:
    """Return each secret's declaration. Raises ClusterctlError if two roles differ or a secret is too short."""
    found: dict[str, dict[str, Any]] = {}
    for file in sorted(content.glob("roles/*/meta/secrets.yml")):
        for name, spec in (yaml_text.load(file.read_bytes()) or {}).items():
            if found.setdefault(name, spec) != spec:
                raise ClusterctlError(f"{file}: another role declares {name} differently")
            generated = spec.get("bytes", 0) >= MIN_BYTES and spec.get("encoding") in _ENCODINGS
            given = spec.get("given") is True and spec.keys() in ({"given"}, {"given", "pattern", "expected"})
            if not generated and "bcrypt_of" not in spec and not given:
                what = f"at least {MIN_BYTES} bytes and a known encoding, or given: true (with pattern and expected)"
                raise ClusterctlError(f"{file}: {name} needs {what}")
    if unknown := {spec["bcrypt_of"] for spec in found.values() if "bcrypt_of" in spec} - found.keys():
        raise ClusterctlError(f"bcrypt_of refers to secrets that no role declares: {', '.join(sorted(unknown))}")
    return found


def _generate(bytes: int, encoding: str, fixed: bool = False) -> str:
    return _ENCODINGS[encoding](random.token_bytes(bytes))


def _bcrypt(value: str) -> str:
    import bcrypt

    return bcrypt.hashpw(value.encode(), bcrypt.gensalt(BCRYPT_COST)).decode()


# --- the vault ------------------------------------------------------------------------------------------------------

_RESTORE = "restore both from a backup or another administrator; clusterctl does not make new ones"


def _refusal(path: Path, message: str, hint: str = "") -> InputError:
    return InputError([Problem(None, str(path), message, hint)])


def _refuse_second_set(directory: Path) -> None:
    """Refuse to make new secrets for nodes that have the old ones: they would be locked out."""
    if any(directory.glob("hardware/*.json")):
        raise _refusal(directory / FILE, "is missing, but hardware/ shows that the cluster was set up before", _RESTORE)


def label(directory: Path) -> str:
    """Return the unique label of a cluster's secrets."""
    return _label(directory / FILE)


def _sealed(path: Path) -> bytes:
    try:
        return files.read(path, inside=path.parent)
    except files.UnfitError as error:
        raise _refusal(path, str(error), _RESTORE) from None


def _label(path: Path) -> str:
    if not (header := _HEADER.match(_sealed(path))):
        raise _refusal(path, "is damaged: it does not start with clusterctl's vault header", _RESTORE)
    return header[1].decode()


def _password_path(label: str) -> Path:
    if override := os.environ.get("CLUSTERCTL_VAULT_PASSWORD_FILE"):
        return Path(override).expanduser().absolute()
    return configuration() / "vault" / label


def configuration() -> Path:
    """Return clusterctl's directory in the user's configuration, outside of any cluster's directory."""
    configured = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    # The XDG base directory specification requires to ignore relative paths.
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
        raise _refusal(path, what, "change it with ansible-vault rekey")
    return password


def _first_line(path: Path, what: str, hint: str = "") -> bytes:
    try:
        content = files.read(path).strip()
        mode = path.stat().st_mode
    except (files.UnfitError, OSError) as error:
        raise _refusal(path, f"{what} {error}", hint) from None
    if mode & 0o177:
        # Ansible would execute an executable password file.
        raise _refusal(path, f"holds {what}, got mode {stat.S_IMODE(mode):04o}, expected 0600", "chmod 600")
    if not content or b"\n" in content:
        raise _refusal(path, f"holds no {what.removeprefix('the ').removeprefix('a ')}, expected one line", hint)
    return content


def _vault(label: str, password: bytes) -> Any:
    with _no_ansible_settings():
        from ansible.parsing.vault import VaultLib, VaultSecret
    return VaultLib([(label, VaultSecret(password))])


@contextmanager
def _no_ansible_settings() -> Iterator[None]:
    """Let Ansible's first import, which reads its settings, find only clusterctl's."""
    saved = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("ANSIBLE_")}
    settings = {
        "ANSIBLE_CONFIG": str(paths.content() / "ansible.cfg"),
        "ANSIBLE_DEPRECATION_WARNINGS": "False",
        "ANSIBLE_LOCAL_TEMP": tempfile.gettempdir(),
    }
    os.environ.update(settings)
    try:
        yield
    finally:
        for name in settings:
            del os.environ[name]
        os.environ.update(saved)
