"""What users find where they log in: tools by group, and mail only where the head can send it."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.systems.rendering import CONTENT, SYSTEMS, a_cluster

TOOLS = {"gcc", "git", "htop", "jq", "make", "nano", "wget"}
OF_FAMILY = {"Debian": {"g++", "libc6-dev"}, "RedHat": {"gcc-c++", "environment-modules"}}
PROGRAMS = ("/usr/bin/mail", "/usr/bin/mailx", "/usr/bin/s-nail", "/usr/sbin/sendmail")


@pytest.mark.proves("roles", "The head has git, an editor, compilers and modules; a worker only if asked.")
@pytest.mark.parametrize("system", SYSTEMS)
def test_tools__of_users__are_on_the_head_alone(tmp_path: Path, system: str) -> None:
    cluster = a_cluster(tmp_path, system)

    def extra(host: str, **known: Any) -> set[str]:
        return TOOLS & {*cluster.role("base", host, **known).value("__base_packages")}

    def of_family(host: str, **known: Any) -> set[str]:
        return OF_FAMILY[SYSTEMS[system].family] & {*cluster.role("base", host, **known).value("__base_packages")}

    assert (extra("head1"), of_family("head1")) == (TOOLS, OF_FAMILY[SYSTEMS[system].family])
    assert (extra("gpu01"), of_family("gpu01")) == (set(), set())
    everywhere = {"base_tools_groups": ["slurm_head", "slurm_workers"], "base_tools": ["git"]}
    assert extra("gpu01", **everywhere) == {"git"}
    assert (extra("head1", base_tools=[]), of_family("head1", base_tools=[])) == (set(), set())


def mailed(folder: Path, *there: str) -> list[str]:
    """Run slurm-mail on a machine with these programs; return what was called, by which name and with which words."""
    text = (CONTENT / "roles/slurm_head/files/slurm-mail").read_text(encoding="utf-8")
    for program in PROGRAMS:
        text = text.replace(program, str(folder / program.strip("/")))
    script, log = folder / "slurm-mail", folder / "log"
    script.write_text(text, encoding="utf-8")
    for name in (*there, "/bin/logger"):
        path = folder / name.strip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'#!/bin/sh\necho "{name} $*" >> {log}\n', encoding="utf-8")
        path.chmod(0o755)
    argv = ["sh", str(script), "-s", "Slurm Job_id=7 Ended", "alice"]
    subprocess.run(argv, check=True, timeout=30, env={"PATH": f"{folder}/bin:/usr/bin:/bin"})
    return log.read_text(encoding="utf-8").splitlines()


@pytest.mark.proves("jobs", "Slurm mails its users where the head can send mail, and logs it elsewhere.")
@pytest.mark.parametrize(
    ("there", "called"),
    [
        (("/usr/bin/mail", "/usr/sbin/sendmail"), "/usr/bin/mail -s Slurm Job_id=7 Ended alice"),
        (("/usr/bin/s-nail", "/usr/sbin/sendmail"), "/usr/bin/s-nail -s Slurm Job_id=7 Ended alice"),
        (("/usr/bin/mail",), "not sent"),
        (("/usr/sbin/sendmail",), "not sent"),
        ((), "not sent"),
    ],
)
def test_mail__by_what_the_head_has__is_sent_or_logged(tmp_path: Path, there: tuple[str, ...], called: str) -> None:
    (line,) = mailed(tmp_path, *there)
    assert line.startswith("/bin/logger" if called == "not sent" else called)
    assert "-s Slurm Job_id=7 Ended alice" in line


def test_slurm_conf__names_our_mail_program_unless_the_inventory_has_another(tmp_path: Path) -> None:
    cluster = a_cluster(tmp_path, "debian-13")
    for extra, expected in (({}, "/usr/local/sbin/slurm-mail"), ({"MailProg": "/opt/mail"}, "/opt/mail")):
        role = cluster.role("slurm_head", "head1", slurm_head_conf_extra=extra)
        lines = role.render(role.path / "templates/slurm.conf.j2").splitlines()
        assert [line for line in lines if line.startswith("MailProg=")] == [f"MailProg={expected}"]
    files = {file["dest"]: file for file in role.value("__slurm_head_files")}
    assert files["/usr/local/sbin/slurm-mail"]["mode"] == "0755"
