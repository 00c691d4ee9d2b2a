"""Find packages with known vulnerabilities that let a user become root or Slurm's administrator.

If a distribution has published its fixed version, that version counts. Otherwise the upstream release counts. An older
version is then reported as not known to be fixed, because a distribution may backport a fix.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from clusterctl.util.text import upstream


@dataclass(frozen=True)
class Advisory:
    """A vulnerability in packages of distributions and in `authors`, the packages that upstream publishes.

    `fixed` has the first fixed version of a distribution, by system: the id and the release of os-release, or only the
    major release, for example `ubuntu 24.04` and `rocky 9`. `releases` are the first fixed upstream releases, one for
    each fixed branch, the newest last.
    """

    packages: tuple[str, ...]
    names: str
    lets: str
    fixed: Mapping[str, str]
    releases: Sequence[str] = ()
    authors: tuple[str, ...] = ()


_SLURM = ("slurmctld", "slurmd", "slurmdbd", "slurm-slurmctld", "slurm-slurmd", "slurm-slurmdbd")
_SCHEDMD = ("slurm-smd-slurmctld", "slurm-smd-slurmd", "slurm-smd-slurmdbd")
TOOLKIT = ("nvidia-container-toolkit-base", "nvidia-container-toolkit")
# Debian's versions are from the changelogs of its packages, read on 2026-11-23; the fix in Debian 12's Slurm is from a
# review and was not read there. Ubuntu 24.04's munge is the version in nebius/soperator#2174. Red Hat has errata for
# munge (https://access.redhat.com/security/cve/CVE-2026-25506), but the fixed versions of RHEL and its rebuilds were
# not found. Neither was that of Ubuntu 22.04.
ADVISORIES = (
    Advisory(
        ("munge",),
        "CVE-2026-25506",
        "lets any user of the node read the munge key",
        {"debian 12": "0.5.15-2+deb12u1", "debian 13": "0.5.16-1.1~deb13u1", "ubuntu 24.04": "0.5.15-4ubuntu0.1"},
        ("0.5.18",),  # https://github.com/dun/munge/security/advisories/GHSA-r9cr-jf4v-75gh
    ),
    Advisory(
        _SLURM,
        "CVE-2025-43904",
        "lets a coordinator of an account become Slurm's administrator",
        {"debian 12": "22.05.8-4+deb12u3", "debian 13": "24.11.5-1"},
        ("23.11.11", "24.05.8", "24.11.5"),  # CHANGELOG of each branch, https://github.com/SchedMD/slurm
        _SCHEDMD,
    ),
    Advisory(
        _SLURM,
        "CVE-2026-65107, CVE-2026-65140",
        "lets users skip a check of credentials, and operators become Slurm's administrators",
        {"debian 13": "24.11.5-4+deb13u1"},
        ("25.05.9", "25.11.8", "26.05.4"),  # https://github.com/SchedMD/slurm/releases
        _SCHEDMD,
    ),
    # https://nvidia.custhelp.com/app/answers/detail/a_id/5850; role nvidia_container_toolkit refuses older versions.
    Advisory(
        (),
        "CVE-2026-24260 and others before it",
        "lets a container escape to its host",
        {},
        ("1.19.1",),
        TOOLKIT,
    ),
)


# NVIDIA's driver, by branch. Sources: the changelog of Debian's packages (550), OpenMandriva's issue 3216 (575), notes
# on NVIDIA's bulletin 5747 in a public repository (580.126.09), and Flatcar's issues 1731, 2010 and 2155 for the rest;
# all refer to NVIDIA's bulletins. An entry does not apply to a branch that it does not list: its state is not known.
_ROOT = "may let any user of a GPU become root"
DRIVER = (
    Advisory(
        (),
        "CVE-2025-23244",
        _ROOT,
        {"535": "535.247.01", "550": "550.163.01", "570": "570.133.07", "575": "575.51.02"},
    ),
    Advisory((), "CVE-2025-33219", _ROOT, {"535": "535.288.01", "570": "570.211.01", "580": "580.126.09"}),
    Advisory(
        (),
        "CVE-2026-24187 and others of May 2026",
        _ROOT,
        {"535": "535.309.01", "580": "580.159.03", "595": "595.71.05"},
    ),
)


@dataclass(frozen=True)
class Unsafe:
    """A package of a node that is older than the fixed version; `fixed` is empty if that is not known."""

    package: str
    version: str
    advisory: Advisory
    fixed: str

    def __str__(self) -> str:
        effect = f"{self.advisory.lets} ({self.advisory.names})"
        if self.fixed:
            return f"{self.package} {self.version} {effect}, {self.fixed} does not"
        release = _release(self.version, self.advisory.releases)
        return f"{self.package} {self.version} is not known to be fixed: before {release} it {effect}"


def unsafe(system: str, versions: Mapping[str, str]) -> Iterator[Unsafe]:
    """Yield the packages with a known vulnerability; `system` is id and release, for example `rocky 9.6`."""
    for advisory in ADVISORIES:
        fixed = advisory.fixed.get(system) or advisory.fixed.get(system.partition(".")[0], "")
        for package in (*advisory.packages, *advisory.authors):
            if not (version := versions.get(package)):
                continue
            release = _release(version, advisory.releases)
            own = release if package in advisory.authors else fixed
            if is_older(upstream(version), release) and (not own or is_older(version, own)):
                yield Unsafe(package, version, advisory, own)


def _release(version: str, releases: Sequence[str]) -> str:
    """Return the fixed release of a version's branch, or the newest fixed release."""
    branch = upstream(version).split(".")[:2]
    return next((one for one in releases if one.split(".")[:2] == branch), releases[-1])


def unsafe_driver(version: str | None) -> Iterator[Unsafe]:
    """Yield the newest known vulnerability of a version of NVIDIA's driver; its fix includes the earlier ones."""
    branch = (version or "").partition(".")[0]
    for advisory in reversed(DRIVER):
        fixed = advisory.fixed.get(branch)
        if version and fixed and is_older(version, fixed):
            yield Unsafe("NVIDIA driver", version, advisory, fixed)
            return


def is_older(version: str, other: str) -> bool:
    """Return whether dpkg sorts a version before another one (deb-version(7))."""
    return _key(version) < _key(other)


def _key(version: str) -> tuple[int, list[tuple[list[int], int]], list[tuple[list[int], int]]]:
    epoch, colon, rest = version.rpartition(":") if re.match(r"\d+:", version) else ("", "", version)
    release, _, revision = rest.rpartition("-") if "-" in rest else (rest, "", "")
    return int(epoch) if colon else 0, _parts(release), _parts(revision)


def _parts(text: str) -> list[tuple[list[int], int]]:
    """Return sortable pairs of text and number: a tilde sorts before the end, letters before other characters."""
    found = []
    for word, number in re.findall(r"(\D*)(\d*)", text):
        order = [-1 if char == "~" else ord(char) + (0 if char.isalpha() else 256) for char in word]
        found.append(([*order, 0], int(number or 0)))
    while found and found[-1] == ([0], 0):  # a missing part sorts like a zero
        found.pop()
    return [*found, ([0], 0)]
