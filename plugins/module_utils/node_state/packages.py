"""The package managers as node_state drives them: apt-get and dpkg, dnf and rpm, as a person would at the shell.

Each answers the same calls: `installed`, `available`, `candidates`, `download`, `fetch`, `transact`, `hold`, `repair`
and `orphans`. The state of a package is `{"version": full version or None, "held": bool}`.
"""

from __future__ import annotations

import contextlib
import fnmatch
import hashlib
import re
import time
from dataclasses import dataclass
from pathlib import Path

from ansible.module_utils.node_state.keys import renewed
from ansible.module_utils.node_state.tools import (
    LOCK_WAIT_S,
    RUN,
    STORE,
    NodeError,
    change,
    complaint,
    exclusive,
    lock_holder,
    run,
    store,
    wait_until_free,
    write,
)

INDEX_AGE_S = 3600
# Who asks what an upgrade would bring wants to hear of what was published a moment ago.
PLAN_AGE_S = 60
DISTRUST = re.compile(r"signature|GPG error|OpenPGP|NO_PUBKEY|not signed")
POLICY = Path("/usr/sbin/policy-rc.d")
FETCHED = Path("/var/cache/clusterctl")
TRANSACTION_LOCK = RUN / "transaction.lock"
# `start` is denied, and so is `restart` of what does not run: an upgrade may restart a daemon, no package starts one.
# Two services may ask at once, hence the shared lock here against our exclusive one.
POLICY_TEXT = f"""\
#!/bin/sh
# clusterctl: a package transaction starts no service. It denies only while a process holds the lock,
# so that this file, should a kill leave it behind, denies nothing.
[ -e {TRANSACTION_LOCK} ] || exit 0
flock --shared --nonblock {TRANSACTION_LOCK} true && exit 0
while [ "${{1#--}}" != "$1" ]; do shift; done
case "$2" in
  *restart*|*force-reload*) systemctl --quiet is-active "$1" && exit 0; exit 101 ;;
  *start*) exit 101 ;;
esac
exit 0
"""


def matches(version, pattern):
    """Whether a full version meets a pin, which names all of it, all but the epoch, or upstream's part alone.

    No version (None) meets no pin; the empty pin is met by any version.
    """
    if version is None:
        return False
    without_epoch = version.split(":", 1)[-1]
    forms = (version, without_epoch, without_epoch.rsplit("-", 1)[0])
    return not pattern or any(fnmatch.fnmatchcase(form, pattern) for form in forms)


def moved(name, new, old):
    """The change of a package that moves from version `old` to `new`; "" is none."""
    action = "upgraded" if new and old else "installed" if new else "removed"
    what = f"version {new}, was {old}" if new and old else f"{action} ({new or old})"
    return change("package", name, action, what, old, new)


@dataclass
class Package:
    """A package as it should be."""

    name: str
    version: str = ""  # a pattern
    hold: bool | None = None  # None: left as it is
    absent: bool = False
    url: str = ""  # of its file, where no package source has it; the version is no pattern then
    sha256: str = ""

    def met(self, state):
        return state["version"] is None if self.absent else matches(state["version"], self.version)


def targets(manager, items, states, planned):
    """({name: version} that installed packages move to, packages still to find a version for that meets their pin).

    They move to what the package manager would move them to, where that meets the pin. What somebody holds stays.
    """
    here = {name: state for name, state in states.items() if state["version"]}
    mine = [item for item in items if item.name in here and not item.absent]
    mine = [item for item in mine if item.hold is not None or not here[item.name]["held"]]
    offered = manager.candidates([i.name for i in mine], PLAN_AGE_S if planned else INDEX_AGE_S) if mine else {}
    found = {item.name: offered[item.name] for item in mine if matches(offered.get(item.name), item.version)}
    return found, [item for item in mine if item.name not in found and not item.met(here[item.name])]


