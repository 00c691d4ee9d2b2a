"""The command line, run as a user does: a process, its two outputs and its exit code."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from clusterctl import __version__
from clusterctl.cli import main
from clusterctl.run import lock
from clusterctl.util import paths

INVENTORY = """\
all:
  vars: {cluster_name: aurora}
  children:
    slurm_head: {hosts: {head1: {ansible_host: 10.0.0.10}}}
    slurm_workers:
      hosts: {gpu01: {ansible_host: 10.0.0.11}}
      children: {a100: {hosts: {gpu02: {ansible_host: 10.0.0.12}}}}
"""
VERBS = ("init", "validate", "bootstrap", "verify", "status", "usage", "secret", "lab")


def clusterctl(
    *arguments: str, cwd: Path | None = None, **environment: str | None
) -> "subprocess.CompletedProcess[str]":
    merged = {**os.environ, "COLUMNS": "120", **environment}
    return subprocess.run(
        [sys.executable, "-m", "clusterctl", *arguments],
        cwd=cwd,
        env={name: value for name, value in merged.items() if value is not None},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def cluster(home: Path) -> Path:
    """A cluster's directory whose nodes refuse every connection."""
    made = clusterctl(
        "init", "aurora", "--head", "head1=127.0.0.1", "--worker", "gpu01=127.0.0.2", cwd=home, HOME=str(home)
    )
    assert made.returncode == 0, made.stderr
    path = home / "aurora/inventory.yaml"
    path.write_text(path.read_text().replace("cluster_name: aurora", "cluster_name: aurora\n    ansible_port: 1"))
    return home / "aurora"


def test_version() -> None:
    done = clusterctl("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"clusterctl {__version__}\n", "")


def test_help_lists_the_verbs_in_order_and_loads_nothing_heavy() -> None:
    done = clusterctl("--help")
    assert done.returncode == 0
    lines = done.stdout.partition("Set up:")[2].partition("Exit codes:")[0].splitlines()
    rows = dict(line.split(maxsplit=1) for line in lines if line.startswith("  ") and line.strip())
    assert tuple(name for name in rows if name in VERBS) == VERBS
    assert {name: len(text) for name, text in rows.items() if len(text) > 60} == {}, "a line is 60 characters at most"
    loaded = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "clusterctl", "--help"], capture_output=True, text=True, check=True
    ).stderr
    for module in ("ansible", "paramiko", "yaml", "rich"):
        assert f" {module}\n" not in loaded


def test_help__as_a_verb__is_the_help_of_the_next_word() -> None:
    assert clusterctl("help").stdout == clusterctl("--help").stdout
    assert clusterctl("help", "status").stdout == clusterctl("status", "--help").stdout


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help(verb: str) -> None:
    done = clusterctl(verb, "--help")
    assert done.returncode == 0
    assert "Usage:" in done.stdout


