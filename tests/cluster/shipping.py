"""What role filebeat puts on a node and role logging into an engine, for nodes that have no cluster."""

import json
from pathlib import Path
from typing import Any

import yaml

from tests.cluster.lab import TestLab
from tests.labs import REPOSITORY
from tests.systems.rendering import Cluster, Role, a_cluster

EXPORTER = REPOSITORY / "roles/filebeat/files/journal-export"
FOLDER = "/root/exported"
PODS = "/var/log/pods/team-a_train-0_0b1c5ce4"
# As slurmctld's of Debian, without its signal; the kubelet renames a container's file to a time.
LOGROTATE = """/var/log/slurm/slurmctld.log {
  compress
  delaycompress
  missingok
  nocreate
  notifempty
  rotate 12
}
"""
LINES = """
import os, sys, time
first, last = int(sys.argv[1]), int(sys.argv[2])
day = time.strftime("%Y-%m-%d", time.gmtime(time.time() - 86400))
record = (
    "JobId={0} UserId=alice(5001) GroupId=alice(5001) Name=job {0} JobState=COMPLETED Partition=main TimeLimit=60"
    " StartTime={1}T09:31:56 EndTime={1}T09:32:03 NodeList=gpu01 NodeCnt=1 ProcCnt=1 WorkDir=/ ReservationName= Tres="
    " Account=alice QOS=normal WcKey= Cluster=aurora SubmitTime={1}T09:31:49 EligibleTime={1}T09:31:49"
    " DerivedExitCode=0:0 ExitCode=0:0 "
)
forms = {
    "/var/log/slurm/slurmctld.log": "[{1}T10:00:00.{2:03}] _job_complete: JobId={0} done",
    "/var/log/slurm/jobcomp.log": record,
    "PODS/main/0.log": "{1}T10:00:00.{0:09}Z stdout F line {0}",
}
for path, form in forms.items():
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "a") as file:
        file.writelines(form.format(number, day, number % 1000) + chr(10) for number in range(first, last + 1))
""".replace("PODS", PODS)

# A message of each kind by the journal's own protocol: systemd's docs/JOURNAL_NATIVE_PROTOCOL.md.
SENDER = r"""
import array, fcntl, os, socket
def send(**fields):
    data = b"".join(k.encode() + b"\n" + len(v).to_bytes(8, "little") + v + b"\n" for k, v in fields.items())
    journal = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    journal.connect("/run/systemd/journal/socket")
    try:
        journal.send(data)
    except OSError:
        sealed = os.memfd_create("message", os.MFD_ALLOW_SEALING)
        with open(sealed, "wb", closefd=False) as file:
            file.write(data)
        fcntl.fcntl(sealed, 1033, 15)  # F_ADD_SEALS: all
        journal.sendmsg([b""], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [sealed]))])
messages = {
    "short": b"a" * 4000, "over-4096": b"b" * 5000, "over-32k": b"c" * 40960,
    "huge": os.urandom(200 << 20).replace(b"\n", b"x"), "huge-zeros": b"z" * (200 << 20),
    "binary": b"\xff\0abc", "newline": b"one\ntwo",
}
for name, message in messages.items():
    send(MESSAGE=message, SYSLOG_IDENTIFIER=name.encode(), PRIORITY=b"3", _UID=b"5001")
send(MESSAGE=b"x", SYSLOG_IDENTIFIER=b"n" * (50 << 20), PRIORITY=b"3")
send(MESSAGE=b"the last", SYSLOG_IDENTIFIER=b"last", PRIORITY="\u00b2".encode())
"""

