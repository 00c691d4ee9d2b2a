"""Run the package managers for node_state: apt-get and dpkg, or dnf and rpm.

Both classes have the same methods: `installed`, `available`, `candidates`, `download`, `fetch`, `transact`, `hold`,
`repair` and `orphans`. The state of a package is `{"version": full version or None, "held": bool}`.
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
PLAN_AGE_S = 60  # a plan of an upgrade has to list packages that were published just before it
DISTRUST = re.compile(r"signature|GPG error|OpenPGP|NO_PUBKEY|not signed")
POLICY = Path("/usr/sbin/policy-rc.d")
FETCHED = Path("/var/cache/clusterctl")
TRANSACTION_LOCK = RUN / "transaction.lock"
# An upgrade may restart a running daemon, but no package may start one. So the script denies `start`. It also denies
# `restart` of an inactive service. Its lock is shared because two package scripts may run it at the same time.
POLICY_TEXT = f"""\
#!/bin/sh
# Managed by clusterctl: a package transaction starts no service. The script denies only while a process holds
# the lock. If a killed process leaves this file behind, it denies nothing.
[ -e {TRANSACTION_LOCK} ] || exit 0
flock --shared --nonblock {TRANSACTION_LOCK} true && exit 0
while [ "${{1#--}}" != "$1" ]; do shift; done
case "$2" in
  *restart*|*force-reload*) systemctl --quiet is-active "$1" && exit 0; exit 101 ;;
  *start*) exit 101 ;;
esac
exit 0
"""


SYSTEMCTL = STORE / "transaction" / "systemctl"
# Each package of Debian with a unit reloads systemd. An rpm transaction does it once, and so does this script: it puts
# a reload off until another command needs it, or until the end of the transaction. With --root systemctl only changes
# files.
SYSTEMCTL_TEXT = """\
#!/bin/sh
# Managed by clusterctl: a package transaction reloads systemd once.
case " $* " in
  " daemon-reload " | " --system daemon-reload ") : >"$0.pending"; exit 0 ;;
  *" is-active "* | *" is-enabled "* | *" --user "* | *" --global "* | *" --root="*) ;;
  *) if [ -e "$0.pending" ]; then rm -f "$0.pending"; /usr/bin/systemctl daemon-reload; fi ;;
esac
exec /usr/bin/systemctl "$@"
"""
DPKG_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"  # apt's own default of DPkg::Path


def matches(version, pattern):
    """Return whether a full version matches a pin.

    A pin is a pattern for the full version, the version without epoch, or the upstream version. An empty pin matches
    any version. None matches no pin.
    """
    if version is None:
        return False
    without_epoch = version.split(":", 1)[-1]
    forms = (version, without_epoch, without_epoch.rsplit("-", 1)[0])
    return not pattern or any(fnmatch.fnmatchcase(form, pattern) for form in forms)


def moved(name, new, old):
    """Return the change of a package from version `old` to `new`. An empty string means not installed."""
    action = "upgraded" if new and old else "installed" if new else "removed"
    what = f"version {new}, was {old}" if new and old else f"{action} ({new or old})"
    return change("package", name, action, what, old, new)


@dataclass
class Package:
    """The requested state of a package."""

    name: str
    version: str = ""  # a pattern
    hold: bool | None = None  # None: unchanged
    absent: bool = False
    url: str = ""  # of the package file, if no package source has it; `version` is then a full version
    sha256: str = ""

    def met(self, state):
        return state["version"] is None if self.absent else matches(state["version"], self.version)


def targets(manager, items, states, planned):
    """Return ({name: version} for an upgrade of installed packages, packages whose pin needs another version).

    The version is the package manager's candidate, if it matches the pin. A package that an administrator holds stays.
    """
    installed = {name: state for name, state in states.items() if state["version"]}
    due = [item for item in items if item.name in installed and not item.absent]
    due = [item for item in due if item.hold is not None or not installed[item.name]["held"]]
    offered = manager.candidates([i.name for i in due], PLAN_AGE_S if planned else INDEX_AGE_S) if due else {}
    found = {item.name: offered[item.name] for item in due if matches(offered.get(item.name), item.version)}
    return found, [item for item in due if item.name not in found and not item.met(installed[item.name])]


def come_along(manager, versions, items):
    """Return the changes of other packages that a change of these to {name: version} causes.

    The dependencies of a package by URL are unknown before the download.
    """
    install = {item.name: versions[item.name] for item in items if item.name in versions and not item.url}
    moves, names = manager.rehearse(install) if install else {}, {item.name for item in items}
    return [moved(name, *move) for name, move in moves.items() if name not in names]


def fetched(package, suffix, fetch):
    """Return the path of a package's file. Download it with `fetch(url, path)` if it is not in the cache."""
    path = FETCHED / f"{package.name}-{package.sha256}{suffix}"
    if not (path.exists() and hashlib.sha256(path.read_bytes()).hexdigest() == package.sha256):
        FETCHED.mkdir(exist_ok=True)
        path.unlink(missing_ok=True)
        try:
            fetch(package.url, str(path))
        except NodeError as error:  # its first line has only the tool's name and exit status
            cause = str(error).partition("\n")[2] or str(error)
            raise NodeError(f"package {package.name}: {package.url} cannot be downloaded\n{cause}") from None
        found = hashlib.sha256(path.read_bytes()).hexdigest()
        if found != package.sha256:
            path.unlink()
            raise NodeError(f"package {package.name}: {package.url} has the sha256 {found}, expected {package.sha256}")
    return str(path)