@pytest.mark.proves("systems", "`docs` lists and prints the pages, and the wheel has them.")
def test_docs__of_a_page__is_printed_and_a_typo_suggests() -> None:
    listed = clusterctl("docs")
    pages = paths.content() / "docs"
    top, runbooks = (sorted(path.stem for path in place.glob("*.md")) for place in (pages, pages / "runbooks"))
    examples = sorted(str(path.relative_to(pages)) for path in (pages / "examples").glob("*/*"))
    assert "examples/slurm/ddp.py" in examples
    assert listed.stdout.split() == [*top, *examples, *(f"runbooks/{name}" for name in runbooks)]
    printed = clusterctl("docs", "examples/slurm/ddp.sh")
    assert (printed.returncode, printed.stdout) == (0, (pages / "examples/slurm/ddp.sh").read_text())
    printed = clusterctl("docs", "variables")
    assert (printed.returncode, printed.stdout) == (0, (paths.content() / "docs/variables.md").read_text())
    wrong = clusterctl("docs", "varables")
    assert (wrong.returncode, "(did you mean variables?)" in wrong.stderr) == (2, True)
    printed = clusterctl("docs", "runbooks/GpuXid")
    assert (printed.returncode, printed.stdout) == (0, (pages / "runbooks/GpuXid.md").read_text())
    for name in ("runbooks/GpuXi", "GpuXid", "gpuxid"):
        wrong = clusterctl("docs", name)
        assert (wrong.returncode, "(did you mean runbooks/GpuXid?)" in wrong.stderr) == (2, True), name
    wrong = clusterctl("docs", "nothing like that")
    assert "slurm, usage, variables" in wrong.stderr
    assert "runbooks" not in wrong.stderr
    build = tomllib.loads((paths.content() / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]
    for folder in ("docs", "playbooks", "plugins", "roles"):
        assert build["wheel"]["force-include"][folder] == f"clusterctl/content/{folder}"
        assert f"/{folder}" in build["sdist"]["include"]


NESTED = [
    ("add-node",),
    ("upgrade",),
    ("health",),
    ("logs",),
    ("restore",),
    ("docs",),
    ("lab", "up"),
    ("lab", "fault"),
    ("lab", "ssh"),
    ("plan", "add-node"),
    ("secret", "rotate"),
]


@pytest.mark.parametrize("argv", [*((verb,) for verb in VERBS), *NESTED])
def test_help__of_every_verb__names_parameters_as_people_do(argv: tuple[str, ...]) -> None:
    """`[NODE]...` and `N`, as a manual page has them; no types of Python's and no brackets around brackets."""
    text = clusterctl(*argv, "--help").stdout
    assert re.findall(r"<[a-z\[]+.*?>|\[\[.*|\{.*|\.{4,}", text) == []


@pytest.mark.parametrize("verb", ["add-node", "remove-node", "restore"])
def test_help__of_verbs_that_ask__has_yes(verb: str) -> None:
    assert "-y, --yes" in clusterctl(verb, "--help").stdout


@pytest.mark.parametrize("argv", [("init",), ("lab",), ("lab", "fault"), ("plan",), ("secret",)])
def test_help__of_every_verb__has_one_style(argv: tuple[str, ...]) -> None:
    """No boxes, no marks of a markup, `Verbs` where a verb has verbs, and no flags of the program's own."""
    told = clusterctl(*argv, "--help").stdout
    assert told.isascii()
    for word in ("Commands:", "--install-completion", "--no-example", "**"):
        assert word not in told
    assert ("Verbs:" in told) is (argv in [("lab",), ("plan",), ("secret",)])


def completed(*words: str, **environment: str) -> list[str]:
    """What bash offers for the last of these words."""
    line = {"COMP_WORDS": " ".join(["clusterctl", *words]), "COMP_CWORD": str(len(words))}
    done = subprocess.run(
        [Path(sys.executable).with_name("clusterctl")],
        env={**os.environ, **line, "_CLUSTERCTL_COMPLETE": "complete_bash", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


@pytest.mark.proves("validate", "A shell completes nodes, secrets, runs, roles, pages and labs.")
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("health", "CLUSTER", "g"), ["gpu01", "gpu02"]),
        (("health", "CLUSTER/inventory.yaml", "gpu01", "g"), ["gpu02"]),
        (("plan", "remove-node", "CLUSTER", "gpu01", "g"), ["gpu02"]),
        (("reboot", "CLUSTER", "h"), ["head1"]),
        (("trust", "CLUSTER", "h"), ["head1"]),
        (("bootstrap", "CLUSTER", "--limit", "head1,g"), ["head1,gpu01", "head1,gpu02"]),
        (("add-node", "CLUSTER", "gpu03", "--group", "a"), ["a100"]),
        (("logs", "CLUSTER", "20"), ["20261121T110518Z-verify"]),
        (("logs", "CLUSTER", "l"), ["last"]),
        (("secret", "show", "CLUSTER", "prometheus_password_"), ["prometheus_password_hash"]),
        (("secret", "rotate", "CLUSTER", "prometheus_password"), ["prometheus_password"]),
        (("upgrade", "CLUSTER", "--only", "mun"), ["munge"]),
        (("docs", "varia"), ["variables"]),
        (("docs", "runbooks/GpuX"), ["runbooks/GpuXid"]),
        (("lab", "down", "--name", "t"), ["tried"]),
        (("lab", "ssh", "--name", "tried", "g"), ["gpu01"]),
        (("lab", "fault", "--name", "tried", "gpu01", "gpu-l"), ["gpu-lost"]),
        (("health", "BROKEN", "g"), []),
        (("health", "CLUSTER/nowhere", "g"), []),
        (("logs", "BROKEN", "x"), []),
        (("bootstrap", "--limit", "g"), []),
    ],
)
def test_completion__word_that_begins__is_read_from_this_machine(
    tmp_path: Path, words: tuple[str, ...], offered: list[str]
) -> None:
    cluster, broken, lab = tmp_path / "aurora", tmp_path / "broken", tmp_path / "clusterctl/labs/tried/.lab"
    (cluster / ".clusterctl/runs/20261121T110518Z-verify").mkdir(parents=True)
    broken.mkdir()
    lab.mkdir(parents=True)
    (lab / "lab.json").write_text('{"name": "tried", "workers": 1, "subnet": "10.213.9.0/24"}')
    (cluster / "inventory.yaml").write_text(INVENTORY)
    (broken / "inventory.yaml").write_text(INVENTORY.replace("hosts:", "{"))
    given = [word.replace("CLUSTER", str(cluster)).replace("BROKEN", str(broken)) for word in words]
    assert completed(*given, XDG_STATE_HOME=str(tmp_path)) == offered