# Slurm's steps are processes that root started; a user gives the name to any, also to a set-uid program.
STEPS = """pids=
cp /usr/bin/sleep /usr/local/bin/as-root && chmod u+s /usr/local/bin/as-root
begin() { "$@" & pids="$pids $!"; }
begin bash -c 'exec -a "slurmstepd: [17.0]" sleep 60'
begin setpriv --reuid=65534 --clear-groups bash -c 'exec -a "slurmstepd: [4242.batch]" sleep 60'
begin setpriv --reuid=65534 --clear-groups bash -c 'exec -a "slurmstepd: [4243.batch]" /usr/local/bin/as-root 60'
sleep 1
python3 -c 'PROGRAM
print(program.running_jobs())'
kill $pids
"""

# A file system of 1 MB that another file fills, except for the first part of a line, and that has space a little later.
FULL_DISK = """mkdir -p /root/small && mount -t tmpfs -o size=1m none /root/small
python3 -c 'PROGRAM
import os, threading, pathlib
program.WAIT = 0.2
files = program.Files(pathlib.Path("/root/small"), 1 << 30)
files.write({"cursor": "first"})
with open("/root/small/filler", "wb", buffering=0) as filler:
    try:
        while filler.write(b"x" * 4096):
            pass
    except OSError:
        pass
timer = threading.Timer(1, os.unlink, ["/root/small/filler"])
timer.start()
for number in range(4):
    files.write({"cursor": str(number), "message": "x" * 3000})
print("alive" if timer.is_alive() else "waited")'
cat /root/small/journal-*.json
umount /root/small
"""
PROGRAM = f"""import importlib.machinery as m, importlib.util as u
loader = m.SourceFileLoader("program", "/root/{EXPORTER.name}")
program = u.module_from_spec(u.spec_from_loader("program", loader))
loader.exec_module(program)"""


def put(lab: TestLab, node: str, path: str, content: str) -> None:
    lab.ssh(node, "sudo", "tee", path, stdin=content)


def with_exporter(lab: TestLab, node: str, script: str) -> str:
    """Run a shell script as root; the word PROGRAM in it stands for Python that loads the exporter as `program`."""
    put(lab, node, f"/root/{EXPORTER.name}", EXPORTER.read_text())
    return lab.root(node, script.replace("PROGRAM", PROGRAM))


def exported(lab: TestLab, node: str) -> list[dict[str, Any]]:
    """Return the lines that the exporter has written."""
    text = lab.root(node, f"cat {FOLDER}/journal-*.json 2>/dev/null || true")
    return [json.loads(line) for line in text.split("\n") if line.endswith("}")]


def role(folder: Path, name: str) -> Role:
    """Return a role on a head of Slurm that has OpenSearch."""
    a_cluster(folder, "debian-13", logging_engine="opensearch")
    path = folder / "inventory.yaml"
    inventory = yaml.safe_load(path.read_text())
    inventory["all"]["children"]["logging"] = {"hosts": {"head1": {}}}
    path.write_text(yaml.safe_dump(inventory))
    return Cluster(path, "debian-13").role(name, "head1")


def template(folder: Path) -> dict[str, Any]:
    """Return the index template of role logging."""
    found = role(folder, "logging")
    content: dict[str, Any] = json.loads(found.render(found.path / "templates/clusterlog.json.j2"))
    return content


def data(lab: TestLab, node: str, body: Any, method: str) -> str:
    """Return curl's options that send a document, which is written to the node."""
    put(lab, node, "/root/body.json", json.dumps(body))
    return f"--header 'Content-Type: application/json' --request {method} --data-binary @/root/body.json"


def pipelines() -> dict[str, Any]:
    """Return the pipelines of role logging; each after those that it uses."""
    found = {
        path.stem: json.loads(path.read_text())
        for path in sorted((REPOSITORY / "roles/logging/files/pipelines").glob("*.json"))
    }
    return dict(sorted(found.items(), key=lambda item: json.dumps(item[1]).count('"pipeline"')))


def opened(lab: TestLab, node: str) -> set[str]:
    """Return the paths of the files that Filebeat has open."""
    pid = "$(systemctl show --value --property MainPID filebeat)"
    return set(lab.root(node, f"find /proc/{pid}/fd -printf '%l\\n' || true").splitlines())
