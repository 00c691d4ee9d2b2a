"""Which variables roles read, by their text: `shared_names` of another host, and `readers`, the roles by variable.

A role may read each word of its tasks, templates and variables, of what roles define under these words, and of the
lookups and filters that it uses. A name that only looks like a variable costs a role that was not necessary; one that
is missed would be a change that is not applied, so tests/systems/test_inputs.py renders the roles of clusters with
other values, and compares.
"""

import ast
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from clusterctl.inventory import bootstrap_plays
from clusterctl.util import yaml_text

_WORD = re.compile(r"[A-Za-z_]\w*(?::uids)?")
_KEY = re.compile(r"^([A-Za-z_]\w*):", re.MULTILINE)
_DOCUMENTATION = re.compile(r'"""[\s\S]*?"""')
_OF_ANOTHER_ROLE = re.compile(r"/\.\./(\w+/templates/[\w.-]+)")
# In a task: another host's variables, or a result that other hosts get.
_OF_OTHERS = ("hostvars", "run_once", "delegate_")
_BLOCKS = ("block", "rescue", "always")
_FILES = ("tasks/*.yml", "templates/**/*", "defaults/*.yml", "vars/*.yml", "meta/*.yml")
# Files of all roles that a lookup reads.
_OF_ALL_ROLES = {
    "cluster_pages": "meta/pages.yml",
    "role_ports": "meta/ports.yml",
    "role_services": "meta/services.yml",
}
# Variables of all roles that a lookup reads.
_NAMES_OF_ALL_ROLES = {"role_packages": re.compile(r"__\w+_(packages|early_repositories|images)")}
PARTS: Mapping[str, tuple[str, str]] = {"__base_user_ids": ("users_accounts", "users_accounts:uids")}
"""By a name that roles define: the variable of which it reads only a part, and the name of that part (inputs.py)."""
_KNOWN_WITHOUT = {"__gpu_config_layouts"}
"""Results for which their role need not run: if it changes nothing, they are as each contact records them."""


@cache
def shared_names(content: Path) -> frozenset[str]:
    """Return the variables that a role may read of another host, among other words."""
    definitions = _definitions(content)
    parts = [*definitions.values(), *_tasks_of_others(content)]
    parts += [path.read_text(encoding="utf-8") for path in content.glob("roles/*/templates/**/*") if path.is_file()]
    for path in content.glob("plugins/*/*.py"):
        parts += [path.read_text(encoding="utf-8"), *_imported(path)]
    words = {word for text in parts if any(mark in text for mark in _OF_OTHERS) for word in _WORD.findall(text)}
    return frozenset(_defined(words, definitions))


@cache
def _words_by_role(content: Path) -> Mapping[str, frozenset[str]]:
    """Return the words that each role of the bootstrap may read, with those of other roles whose results it needs."""
    definitions, sources = _definitions(content), _filters(content)
    for path in content.glob("plugins/lookup/*.py"):
        text = path.read_text(encoding="utf-8")
        others = [
            one.read_text(encoding="utf-8") for one in content.glob(f"roles/*/{_OF_ALL_ROLES.get(path.stem, '-')}")
        ]
        names = _NAMES_OF_ALL_ROLES.get(path.stem)
        others += [name for name in definitions if names and names.fullmatch(name)]
        # Lookups that call another one use its list of roles, not what it reads of them.
        text = re.sub("|".join(_NAMES_OF_ALL_ROLES), "", text)
        sources[path.stem] = "\n".join([text, *_imported(path), *others])
    roles = {role for play in bootstrap_plays.load(content) for role in play.roles}
    texts = {role: _text(content / "roles" / role) for role in roles}
    return {role: frozenset(_defined(_WORD.findall(text), {**definitions, **sources})) for role, text in texts.items()}


@cache
def words_of_single_roles(content: Path) -> frozenset[str]:
    """Return the words that single roles of the bootstrap may read: none that an action plugin reads for any role."""
    of_any = {one for path in content.glob("plugins/action/*.py") for one in _WORD.findall(path.read_text("utf-8"))}
    return frozenset().union(*_words_by_role(content).values()) - of_any


def _filters(content: Path) -> dict[str, str]:
    """Return the text of each filter by its name: it may get all variables of a host."""
    found = dict[str, str]()
    for path in content.glob("plugins/filter/*.py"):
        text = "\n".join([path.read_text(encoding="utf-8"), *_imported(path)])
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.FunctionDef) and node.name == "filters":
                names = (key for one in ast.walk(node) if isinstance(one, ast.Dict) for key in one.keys)
                found |= {str(name.value): text for name in names if isinstance(name, ast.Constant)}
    return found


def readers(content: Path, names: Collection[str], present: Collection[str], also: Collection[str] = ()) -> set[str]:
    """Return those of the present roles that may read one of the variables, or are among `also`.

    With them are the roles before them whose results these roles may read.
    """
    known, found = _words_by_role(content), set[str]()
    pending = {role for role in present if role in also or known[role].intersection(names)}
    while pending:
        role = pending.pop()
        found.add(role)
        earlier = {other for other in present if _is_before(content, other, role)}
        pending |= {other for other in earlier if known[role] & _results(content)[other]} - found
    return found


