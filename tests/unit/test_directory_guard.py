"""Which people of a directory log in: the guard that PAM and sshd ask, with simulated answers of getent and id."""

from pathlib import Path

import pytest

from tests import programs
from tests.labs import REPOSITORY

GUARD = REPOSITORY / "roles/sssd/files/directory-guard"
PASSWD = """\
files ada 5001 5001
files ubuntu 1000 1000
sss eve 7001 7000
sss ada 7002 7000
sss sudoer 5001 7000
sss cloud 1000 7000
sss twin 7001 7000
sss grouped 7003 20001
sss member 7004 7000
sss added 7005 7000
sss ../etc 7006 7000
sss Upper 7007 7000
sss root:x 7008 7000
"""
GROUP = "vision:x:20001:added,other\n"
GETENT = """#!/bin/sh
service='files\\|sss'
[ "$1" != -s ] || { service=$2; shift 2; }
if [ "$1" = group ]; then grep "^[^:]*:x:$3:" DIR/group; exit; fi
grep "^\\($service\\) " DIR/passwd | awk -v key="$3" '$2 == key || $3 == key {
    print $2 ":*:" $3 ":" $4 "::/:/bin/sh"; found = 1; exit } END { exit found ? 0 : 2 }'
"""
ID = """#!/bin/sh
case $3 in
member|added) echo 7000 20001 ;;
*) echo 7000 ;;
esac
"""


@pytest.fixture
def guard(tmp_path: Path) -> Path:
    for name, content in (("passwd", PASSWD), ("group", GROUP), ("getent", GETENT), ("id", ID)):
        (tmp_path / name).write_text(content.replace("DIR", str(tmp_path)))
        (tmp_path / name).chmod(0o755)
    text = GUARD.read_text()
    assert text.count("PATH=/usr/sbin:") == 1
    (tmp_path / "guard").write_text(text.replace("PATH=/usr/sbin:", f"PATH={tmp_path}:/usr/sbin:"))
    return tmp_path / "guard"


@pytest.mark.proves("identity", "A person of the directory with an ID of a local account cannot log in.")
@pytest.mark.parametrize(
    ("name", "admitted"),
    [
        ("eve", True),
        ("ada", True),  # the local account
        ("sudoer", False),
        ("cloud", False),
        ("twin", False),
        ("grouped", False),
        ("member", False),
        ("added", True),
        ("../etc", False),
        ("Upper", False),
        ("root:x", False),
        ("unknown", False),
        ("", False),
        ("eve\n", False),
        ("-s", False),
        ("x" * 33, False),
    ],
)
@pytest.mark.parametrize("shell", ["dash", "bash"])
def test_guard__of_people__admits_those_with_ids_of_their_own(
    guard: Path, shell: str, name: str, admitted: bool
) -> None:
    for argv, environment in (([name], {}), ([], {"PAM_USER": name})):
        done = programs.call([shell, str(guard), *argv], 30, env=environment)
        assert (done.returncode == 0) is admitted, (argv, done)
