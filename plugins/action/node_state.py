"""The controller's part of `node_state`: check the arguments, render the templates, call the module.

Templates are rendered as by ansible.builtin.template, with the role's variables. Rendered text is data: ansible-core
templates only trusted strings, and rendered text is not trusted. All arguments are checked here, before the node is
contacted, so the module receives complete and valid arguments.

Calls may wait for a later task (clusterctl/ansible/waiting.py).
"""

from __future__ import annotations

import base64
import binascii
import re
import shlex
import time
from collections.abc import Callable, Iterable
from pathlib import Path, PurePosixPath
from typing import Any

from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure, AnsibleError

from clusterctl.ansible import background, light_module, waiting

Data = dict[str, Any]

CONFIRM_S = 30.0
"""How long a new connection is tried."""
HEADER = "Written by clusterctl; a change made here is undone by its next run."
UNIT_SUFFIXES = (".service", ".socket", ".timer", ".target", ".mount", ".automount", ".path", ".slice", ".swap")
SOURCES = ("content", "content_base64", "template", "copy", "link", "insert", "state")
NAMES = {
    "variable": r"[A-Za-z_][A-Za-z0-9_]*",
    "scope": r"[A-Za-z0-9_][A-Za-z0-9_.-]*",
    "package": r"[A-Za-z0-9][A-Za-z0-9+._-]*",
    "version": r"[A-Za-z0-9*][A-Za-z0-9.+~:*?^-]*",
    "repository": r"[A-Za-z0-9][A-Za-z0-9_-]*",
    "unit": r"[A-Za-z0-9][A-Za-z0-9:_.@\\-]*",
    "sysctl": r"[A-Za-z0-9][A-Za-z0-9_-]*([./][A-Za-z0-9_-]+)+",
}


class ArgumentError(ValueError):
    """An invalid argument; the message has the item."""


def named(kind: str, value: object) -> str:
    """Return the value if it is a valid name of this kind."""
    if not isinstance(value, str) or not re.fullmatch(NAMES[kind], value):
        raise ArgumentError(f"{value!r} is not a valid name of a {kind}")
    return value


def take(kind: str, given: object, required: Iterable[str], allowed: Iterable[str] = ()) -> Data:
    """Return a mapping with known keys only. A null counts as absent, so a role may pass an empty variable."""
    if not isinstance(given, dict):
        raise ArgumentError(f"{kind}: expected a mapping, got {type(given).__name__}")
    kept = {key: value for key, value in given.items() if value is not None}
    required = list(required)
    name = kept.get(required[0], "without a name")
    for key in required:
        if key not in kept:
            raise ArgumentError(f"{kind} {name}: {key} is missing")
    for key in kept:
        if key not in (*required, *allowed):
            raise ArgumentError(f"{kind} {name}: unknown key {key}, expected {', '.join((*required, *allowed))}")
    return kept


def one_of(what: str, value: object, choices: tuple[str, ...]) -> str:
    """Return the value if it is one of the choices."""
    if value not in choices:
        raise ArgumentError(f"{what} is {value!r}, expected {' or '.join(choices)}")
    return str(value)


def flag(what: str, value: object) -> bool:
    """Return the value if it is a boolean."""
    if not isinstance(value, bool):
        raise ArgumentError(f"{what} is {value!r}, expected true or false")
    return value


def words(what: str, value: object) -> list[str]:
    """Return the value if it is a list of words."""
    if not isinstance(value, list) or not all(isinstance(word, str) and word for word in value):
        raise ArgumentError(f"{what}: expected a list of words")
    return [str(word) for word in value]


def absolute(kind: str, path: object) -> str:
    """Return the value if it is a normalised absolute path."""
    plain = isinstance(path, str) and path.startswith("/") and path != "/" and path.isprintable()
    if not plain or str(PurePosixPath(str(path))) != path or ".." in PurePosixPath(str(path)).parts:
        raise ArgumentError(f"{kind} {path!r}: expected an absolute path without .. and trailing /")
    return str(path)


