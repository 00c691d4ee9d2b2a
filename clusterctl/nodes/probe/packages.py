"""Package sources, and what is installed from them."""

import configparser
import fcntl
import glob
import os
import platform
import pwd
import re
import shutil
import socket
import ssl
import struct
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple

from clusterctl.nodes.probe.common import MAX_OFFERED, MAX_SOURCES, NETWORK_SECONDS, Facts, output, read
from clusterctl.nodes.probe.machine import operating_system


def apt_sources(etc: str = "/etc/apt") -> List[Tuple[str, str]]:
    """Return (URI, suite) of every enabled binary source, in both of apt's notations."""
    found = []
    for path in [etc + "/sources.list", *sorted(glob.glob(etc + "/sources.list.d/*.list"))]:
        for line in read(path).splitlines():
            words = re.sub(r"\[[^]]*\]", "", line.split("#")[0]).split()
            if len(words) >= 3 and words[0] == "deb":
                found.append((words[1], words[2]))
    for path in sorted(glob.glob(etc + "/sources.list.d/*.sources")):
        text = re.sub(r"^#.*\n?", "", read(path), flags=re.M)
        for stanza in re.split(r"\n\s*\n", text):
            fields = {k.lower(): v.split() for k, v in re.findall(r"^([\w-]+):((?:.*)(?:\n[ \t].*)*)", stanza, re.M)}
            if "deb" in fields.get("types", []) and fields.get("enabled", ["yes"]) != ["no"]:
                found += [(uri, suite) for uri in fields.get("uris", []) for suite in fields.get("suites", [])]
    return found


def apt_urls() -> List[List[str]]:
    """Return a list of URLs for each source; one of them must answer."""
    architecture = output("dpkg", "--print-architecture").strip()
    found = []
    for uri, suite in apt_sources():
        suite = suite.replace("$(ARCH)", architecture)
        base = uri.rstrip("/") + ("/" + suite.strip("./") if suite.endswith("/") else "/dists/" + suite)
        if uri.startswith(("http://", "https://")):
            found.append([base.rstrip("/") + "/InRelease", base.rstrip("/") + "/Release"])
        elif uri.startswith("mirror+http"):
            found.append([uri[len("mirror+") :]])
    return found


def dnf_urls(etc: str = "/etc") -> List[List[str]]:
    """Return a list of URLs for each enabled repository whose variables are known; one of them must answer."""
    release = operating_system()["version"]
    variables = {"basearch": platform.machine(), "arch": platform.machine()}
    variables.update(releasever=release.split(".")[0], releasever_major=release.split(".")[0])
    variables["releasever_minor"] = release.partition(".")[2]
    for path in glob.glob(etc + "/dnf/vars/*"):
        variables[os.path.basename(path)] = read(path)
    found = []
    for path in sorted(glob.glob(etc + "/yum.repos.d/*.repo")):
        parser = configparser.RawConfigParser(strict=False)
        try:
            parser.read(path)
        except configparser.Error:
            continue
        for section in parser.sections():
            repo = dict(parser.items(section))
            # Red Hat's repositories accept only the subscription's certificate.
            if repo.get("enabled", "1").lower() not in ("1", "yes", "true", "on") or "sslclientcert" in repo:
                continue
            urls = [u.rstrip("/") + "/repodata/repomd.xml" for u in re.split(r"[\s,]+", repo.get("baseurl", "")) if u]
            urls = urls or [repo[key] for key in ("mirrorlist", "metalink") if key in repo]
            urls = [re.sub(r"\$\{?(\w+)\}?", lambda m: variables.get(m.group(1), m.group()), url) for url in urls]
            urls = [url for url in urls if url.startswith("http") and "$" not in url]
            if urls:
                found.append(urls)
    return found