def come_along(manager, versions, items):
    """The changes of packages beside these that moving these to {name: version} brings.

    What a package by URL brings is not known before it is fetched.
    """
    install = {item.name: versions[item.name] for item in items if item.name in versions and not item.url}
    moves, ours = manager.rehearse(install) if install else {}, {item.name for item in items}
    return [moved(name, *move) for name, move in moves.items() if name not in ours]


def fetched(package, suffix, fetch):
    """The path of the package's own file, which `fetch(url, path)` brings where it is not here already."""
    path = FETCHED / f"{package.name}-{package.sha256}{suffix}"
    if not (path.exists() and hashlib.sha256(path.read_bytes()).hexdigest() == package.sha256):
        FETCHED.mkdir(exist_ok=True)
        path.unlink(missing_ok=True)
        try:
            fetch(package.url, str(path))
        except NodeError as error:  # its first line has the tool's name, which says nothing to the reader
            why = str(error).partition("\n")[2] or str(error)
            raise NodeError(f"package {package.name}: {package.url} cannot be downloaded\n{why}") from None
        found = hashlib.sha256(path.read_bytes()).hexdigest()
        if found != package.sha256:
            path.unlink()
            raise NodeError(f"package {package.name}: {package.url} has the sha256 {found}, expected {package.sha256}")
    return str(path)


def forget_fetched(words):
    """Delete the files of packages that are installed now."""
    for path in words:
        if path.startswith(f"{FETCHED}/"):
            Path(path).unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # not empty, or never made
        FETCHED.rmdir()


@contextlib.contextmanager
def no_service_starts(notes):
    """Yields a lock's descriptor for apt-get to inherit, so that a killed module's orphan still starts nothing.

    apt hands it to no package script: nothing that those leave running can keep the lock.
    """
    ours = not POLICY.exists() or "clusterctl" in POLICY.read_text(errors="replace")
    with exclusive(TRANSACTION_LOCK, notes) as descriptor:
        try:
            if ours:
                write(POLICY, POLICY_TEXT.encode(), mode=0o755)
            yield descriptor
        finally:
            if ours:
                POLICY.unlink(missing_ok=True)