def forget_fetched(words):
    """Delete the cached files of packages that are now installed."""
    for path in words:
        if path.startswith(f"{FETCHED}/"):
            Path(path).unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # not empty, or never created
        FETCHED.rmdir()


@contextlib.contextmanager
def no_service_starts(notes):
    """Deny package scripts the start of services. Yield the descriptor of the lock, which apt-get inherits.

    If the module is killed, the apt-get that continues still holds the lock and so starts no service. apt does not pass
    the descriptor to package scripts, so their background processes cannot hold the lock.
    """
    is_managed = not POLICY.exists() or "clusterctl" in POLICY.read_text(errors="replace")
    with exclusive(TRANSACTION_LOCK, notes) as descriptor:
        try:
            if is_managed:
                write(POLICY, POLICY_TEXT.encode(), mode=0o755)
            yield descriptor
        finally:
            if is_managed:
                POLICY.unlink(missing_ok=True)


@contextlib.contextmanager
def one_reload(notes):
    """Reload systemd once for the packages of a transaction. Yield options for apt-get."""
    path = re.findall(r"='(.*)'", run("apt-config", "shell", "path", "DPkg::Path")[1])
    for folder in (SYSTEMCTL.parent.parent, SYSTEMCTL.parent):
        folder.mkdir(mode=0o700, exist_ok=True)
    write(SYSTEMCTL, SYSTEMCTL_TEXT.encode(), mode=0o755)
    try:
        yield "-o", f"DPkg::Path={':'.join([str(SYSTEMCTL.parent), *(path or [DPKG_PATH])])}"
    finally:
        SYSTEMCTL.unlink(missing_ok=True)
        reload_pending(notes)


def reload_pending(notes):
    """Make the reload of systemd that a transaction has put off, also one of a killed run."""
    pending = SYSTEMCTL.with_name("systemctl.pending")
    if pending.exists():
        status, output = run("systemctl", "daemon-reload", check=False)
        pending.unlink()
        if status != 0:
            notes.append(f"systemd was not reloaded after the installation of packages: {complaint(output)}")