def package_proxies(proxy: str) -> Dict[str, str]:
    """Return the package manager's proxy by scheme: the given one, else the configured one."""
    if proxy:
        return {"http": proxy, "https": proxy}
    found = {}
    for scheme, value in re.findall(r'^Acquire::(https?)::Proxy "(.+)";', output("apt-config", "dump"), re.M):
        found[scheme] = value
    if "http" in found:
        found.setdefault("https", found["http"])
    for path in ("/etc/dnf/dnf.conf", "/etc/yum.conf"):
        line = re.search(r"^proxy\s*=\s*(http\S+)", read(path), re.M)
        if line and not found:
            found = {"http": line.group(1), "https": line.group(1)}
    return {scheme: value for scheme, value in found.items() if value.upper() != "DIRECT"}


def fetch(opener: urllib.request.OpenerDirector, urls: List[str]) -> Optional[str]:
    """Return None if one of the URLs answers, else the error of the first.

    A server error (5xx) is retried twice: proxies return one when many nodes request a new file at once.
    """
    problems: Dict[str, str] = {}
    for attempt in range(3):
        time.sleep(attempt)
        for url in urls if not attempt else [url for url in urls if problems[url].startswith("HTTP 5")]:
            try:
                with opener.open(url, timeout=NETWORK_SECONDS) as answer:
                    answer.read(1024)
                return None
            except urllib.error.HTTPError as error:
                problems[url] = "HTTP %d %s" % (error.code, error.reason)
            except urllib.error.URLError as error:
                problems[url] = str(error.reason)
            except (OSError, ValueError, ssl.SSLError) as error:
                problems[url] = str(error) or type(error).__name__
        if not any(problem.startswith("HTTP 5") for problem in problems.values()):
            break
    return problems[urls[0]]


def resolve(name: str) -> Optional[str]:
    """Return None if a name resolves, else the resolver's error."""
    try:
        socket.getaddrinfo(name, None)
    except OSError as error:
        return error.strerror or str(error)
    return None


def mirror_urls(mirrors: Dict[str, str]) -> List[List[str]]:
    """Return the URL of the inventory's mirror of this distribution, if any: it replaces the node's sources."""
    release = operating_system()
    base = mirrors.get(release["id"], "").rstrip("/")
    if not base:
        return []
    return [[base + "/dists/" + release["codename"] + "/InRelease"] if release["family"] == "Debian" else [base + "/"]]


def network(options: Facts) -> Optional[Facts]:
    """Test all package sources and the resolution of the first name in parallel, with a time limit.

    Return None if another node fetches the packages.
    """
    if options.get("cached"):
        return None
    sources = mirror_urls(options.get("mirrors") or {}) or (apt_urls() if shutil.which("apt-get") else dnf_urls())
    # A package cache that the inventory has no longer: the run replaces these sources.
    former = read("/etc/clusterctl/package-cache-url").strip()
    sources = [urls for urls in sources if not former or not urls[0].startswith(former + "/")]
    os.environ["no_proxy"] = ",".join(options.get("no_proxy") or [])
    proxies = package_proxies(options.get("proxy") or "")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler(proxies))
    first_step = proxies.get("http") or (sources[0][0] if sources else "")
    name = urllib.parse.urlsplit(first_step if "//" in first_step else "//" + first_step).hostname or ""
    numeric = re.match(r"[\d.]+$|[0-9a-fA-F:]+$", name)
    late = "no answer within %d seconds" % (NETWORK_SECONDS + 3)
    errors: Dict[str, Optional[str]] = {}

    def start(key: str, function: Callable[..., Optional[str]], *arguments: Any) -> threading.Thread:
        errors[key] = late
        thread = threading.Thread(target=lambda: errors.update({key: function(*arguments)}), daemon=True)
        thread.start()
        return thread

    threads = [start(urls[0], fetch, opener, urls) for urls in sources[:MAX_SOURCES]]
    if name and not numeric:
        threads.append(start("name", resolve, name))
    deadline = time.monotonic() + NETWORK_SECONDS + 3
    for thread in threads:
        thread.join(max(0, deadline - time.monotonic()))
    answers = dict(errors)  # a copy: a late thread must not change the output
    return {
        "name": name,
        "name_error": answers.pop("name", None),
        "proxy": without_password(first_step) if proxies else None,
        "sources": [{"url": without_password(url), "error": error} for url, error in answers.items()],
    }