def access(kind: str, path: str, given: Data, mode: str) -> Data:
    """Return owner, group and mode, with their defaults."""
    mode = given.get("mode", mode)
    if not isinstance(mode, str) or not re.fullmatch(r"0?[0-7]{3,4}", mode):
        raise ArgumentError(f'{kind} {path}: mode is {mode!r}, expected octal text in quotes, like "0644"')
    return {"owner": str(given.get("owner", "root")), "group": str(given.get("group", "root")), "mode": mode}


def encoded(content: str | bytes) -> str:
    """Return content in base64, as the module expects it."""
    return base64.b64encode(content.encode() if isinstance(content, str) else content).decode()


def file(given: object, read: Callable[[str, str], str | bytes]) -> Data:
    """Check one of `files`. `read("template" or "copy", name)` returns the content of a role's file."""
    rest = (
        "owner",
        "group",
        "mode",
        "validate",
        "before_packages",
        "on_change",
        "in_effect",
        "confirm",
        "secret",
        "before",
        "optional",
    )
    item = take("file", given, ["dest"], (*SOURCES, *rest))
    path = absolute("file", item["dest"])
    source = [key for key in SOURCES if key in item and not (key == "state" and item[key] == "present")]
    if len(source) != 1:
        raise ArgumentError(f"file {path}: expected one of {', '.join(SOURCES)}, got {' and '.join(source) or 'none'}")
    if not isinstance(item[source[0]], str):
        raise ArgumentError(f"file {path}: {source[0]} is {type(item[source[0]]).__name__}, expected text")
    value = str(item[source[0]])
    result: Data = {"name": path, **access("file", path, item, "0644")}
    if source[0] == "state":
        result["type"] = one_of(f"file {path}: state", value, ("absent", "restored"))
    elif source[0] == "link":
        result.update(type="link", target=value)
    elif source[0] == "insert":
        result["insert"] = insertion(path, value, item)
    elif source[0] == "content_base64":
        try:
            result["data"] = encoded(base64.b64decode("".join(value.split()), validate=True))
        except binascii.Error:
            raise ArgumentError(f"file {path}: content_base64 is not base64") from None
    else:
        result["data"] = encoded(value if source[0] == "content" else read(source[0], value))
    if source[0] != "insert" and {"before", "optional"} & item.keys():
        raise ArgumentError(f"file {path}: before and optional are for insert")
    for key in ("before_packages", "secret"):
        result[key] = flag(f"file {path}: {key}", item.get(key, False))
    if "insert" in result and result["before_packages"]:
        raise ArgumentError(f"file {path}: before_packages is not for insert")
    result["validate"] = str(item.get("validate", ""))
    if result["validate"] and "%s" not in result["validate"]:
        raise ArgumentError(f"file {path}: validate needs %s in place of the file's name")
    commands = item.get("on_change", [])
    commands = [commands] if commands and isinstance(commands[0], str) else commands
    result["on_change"] = [words(f"file {path}: on_change", argv) for argv in commands]
    result["in_effect"] = words(f"file {path}: in_effect", item.get("in_effect", []))
    if "confirm" in item:
        given = take("confirm", item["confirm"], ["command", "hint"])
        result["confirm"] = {"command": words(f"file {path}: confirm", given["command"]), "hint": str(given["hint"])}
    return result


def insertion(path: str, lines: str, item: Data) -> Data:
    """Check an insertion into a file: whole lines, and the pattern of the line after them."""
    before = item.get("before")
    try:
        re.compile(before if isinstance(before, str) and before else "(")
    except re.error:
        raise ArgumentError(f"file {path}: insert needs before, the pattern of a line") from None
    if lines and not lines.endswith("\n"):
        raise ArgumentError(f"file {path}: insert must end with a line break")
    optional = flag(f"file {path}: optional", item.get("optional", False))
    return {"lines": lines, "before": before, "optional": optional}


def directory(given: object) -> Data:
    """Check one of `directories`."""
    item = take("directory", given, ["path"], ("owner", "group", "mode"))
    path = absolute("directory", item["path"])
    return {"name": path, **access("directory", path, item, "0755")}