class Apt:
    """Run apt-get and dpkg."""

    locks = (
        "/var/lib/dpkg/lock-frontend",
        "/var/lib/dpkg/lock",
        "/var/lib/apt/lists/lock",
        "/var/cache/apt/archives/lock",
    )
    stamp = STORE / "index-refreshed"
    restarts = ()  # packages that need a reboot after an upgrade; Debian's packages request the reboot themselves

    def __init__(self, notes):
        self.notes, self.warnings, self.refreshed, self.broken, self.interrupted = notes, "", False, [], False

    def apt_get(self, *words, check=True, pass_fds=()):
        """Run apt-get when no other process holds a package lock. Return its output."""
        wait_until_free("the package lock", lambda: lock_holder(self.locks), self.notes)
        options = [f"DPkg::Lock::Timeout={LOCK_WAIT_S}", "Acquire::Retries=3", "Dpkg::Use-Pty=0"]
        options += ["APT::Install-Recommends=0", *(f"Dpkg::Options::=--force-conf{word}" for word in ("def", "old"))]
        argv = ["apt-get", "-q", "-y", *(word for option in options for word in ("-o", option)), *words]
        status, output = run(*argv, check=False, pass_fds=pass_fds, both=True)
        if check and status != 0:
            raise NodeError(f"apt-get {words[0]} ended with {status}\n{complaint(output)}\n{self.warnings}".rstrip())
        return output

    def installed(self, _names):
        """Return the states of all packages. Put packages that a killed dpkg left incomplete into `broken`."""
        _, output = run("dpkg-query", "-W", "-f", "${Package}\\t${db:Status-Abbrev}\\t${Version}\\n")
        rows = [row.split("\t") for row in output.splitlines() if row.count("\t") == 2]
        self.broken = [name for name, status, _ in rows if status[1] in "HUFWt" or status[2:3] == "R"]
        self.interrupted = any(Path("/var/lib/dpkg/updates").glob("[0-9]*"))
        return {name: {"version": v, "held": status[0] == "h"} for name, status, v in rows if status[1] in "iWt"}

    def repair(self):
        """Complete the transaction of a killed dpkg. A partly unpacked package is downloaded again."""
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
        """Return {name: versions, newest first}. Refresh the index first if `fresh` is set or the index is stale."""
        if fresh or self.stale():
            self.refresh()
        found = {}
        for row in run("apt-cache", "madison", *names, check=False)[1].splitlines():
            cells = [cell.strip() for cell in row.split("|")]
            if len(cells) == 3 and not cells[2].endswith("Sources"):
                found.setdefault(cells[0], []).append(cells[1])
        return found

    def candidates(self, names, age):
        """Return {name: version} of the packages that apt would upgrade. The index is at most `age` seconds old."""
        if self.stale(age):
            self.refresh()
        output = run("apt-cache", "policy", *names)[1]
        rows = re.findall(r"(?m)^(\S+):\n +Installed: (\S+)\n +Candidate: (\S+)", output)
        return {name: candidate for name, version, candidate in rows if version != candidate}

    def stale(self, age=INDEX_AGE_S):
        """Return whether the index is missing, or older than `age` seconds, a package source or a keyring."""

        def newest(*paths):
            return max((path.stat().st_mtime for path in paths if path.exists()), default=0)

        apt, lists = Path("/etc/apt"), Path("/var/lib/apt/lists")
        if not any(lists.glob("*_Packages*")):
            return True
        refreshed = newest(self.stamp, lists, lists / "partial")
        sources = [apt / "sources.list", apt / "sources.list.d", *apt.glob("sources.list.d/*"), *apt.glob("keyrings/*")]
        return refreshed < newest(*sources) or time.time() - refreshed > age

    def refresh(self):
        """Fetch the index. Store apt's warnings for the error message of a later installation."""
        # apt would append to the files of an interrupted download.
        for path in Path("/var/lib/apt/lists/partial").glob("*"):
            path.unlink(missing_ok=True)
        try:
            output, warnings = self.update()
        except NodeError as error:  # apt-get update fails if an untrusted source has no index yet
            output = warnings = str(error)
            if not DISTRUST.search(warnings):
                raise
        if DISTRUST.search(warnings) and renewed(warnings, self):
            output, warnings = self.update()
        # apt only warns about a bad signature and keeps the old index. Here it is an error.
        if DISTRUST.search(warnings):
            raise NodeError(f"packages: a source cannot be trusted\n{complaint(output)}")
        self.warnings, self.refreshed = complaint(output) if warnings else "", True
        store(self.stamp, b"")

    def update(self):
        """Run apt-get update. Return its output, and the lines with warnings and errors."""
        output = self.apt_get("update")
        return output, "\n".join(line for line in output.splitlines() if line.startswith(("W:", "E:", "Err:")))

    def download(self, url, path):
        """Download a file with apt's helper, which uses apt's proxies."""
        run("/usr/lib/apt/apt-helper", "-o", "Acquire::Retries=3", "download-file", url, path)

    def fetch(self, package):
        """Return the path of a package's file, downloaded if necessary."""
        return fetched(package, ".deb", self.download)

    def transact(self, install, remove, download_only=False):
        """Install {name: version, file or ""} and remove `remove` in one transaction, without starting services."""
        words, along = self.words(install)
        if download_only:
            self.apt_get(*words, "--download-only")
            return
        manual = set(run("apt-mark", "showmanual")[1].split()) if along else set()
        with no_service_starts(self.notes) as lock, one_reload(self.notes) as options:
            self.apt_get(*words, *(name + "-" for name in remove), *options, pass_fds=(lock,))
        forget_fetched(words)
        if set(along) - manual:  # so that apt removes them when no package needs them any more
            run("apt-mark", "auto", *sorted(set(along) - manual))

    def words(self, install):
        """Return (apt-get's arguments, {name: version} of dependencies that have to be among them)."""
        downgrade = ["--allow-downgrades"] if any(install.values()) else []
        along = self.along({name: v for name, v in install.items() if v and not v.startswith("/")})
        named = {**install, **along}
        words = [v if v.startswith("/") else f"{name}={v}" if v else name for name, v in named.items()]
        return ["install", *downgrade, *words], along

    def rehearse(self, install):
        """Return {name: (new version or "", old or "")} of all changes by an installation, also of held packages."""
        return simulated(self.apt_get(*self.words(install)[0], "--simulate", "--allow-change-held-packages"))

    def along(self, install):
        """Return {name: version} of the dependencies that need an exact version, recursively.

        Without an explicit version apt-get selects the newest one and then fails.
        """
        found, due = {}, install
        while due:
            shown = run("apt-cache", "show", *(f"{name}={version}" for name, version in due.items()), check=False)[1]
            needs = [need for line in re.findall(r"(?m)^(?:Pre-)?Depends: (.*)", shown) for need in line.split(", ")]
            exact = [re.fullmatch(r"([a-z0-9+.-]+)(?::\w+)? \(= (\S+)\)", need) for need in needs]
            due = {match[1]: match[2] for match in exact if match and match[1] not in {**install, **found}}
            found.update(due)
        return found

    def moves(self, kept, planned):
        """Return {name: (new version, old or "")} of an upgrade of all packages except `kept`. Change nothing."""
        if self.stale(PLAN_AGE_S if planned else INDEX_AGE_S):
            self.refresh()
        return simulated(self.upgrade(kept, "--simulate"))

    def move(self, kept):
        """Upgrade all packages except `kept`."""
        with no_service_starts(self.notes) as lock:
            self.upgrade(kept, pass_fds=(lock,))

    def upgrade(self, kept, *words, pass_fds=()):
        """Run `apt-get upgrade`, which removes nothing. Keep `kept` and all packages from their source packages."""
        sources = set(run("dpkg-query", "-W", "-f", "${source:Package}\\n", *kept, check=False)[1].split("\n")) - {""}
        names = " ".join(f"src:{name}" for name in sorted(sources) if " " not in name)
        administrator = Path("/etc/apt/preferences")
        text = administrator.read_text() + "\n" if administrator.exists() else ""
        RUN.mkdir(mode=0o700, exist_ok=True)  # missing after a boot until the first run, which may be a simulation
        preferences = RUN / "preferences"
        write(preferences, f"{text}Package: {names}\nPin: release *\nPin-Priority: -1\n".encode(), mode=0o644)
        settings = ("-o", f"Dir::Etc::Preferences={preferences}")
        return self.apt_get("upgrade", "--with-new-pkgs", *settings, *words, pass_fds=pass_fds)

    def wants_reboot(self):
        """Return whether the distribution requests a reboot."""
        return Path("/run/reboot-required").exists()

    def hold(self, names, held):
        """Hold packages at their version, or release them."""
        run("apt-mark", "hold" if held else "unhold", *names)

    def orphans(self, pulled):
        """Return those of the dependencies `pulled` that no package needs any more."""
        output = self.apt_get("autoremove", "--simulate")
        return sorted(set(re.findall(r"^Remv (\S+)", output, re.MULTILINE)) & set(pulled))