def test_a_directory_stands_for_the_inventory_in_it(cluster: Path, home: Path) -> None:
    done = clusterctl("validate", str(cluster), HOME=str(home))
    assert (done.returncode, done.stderr) == (0, "")
    assert "aurora: 2 hosts" in done.stdout


@pytest.mark.proves("validate", "In a cluster's directory, or with $CLUSTERCTL_INVENTORY, INVENTORY may be left out.")
@pytest.mark.parametrize(
    ("argv", "place", "code", "said"),
    [
        (["validate"], "aurora", 0, "aurora"),
        (["validate"], "ENVIRONMENT", 0, "aurora"),
        (["validate"], ".", 2, "Missing argument 'INVENTORY'"),
        (["validate", "aurroa"], "aurora", 2, "aurroa"),
        (["verify", "--print-command"], "aurora", 0, "/aurora/inventory.yaml --user"),
        # A backup is a path as well, and no inventory.
        (["restore", ".clusterctl/backups/x.tar", "--yes"], "aurora", 2, "x.tar: cannot be read"),
        (["health", "gpu09"], "aurora", 2, 'no worker "gpu09"'),
        (["health", "./elsewhere"], "aurora", 2, "elsewhere"),
        (["status", "--watch"], "aurora", 2, "--watch"),
        (["restore", "backup.tar"], "aurora", 2, "backup.tar"),
        (["secret", "show", "no_such"], "aurora", 2, "no_such"),
        (["add-node", "--no-such"], "aurora", 2, "clusterctl add-node [OPTIONS]"),
    ],
)
def test_inventory__left_out__is_found_here_or_in_the_environment(
    cluster: Path, home: Path, argv: list[str], place: str, code: int, said: str
) -> None:
    by_variable = place == "ENVIRONMENT"
    where, variable = (home, str(cluster)) if by_variable else (home / place, None)
    done = clusterctl(*argv, cwd=where, HOME=str(home), CLUSTERCTL_INVENTORY=variable)
    assert done.returncode == code, done.stdout + done.stderr
    assert said in done.stdout + done.stderr


def test_validate_as_json(cluster: Path, home: Path) -> None:
    done = clusterctl("validate", "inventory.yaml", "--output", "json", cwd=cluster, HOME=str(home))
    answer = json.loads(done.stdout)
    assert (done.returncode, answer["exit_code"], answer["cluster"], answer["hosts"]) == (0, 0, "aurora", 2)