class Apt:
    """apt-get and dpkg."""

    locks = (
        "/var/lib/dpkg/lock-frontend",
        "/var/lib/dpkg/lock",
        "/var/lib/apt/lists/lock",
        "/var/cache/apt/archives/lock",
    )
    stamp = STORE / "index-refreshed"
    restarts = ()  # of whose coming the distribution will want a reboot; apt's packages ask for it themselves

    def __init__(self, notes):
        self.notes, self.warnings, self.refreshed, self.broken, self.interrupted = notes, "", False, [], False

    def apt_get(self, *words, check=True, pass_fds=()):
        """Run apt-get once no other process holds a package lock; its output."""
        wait_until_free("the package lock", lambda: lock_holder(self.locks), self.notes)
        options = [f"DPkg::Lock::Timeout={LOCK_WAIT_S}", "Acquire::Retries=3", "Dpkg::Use-Pty=0"]
        options += ["APT::Install-Recommends=0", *(f"Dpkg::Options::=--force-conf{word}" for word in ("def", "old"))]
        argv = ["apt-get", "-q", "-y", *(word for option in options for word in ("-o", option)), *words]
        status, output = run(*argv, check=False, pass_fds=pass_fds, both=True)
        if check and status != 0:
            raise NodeError(f"apt-get {words[0]} ended with {status}\n{complaint(output)}\n{self.warnings}".rstrip())
        return output

    def installed(self, _names):
        """The states of all packages; those that a killed dpkg left half done go to `broken`."""
        _, output = run("dpkg-query", "-W", "-f", "${Package}\\t${db:Status-Abbrev}\\t${Version}\\n")
        rows = [row.split("\t") for row in output.splitlines() if row.count("\t") == 2]
        self.broken = [name for name, status, _ in rows if status[1] in "HUFWt" or status[2:3] == "R"]
        self.interrupted = any(Path("/var/lib/dpkg/updates").glob("[0-9]*"))
        return {name: {"version": v, "held": status[0] == "h"} for name, status, v in rows if status[1] in "iWt"}

    def repair(self):
        """Finish what a killed dpkg left. A half unpacked package has to be fetched again by name."""
        wait_until_free("the package lock", lambda: lock_holder(self.locks), self.notes)
        with no_service_starts(self.notes) as lock:
            run("dpkg", "--force-confdef", "--force-confold", "--configure", "-a", check=False)
            self.installed(())
            if self.broken:
                self.apt_get("install", "--fix-broken", check=False, pass_fds=(lock,))
                self.installed(())
            if self.broken:
                self.apt_get("install", "--reinstall", *self.broken, pass_fds=(lock,))

    def available(self, names, fresh):
        """{name: versions, newest first}. The index is refreshed when asked, older than an hour or than a source."""
        if fresh or self.stale():
            self.refresh()
        found = {}
        for row in run("apt-cache", "madison", *names, check=False)[1].splitlines():
            cells = [cell.strip() for cell in row.split("|")]
            if len(cells) == 3 and not cells[2].endswith("Sources"):
                found.setdefault(cells[0], []).append(cells[1])
        return found

    def candidates(self, names, age):
        """{name: version} to which apt would move those of these packages that it would; the index is not older."""
        if self.stale(age):
            self.refresh()
        output = run("apt-cache", "policy", *names)[1]
        rows = re.findall(r"(?m)^(\S+):\n +Installed: (\S+)\n +Candidate: (\S+)", output)
        return {name: candidate for name, version, candidate in rows if version != candidate}

    def stale(self, age=INDEX_AGE_S):
        """Whether there is no index, or it is older than that or than a file that says where it comes from."""

        def newest(*paths):
            return max((path.stat().st_mtime for path in paths if path.exists()), default=0)

        apt, lists = Path("/etc/apt"), Path("/var/lib/apt/lists")
        if not any(lists.glob("*_Packages*")):
            return True
        refreshed = newest(self.stamp, lists, lists / "partial")
        sources = [apt / "sources.list", apt / "sources.list.d", *apt.glob("sources.list.d/*"), *apt.glob("keyrings/*")]
        return refreshed < newest(*sources) or time.time() - refreshed > age

    def refresh(self):
        """Fetch the index; what could not be fetched is kept, to be told should an installation fail."""
        # apt would take what a download left that broke off for the beginning of this one.
        for path in Path("/var/lib/apt/lists/partial").glob("*"):
            path.unlink(missing_ok=True)
        try:
            output, told = self.update()
        except NodeError as error:  # what apt says of a source that has no index yet
            output = told = str(error)
            if not DISTRUST.search(told):
                raise
        if DISTRUST.search(told) and renewed(told, self):
            output, told = self.update()
        # apt calls a bad signature a warning and goes on with the index it had; for us it is an error.
        if DISTRUST.search(told):
            raise NodeError(f"packages: a source cannot be trusted\n{complaint(output)}")
        self.warnings, self.refreshed = complaint(output) if told else "", True
        store(self.stamp, b"")

    def update(self):
        """Run apt-get update; its output, and what of it tells of trouble."""
        output = self.apt_get("update")
        return output, "\n".join(line for line in output.splitlines() if line.startswith(("W:", "E:", "Err:")))

    def download(self, url, path):
        """Fetch a file; apt's helper goes through apt's proxies."""
        run("/usr/lib/apt/apt-helper", "-o", "Acquire::Retries=3", "download-file", url, path)

    def fetch(self, package):
        """The path of a package's own file."""
        return fetched(package, ".deb", self.download)

    def transact(self, install, remove, download_only=False):
        """Install {name: version, file or ""} and remove names in one transaction that starts no service."""
        words, along = self.words(install)
        if download_only:
            self.apt_get(*words, "--download-only")
            return
        manual = set(run("apt-mark", "showmanual")[1].split()) if along else set()
        with no_service_starts(self.notes) as lock:
            self.apt_get(*words, *(name + "-" for name in remove), pass_fds=(lock,))
        forget_fetched(words)
        if set(along) - manual:  # or they would stay when nothing needs them any more
            run("apt-mark", "auto", *sorted(set(along) - manual))

    def words(self, install):
        """(apt-get's words that install these, {name: version} of what has to be named with them)."""
        downgrade = ["--allow-downgrades"] if any(install.values()) else []
        along = self.along({name: v for name, v in install.items() if v and not v.startswith("/")})
        named = {**install, **along}
        words = [v if v.startswith("/") else f"{name}={v}" if v else name for name, v in named.items()]
        return ["install", *downgrade, *words], along

    def rehearse(self, install):
        """{name: (new version or "", old or "")} of all that installing {name: version} changes, held or not."""
        return simulated(self.apt_get(*self.words(install)[0], "--simulate", "--allow-change-held-packages"))

    def along(self, install):
        """{name: version} of what packages of these versions need in one version and no other.

        apt-get would take the newest of them, and then find that it does not fit.
        """
        found, due = {}, install
        while due:
            told = run("apt-cache", "show", *(f"{name}={version}" for name, version in due.items()), check=False)[1]
            needs = [need for line in re.findall(r"(?m)^(?:Pre-)?Depends: (.*)", told) for need in line.split(", ")]
            exact = [re.fullmatch(r"([a-z0-9+.-]+)(?::\w+)? \(= (\S+)\)", need) for need in needs]
            due = {match[1]: match[2] for match in exact if match and match[1] not in {**install, **found}}
            found.update(due)
        return found

    def moves(self, kept, planned):
        """{name: (new version, old or "")} of what an upgrade of all but `kept` and its like would bring."""
        if self.stale(PLAN_AGE_S if planned else INDEX_AGE_S):
            self.refresh()
        return simulated(self.upgrade(kept, "--simulate"))

    def move(self, kept):
        """Upgrade all but those."""
        with no_service_starts(self.notes) as lock:
            self.upgrade(kept, pass_fds=(lock,))

    def upgrade(self, kept, *words, pass_fds=()):
        """Run `apt-get upgrade`, which removes nothing; what is of the same source as `kept` is no candidate for it."""
        sources = set(run("dpkg-query", "-W", "-f", "${source:Package}\\n", *kept, check=False)[1].split("\n")) - {""}
        names = " ".join(f"src:{name}" for name in sorted(sources) if " " not in name)
        own = Path("/etc/apt/preferences")
        text = own.read_text() + "\n" if own.exists() else ""
        RUN.mkdir(mode=0o700, exist_ok=True)  # a rehearsal may be the first since the node has started
        preferences = RUN / "preferences"
        write(preferences, f"{text}Package: {names}\nPin: release *\nPin-Priority: -1\n".encode(), mode=0o644)
        settings = ("-o", f"Dir::Etc::Preferences={preferences}")
        return self.apt_get("upgrade", "--with-new-pkgs", *settings, *words, pass_fds=pass_fds)

    def wants_reboot(self):
        """Whether the distribution asks for one."""
        return Path("/run/reboot-required").exists()

    def hold(self, names, held):
        """Keep packages at their version, or let them go."""
        run("apt-mark", "hold" if held else "unhold", *names)

    def orphans(self, pulled):
        """Of the packages that came along with ours, those that nothing needs any more."""
        output = self.apt_get("autoremove", "--simulate")
        return sorted(set(re.findall(r"^Remv (\S+)", output, re.MULTILINE)) & set(pulled))