def simulated(output):
    """Parse the output of `apt-get --simulate` into {name: (new version or "", old or "")}."""
    rows = re.findall(r"(?m)^Inst (\S+) (?:\[(\S+)\] )?\((\S+) ", output)
    removed = re.findall(r"(?m)^Remv (\S+) \[(\S+)\]", output)
    return {name: (new, old) for name, old, new in rows} | {name: ("", old) for name, old in removed}


def transaction(output, installed):
    """Parse dnf's table of a transaction into {name: (new version or "", old or "")}.

    `installed` are the installed versions. dnf prints a long name on a separate line.
    """
    new, old, removed = {}, dict(re.findall(r"(?m)^ +replacing +(\S+)\.\S+ (\S+)$", output)), {}
    for title, body in re.findall(r"(?ms)^(\S[^\n]*):$(.*?)(?=^\S|\Z)", output):
        rows = dict(re.findall(r"(?m)^ (\S+)\s+\S+\s+(\S+)\s+\S+\s+[\d.]+ *[kMG]? *$", body))
        if title.startswith("Removing"):
            removed.update(rows)
        elif title.startswith("Installing"):
            new.update(rows)
        elif title in ("Upgrading", "Downgrading"):
            new.update(rows)
            old.update({name: installed.get(name, "") for name in rows})
    moves = {name: (new.get(name, ""), old.get(name, "")) for name in {**new, **old}}
    # Several versions of a kernel are installed side by side: one transaction adds a version and removes another.
    return moves | {f"{name}-{was}" if name in new else name: ("", was) for name, was in removed.items()}


