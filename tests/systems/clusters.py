"""The clusters of tests/systems/clusters, and every command line that a bootstrap of one would run.

cluster.yaml has the system, the scheduler if it is not Slurm, what the probe finds on a worker, and the packages that
no source shows; commands.yaml the command lines, each with the document that has the command or its names, and how
they were compared: `table`, by tests/systems/repositories; `run`, on Debian, by labs, role scenarios or
test_files.py; `read`, in a stored copy, on the day that `read` has, with what it says in `note`; `own`, it is a
program of ours; `unknown`, no document was found, and `note` has what was tried.

usage: python -m tests.systems.clusters NAME    (prints the command lines that commands.yaml lacks)
"""

import ast
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleError
from ansible.module_utils.node_state.packages import Apt, Dnf

from tests.systems.packages import Request, judge, of_call
from tests.systems.rendering import CONTENT, SYSTEMS, Cluster, Role, load, look, seal, tasks

HERE = Path(__file__).resolve().parent / "clusters"
NAMES = tuple(sorted(path.parent.name for path in HERE.glob("*/cluster.yaml")))
COMMANDS = ("ansible.builtin.command", "ansible.builtin.raw", "ansible.builtin.shell")
# What is done only when a role is removed, or by another verb than bootstrap.
OTHER_FILES = {"remove.yml", "exchange.yml"}


class OfflineApt(Apt):  # type: ignore[misc]
    """apt's words, without what apt itself knows of dependencies."""

    def along(self, install: Mapping[str, str]) -> dict[str, str]:
        """Return no further packages."""
        return {}


def described(name: str) -> Any:
    return load(HERE / name / "cluster.yaml")


@contextmanager
def opened(name: str) -> Iterator[Cluster]:
    """Yield a cluster of this folder, in a copy that has secrets."""
    about = described(name)
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / name
        shutil.copytree(HERE / name, directory)
        seal(directory)
        found = look(about["system"], **about["look"])
        yield Cluster(directory / "inventory.yaml", about["system"], {}, found)


def turns(cluster: Cluster) -> Iterator[tuple[str, Role]]:
    """Yield each host with each role that playbooks/bootstrap.yml gives it."""
    seen = set()
    for play in load(CONTENT / "playbooks/bootstrap.yml"):
        for host in cluster.manager.get_hosts(play["hosts"]):
            for entry in play.get("roles", ()):
                name = entry if isinstance(entry, str) else entry["role"]
                if (host.name, name) not in seen:
                    seen.add((host.name, name))
                    yield host.name, cluster.role(name, host.name)


def skipped(role: Role) -> set[str]:
    """Return the task files that are for another verb, or that a condition leaves out here."""
    found = set(OTHER_FILES)
    for file in (role.path / "tasks").glob("*.yml"):
        for task in tasks(file):
            included = task.get("ansible.builtin.include_tasks")
            if included and not may_run(role, task):
                found.add(str(included))
    return found


def may_run(role: Role, task: Mapping[str, Any]) -> bool:
    """Tell whether a task's conditions are true; one about what a task registers on the node may be."""
    when = task.get("when", [])
    for condition in when if isinstance(when, list) else [when]:
        try:
            if not role.value(str(condition)):
                return False
        except AnsibleError:
            continue
    return True


def calls(role: Role) -> Iterator[dict[str, Any]]:
    left_out = skipped(role)
    found = (call for _, call in role.calls(lambda file: file.name not in left_out))
    return (call for call in found if call.get("state") != "absent")


def requests_of(cluster: Cluster) -> set[Request]:
    return {request for _, role in turns(cluster) for call in calls(role) for request in of_call(role.name, call)}


def unknown(name: str, cluster: Cluster) -> tuple[list[str], list[str]]:
    """Return the requests that are wrong, and those of which no source is known."""
    verdicts = {str(one): judge(described(name)["system"], one)[0] for one in sorted(requests_of(cluster))}
    wrong = [one for one, verdict in verdicts.items() if verdict == "wrong"]
    return wrong, [one for one, verdict in verdicts.items() if verdict == "unknown"]


def joined(argv: Any) -> str:
    return argv if isinstance(argv, str) else shlex.join(str(word) for word in argv)


