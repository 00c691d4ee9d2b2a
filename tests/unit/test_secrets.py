"""Secrets: made once, readable by Ansible's own tools, never regenerated, found in every form they leak in."""

import base64
import json
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote, quote_plus

import bcrypt
import pytest

from clusterctl.util.errors import ClusterctlError, InputError
from clusterctl.util.redaction import Redactor
from clusterctl.util.text import strip_controls
from clusterctl.workspace import secrets
from tests.labs import REPOSITORY

from . import small_content

TOOLS = Path(sys.executable).parent


@pytest.fixture
def content(tmp_path: Path) -> Path:
    return small_content.make(tmp_path / "content")


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("CLUSTERCTL_VAULT_PASSWORD_FILE", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config"


@pytest.fixture
def cluster(tmp_path: Path, content: Path, config: Path) -> Path:
    directory = tmp_path / "aurora"
    directory.mkdir()
    secrets.ensure(directory, "aurora", content)
    return directory


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def refusal(directory: Path) -> str:
    before = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    texts = []
    for attempt in (secrets.values, secrets.vault_password_file, lambda path: secrets.ensure(path, "aurora")):
        with pytest.raises(InputError) as caught:
            attempt(directory)
        texts.append(str(caught.value))
    assert before == {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    return texts[0]


@pytest.mark.proves("secrets", "Each declared secret is generated with its length and encoding.")
def test_each_declared_secret_is_made_with_its_length_and_encoding(cluster: Path) -> None:
    values = secrets.values(cluster)
    assert sorted(values) == ["demo_hash", "demo_hex", "demo_key", "demo_password"]
    assert len(base64.b64decode(values["demo_key"])) == 128
    assert len(bytes.fromhex(values["demo_hex"])) == 32
    assert len(base64.urlsafe_b64decode(values["demo_password"] + "=")) == 32
    assert bcrypt.checkpw(values["demo_password"].encode(), values["demo_hash"].encode())
    assert values["demo_hash"].startswith("$2b$10$")


def test_rotatable__fixed_secret__is_generated_and_never_replaced(tmp_path: Path, config: Path) -> None:
    content, directory = small_content.make(tmp_path / "content"), tmp_path / "aurora"
    with (content / "roles/demo/meta/secrets.yml").open("a") as file:
        file.write("demo_fixed: {bytes: 32, encoding: hex, fixed: true}\n")
    directory.mkdir()
    secrets.ensure(directory, "aurora", content)
    assert len(secrets.values(directory)["demo_fixed"]) == 64
    assert "demo_fixed" not in secrets.rotatable(content)
    assert "demo_key" in secrets.rotatable(content)


@pytest.mark.proves("secrets", "A secret of an outside service is set by a person, and required.")
def test_given__secret_of_a_service__is_required_and_never_generated(tmp_path: Path, config: Path) -> None:
    content, directory = small_content.make(tmp_path / "content"), tmp_path / "aurora"
    with (content / "roles/demo/meta/secrets.yml").open("a") as file:
        file.write("demo_url: {given: true, pattern: '[^#]+', expected: no number sign}\n")
    directory.mkdir()
    secrets.ensure(directory, "aurora", content)
    assert "demo_url" not in secrets.values(directory)
    assert secrets.settable(content) == ["demo_url"]
    assert "demo_url" not in secrets.rotatable(content)
    with pytest.raises(InputError, match=r"receivers\[0\]: needs the secret demo_url, .*secret set demo_url"):
        secrets.require(directory, {"demo_url": "receivers[0]"})
    before = secrets.values(directory)
    for bad in ("short", "two\nlines of it", "x" * 5000, "\x1b[31mred and long"):
        with pytest.raises(InputError, match="expected 8 to 4096"):
            secrets.set_given(directory, "demo_url", bad, content)
    with pytest.raises(InputError, match="demo_url: cannot be used, expected no number sign"):
        secrets.set_given(directory, "demo_url", "https://hooks.example.org/#1", content)
    assert secrets.values(directory) == before
    secrets.set_given(directory, "demo_url", "https://hooks.example.org/T0/abc", content)
    secrets.require(directory, {"demo_url": "receivers[0]"})
    secrets.ensure(directory, "aurora", content)
    assert secrets.values(directory) == before | {"demo_url": "https://hooks.example.org/T0/abc"}


def test_a_second_run_changes_nothing_and_two_clusters_share_nothing(
    cluster: Path, content: Path, tmp_path: Path
) -> None:
    before = (cluster / "secrets.yml").read_bytes()
    secrets.ensure(cluster, "aurora", content)
    assert (cluster / "secrets.yml").read_bytes() == before
    other = tmp_path / "borealis"
    other.mkdir()
    secrets.ensure(other, "aurora", content)
    assert not set(secrets.values(cluster).values()) & set(secrets.values(other).values())
    assert secrets.vault_password_file(cluster).read_bytes() != secrets.vault_password_file(other).read_bytes()


def test_a_new_role_adds_its_secret_and_leaves_the_others(cluster: Path, content: Path) -> None:
    before, password = secrets.values(cluster), secrets.vault_password_file(cluster)
    new = content / "roles/new/meta/secrets.yml"
    new.parent.mkdir(parents=True)
    new.write_text("new_key: {bytes: 32, encoding: hex}\nnew_hash: {bcrypt_of: demo_hex}\n", encoding="utf-8")
    secrets.ensure(cluster, "aurora", content)
    after = secrets.values(cluster)
    assert {name: after[name] for name in before} == before
    assert sorted(set(after) - set(before)) == ["new_hash", "new_key"]
    assert secrets.vault_password_file(cluster) == password


@pytest.mark.proves("secrets", "A proposed secret replaces the old one only when it is adopted.")
def test_rotation__proposed__counts_when_adopted(cluster: Path, content: Path) -> None:
    before = secrets.values(cluster)
    for _ in range(2):  # the second time takes the place of the first
        secrets.propose(cluster, ["demo_password"], content)
    proposed = secrets.values(cluster)
    assert {name: proposed[name] for name in before} == before
    assert proposed.keys() - before.keys() == {"demo_password_next", "demo_hash_next"}
    secrets.adopt(cluster)
    after = secrets.values(cluster)
    assert after.keys() == before.keys()
    assert {name for name in before if before[name] != after[name]} == {"demo_password", "demo_hash"}
    assert bcrypt.checkpw(after["demo_password"].encode(), after["demo_hash"].encode())
    assert after["demo_password"] == proposed["demo_password_next"]


@pytest.mark.proves("secrets", "Files with secrets are private under any umask.")
def test_files_are_private_under_any_umask(tmp_path: Path, content: Path, config: Path) -> None:
    for number, umask in enumerate((0o000, 0o777)):
        directory = tmp_path / f"cluster{number}"
        directory.mkdir()
        old = os.umask(umask)
        try:
            secrets.ensure(directory, "aurora", content)
        finally:
            os.umask(old)
        password = secrets.vault_password_file(directory)
        assert (mode(directory / "secrets.yml"), mode(password)) == (0o600, 0o600)
        assert (mode(password.parent), mode(password.parent.parent), mode(config)) == (0o700, 0o700, 0o700)
        assert sorted(path.name for path in directory.iterdir()) == ["secrets.yml"]


def test_nothing_readable_stands_in_the_file_and_its_header_names_the_password(cluster: Path) -> None:
    text = (cluster / "secrets.yml").read_text("ascii")
    label = secrets.vault_password_file(cluster).name
    assert text.splitlines()[0] == f"$ANSIBLE_VAULT;1.2;AES256;{label}"
    assert label.startswith("aurora-")
    assert Redactor(secrets.values(cluster).values()).redact(text) == text


def test_ansibles_own_tools_read_it(cluster: Path, tmp_path: Path) -> None:
    password = secrets.vault_password_file(cluster)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")}
    clean["ANSIBLE_HOME"] = str(tmp_path / "ansible")
    view = subprocess.run(
        [TOOLS / "ansible-vault", "view", "--vault-id", f"{password.name}@{password}", "secrets.yml"],
        cwd=cluster,
        env=clean,
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"demo_hex: {secrets.values(cluster)['demo_hex']}" in view.stdout.replace("'", "")
    play = [{"hosts": "localhost", "gather_facts": False, "vars_files": [str(cluster / "secrets.yml")]}]
    play[0]["tasks"] = [{"ansible.builtin.assert": {"that": "demo_key | b64decode(encoding='latin1') | length == 128"}}]
    (tmp_path / "play.yml").write_text(json.dumps(play), encoding="utf-8")
    run = subprocess.run(
        [TOOLS / "ansible-playbook", "-i", "localhost,", "play.yml"],
        cwd=tmp_path,
        env=clean | {"ANSIBLE_VAULT_PASSWORD_FILE": str(password)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr


def test_ansibles_settings_of_a_user_do_not_reach_us(cluster: Path, tmp_path: Path) -> None:
    """In a process of its own, because Ansible reads its settings at its first import."""
    (tmp_path / "ansible.cfg").write_text(
        "[defaults]\nvault_id_match = true\nlog_path = stolen.log\n[", encoding="utf-8"
    )
    read = "len(secrets.values(pathlib.Path(sys.argv[1])))"
    script = f"import sys, pathlib; from clusterctl.workspace import secrets; print({read})"
    hostile = {"ANSIBLE_CONFIG": "/no/such.cfg", "ANSIBLE_LOG_PATH": "stolen.log", "ANSIBLE_DEBUG": "1"}
    run = subprocess.run(
        [sys.executable, "-c", script, str(cluster)],
        cwd=tmp_path,
        env=dict(os.environ) | hostile | {"PYTHONPATH": str(Path(secrets.__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (run.stdout, run.stderr) == ("4\n", "")
    assert not (tmp_path / "stolen.log").exists()


# --- lost and damaged -----------------------------------------------------------------------------------------------


def test_a_lost_password_is_an_error_that_names_both_files(cluster: Path) -> None:
    password = secrets.vault_password_file(cluster)
    password.unlink()
    text = refusal(cluster)
    assert str(password) in text
    assert "secrets.yml" in text
    assert not password.exists()


@pytest.mark.parametrize("damage", [b"", b"\n", b"weak", b"another password"])
def test_a_wrong_password_is_an_error(cluster: Path, content: Path, damage: bytes) -> None:
    password = secrets.vault_password_file(cluster)
    password.write_bytes(damage)
    for attempt in (lambda: secrets.values(cluster), lambda: secrets.ensure(cluster, "aurora", content)):
        with pytest.raises(InputError) as caught:
            attempt()
        assert str(password) in str(caught.value)
        assert "secrets.yml" in str(caught.value)
    assert password.read_bytes() == damage


@pytest.mark.proves("secrets", "A secrets.yml with a damaged header or another vault version is refused and kept.")
@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: b"munge_key: plain\n",
        lambda data: data.replace(b"1.2", b"1.3", 1),
        lambda data: data.replace(b"aurora-", b"../../aurora-", 1),
        lambda data: b"\xff" + data,
    ],
)
def test_a_damaged_header_is_an_error(cluster: Path, damage: object) -> None:
    path = cluster / "secrets.yml"
    assert callable(damage)
    path.write_bytes(damage(path.read_bytes()))
    assert f"{path}: is damaged" in refusal(cluster)


@pytest.mark.proves("untrusted", "A directory that names another cluster's vault password is refused.")
@pytest.mark.parametrize(
    "label", ["borealis-0123abcd", "aurora-eu-0123abcd", "aurora-0123abcde", "aurora", "-0123abcd"]
)
def test_a_file_that_asks_for_another_clusters_password_is_refused(cluster: Path, content: Path, label: str) -> None:
    """What a stranger's directory could do: name the password of any cluster of ours, and have it used."""
    path = cluster / "secrets.yml"
    mine = secrets.vault_password_file(cluster)
    mine.with_name(label).write_bytes(mine.read_bytes())
    before = path.read_bytes().replace(mine.name.encode(), label.encode(), 1)
    path.write_bytes(before)
    for attempt in (secrets.check, lambda directory, name: secrets.ensure(directory, name, content)):
        with pytest.raises(InputError, match=r'belongs to another cluster, got ".*", expected "aurora-" and 8 digits'):
            attempt(cluster, "aurora")
    assert path.read_bytes() == before


def test_a_cluster_without_secrets_has_none_of_another(tmp_path: Path) -> None:
    secrets.check(tmp_path, "aurora")


@pytest.mark.proves("secrets", "A truncated secrets.yml is refused.")
@pytest.mark.parametrize("keep", [0.5, 0.99])
def test_a_truncated_file_is_an_error(cluster: Path, content: Path, keep: float) -> None:
    path = cluster / "secrets.yml"
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep)])
    for attempt in (lambda: secrets.values(cluster), lambda: secrets.ensure(cluster, "aurora", content)):
        with pytest.raises(InputError, match="cannot be decrypted"):
            attempt()


@pytest.mark.parametrize("plain", ["- hunter2", "hunter2: 7", "a: {hunter2: b}", "hunter2: [", "hunter2"])
def test_content_that_is_no_mapping_of_texts_is_an_error_that_does_not_show_it(cluster: Path, plain: str) -> None:
    password = secrets.vault_password_file(cluster)
    path = cluster / "secrets.yml"
    path.write_text(plain, encoding="utf-8")
    subprocess.run(
        [TOOLS / "ansible-vault", "encrypt", "--vault-id", f"{password.name}@{password}", path],
        check=True,
        capture_output=True,
    )
    with pytest.raises(InputError) as caught:
        secrets.values(cluster)
    assert str(path) in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.proves("secrets", "A cluster that was set up before gets no new secrets.")
def test_secrets_are_not_made_anew_for_a_cluster_that_was_set_up(tmp_path: Path, content: Path, config: Path) -> None:
    (tmp_path / "hardware").mkdir()
    (tmp_path / "hardware/gpu01.json").write_text("{}", encoding="utf-8")
    with pytest.raises(InputError, match="set up before"):
        secrets.ensure(tmp_path, "aurora", content)
    assert not (tmp_path / "secrets.yml").exists()
    assert not config.exists()


@pytest.mark.parametrize("bits", [0o640, 0o604, 0o700, 0o755])
def test_a_password_that_others_can_read_or_that_ansible_would_run_is_refused(cluster: Path, bits: int) -> None:
    password = secrets.vault_password_file(cluster)
    password.chmod(bits)
    assert f"got mode {bits:04o}, expected 0600" in refusal(cluster)


def test_the_password_may_lie_elsewhere(
    tmp_path: Path, content: Path, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    password = tmp_path / "password"
    monkeypatch.setenv("CLUSTERCTL_VAULT_PASSWORD_FILE", str(password))
    with pytest.raises(InputError, match=r"password.*cannot be read"):
        secrets.ensure(tmp_path, "aurora", content)
    assert not password.exists()
    password.write_text("x" * 40, encoding="utf-8")
    password.chmod(0o600)
    secrets.ensure(tmp_path, "aurora", content)
    assert secrets.vault_password_file(tmp_path) == password
    assert len(secrets.values(tmp_path)) == 4
    assert not config.exists()


def test_a_full_or_read_only_place_is_an_error_without_leftovers(
    cluster: Path, content: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = content / "roles/new/meta/secrets.yml"
    new.parent.mkdir(parents=True)
    new.write_text("new_key: {bytes: 32, encoding: hex}\n", encoding="utf-8")
    before = (cluster / "secrets.yml").read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(InputError, match="cannot be written: No space left"):
            secrets.ensure(cluster, "aurora", content)
    assert (cluster / "secrets.yml").read_bytes() == before
    assert [path.name for path in cluster.iterdir()] == ["secrets.yml"]


@pytest.mark.parametrize(
    "text",
    [
        "demo_key: {bytes: 16, encoding: hex}",
        "demo_key: {bytes: 32, encoding: rot13}",
        "demo_x: {bytes: 16, encoding: base64}",
        "demo_x: {bcrypt_of: nobody}",
    ],
)
def test_a_weak_or_contradictory_declaration_is_our_bug(tmp_path: Path, content: Path, config: Path, text: str) -> None:
    other = content / "roles/other/meta/secrets.yml"
    other.parent.mkdir(parents=True)
    other.write_text(text, encoding="utf-8")
    with pytest.raises(ClusterctlError) as caught:
        secrets.ensure(tmp_path, "aurora", content)
    assert caught.value.exit_code == 1


# --- redaction ------------------------------------------------------------------------------------------------------

FORMS: dict[str, Callable[[str], str]] = {
    "raw": lambda value: value,
    "base64": lambda value: base64.b64encode(value.encode()).decode(),
    "base64 of more": lambda value: base64.b64encode(f"user:{value}\n".encode()).decode(),
    "base64 of other": lambda value: base64.b64encode(f"a:{value}".encode()).decode(),
    "urlsafe base64": lambda value: base64.urlsafe_b64encode(f"é{value}".encode()).decode(),
    "hex": lambda value: value.encode().hex(),
    "upper hex": lambda value: value.encode().hex().upper(),
    "URL": lambda value: quote(value, safe=""),
    "URL path": quote,
    "form": quote_plus,
    "lower URL": lambda value: re.sub("%..", lambda match: match[0].lower(), quote(value, safe="")),
    "shell": shlex.quote,
    "JSON": lambda value: json.dumps({"msg": value}),
    "repr": lambda value: repr([value]),
    "repr of bytes": lambda value: repr([value.encode()]),
    "ASCII": lambda value: ascii([value]),
}


def leaked(value: str, text: str) -> bool:
    """Tell whether a run of ten characters of any form of the value is still there."""
    return any(text.find(form(value)[i : i + 10]) >= 0 for form in FORMS.values() for i in range(len(value) - 10))


@pytest.mark.proves("secrets", "Secrets are redacted in base64, hex, URL, shell, JSON and Python forms.")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "value",
    [
        "s3cr3t/with+signs=and'quotes\"$x",
        "k" * 20,
        "0123456789abcdef" * 4,
        "pä$$wörter und mehr",
        "correcthorsebattery a staple!!",
    ],
)
def test_every_form_is_redacted(form: str, value: str) -> None:
    text = f"before {FORMS[form](value)} after"
    assert leaked(value, text)
    redacted = Redactor([value]).redact(text)
    assert "[redacted]" in redacted
    assert redacted.startswith("before ")
    assert redacted.endswith(" after")
    assert not leaked(value, redacted)


def test_bytes_behind_a_generated_value_are_redacted_in_hex(cluster: Path) -> None:
    key = secrets.values(cluster)["demo_key"]
    assert Redactor([key]).redact(base64.b64decode(key).hex()) == "[redacted]"


def test_what_a_program_shows_of_the_bytes_behind_a_generated_value_is_redacted(cluster: Path) -> None:
    """A key of bytes shows otherwise in a log than its base64; what is left of it are specks."""
    key = secrets.values(cluster)["demo_key"]
    data = base64.b64decode(key)
    for shown in (f"(0, {data!r}, b'')", f"key: {data.decode(errors='replace')}!"):
        left = Redactor([key]).redact(strip_controls(shown))
        assert "[redacted]" in left
        assert len(left) < len(strip_controls(shown)) / 2


@pytest.mark.proves("secrets", "A secret that was cut or wrapped is redacted.")
@pytest.mark.parametrize("form", FORMS)
def test_a_value_that_was_cut_or_wrapped_is_redacted(cluster: Path, form: str) -> None:
    for value in secrets.values(cluster).values():
        whole = FORMS[form](value)
        redactor = Redactor([value])
        for piece in (whole[: len(whole) // 2], whole[len(whole) // 2 :], whole[7:40]):
            assert not leaked(value, redactor.redact(f"before {piece} after")), piece
    wrapped = base64.encodebytes(secrets.values(cluster)["demo_key"].encode()).decode().splitlines()
    assert len(wrapped) > 2
    redactor = Redactor(secrets.values(cluster).values())
    assert {redactor.redact(line) for line in wrapped[:-1]} == {"[redacted]"}


@pytest.mark.proves("secrets", "The vault's password is redacted.")
def test_the_vaults_password_is_redacted_too(cluster: Path) -> None:
    password = secrets.vault_password_file(cluster).read_text().strip()
    assert secrets.redactor(cluster).redact(f"it is {password}.") == "it is [redacted]."


@pytest.mark.proves("secrets", "Two clusters of one inventory share no secret.")
@pytest.mark.proves("secrets", "Ensuring secrets again leaves secrets.yml unchanged.")
def test_two_clusters_of_one_inventory_share_no_secret(tmp_path: Path, config: Path) -> None:
    """With all that our own roles declare."""
    made = []
    for name in ("one", "other"):
        shutil.copytree(REPOSITORY / "inventory/slurm", tmp_path / name)
        secrets.ensure(tmp_path / name, "aurora")
        password = secrets.vault_password_file(tmp_path / name).read_text()
        made.append({**secrets.values(tmp_path / name), "vault": password})
    assert made[0].keys() == made[1].keys()
    assert len(made[0]) > 4
    assert len({*made[0].values(), *made[1].values()}) == 2 * len(made[0])
    sealed = (tmp_path / "one/secrets.yml").read_bytes()
    secrets.ensure(tmp_path / "one", "aurora")
    assert (tmp_path / "one/secrets.yml").read_bytes() == sealed


def test_other_text_and_values_too_short_to_tell_are_left_alone() -> None:
    assert Redactor(["", "a", "lin", "xyzzy-1234"]).redact("an ordinary line") == "an ordinary line"


def test_a_value_inside_another_leaves_nothing_of_the_longer_one() -> None:
    assert Redactor(["abcdefgh", "abcdefgh-ijkl"]).redact("key: abcdefgh-ijkl") == "key: [redacted]"


def test_a_forgotten_cluster_leaves_no_password(tmp_path: Path) -> None:
    secrets.ensure(tmp_path, "aurora")
    password = secrets.vault_password_file(tmp_path)
    assert password.exists()
    secrets.forget(tmp_path)
    assert not password.exists()
    secrets.forget(tmp_path)  # without a password there is no file of the head either


def test_head_file__same_password_another_label__is_the_same_file(
    cluster: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = secrets.head_file(cluster)
    assert secrets.label(cluster) not in own.name
    password = tmp_path / "password"
    password.write_bytes(secrets.vault_password_file(cluster).read_bytes())
    password.chmod(0o600)
    monkeypatch.setenv("CLUSTERCTL_VAULT_PASSWORD_FILE", str(password))
    path = cluster / "secrets.yml"
    path.write_text(path.read_text().replace(secrets.label(cluster), "aurora-00c0ffee", 1))
    assert secrets.head_file(cluster) == own
    password.write_text("another password of enough characters\n")
    assert secrets.head_file(cluster) != own
