"""Find accounts, users, QOS and options in Slurm that the inventory does not have, or has with another value."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from clusterctl.inventory.slurm_limits import ROOT, limits
from clusterctl.inventory.slurm_policy import ACCOUNTS, NORMAL, QOS, USERS
from clusterctl.util.text import printable

# Defaults of users_slurm_account and users_verify_user in role users.
_DEFAULT_ACCOUNT, _VERIFY_USER = "cluster", "clusterverify"
_MOST = 128  # characters of a value
# What Slurm prints of an object without that option (tests/samples/slurm).
_UNSET = {"Fairshare": "1", "GraceTime": "0", "PreemptMode": "cluster", "Priority": "0", "UsageFactor": "1.000000"}
_DENY = {"Flags:denyonlimit": "DenyOnLimit"}


@dataclass(frozen=True)
class Entry:
    """An account, a user in an account, or a QOS, with its options as plugins/module_utils/slurm_limits.py has them."""

    kind: str
    name: str
    parent: str = ""
    """The account above an account, or the account of a user."""
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, str, str]:
        """What selects the object; an account can move to another parent."""
        return self.kind, self.name, self.parent if self.kind == "user" else ""

    def __str__(self) -> str:
        if self.kind == "user":
            return f"user {self.name} in {self.parent}"
        return f"{self.kind} {self.name}"


@dataclass(frozen=True)
class ByHand:
    """What differs from the inventory. Texts are for people, from names that are not trusted."""

    objects: tuple[str, ...] = ()
    """Accounts, users and QOS that the inventory does not have; bootstrap does not change them."""
    options: tuple[str, ...] = ()
    """Options that the inventory does not have; bootstrap does not change them."""
    changed: tuple[str, ...] = ()
    """Options with another value than in the inventory; bootstrap sets them."""
    missing: tuple[str, ...] = ()
    """What is not in Slurm yet; bootstrap adds it."""


def associations_command(cluster: str) -> list[str]:
    """Return the words for `sacctmgr show` that print accounts and users, without inherited options."""
    fields = f"format=account,user,partition,parentname,{','.join(limits().OF_ASSOCIATION)}"
    return ["assoc", f"cluster={cluster}", "wopl", fields]


def qos_command() -> list[str]:
    """Return the words for `sacctmgr show` that print the QOS."""
    return ["qos", f"format=name,{','.join(limits().OF_QOS)}"]


def parse(associations: str, qos: str) -> Iterator[Entry]:
    """Yield what sacctmgr printed."""
    module = limits()
    for line in filter(None, associations.split("\n")):
        account, user, partition, parent, *values = [*line.split("|"), "", "", ""]
        if not partition:
            found = _printable(module.printed(module.OF_ASSOCIATION, values[:-3]))
            name, above = (user, account) if user else (account, parent)
            yield Entry("user" if user else "account", printable(name, _MOST), printable(above, _MOST), found)
    for line in filter(None, qos.split("\n")):
        name, *values = line.split("|")
        yield Entry("QOS", printable(name, _MOST), options=_printable(module.printed(module.OF_QOS, values)))


def _printable(options: Mapping[str, str]) -> dict[str, str]:
    return {printable(name, _MOST): printable(value, _MOST) for name, value in options.items()}


def declared(variables: Mapping[str, Any]) -> Iterator[Entry]:
    """Yield what the inventory has, from the variables of the head."""
    module, default = limits(), str(variables.get("users_slurm_account", _DEFAULT_ACCOUNT)).lower()
    named = {default, ROOT}
    yield Entry("user", ROOT, ROOT)
    if tester := str(variables.get("users_verify_user", _VERIFY_USER)):
        yield Entry("user", tester, default)
    for user in variables.get(USERS, []):
        if user.get("state", "present") == "present":
            account = str(user.get("slurm_account") or default).lower()
            named.add(account)
            yield Entry("user", user["name"], account, module.flatten(module.OF_ASSOCIATION, _options(user, "slurm_")))
    accounts = variables.get(ACCOUNTS, [])
    for one in accounts:
        parent = str(one.get("parent", "")).lower()
        options = module.flatten(module.OF_ASSOCIATION, _options(one))
        yield Entry("account", str(one["name"]).lower(), parent, options)
    for name in sorted(named - {str(one["name"]).lower() for one in accounts}):
        yield Entry("account", name)
    always = _DENY if variables.get("slurm_head_deny_on_limit", True) else {}
    listed = {str(one["name"]).lower(): _options(one) for one in variables.get(QOS, [])}
    for name, options in ({NORMAL: {}} | listed).items():
        yield Entry("QOS", name, options=module.flatten(module.OF_QOS, options) | always)


def _options(entry: Mapping[str, Any], prefix: str = "") -> Mapping[str, Any]:
    found: Mapping[str, Any] = entry.get(f"{prefix}options") or {}
    return found


def compare(wanted: Iterator[Entry], present: Iterator[Entry]) -> ByHand:
    """Return what differs between the inventory and Slurm."""
    differs = limits().differs
    known = {one.key: one for one in wanted}
    found = {one.key: one for one in present}
    objects, options, changed = [], [], []
    for key, one in found.items():
        if key not in known:
            objects.append(f"{one} (below {one.parent})" if one.kind == "account" and one.parent else str(one))
            continue
        declared_one = known[key]
        if one.kind == "account" and declared_one.parent and one.parent != declared_one.parent:
            changed.append(f"{one}: parent {one.parent}, inventory {declared_one.parent}")
        added = [name for name in one.options if name not in declared_one.options and not _is_default(one, name)]
        options += [f"{one}: {', '.join(_text(name, one.options[name]) for name in added)}"] if added else []
        for name, value in declared_one.options.items():
            if differs(one.options.get(name), value) and not (name not in one.options and _UNSET.get(name) == value):
                there = one.options.get(name)
                is_there = _text(name, there) if there is not None else f"no {_text(name, '')}"
                changed.append(f"{one}: {is_there}, inventory {_text(name, value)}")
    missing = [str(one) for key, one in known.items() if key not in found]
    return ByHand(tuple(objects), tuple(options), tuple(changed), tuple(missing))


def _is_default(one: Entry, name: str) -> bool:
    """Return whether Slurm sets this value itself."""
    value = one.options[name]
    return _UNSET.get(name) == value or (one.key[:2] == ("account", ROOT) and (name, value) == ("QOS", NORMAL))


def _text(name: str, value: str) -> str:
    """Return an option in the notation of sacctmgr: `GrpTRES=gres/gpu=8`, `Flags=NoReserve`."""
    option, _, part = name.partition(":")
    if option == "Flags":
        return f"Flags={value or part}"
    return "=".join(filter(None, (option, part, value)))