def repository(given: object) -> Data:
    """Check one of `repositories`; return its files for both package managers, the key first."""
    optional = ("suites", "components", "architectures", "signed", "priority", "metalink")
    item = take("repository", given, ["name", "url", "key", "fingerprint"], optional)
    name, url, key = named("repository", item["name"]), str(item["url"]), str(item["key"])
    fingerprint = "".join(str(item["fingerprint"]).split()).upper()
    lists = {field: words(f"repository {name}: {field}", item.get(field, [])) for field in optional[:3]}
    signed = one_of(f"repository {name}: signed", item.get("signed", "packages"), ("packages", "metadata"))
    if any(re.search(r"\s", word) for word in [url, *(word for value in lists.values() for word in value)]):
        raise ArgumentError(f"repository {name}: white space in url, suites, components or architectures")
    if not re.fullmatch(r"https?://[^\s'\"]+", key):
        raise ArgumentError(f"repository {name}: key is {key!r}, expected the URL of a public key")
    if not re.fullmatch("[0-9A-F]{40}", fingerprint):
        raise ArgumentError(f"repository {name}: fingerprint is {fingerprint!r}, expected 40 hexadecimal digits")
    apt_key, rpm_key = f"/etc/apt/keyrings/{name}.asc", f"/etc/pki/rpm-gpg/{name}.asc"
    fields = {"Types": ["deb"], "URIs": [url], "Suites": lists["suites"] or ["./"], "Components": lists["components"]}
    fields.update({"Architectures": lists["architectures"], "Signed-By": [apt_key]})
    deb822 = f"# Key: {key} {fingerprint}\n"
    deb822 += "".join(f"{field}: {' '.join(value)}\n" for field, value in fields.items() if value)
    priority = item.get("priority", 99)
    if isinstance(priority, bool) or not isinstance(priority, int) or not 1 <= priority <= 99:
        raise ArgumentError(f"repository {name}: priority is {priority!r}, expected a number from 1 to 99")
    check = "gpgcheck=1" if signed == "packages" else "gpgcheck=0\nrepo_gpgcheck=1"
    place = "metalink" if flag(f"repository {name}: metalink", item.get("metalink", False)) else "baseurl"
    repo = f"[{name}]\nname={name}\n{place}={url}\n{check}\ngpgkey=file://{rpm_key}\nskip_if_unavailable=0\n"
    repo += f"priority={priority}\n" if "priority" in item else ""
    pinned = {"url": key, "fingerprint": fingerprint}
    sources = f"/etc/apt/sources.list.d/{name}.sources"
    return {
        "Apt": [{"name": apt_key, **pinned}, {"name": sources, "data": encoded(deb822)}],
        "Dnf": [{"name": rpm_key, **pinned}, {"name": f"/etc/yum.repos.d/{name}.repo", "data": encoded(repo)}],
    }


def package(given: object) -> Data:
    """Check one of `packages`: a name, or a mapping."""
    given = {"name": given} if isinstance(given, str) else given
    item = take("package", given, ["name"], ("version", "hold", "state", "url", "sha256"))
    name, version = named("package", item["name"]), item.get("version", "")
    if version != "" and (version == "latest" or not isinstance(version, str)):
        raise ArgumentError(f"package {name}: version is {version!r}, expected a version in quotes, never latest")
    state = one_of(f"package {name}: state", item.get("state", "present"), ("present", "absent"))
    hold = None if "hold" not in item else flag(f"package {name}: hold", item["hold"])
    version = named("version", version) if version else ""
    url, sha256 = str(item.get("url", "")), str(item.get("sha256", ""))
    if url and not (re.fullmatch(r"https?://[^\s'\"]+", url) and re.fullmatch("[0-9a-f]{64}", sha256)):
        raise ArgumentError(f"package {name}: expected a url that starts with http, and the file's sha256")
    if url and not re.fullmatch(r"[^*?]+", version):
        raise ArgumentError(f"package {name}: version is {version!r}, expected the full version of the file at its url")
    own = {"url": url, "sha256": sha256} if url else {}
    return {"name": name, "version": version, "hold": hold, "absent": state == "absent", **own}