def simulated(output):
    """{name: (new version or "", old or "")} of what apt-get says of a transaction that it only simulates."""
    rows = re.findall(r"(?m)^Inst (\S+) (?:\[(\S+)\] )?\((\S+) ", output)
    gone = re.findall(r"(?m)^Remv (\S+) \[(\S+)\]", output)
    return {name: (new, old) for name, old, new in rows} | {name: ("", old) for name, old in gone}


def transaction(output, here):
    """{name: (new version or "", old or "")} of the table in which dnf shows a transaction.

    `here` are the versions that are installed. A long name has a line of its own.
    """
    new, old, gone = {}, dict(re.findall(r"(?m)^ +replacing +(\S+)\.\S+ (\S+)$", output)), {}
    for title, body in re.findall(r"(?ms)^(\S[^\n]*):$(.*?)(?=^\S|\Z)", output):
        rows = dict(re.findall(r"(?m)^ (\S+)\s+\S+\s+(\S+)\s+\S+\s+[\d.]+ *[kMG]? *$", body))
        if title.startswith("Removing"):
            gone.update(rows)
        elif title.startswith("Installing"):
            new.update(rows)
        elif title in ("Upgrading", "Downgrading"):
            new.update(rows)
            old.update({name: here.get(name, "") for name in rows})
    moves = {name: (new.get(name, ""), old.get(name, "")) for name in {**new, **old}}
    # Of a kernel several versions stay beside each other.
    return moves | {f"{name}-{was}" if name in new else name: ("", was) for name, was in gone.items()}