class Dnf:
    """Run dnf 4 and rpm. A held package is in `excludepkgs` of dnf.conf, which works without the plugin versionlock."""

    configuration = Path("/etc/dnf/dnf.conf")
    locks = ("/var/lib/rpm/.rpm.lock", "/usr/lib/sysimage/rpm/.rpm.lock")
    broken, interrupted, refreshed, warnings = (), False, False, ""
    # The list of dnf's plugin needs-restarting, without the kernels.
    restarts = ("glibc", "linux-firmware", "systemd", "dbus", "dbus-broker", "dbus-daemon", "microcode_ctl")

    def __init__(self, notes):
        self.notes = notes

    def dnf(self, verb, *words):
        """Run dnf when no other process holds rpm's lock. Return its output. `words` override the default options."""
        wait_until_free("the rpm lock", lambda: lock_holder(self.locks), self.notes)
        options = ("install_weak_deps=False", "retries=3", f"metadata_expire={INDEX_AGE_S}")
        status, output = run("dnf", verb, "-y", *("--setopt=" + option for option in options), *words, check=False)
        rehearsed = "--assumeno" in words and "Operation aborted" in output
        if status != 0 and not rehearsed:
            raise NodeError(f"dnf {verb} ended with {status}\n{complaint(output)}")
        return output

    def installed(self, names):
        """Return the states of those packages that are installed. `["-a"]` selects all packages."""
        query = "%{NAME}\\t%|EPOCH?{%{EPOCH}:}:{}|%{VERSION}-%{RELEASE}\\n"
        lines = run("rpm", "-q", "--qf", query, *names, check=False)[1].splitlines()
        if wrong := [line for line in lines if line.startswith("error:")]:  # rpm also fails for what is not installed
            raise NodeError(f"rpm -q: {wrong[0]}")
        rows = [row.split("\t") for row in lines]
        held = self.excluded()
        # dnf does not print an epoch of 0.
        return {r[0]: {"version": re.sub("^0:", "", r[1]), "held": r[0] in held} for r in rows if len(r) == 2}

    def available(self, names, fresh):
        """Return {name: versions, newest first}, also of held packages."""
        words, found = ["--setopt=disable_excludes=main", *(["--refresh"] if fresh else [])], {}
        for row in self.dnf("repoquery", *words, "--qf", "%{name}\t%{evr}\n", *names).splitlines():
            if row.count("\t") == 1:
                found.setdefault(row.split("\t")[0], []).insert(0, row.split("\t")[1])
        return found

    def candidates(self, names, age):
        """Return {name: version} of the packages that dnf would upgrade. The index is at most `age` seconds old."""
        words = ["--setopt=disable_excludes=main", f"--setopt=metadata_expire={age}", "--upgrades", "--latest-limit=1"]
        rows = self.dnf("repoquery", *words, "--qf", "%{name}\t%{evr}\n", *names).splitlines()
        return dict(row.split("\t") for row in rows if row.count("\t") == 1)

    def download(self, url, path):
        """Download a file through dnf's proxy."""
        proxy = re.search(r"(?m)^proxy *= *(\S+)", self.configuration.read_text())
        words = ("--fail", "--silent", "--show-error", "--location", "--retry", "3", "--proto", "=http,https")
        words += ("--proxy", proxy[1]) if proxy else ()
        run("curl", *words, "--output", path, url)

    def fetch(self, package):
        """Return the path of a package's file, downloaded if necessary."""
        return fetched(package, ".rpm", self.download)

    def transact(self, install, remove, download_only=False):
        """Install {name: version, file or ""}, then remove `remove`. dnf has no command for both."""
        words = self.words(install)
        if words:
            self.dnf("install", *(["--downloadonly"] if download_only else []), *words)
        if not download_only:
            forget_fetched(words)
        if remove:
            self.dnf("remove", *remove)

    def words(self, install):
        """Return dnf's arguments for {name: version, file or ""}."""
        return [v if v.startswith("/") else f"{name}-{v}" if v else name for name, v in install.items()]

    def rehearse(self, install):
        """Return {name: (new version or "", old or "")} of all changes by an installation, also of held packages."""
        words = ("--setopt=disable_excludes=main", "--assumeno", *self.words(install))
        return transaction(self.dnf("install", *words), self.versions())

    def versions(self):
        """Return {name: version} of all installed packages."""
        return {name: state["version"] for name, state in self.installed(["-a"]).items()}

    def moves(self, kept, planned):
        """Return {name: (new version or "", old or "")} of an upgrade of all packages except `kept`. Change nothing.

        dnf's list of upgrades contains packages that the transaction then skips, so this simulates the transaction.
        """
        age = f"--setopt=metadata_expire={PLAN_AGE_S if planned else INDEX_AGE_S}"
        return transaction(self.upgrade(kept, age, "--assumeno"), self.versions())

    def move(self, kept):
        """Upgrade all packages except `kept`."""
        self.upgrade(kept)

    def upgrade(self, kept, *words):
        """Run `dnf upgrade`. Skip packages that need a newer version of one in `kept`, as apt does."""
        return self.dnf("upgrade", "--setopt=best=False", *self.but(kept), *words)

    def but(self, kept):
        """Return the options that exclude `kept` and all packages from their source packages."""
        rows = [row.split("\t") for row in run("rpm", "-qa", "--qf", "%{NAME}\\t%{SOURCERPM}\\n")[1].splitlines()]
        sources = {source for name, source in rows if name in kept}
        return [f"--exclude={name}" for name, source in rows if source in sources]

    def wants_reboot(self):
        """Return whether dnf's plugin needs-restarting requests a reboot. Return False if it is not installed.

        A new kernel alone is ignored: the plugin does not know which kernel the boot loader starts.
        """
        status, output = run("dnf", "needs-restarting", "--reboothint", check=False)
        return status == 1 and bool(re.search(r"(?m)^ +\* (?!kernel)", output))

    def excluded(self):
        """Return the names in `excludepkgs` of dnf.conf."""
        lines = re.findall(r"(?m)^excludepkgs\s*=(.*)$", self.configuration.read_text())
        return [name for line in lines for name in re.split(r"[\s,]+", line.strip()) if name]

    def hold(self, names, held):
        """Hold packages at their version, or release them. Keep other names in `excludepkgs`."""
        kept = [name for name in self.excluded() if name not in names] + (list(names) if held else [])
        text = re.sub(r"(?m)^excludepkgs\s*=.*\n?", "", self.configuration.read_text())
        line = f"excludepkgs={','.join(kept)}\n" if kept else ""
        write(self.configuration, text.replace("[main]\n", "[main]\n" + line, 1).encode(), mode=0o644)

    def repair(self):
        """Do nothing: rpm has no state of a partly configured package."""

    def orphans(self, _pulled):
        """Return nothing: dnf removes unused dependencies together with a package."""
        return []


def package_manager(choice, notes):
    """Return the package manager `choice`, or the distribution's for `auto`. Raise NodeError if it is unknown."""
    release = dict(re.findall(r'(?m)^(ID|ID_LIKE)="?([^"\n]*)', Path("/etc/os-release").read_text()))
    words = set(" ".join(release.values()).split())
    if choice == "auto":
        choice = "apt" if words & {"debian", "ubuntu"} else "dnf" if words & {"rhel", "fedora", "centos"} else ""
    if not choice:
        raise NodeError(f"no package manager is known for {' '.join(sorted(words)) or 'this system'}")
    return {"apt": Apt, "dnf": Dnf}[choice](notes)