def _is_before(content: Path, role: str, other: str) -> bool:
    """Return whether a play has a role before the last play of another."""
    order = [name for play in bootstrap_plays.load(content) for name in play.roles]
    return order.index(role) < len(order) - 1 - order[::-1].index(other)


def _defined(words: Iterable[str], definitions: Mapping[str, str]) -> set[str]:
    """Return the words, with those of all that is defined under one of them."""
    found, pending = set[str](), {*words}
    while pending:
        word = pending.pop()
        found.add(word)
        pending |= {*_WORD.findall(definitions.get(word, ""))} - found
    return found


@cache
def _definitions(content: Path) -> Mapping[str, str]:
    """Return the text of what roles and playbooks define, by name."""
    paths = [content / "playbooks/group_vars/all.yml"]
    paths += [*content.glob("roles/*/defaults/*.yml"), *content.glob("roles/*/vars/*.yml")]
    found: dict[str, str] = {}
    for path in paths:
        for name, text in _keys(_read(path)):
            found[name] = found.get(name, "") + text
    return found


def _keys(text: str) -> Iterator[tuple[str, str]]:
    """Yield the keys of a file of variables, each with the text of its value."""
    starts = list(_KEY.finditer(text))
    for start, end in zip(starts, [*starts[1:], None], strict=False):
        yield start[1], text[start.end() : end.start() if end else len(text)]


def _read(path: Path) -> str:
    """Return the text of a role's file, in which PARTS have their own names."""
    text = path.read_text(encoding="utf-8")
    for name, value in _keys(text) if path.suffix == ".yml" else ():
        if name in PARTS:
            text = text.replace(value, value.replace(*PARTS[name]))
    return text


def _text(role: Path, seen: frozenset[str] = frozenset()) -> str:
    """Return the text of a role, with that of the roles that it includes; without what only describes it."""
    seen |= {role.name}
    paths = [path for part in _FILES for path in role.glob(part) if path.is_file()]
    parts = [_read(path) for path in paths if path.name not in ("argument_specs.yml", "remove.yml")]
    of_others = {name for part in parts for name in _OF_ANOTHER_ROLE.findall(part)}
    parts += [(role.parent / name).read_text(encoding="utf-8") for name in sorted(of_others)]
    included = {name for task in _tasks(role) for name in _included(task)} - seen
    return "\n".join([*parts, *(_text(role.parent / name, seen) for name in sorted(included))])


@cache
def _imported(plugin: Path) -> tuple[str, ...]:
    """Return the text of the modules of clusterctl that a plugin imports itself."""
    package, found = Path(__file__).resolve().parent.parent, list[str]()
    for node in ast.walk(ast.parse(plugin.read_bytes())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == package.name:
            folder = package.joinpath(*str(node.module).split(".")[1:])
            files = [folder.with_suffix(".py"), *(folder / f"{alias.name}.py" for alias in node.names)]
            found += [_DOCUMENTATION.sub("", path.read_text(encoding="utf-8")) for path in files if path.is_file()]
    return tuple(found)


@cache
def _results(content: Path) -> Mapping[str, frozenset[str]]:
    """Return by role the names of the results and facts that its tasks leave for others."""
    found = {}
    for role in _words_by_role(content):
        tasks = list(_tasks(content / "roles" / role))
        facts = (name for task in tasks for name in task.get("ansible.builtin.set_fact", ()))
        results = [*(task["register"] for task in tasks if "register" in task), *facts]
        found[role] = frozenset(results) - _KNOWN_WITHOUT
    return found


def _tasks(role: Path) -> Iterator[dict[str, Any]]:
    """Yield each task of a role, and each block."""
    for path in role.glob("tasks/*.yml"):
        pending: list[Any] = yaml_text.load(path.read_bytes()) or []
        while pending:
            task = pending.pop()
            yield task
            pending += [one for part in _BLOCKS for one in task.get(part, ())]


def _included(task: Mapping[str, Any]) -> Iterator[str]:
    for module in ("ansible.builtin.include_role", "ansible.builtin.import_role"):
        if module in task:
            yield task[module]["name"]


def _tasks_of_others(content: Path) -> Iterator[str]:
    """Yield the text of each task of the roles, of each role's pages, and of the playbook as a whole."""
    # Lookup cluster_pages reads the variables of other hosts that a role's pages.yml names.
    for path in (content / "playbooks/bootstrap.yml", *content.glob("roles/*/meta/pages.yml")):
        yield "hostvars " + path.read_text(encoding="utf-8")
    for role in content.glob("roles/*"):
        for task in _tasks(role):
            own = {key: value for key, value in task.items() if key not in _BLOCKS}
            # A block's keywords hold for each of its tasks.
            yield str(task) if any(mark in str(own) for mark in _OF_OTHERS) else str(own)