def without_password(url: str) -> str:
    return re.sub(r"//[^/@]*@", "//", url)


def lock_holder() -> Optional[str]:
    """Return the process that holds the package manager's lock, without locking it (F_GETLK)."""
    for path in (
        "/var/lib/dpkg/lock-frontend",
        "/var/lib/dpkg/lock",
        "/var/lib/apt/lists/lock",
        "/var/lib/rpm/.rpm.lock",
    ):
        try:
            with open(path, "rb") as file:
                # struct flock of 64-bit Linux: type, whence, start, length, pid.
                query = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
                kind, _, _, _, pid = struct.unpack("hhqqi4x", fcntl.fcntl(file.fileno(), fcntl.F_GETLK, query))
        except OSError:
            continue
        if kind != fcntl.F_UNLCK:
            command = read("/proc/%d/cmdline" % pid).replace("\0", " ").strip() or "a hidden process"
            return "pid %d (%s) on %s" % (pid, command[:80], path)
    return None


def installed_packages(names: Iterable[str]) -> Dict[str, str]:
    """Return the installed versions of these packages from dpkg, or else rpm."""
    # Both fail for an unknown name, so list all packages.
    listed = output("dpkg-query", "--show", "--showformat=${Package} ${Version} ${db:Status-Status}\\n")
    listed = listed or output("rpm", "--query", "--all", "--queryformat", "%{NAME} %{VERSION}-%{RELEASE} installed\\n")
    found = (line.split() for line in listed.splitlines())
    return {one[0]: one[1] for one in found if len(one) == 3 and one[0] in names and one[2] == "installed"}


def slurm_packages(options: Facts) -> Facts:
    """Return the installed versions of Slurm's daemons and munge, the available ones of slurmd, and slurm's UID.

    `options` has the package names of the `daemons` of all sources, and of the `worker` in this node's source. The
    installation candidate comes first. Only apt has that in its index; a new node of the RHEL family has no repository
    with Slurm yet.
    """
    policy = output("apt-cache", "policy", *options["worker"]) if shutil.which("apt-cache") else ""
    tables = re.findall(r"(?m)^[a-z0-9][a-z0-9+.-]*:\n((?: .*\n)+)", policy)
    table = next((one for one in tables if re.search(r"(?m)^  Candidate: \d", one)), "")
    offered = re.findall(r"(?m)^(?:  Candidate:| \*\*\*|    ) (\d\S*)(?: -?\d+)?$", table)
    try:
        user = pwd.getpwnam("slurm").pw_uid  # type: Optional[int]
    except KeyError:
        user = None
    return {
        "installed": installed_packages({*options["daemons"], "munge"}),
        "offered": list(dict.fromkeys(offered))[:MAX_OFFERED],
        "user": user,
    }


def security_updates(root: str = "") -> Optional[int]:
    """Return the age in seconds of the last successful security update, or of its setup; None: not set up.

    The stamps are from apt's daily script, after unattended-upgrade succeeded, and from dnf-automatic's timer.
    """
    for settings, stamp in (
        ("/etc/apt/apt.conf.d/60clusterctl-security", "/var/lib/apt/periodic/upgrade-stamp"),
        ("/etc/dnf/automatic.conf", "/var/lib/systemd/timers/stamp-dnf-automatic.timer"),
    ):
        found = [path for path in (root + settings, root + stamp) if os.path.exists(path)]
        if os.path.exists(root + settings):
            return max(0, int(time.time() - max(os.path.getmtime(path) for path in found)))
    return None