class Dnf:
    """dnf 4 and rpm. A held package stands in `excludepkgs` of dnf.conf: every dnf honours that, without a plugin."""

    configuration = Path("/etc/dnf/dnf.conf")
    locks = ("/var/lib/rpm/.rpm.lock", "/usr/lib/sysimage/rpm/.rpm.lock")
    broken, interrupted, refreshed, warnings = (), False, False, ""
    # As dnf's plugin needs-restarting has them; only a kernel is more.
    restarts = ("glibc", "linux-firmware", "systemd", "dbus", "dbus-broker", "dbus-daemon", "microcode_ctl")

    def __init__(self, notes):
        self.notes = notes

    def dnf(self, verb, *words):
        """Run dnf once no other process holds rpm's lock; its output. A later word wins over an earlier one."""
        wait_until_free("the rpm lock", lambda: lock_holder(self.locks), self.notes)
        options = ("install_weak_deps=False", "retries=3", f"metadata_expire={INDEX_AGE_S}")
        status, output = run("dnf", verb, "-y", *("--setopt=" + option for option in options), *words, check=False)
        rehearsed = "--assumeno" in words and "Operation aborted" in output
        if status != 0 and not rehearsed:
            raise NodeError(f"dnf {verb} ended with {status}\n{complaint(output)}")
        return output

    def installed(self, names):
        """The states of those of the packages that are installed; with "-a" for a name of all."""
        query = "%{NAME}\\t%|EPOCH?{%{EPOCH}:}:{}|%{VERSION}-%{RELEASE}\\n"
        rows = [row.split("\t") for row in run("rpm", "-q", "--qf", query, *names, check=False)[1].splitlines()]
        held = self.excluded()
        # dnf does not show an epoch of 0.
        return {r[0]: {"version": re.sub("^0:", "", r[1]), "held": r[0] in held} for r in rows if len(r) == 2}

    def available(self, names, fresh):
        """{name: versions}, the last one listed first; a hold does not hide anything here."""
        words, found = ["--setopt=disable_excludes=main", *(["--refresh"] if fresh else [])], {}
        for row in self.dnf("repoquery", *words, "--qf", "%{name}\t%{evr}\n", *names).splitlines():
            if row.count("\t") == 1:
                found.setdefault(row.split("\t")[0], []).insert(0, row.split("\t")[1])
        return found

    def candidates(self, names, age):
        """{name: version} to which dnf would move those of these packages that it would; the index is not older."""
        words = ["--setopt=disable_excludes=main", f"--setopt=metadata_expire={age}", "--upgrades", "--latest-limit=1"]
        rows = self.dnf("repoquery", *words, "--qf", "%{name}\t%{evr}\n", *names).splitlines()
        return dict(row.split("\t") for row in rows if row.count("\t") == 1)

    def download(self, url, path):
        """Fetch a file, through dnf's proxy."""
        proxy = re.search(r"(?m)^proxy *= *(\S+)", self.configuration.read_text())
        words = ("--fail", "--silent", "--show-error", "--location", "--retry", "3", "--proto", "=http,https")
        words += ("--proxy", proxy[1]) if proxy else ()
        run("curl", *words, "--output", path, url)

    def fetch(self, package):
        """The path of a package's own file."""
        return fetched(package, ".rpm", self.download)

    def transact(self, install, remove, download_only=False):
        """Install {name: version, file or ""}, then remove names: dnf has no single transaction for both."""
        words = self.words(install)
        if words:
            self.dnf("install", *(["--downloadonly"] if download_only else []), *words)
        if not download_only:
            forget_fetched(words)
        if remove:
            self.dnf("remove", *remove)

    def words(self, install):
        """dnf's words for {name: version, file or ""}."""
        return [v if v.startswith("/") else f"{name}-{v}" if v else name for name, v in install.items()]

    def rehearse(self, install):
        """{name: (new version or "", old or "")} of all that installing {name: version} changes, held or not."""
        words = ("--setopt=disable_excludes=main", "--assumeno", *self.words(install))
        return transaction(self.dnf("install", *words), self.versions())

    def versions(self):
        """{name: version} of all that is installed."""
        return {name: state["version"] for name, state in self.installed(["-a"]).items()}

    def moves(self, kept, planned):
        """{name: (new version or "", old or "")} of what an upgrade of all but `kept` and its like would bring.

        What dnf lists as upgrades has in it what it then keeps back, so it is asked for the transaction itself.
        """
        age = f"--setopt=metadata_expire={PLAN_AGE_S if planned else INDEX_AGE_S}"
        return transaction(self.upgrade(kept, age, "--assumeno"), self.versions())

    def move(self, kept):
        """Upgrade all but those."""
        self.upgrade(kept)

    def upgrade(self, kept, *words):
        """Run `dnf upgrade`; what needs a newer one of `kept` stays, as with apt."""
        return self.dnf("upgrade", "--setopt=best=False", *self.but(kept), *words)

    def but(self, kept):
        """The words that leave out what is of the same source as `kept`."""
        rows = [row.split("\t") for row in run("rpm", "-qa", "--qf", "%{NAME}\\t%{SOURCERPM}\\n")[1].splitlines()]
        sources = {source for name, source in rows if name in kept}
        return [f"--exclude={name}" for name, source in rows if source in sources]

    def wants_reboot(self):
        """Whether the distribution asks for one, as far as dnf's plugin for that is there; a kernel alone is no reason.

        Which kernel would start is for the boot loader to say.
        """
        status, output = run("dnf", "needs-restarting", "--reboothint", check=False)
        return status == 1 and bool(re.search(r"(?m)^ +\* (?!kernel)", output))

    def excluded(self):
        """The names in dnf.conf's `excludepkgs`."""
        lines = re.findall(r"(?m)^excludepkgs\s*=(.*)$", self.configuration.read_text())
        return [name for line in lines for name in re.split(r"[\s,]+", line.strip()) if name]

    def hold(self, names, held):
        """Keep packages at their version, or let them go; other names in `excludepkgs` stay."""
        kept = [name for name in self.excluded() if name not in names] + (list(names) if held else [])
        text = re.sub(r"(?m)^excludepkgs\s*=.*\n?", "", self.configuration.read_text())
        line = f"excludepkgs={','.join(kept)}\n" if kept else ""
        write(self.configuration, text.replace("[main]\n", "[main]\n" + line, 1).encode(), mode=0o644)

    def repair(self):
        """rpm needs none: its transactions are not left half configured."""

    def orphans(self, _pulled):
        """None: dnf removes with a package what came along for it."""
        return []


def package_manager(choice, notes):
    """The package manager called `choice`; `auto` takes the distribution's. NodeError for an unknown distribution."""
    release = dict(re.findall(r'(?m)^(ID|ID_LIKE)="?([^"\n]*)', Path("/etc/os-release").read_text()))
    words = set(" ".join(release.values()).split())
    if choice == "auto":
        choice = "apt" if words & {"debian", "ubuntu"} else "dnf" if words & {"rhel", "fedora", "centos"} else ""
    if not choice:
        raise NodeError(f"no package manager is known for {' '.join(sorted(words)) or 'this system'}")
    return {"apt": Apt, "dnf": Dnf}[choice](notes)