def unit(given: object) -> Data:
    """Check one of `units`. A stopped unit is by default not enabled."""
    item = take("unit", given, ["name"], ("enabled", "state", "masked", "restart_on", "reload_on", "reload_tells"))
    name = named("unit", item["name"])
    masked = flag(f"unit {name}: masked", item.get("masked", False))
    state = one_of(f"unit {name}: state", item.get("state", "stopped" if masked else "started"), ("started", "stopped"))
    if masked and state == "started":
        raise ArgumentError(f"unit {name}: a masked unit cannot be started")
    started = state == "started"
    return {
        "name": name if name.endswith(UNIT_SUFFIXES) else name + ".service",
        "enabled": flag(f"unit {name}: enabled", item.get("enabled", started)),
        "started": started,
        "masked": masked,
        **{key: words(f"unit {name}: {key}", item.get(key, [])) for key in ("restart_on", "reload_on")},
        "reload_tells": flag(f"unit {name}: reload_tells", item.get("reload_tells", False)),
    }


def sysctl(scope: str, given: object) -> tuple[list[Data], list[Data]]:
    """Check the settings; return them and the file that applies them at boot."""
    if not isinstance(given, dict):
        raise ArgumentError("sysctl: expected a mapping of settings")
    settings = []
    for key, value in sorted(given.items()):
        if isinstance(value, bool) or not isinstance(value, str | int) or not str(value).split():
            raise ArgumentError(f"sysctl {key}: {value!r} is not a number or text")
        settings.append({"name": named("sysctl", key), "value": " ".join(str(value).split())})
    text = "".join(f"{setting['name']} = {setting['value']}\n" for setting in settings)
    path = f"/etc/sysctl.d/60-clusterctl-{scope}.conf"
    return settings, [{"name": path, "data": encoded(f"# {HEADER}\n{text}")}] if settings else []


def once(kind: str, items: Iterable[Data]) -> None:
    """Raise ArgumentError for two items with the same name."""
    seen: set[str] = set()
    for item in items:
        if item["name"] in seen:
            raise ArgumentError(f"{kind} {item['name']} is given twice")
        seen.add(item["name"])


def listed(arguments: Data, key: str) -> list[Any]:
    """Return a list argument; a null is an empty list."""
    value = arguments.get(key) or []
    if not isinstance(value, list):
        raise ArgumentError(f"{key}: expected a list, got {type(value).__name__}")
    return value


def normalise(arguments: Data, read: Callable[[str, str], str | bytes]) -> Data:
    """Return the arguments for the module. Raises ArgumentError with the first invalid item."""
    known = ("name", "state", "now", "in_background", "download_only", "environment", "upgrade", "union", "partial")
    known += ("package_manager", "repositories", "packages", "directories", "files", "sysctl", "units")
    for key in arguments:
        if key not in known:
            raise ArgumentError(f"unknown argument {key}, expected {', '.join(known)}")
    states = ("present", "absent", "probe", "flush")
    result: Data = {"state": one_of("state", arguments.get("state") or "present", states)}
    result["package_manager"] = arguments.get("package_manager") or "auto"
    one_of("package_manager", result["package_manager"], ("auto", "apt", "dnf"))
    if result["state"] in ("probe", "flush"):
        return result
    result["name"] = named("scope", arguments.get("name"))
    if result["state"] == "absent":
        return result
    result["packages"] = [package(item) for item in listed(arguments, "packages")]
    once("package", result["packages"])
    result["download_only"] = flag("download_only", arguments.get("download_only") or False)
    result["upgrade"] = flag("upgrade", arguments.get("upgrade") or False)
    result["union"] = flag("union", arguments.get("union") or False)
    result["partial"] = flag("partial", arguments.get("partial") or False)
    if result["download_only"]:
        variables = arguments.get("environment") or {}
        result["environment"] = {named("variable", name): str(value) for name, value in variables.items()}
        return result
    result["repositories"] = [repository(item) for item in listed(arguments, "repositories")]
    result["directories"] = [directory(item) for item in listed(arguments, "directories")]
    result["files"] = [file(item, read) for item in listed(arguments, "files")]
    result["sysctl"], kept = sysctl(result["name"], arguments.get("sysctl") or {})
    result["files"] += kept
    result["units"] = [unit(item) for item in listed(arguments, "units")]
    sources = [item for source in result["repositories"] for item in source["Apt"] + source["Dnf"]]
    once("path", [*sources, *result["directories"], *result["files"]])
    once("unit", result["units"])
    return result


