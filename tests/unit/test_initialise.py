"""`clusterctl init`: what it makes is valid, whole and never in the place of anything."""

import stat
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from clusterctl.commands import initialise
from clusterctl.inventory import model as inventory
from clusterctl.inventory import schema
from clusterctl.util.errors import InputError
from clusterctl.workspace import secrets

from . import small_content

WORKERS = ["gpu[01:03]", "gpu04=10.0.0.14", "gpu05=10.0.0.25"]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("CLUSTERCTL_VAULT_PASSWORD_FILE", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def content(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_content.make(tmp_path_factory.mktemp("content"))


@pytest.mark.proves("init", "`init` writes a valid inventory with secrets in a private directory.")
def test_the_result_is_a_valid_inventory_with_secrets(place: Path, content: Path) -> None:
    initialise.create(Path("aurora"), "head1=10.0.0.1", WORKERS, "admin", content)
    cluster = inventory.load(Path("aurora/inventory.yaml"), schema.load(content))
    assert (cluster.cluster_name, cluster.head.address, cluster.head.user) == ("aurora", "10.0.0.1", "admin")
    assert [host.address for host in cluster.in_group("slurm_workers")] == [
        "gpu01",
        "gpu02",
        "gpu03",
        "10.0.0.14",
        "10.0.0.25",
    ]
    assert len(secrets.values(place / "aurora")) == 4
    assert sorted(path.name for path in Path("aurora").iterdir()) == [".gitignore", "inventory.yaml", "secrets.yml"]
    assert stat.S_IMODE(Path("aurora").stat().st_mode) == 0o700
    assert ".clusterctl/\n" in Path("aurora/.gitignore").read_text("utf-8")
    assert sorted(path.name for path in place.iterdir()) == ["aurora", "config"]


def test_without_a_user_the_file_says_how_to_give_one(content: Path) -> None:
    initialise.create(Path("aurora"), "head1", ["gpu01"], None, content)
    assert "# ansible_user: admin" in Path("aurora/inventory.yaml").read_text("utf-8")


def test_an_empty_directory_may_be_there(content: Path) -> None:
    Path("aurora").mkdir()
    initialise.create(Path("aurora"), "head1", ["gpu01"], None, content)
    assert Path("aurora/inventory.yaml").exists()


@pytest.mark.proves("init", "`init` overwrites nothing.")
@pytest.mark.parametrize("kind", ["file", "directory", "dangling link"])
def test_nothing_is_overwritten(place: Path, content: Path, kind: str) -> None:
    path = place / "aurora"
    if kind == "file":
        path.write_text("mine", encoding="utf-8")
    elif kind == "directory":
        path.mkdir()
        (path / "notes").write_text("mine", encoding="utf-8")
    else:
        path.symlink_to("nowhere")
    with pytest.raises(InputError, match="already exists"):
        initialise.create(path, "head1", ["gpu01"], None, content)
    assert [entry.name for entry in place.iterdir()] == ["aurora"]


@pytest.mark.proves("init", "Bad hosts or names are refused, and nothing is created.")
@pytest.mark.parametrize(
    ("name", "head", "workers", "user", "said"),
    [
        ("Aurora", "head1", ["gpu01"], None, "cluster_name: bad value"),
        ("aurora", "head1=-oProxyCommand=id", ["gpu01"], None, "ansible_host: bad value"),
        ("aurora", "Head1", ["gpu01"], None, "(write head1)"),
        ("aurora", "head1", ["gpu01", "gpu01"], None, "a second time"),
        ("aurora", "head1", ["gpu01=10.0.0.1", "gpu02=10.0.0.1"], None, "duplicate address"),
        ("aurora", "head1", ["gpu[1-4]"], None, "bad range"),
        ("aurora", "head1", ["a: {}\n  b"], None, "bad host name"),
        ("aurora", "head1", ["{{ x }}"], None, "a template"),
        ("aurora", "head1", ["no"], "$(id)", "ansible_user: bad value"),
        ("no/such/aurora", "head1", ["gpu01"], None, "cannot be created: its parent directory does not exist"),
    ],
)
def test_bad_hosts_leave_nothing_behind(
    place: Path, content: Path, name: str, head: str, workers: list[str], user: str | None, said: str
) -> None:
    with pytest.raises(InputError) as caught:
        initialise.create(Path(name), head, workers, user, content)
    assert said in str(caught.value)
    assert not list(place.iterdir())


# --- the command, on our own content --------------------------------------------------------------------------------


def run(*arguments: str, keys: str | None = None) -> tuple[int, str]:
    app = typer.Typer()
    app.command()(initialise.init_command)
    result = CliRunner().invoke(app, arguments, input=keys)
    if isinstance(result.exception, InputError):
        return result.exception.exit_code, str(result.exception)
    return result.exit_code, result.output


def test_flags_need_no_terminal() -> None:
    code, output = run("aurora", "--head", "head1=10.0.0.1", "--worker", "gpu01=10.0.0.2", "--worker", "gpu02=10.0.0.3")
    assert code == 0, output
    assert "Next: cd aurora, clusterctl validate inventory.yaml" in output
    assert len(inventory.load(Path("aurora/inventory.yaml")).hosts) == 3


def test_without_flags_and_terminal_it_says_which_flags_it_needs(place: Path) -> None:
    code, output = run("aurora")
    assert (code, "--head NAME=ADDRESS and at least one --worker" in output) == (2, True)
    assert not list(place.iterdir())


def test_an_example_can_be_asked_for() -> None:
    code, output = run("aurora", "--example")
    assert (code, "Next: cd aurora, edit inventory.yaml, then clusterctl validate" in output) == (0, True), output
    assert [host.name for host in inventory.load(Path("aurora/inventory.yaml")).hosts] == ["head1", "gpu01", "gpu02"]


@pytest.mark.proves("init", "On a terminal `init` asks for head, workers and user.")
def test_a_terminal_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(initialise, "_on_terminal", lambda: True)
    code, output = run("aurora", keys="head1=10.0.0.1\ngpu[01:02]\nadmin\n")
    assert code == 0, output
    cluster = inventory.load(Path("aurora/inventory.yaml"))
    assert [host.name for host in cluster.hosts] == ["head1", "gpu01", "gpu02"]
    assert cluster.head.user == "admin"


def test_each_answer_is_judged_at_once_and_none_is_invented(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(initialise, "_on_terminal", lambda: True)
    code, output = run("aurora", keys="\nHead1\nhead1=10.0.0.1\n \ngpu[1-4]\ngpu[01:02]\n$(id)\n\n")
    assert code == 0, output
    assert [output.count(question) for question in ("Head (", "Workers (", "Login user")] == [3, 3, 2]
    assert all(error in output for error in ("(write head1)", "no workers", "bad range", 'bad value, got "$(id)"'))
    cluster = inventory.load(Path("aurora/inventory.yaml"))
    assert [(host.name, host.address) for host in cluster.hosts] == [
        ("head1", "10.0.0.1"), ("gpu01", "gpu01"), ("gpu02", "gpu02")
    ]  # fmt: skip
    assert "# ansible_user" in Path("aurora/inventory.yaml").read_text("utf-8")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("Aurora",), "cluster_name: bad value"),
        (("aurora", "--head", "Head1"), "(write head1)"),
        (("aurora", "--worker", "gpu[1-4]"), "bad range"),
        (("config",), "already exists"),
    ],
)
def test_nothing_is_asked_where_it_would_be_in_vain(
    place: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], said: str
) -> None:
    monkeypatch.setattr(initialise, "_on_terminal", lambda: True)
    (place / "config").mkdir()
    (place / "config/mine").touch()
    code, output = run(*arguments, keys="")
    assert (code, said in output, "Head (" in output) == (2, True, False), output