@pytest.mark.proves("preflight", "Each unreachable node is reported, nothing is recorded, exit 3.")
def test_unfit_nodes_are_exit_3_each_named_and_nothing_is_recorded(cluster: Path, home: Path) -> None:
    done = clusterctl("bootstrap", "inventory.yaml", cwd=cluster, HOME=str(home))
    assert done.returncode == 3
    assert "head1: connection: 127.0.0.1 port 1 refuses" in done.stderr
    assert "gpu01: connection: 127.0.0.2 port 1 refuses" in done.stderr
    assert "Nothing was changed" in done.stderr
    assert not (cluster / "hardware").exists()
    [kept] = (cluster / ".clusterctl/runs").iterdir()
    assert [path.name for path in kept.iterdir()] == ["summary.json"]
    summary = json.loads((kept / "summary.json").read_text())
    assert (summary["verb"], summary["exit_code"], len(summary["problems"])) == ("bootstrap", 3, 2)
    shown = clusterctl("logs", "inventory.yaml", "last", cwd=cluster, HOME=str(home))
    assert "head1: connection: 127.0.0.1 port 1 refuses" in shown.stdout


@pytest.mark.proves("health", "`health` names a node that does not respond; exit 4.")
def test_a_check_names_who_does_not_answer(cluster: Path, home: Path) -> None:
    done = clusterctl("health", str(cluster), "--output", "json", HOME=str(home))
    answer = json.loads(done.stdout)
    assert (done.returncode, answer["exit_code"], [node["name"] for node in answer["nodes"]]) == (4, 4, ["gpu01"])
    assert "127.0.0.2 port 1 refuses" in answer["nodes"][0]["problem"]
    done = clusterctl("health", str(cluster), HOME=str(home))
    assert (done.returncode, "gpu01: 127.0.0.2 port 1 refuses" in done.stdout) == (4, True), done.stdout


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["gpu1"], 'NODE: no worker "gpu1" (did you mean gpu01?)'),
        (["head1"], 'NODE: no worker "head1"'),
        (["--diagnose"], "--diagnose: names no node"),
    ],
)
def test_a_check_of_nobody_is_bad_input(cluster: Path, home: Path, argv: list[str], said: str) -> None:
    done = clusterctl("health", str(cluster), *argv, HOME=str(home))
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr


@pytest.mark.parametrize("argv", [["--watch", "INVENTORY"], ["INVENTORY", "--watch", "3"], ["INVENTORY", "-w"]])
def test_watching_needs_a_terminal(cluster: Path, home: Path, argv: list[str]) -> None:
    argv = ["inventory.yaml" if word == "INVENTORY" else word for word in argv]
    done = clusterctl("status", *argv, cwd=cluster, HOME=str(home))
    assert (done.returncode, "--watch: there is no terminal" in done.stderr) == (2, True), done.stderr
    done = clusterctl("status", *argv, "--output", "json", cwd=cluster, HOME=str(home))
    assert (done.returncode, "cannot be given with --output json" in done.stdout) == (2, True), done.stdout


def test_an_error_as_json_is_one_object_on_stdout(cluster: Path, home: Path) -> None:
    done = clusterctl("bootstrap", str(cluster), "--output", "json", HOME=str(home))
    answer = json.loads(done.stdout)
    assert (done.returncode, answer["exit_code"], len(answer["problems"])) == (3, 3, 2)


@pytest.mark.proves("faults", "A second run exits with 6 before it contacts a node.")
def test_a_second_run_is_exit_6_before_anything_else(cluster: Path, home: Path) -> None:
    with lock.hold(cluster / ".clusterctl", "verify"):
        done = clusterctl("bootstrap", str(cluster), HOME=str(home))
    assert done.returncode == 6
    assert f"process {os.getpid()}" in done.stderr
    assert "verify" in done.stderr


