"""What slurm-conf-check refuses, and slurm-partition-qos adds; molecule/slurm_head has a real slurmctld."""

import os
import subprocess
from pathlib import Path

import pytest

from clusterctl.util import paths
from tests.systems.rendering import a_cluster

CHECK = paths.content() / "roles/slurm_head/files/slurm-conf-check"
ADDS = CHECK.with_name("slurm-partition-qos")
# The library and the folder of the plugins. Debian: packages.debian.org, file list of slurm-wlm-basic-plugins.
# SchedMD: debian/ in its source. EPEL: %files of slurm.spec (src.fedoraproject.org).
LAYOUTS = {
    "debian": ("usr/lib/x86_64-linux-gnu/slurm-wlm/libslurmfull.so", "usr/lib/x86_64-linux-gnu/slurm-wlm"),
    "schedmd": ("usr/lib/x86_64-linux-gnu/slurm/libslurmfull.so", "usr/lib/x86_64-linux-gnu/slurm"),
    "epel": ("lib64/libslurmfull-22.05.9.so", "lib64/slurm"),
}
CONFIGURATION = "AuthType=auth/munge\nMpiDefault=pmix\nTaskPlugin=task/affinity,task/cgroup\nSelectType=select/none\n"


def check(root: Path, library: str, configuration: str, sacctmgr: str = "printf 'normal\\nurgent\\n'") -> str:
    """Run the check up to where slurmctld would start, on a machine with this library; return its complaint."""
    tools = {"scontrol": "", "ldd": f"echo ' libslurmfull => {root / library} (0x1)'", "unshare": ""}
    tools["sacctmgr"] = sacctmgr
    for name, script in tools.items():
        (root / "bin").mkdir(exist_ok=True)
        (root / "bin" / name).write_text(f"#!/bin/sh\n{script}\n")
        (root / "bin" / name).chmod(0o755)
    (root / "slurm.conf").write_text(configuration)
    environment = {**os.environ, "PATH": f"{root / 'bin'}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["sh", CHECK, root / "slurm.conf"], env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode == 0) == (done.stderr == "")
    return done.stderr.replace(str(root), "")


@pytest.mark.proves("heads", "In a move of the queue to another directory, the drain ledger moves, too.")
def test_state__in_another_directory__moves_with_its_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone, shared = tmp_path / "alone/slurmctld", tmp_path / "shared/slurmctld"
    program, own = tmp_path / "program", tmp_path / "drain.json"
    text = CHECK.read_text().replace("/etc/slurm/slurm.conf", str(tmp_path / "was.conf"))
    program.write_text(text.replace("/var/lib/clusterctl/drain.json", str(own)))
    monkeypatch.setattr("tests.unit.test_slurm_conf_check.CHECK", program)
    ledger = shared.parent / "clusterctl/drain.json"
    ledger.parent.mkdir(parents=True)
    for path in (alone, shared):
        path.mkdir(parents=True)
    for was, will, was_ledger, will_ledger in ((alone, shared, own, ledger), (shared, alone, ledger, own)):
        (was / "clustername").touch()
        (was / "job_state").touch()
        (tmp_path / "was.conf").write_text(f"StateSaveLocation={was}\n")
        move = f"systemctl stop slurmctld && cp -a {was}/. {will}/"
        for more in ("", f" && cp -a {was_ledger} {will_ledger}"):
            said = check(tmp_path, "opt/lib/libslurmfull.so", f"StateSaveLocation={will}\n")
            assert said.splitlines()[0].endswith(f": {move}{more}".replace(str(tmp_path), "")), said
            was_ledger.touch()
        (was / "clustername").unlink()
        (was / "job_state").unlink()
        own.unlink(missing_ok=True)


def install(folder: Path, *plugins: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for plugin in plugins:
        (folder / f"{plugin}.so").touch()


@pytest.mark.proves("bootstrap", "Slurm's plugins are found where Debian, EPEL and SchedMD have them.")
@pytest.mark.parametrize("system", LAYOUTS)
def test_plugins__of_each_packager__are_found_or_missed(tmp_path: Path, system: str) -> None:
    library, folder = LAYOUTS[system]
    install(tmp_path / folder, "auth_munge", "task_affinity", "task_cgroup")
    assert check(tmp_path, library, CONFIGURATION) == f"mpi/pmix: there is no mpi_pmix.so in /{folder}\n"
    install(tmp_path / folder, "mpi_pmix")
    assert check(tmp_path, library, CONFIGURATION) == ""


def test_plugins__in_folders_that_are_configured__are_looked_for_there(tmp_path: Path) -> None:
    library, folder = LAYOUTS["epel"]
    install(tmp_path / folder, "auth_munge", "task_affinity", "task_cgroup", "mpi_pmix")
    own = f"PluginDir={tmp_path}/own:{tmp_path}/{folder}\n"
    (tmp_path / "own").mkdir()
    assert check(tmp_path, library, own + CONFIGURATION) == ""
    assert "auth/munge: there is no" in check(tmp_path, library, f"PluginDir={tmp_path}/own\n{CONFIGURATION}")


def test_job_container__from_25_11_on__is_a_namespace(tmp_path: Path) -> None:
    library, folder = LAYOUTS["debian"]
    install(tmp_path / folder, "auth_munge")
    configuration = "AuthType=auth/munge\nJobContainerType=job_container/tmpfs\n"
    assert "job_container/tmpfs: there is no job_container_tmpfs.so in" in check(tmp_path, library, configuration)
    install(tmp_path / folder, "namespace_tmpfs")
    assert check(tmp_path, library, configuration) == ""


@pytest.mark.proves("bootstrap", "A partition whose QOS accounting does not have is refused: slurmctld would end.")
def test_partition__with_a_qos__is_refused_without_it_in_accounting(tmp_path: Path) -> None:
    line = "PartitionName=main Nodes=ALL Default=YES QOS={} MaxTime=60 State=UP\nPartitionName=b Nodes=ALL\n"
    assert check(tmp_path, "opt/slurm/lib/libslurmfull.so", line.format("Urgent")) == ""
    said = check(tmp_path, "opt/slurm/lib/libslurmfull.so", line.format("urge"))
    assert said.startswith("accounting has no QOS urge, ")
    # slurm-partition-qos adds it
    declared = line.format("Urge") + "# QOS of a partition: urge\n"
    assert check(tmp_path, "opt/slurm/lib/libslurmfull.so", declared) == ""
    # slurmdbd is down, as in a restore
    assert check(tmp_path, "opt/slurm/lib/libslurmfull.so", line.format("urge"), "exit 1") == ""


def test_partition__with_a_new_qos_while_accounting_is_down__is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed, program, state = tmp_path / "installed.conf", tmp_path / "program", tmp_path / "state"
    program.write_text(CHECK.read_text().replace("/etc/slurm/slurm.conf", str(installed)))
    monkeypatch.setattr("tests.unit.test_slurm_conf_check.CHECK", program)
    location = f"StateSaveLocation={state}\n"
    line = f"{location}PartitionName=main Nodes=ALL QOS=%s\n# QOS of a partition: %s\n"
    state.mkdir()
    installed.write_text(line % ("small", "small"))
    for has_run, qos, refused in ((False, "later", False), (True, "later", True), (True, "small", False)):
        if has_run:
            (state / "clustername").touch()
        said = check(tmp_path, "opt/slurm/lib/libslurmfull.so", line % (qos, qos), "exit 1")
        assert ("does not respond, and slurmctld would not start if it lacks later" in said) is refused, said
        assert bool(said) is refused


def test_plugins__in_no_folder_that_is_known__are_left_to_slurmctld(tmp_path: Path) -> None:
    assert check(tmp_path, "opt/slurm/lib/libslurmfull.so", CONFIGURATION) == ""


def test_partition_qos__that_accounting_lacks__is_added(tmp_path: Path) -> None:
    program = tmp_path / "sacctmgr"
    program.write_text(
        f'#!/bin/sh\ncase $* in *show*) printf "normal\\nsmall\\n" ;; *) echo "$@" >> {tmp_path}/called ;; esac\n'
    )
    program.chmod(0o755)
    conf = tmp_path / "slurm.conf"
    conf.write_text("PartitionName=a QOS=by-hand\n# QOS of a partition: later\n# QOS of a partition: small\n")
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    subprocess.run(["sh", ADDS, conf], env=environment, check=True, timeout=60)
    assert (tmp_path / "called").read_text() == "--immediate add qos later\n"


def test_partition_qos__of_the_inventory__are_those_that_it_declares(tmp_path: Path) -> None:
    role = a_cluster(tmp_path, "debian-13").role(
        "slurm_head",
        "head1",
        slurm_head_qos=[{"name": name} for name in ("Small", "big", "unused")],
        slurm_head_partitions=[
            {"name": "main", "default": True},
            {"name": "a", "options": {"QoS": "small", "MaxTime": 60}},
            {"name": "b", "options": {"AllowQOS": "Big,by-hand", "QOS": "by-hand"}},
        ],
    )
    assert role.value("__slurm_head_partition_qos") == ["big", "small"]
    lines = role.render(role.path / "templates/slurm.conf.j2").splitlines()
    assert [line for line in lines if "QOS of a partition" in line] == [
        "# QOS of a partition: big",
        "# QOS of a partition: small",
    ]
    unit = role.render(role.path / "templates/slurmctld.service.j2").splitlines()
    program = "/usr/local/sbin/slurm-partition-qos"
    assert unit.index(f"ExecStartPre={program}") < unit.index("ExecReload=") < unit.index(f"ExecReload={program}")
    assert unit[-1] == "ExecReload=/usr/bin/scontrol reconfigure"


def test_partition_qos__while_accounting_is_down__lets_slurmctld_start(tmp_path: Path) -> None:
    """slurmctld then reads what it has saved."""
    tools = {"sacctmgr": "exit 1", "sleep": "", "date": f"echo >> {tmp_path}/asked; wc -l < {tmp_path}/asked"}
    for name, script in tools.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "slurm.conf").write_text("# QOS of a partition: later\n")
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    argv = ["sh", str(ADDS), str(tmp_path / "slurm.conf")]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=True, timeout=60)
    assert "accounting does not respond" in done.stderr


@pytest.mark.parametrize("then", ["exit 1", "echo 5003 7", ":"])
def test_cancel_jobs__by_what_slurm_answers_then__fails_or_ends(tmp_path: Path, then: str) -> None:
    first = f"[ -e {tmp_path}/again ] || {{ touch {tmp_path}/again; printf '5003 7\\n5004 8\\n'; exit; }}"
    date = f"echo >> {tmp_path}/asked; wc -l < {tmp_path}/asked"
    tools = {"squeue": f"{first}\n{then}", "scancel": f"echo $* >> {tmp_path}/cancelled", "sleep": "", "date": date}
    for name, script in tools.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    program = paths.content() / "roles/users/files/cancel-jobs"
    done = subprocess.run(
        ["sh", program, "5003"], env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode == 0, done.stdout) == (then != "exit 1", "7\n")
    assert set((tmp_path / "cancelled").read_text().splitlines()) == {"--quiet 7"}
