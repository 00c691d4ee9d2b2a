"""The count of missing security updates, on text that apt and dnf print."""

import re

import pytest

from tests.unit.head_programs import load

PROGRAM = load("update-metrics")
# apt 2.6 of Debian 12; the last lines: a new package, a package of Ubuntu's, one of another source.
APT = """\
Inst base-files [12.4+deb12u11] (12.4+deb12u15 Debian:12.15/oldstable [amd64])
Inst unzip [6.0-28] (6.0-28+deb12u1 Debian-Security:12/oldstable-security [amd64])
Inst python3-jwt [2.6.0-1] (2.6.0-1+deb12u1 Debian:12.15/oldstable, Debian-Security:12/oldstable-security [all])
Conf unzip (6.0-28+deb12u1 Debian-Security:12/oldstable-security [amd64])
Inst linux-image-6.1.0-42-amd64 (6.1.159-1 Debian-Security:12/oldstable-security [amd64])
Inst libssl3t64 [3.0.13-0ubuntu3.4] (3.0.13-0ubuntu3.6 Ubuntu:24.04/noble-updates, Ubuntu:24.04/noble-security [amd64])
Inst tzdata [2025a-0] (2025b-0 Ubuntu:24.04/noble-updates [all])
Inst security-tool [1] (2 Example:1/stable [all])
"""
DNF = """\
RLSA-2026:0123 Important/Sec. openssl-libs-1:3.0.7-27.el9.x86_64
RLSA-2026:0200 Moderate/Sec.  openssl-libs-1:3.0.7-28.el9.x86_64
RLSA-2026:0201 Moderate/Sec.  python3-libs-3.9.21-2.el9.x86_64
RLBA-2026:0456 bugfix         bash-5.1.8-9.el9.x86_64
"""


@pytest.mark.proves("monitoring", "Missing security updates are counted by package, held ones included.")
@pytest.mark.parametrize(
    ("text", "pattern", "number"),
    [
        (APT, PROGRAM.APT_UPDATE, 3),
        (DNF, PROGRAM.DNF_UPDATE, 2),
        ("", PROGRAM.APT_UPDATE, 0),
        ("", PROGRAM.DNF_UPDATE, 0),
    ],
)
def test_count__of_a_package_managers_text__is_that_of_packages(
    text: str, pattern: re.Pattern[str], number: int
) -> None:
    assert PROGRAM.count(text, pattern) == number
    assert {"--ignore-hold", "--simulate"} < set(PROGRAM.APT)