@pytest.mark.proves("print-command", "`--print-command` prints one line and writes nothing.")
def test_print_command_contacts_nobody_and_is_one_line(cluster: Path, home: Path) -> None:
    before = sorted(cluster.rglob("*"))
    done = clusterctl(
        "bootstrap", str(cluster), "--print-command", "--limit", "gpu01", "--diff", "-v", HOME=str(home),
        ANSIBLE_CONFIG="/hostile",
    )  # fmt: skip
    assert done.returncode == 0
    assert done.stdout.count("\n") == 1
    assert done.stdout.endswith("playbooks/bootstrap.yml --limit gpu01 --diff -v\n")
    assert "hostile" not in done.stdout
    assert "discover" in done.stderr
    assert sorted(cluster.rglob("*")) == before


def test_verbosity_counts_before_and_after_the_verb(cluster: Path, home: Path) -> None:
    done = clusterctl("-v", "bootstrap", "-vv", str(cluster), "--print-command", HOME=str(home))
    assert done.stdout.endswith(" -vvv\n")


def test_secret_show__prints_one_and_suggests_names(cluster: Path, home: Path) -> None:
    done = clusterctl("secret", "show", str(cluster), "prometheus_password", HOME=str(home))
    assert done.returncode == 0
    assert len(done.stdout.strip()) >= 43
    for verb in ("show", "rotate"):
        wrong = clusterctl("secret", verb, str(cluster), "prometeus_password", HOME=str(home))
        assert wrong.returncode == 2
        assert "did you mean prometheus_password" in wrong.stderr


def test_secret_rotate__of_a_hash__names_those_that_can_be(cluster: Path, home: Path) -> None:
    done = clusterctl("secret", "rotate", str(cluster), "prometheus_password_hash", HOME=str(home))
    assert done.returncode == 2
    assert "did you mean prometheus_password" in done.stderr


def test_without_home_and_with_the_plainest_language(cluster: Path) -> None:
    done = clusterctl("validate", str(cluster), HOME=None, LANG="C", LC_ALL=None)
    assert done.returncode == 0
    assert done.stdout.isascii()


def test_a_working_directory_that_is_gone_is_exit_2(tmp_path: Path) -> None:
    script = f'mkdir gone && cd gone && rmdir ../gone && "{sys.executable}" -P -m clusterctl validate x.yaml'
    done = subprocess.run(["sh", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("working directory: cannot be used: No such file or directory")


def test_a_reader_that_leaves_early_is_no_traceback(cluster: Path, home: Path) -> None:
    script = f'"{sys.executable}" -m clusterctl validate "{cluster}" | true; test "${{PIPESTATUS[0]}}" -ne 1'
    environment = {**os.environ, "HOME": str(home)}
    done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_closed_outputs_are_no_traceback(cluster: Path, home: Path) -> None:
    script = f'"{sys.executable}" -m clusterctl validate "{cluster}" >&-'
    done = subprocess.run(["sh", "-c", script], env={**os.environ, "HOME": str(home)}, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.proves("faults", "An output that cannot be written is reported, exit 1.")
@pytest.mark.parametrize("argv", [("docs", "variables"), ("validate", "CLUSTER", "--output", "json")])
def test_output__full_disk__is_reported_and_no_bug(
    cluster: Path, home: Path, tmp_path: Path, argv: tuple[str, ...]
) -> None:
    """What `docs` prints is written at once, a JSON document at the end."""
    words = [str(cluster) if word == "CLUSTER" else word for word in argv]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "clusterctl", *words],
            env={**os.environ, "HOME": str(home), "TMPDIR": str(tmp_path)},
            stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    told = "clusterctl: cannot write the output: No space left on device\n"
    assert (done.returncode, done.stderr) == (1, told)
    assert list(tmp_path.iterdir()) == [], "no report of a bug"


def test_a_bug_is_one_line_and_a_file(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise ValueError("something\x1b[2J odd")

    monkeypatch.setattr(main, "app", fail)
    with pytest.raises(SystemExit) as end:
        main.main()
    said = capsys.readouterr().err
    assert end.value.code == 1
    assert "ValueError: something [2J odd" in said
    path = Path(said.split()[-1])
    assert "Traceback" in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    path.unlink()