def of_packages(family: str, call: Mapping[str, Any]) -> Iterator[str]:
    """Yield the package manager's command line for each package; a pin stands where its version would."""
    for given in call.get("packages", []):
        item = {"name": given} if isinstance(given, str) else given
        name, install = item["name"], {item["name"]: item.get("version", "")}
        if item.get("state") == "absent":
            yield joined(["apt-get", "install", f"{name}-"] if family == "Debian" else ["dnf", "remove", name])
        elif not item.get("url"):
            yield joined(["apt-get", *OfflineApt([]).words(install)[0]] if family == "Debian" else dnf(install))
        if item.get("hold") and family == "Debian":  # with dnf it is a line of dnf.conf
            yield joined(["apt-mark", "hold", name])


def dnf(install: Mapping[str, str]) -> list[str]:
    return ["dnf", "install", *Dnf([]).words(install)]


def of_files(role: Role, call: Mapping[str, Any]) -> Iterator[str]:
    """Yield what checks a file, what follows a change of it, and what its lines start."""
    for item in call.get("files", []):
        after = item.get("on_change", [])
        yield from map(joined, after if after and isinstance(after[0], list) else [after] if after else [])
        if item.get("state") == "absent":
            continue
        if "validate" in item:
            yield item["validate"]
        if "in_effect" in item:
            yield joined(item["in_effect"])
        if "confirm" in item:
            yield joined(item["confirm"]["command"])
        text = (role.content(item) or b"").decode(errors="replace")
        if "/systemd/system/" in item["dest"]:
            whole = text.replace("\\\n", "")
            yield from (re.sub(r" +", " ", line) for line in re.findall(r"(?m)^Exec\w+=[-+!@:]*(\S.*)$", whole))
        if "/modules-load.d/" in item["dest"]:
            yield from (f"modprobe {line}" for line in text.split())


def of_units(call: Mapping[str, Any]) -> Iterator[str]:
    for unit in call.get("units", []):
        name = unit["name"]
        if unit.get("masked"):
            yield f"systemctl mask {name}"
        elif unit.get("enabled", unit.get("state") != "stopped"):
            yield f"systemctl enable {name}"
        yield f"systemctl {'stop' if unit.get('state') == 'stopped' or unit.get('masked') else 'start'} {name}"


def of_tasks(role: Role) -> Iterator[str]:
    """Yield the command lines that tasks have themselves; what another task registers stays a template."""
    left_out = skipped(role)
    for file in sorted((role.path / "tasks").glob("*.yml")):
        for task in tasks(file) if file.name not in left_out else ():
            for module in COMMANDS:
                given = task.get(module)
                line = given if isinstance(given, str) else (given or {}).get("argv", (given or {}).get("cmd"))
                if line and may_run(role, task):
                    try:
                        words = role.arguments(line)
                    except AnsibleError:
                        words = line
                    # The units that verify checks are in no order.
                    yield joined([*words[:2], *sorted(words[2:])] if words[:2] == ["python3", "-"] else words)
            script = task.get("ansible.builtin.script")
            if script:
                yield f"sh roles/{role.name}/files/{role.arguments(script['cmd'])}"
            if "nvidia_build" in task:
                yield from of_module("nvidia_build")


def of_module(name: str) -> Iterator[str]:
    """Yield what a module runs, a variable word as `...`."""
    tree = ast.parse((CONTENT / f"plugins/modules/{name}.py").read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "run":
            yield " ".join(str(word.value) if isinstance(word, ast.Constant) else "..." for word in node.args)


def command_lines(cluster: Cluster) -> dict[str, str]:
    """Return every command line, with the roles that run it."""
    found: dict[str, set[str]] = {}
    family = SYSTEMS[cluster.system].family
    for _, role in turns(cluster):
        for call in calls(role):
            # Role packages has those of all roles; each states its own.
            own = of_packages(family, call) if role.name != "packages" else ()
            for line in (*own, *of_files(role, call), *of_units(call)):
                found.setdefault(line.strip(), set()).add(role.name)
        for line in of_tasks(role):
            found.setdefault(line.strip(), set()).add(role.name)
    return {line: ", ".join(sorted(roles)) for line, roles in found.items()}


def documented(name: str) -> dict[str, str]:
    """Return the command lines of commands.yaml, each with its source."""
    return {line: entry["source"] for entry in load(HERE / name / "commands.yaml") for line in entry["lines"]}


if __name__ == "__main__":
    with opened(sys.argv[1]) as asked:
        listed = documented(sys.argv[1]) if (HERE / sys.argv[1] / "commands.yaml").exists() else {}
        for text, names in command_lines(asked).items():
            if text not in listed:
                print(f"{names}: {text}")