def sent(calls: Iterable[Data]) -> list[Data]:
    """Return calls as the module gets them."""
    return [
        {**call, "files": [{key: one[key] for key in one if key != "confirm"} for one in call["files"]]}
        if "files" in call
        else call
        for call in calls
    ]


class ActionModule(light_module.Light):
    """The arguments are documented in plugins/modules/node_state.yml."""

    _requires_connection = True

    def run(self, tmp: str | None = None, task_vars: Data | None = None) -> Data:
        """Let the call wait, or make it, after all that wait. No result has the content of secret files."""
        result: Data = super().run(tmp, task_vars)
        task_vars = task_vars or {}
        arguments = dict(self._task.args)
        if arguments.get("state") == background.STATE:
            return {**result, **background.begun(str(arguments.get("of")))}
        if self._task._role:
            role = str(self._task._role.get_name()).strip().rsplit("/", 1)[-1]
            arguments["name"] = arguments.get("name") or role
            moved = self._templar.template(task_vars.get("upgrade_roles", []))
            arguments.setdefault("upgrade", not {role, "all"}.isdisjoint(moved))
        try:
            given = normalise(arguments, lambda how, name: self._read(how, name, task_vars))
            given["now"] = given["state"] == "probe" or flag("now", arguments.get("now") or False)
            flag("in_background", arguments.get("in_background") or False)
        except ArgumentError as error:
            raise AnsibleActionFail(f"node_state: {error}") from None
        own = None if given["state"] == "flush" else given
        return {**result, **waiting.made(self, own, task_vars, record_key=self._record_key(task_vars))}

    def _execute_module(self, **given: Any) -> Data:
        """Make calls, then run what confirms their changes.

        Here and not in a later task, which would begin only when all other hosts have come to it.
        """
        arguments = given["module_args"]
        if "calls" not in arguments:
            return dict(super()._execute_module(**given))  # another module, for Ansible's own functions
        found: Data = super()._execute_module(
            **{**given, "module_args": {**arguments, "calls": sent(arguments["calls"])}}
        )
        results = found.get("results")
        for call, result in zip(arguments["calls"], results if isinstance(results, list) else [], strict=False):
            ran = {change["name"] for change in result.get("changes", ()) if change["kind"] == "command"}
            for one in call.get("files", ()):
                due = "confirm" in one and any(argv[0] in ran for argv in one["on_change"])
                if (
                    due
                    and not (self._task.check_mode or result.get("failed"))
                    and (said := self._confirm(one["confirm"]))
                ):
                    result.update(failed=True, msg=f"file {one['name']}: {said}")
                    found.update(failed=True, msg=result["msg"])
        return found

    def _confirm(self, given: Data) -> str:
        """Run a command over a new connection; return why it was not possible, or an empty text."""
        until, command = time.monotonic() + CONFIRM_S, shlex.join(given["command"])
        while True:
            try:
                self._connection.reset()
                done = self._low_level_execute_command(command)
            except AnsibleConnectionFailure as error:
                if time.monotonic() > until:
                    return f"{given['hint']}\n{error}"
                time.sleep(1)
            else:
                complaint = str(done["stderr"]).strip() or str(done["stdout"]).strip()
                return "" if done["rc"] == 0 else f"{given['hint']}\n{complaint}"

    def _read(self, how: str, name: str, task_vars: Data) -> str | bytes:
        """Return the content of a file in the role's files/, or a rendered template of its templates/."""
        try:
            path = Path(str(self._find_needle("templates" if how == "template" else "files", name)))
            if how == "copy":
                return path.read_bytes()
            return self.rendered(path.read_text(encoding="utf-8"), HEADER, task_vars) or ""
        except AnsibleError as error:
            raise AnsibleActionFail(f"node_state: {name}: {error}") from error

    def _record_key(self, task_vars: Data) -> str | None:
        """Return the key for the recorded hashes of secrets, if the cluster has one.

        Not by lookup('cluster_secret', …), which fails for a missing secret: this one may be missing.
        """
        directory = task_vars.get("inventory_dir")
        if not directory or not Path(directory, "secrets.yml").is_file():
            return None
        secrets = self._loader.load_from_file(str(Path(directory, "secrets.yml")), unsafe=True)  # without a copy
        return str(secrets["record_key"]) if isinstance(secrets, dict) and "record_key" in secrets else None
