"""Every file that the roles write, of every supported system, read by the program that reads it on the node.

The programs are this machine's: systemd 252 or newer, sudo, nftables, OpenSSH, haproxy and nginx. scripts/prepare
installs nftables, and unpacks sshd, haproxy and nginx below .cache, where nothing starts them.
"""

import configparser
import json
import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import yaml
from logstash_pipeline_parser import Pipeline

from clusterctl.inventory import bootstrap_plays
from clusterctl.workspace import certificates
from tests.labs import REPOSITORY
from tests.systems.rendering import (
    CONTENT,
    SCHEDULERS,
    SECRET,
    SYSTEMS,
    VARIABLES,
    Cluster,
    File,
    a_cluster,
    files,
)

SSHD = REPOSITORY / ".cache/programs/usr/sbin/sshd"
HAPROXY = REPOSITORY / ".cache/programs/usr/sbin/haproxy"
NGINX = REPOSITORY / ".cache/programs/usr/sbin/nginx"
UNITS = "etc/systemd/system"
# What the unit of a drop-in says, where lines have to fit. Sources: slurm: etc/*.service.in of SchedMD/slurm
# and Debian's packages; kubelet: kubernetes/release cmd/krel/templates/latest/kubelet; docker, containerd: moby/moby
# contrib/init/systemd, containerd/containerd; nvidia-cdi-refresh: NVIDIA/nvidia-container-toolkit deployments/systemd;
# dcgm-exporter: NVIDIA/dcgm-exporter packaging; persistenced: NVIDIA/nvidia-persistenced init; exporters: Debian's and
# EPEL's packages; kibana: elastic/kibana src/dev/build/tasks/os_packages; logstash: elastic/logstash
# pkg/service_templates; opensearch-dashboards: opensearch-project/opensearch-build scripts/pkg/service_templates.
VENDORS = {
    "containerd.service": "Type=notify\nExecStart=/usr/bin/containerd",
    "docker.service": "Type=notify\nExecStart=/usr/bin/dockerd",
    "elasticsearch.service": "Type=notify\nExecStart=/usr/share/elasticsearch/bin/systemd-entrypoint",
    "filebeat.service": "ExecStart=/usr/share/filebeat/bin/filebeat",
    "grafana-server.service": "Type=notify\nExecStart=/usr/share/grafana/bin/grafana server",
    "haproxy.service": "Type=notify\nExecStart=/usr/sbin/haproxy -Ws",
    "kibana.service": "Type=simple\nExecStart=/usr/share/kibana/bin/kibana",
    "kubelet.service": "ExecStart=/usr/bin/kubelet\nRestart=always",
    "logstash.service": "Type=simple\nExecStart=/usr/share/logstash/bin/logstash",
    "mariadb.service": "Type=notify\nExecStart=/usr/sbin/mariadbd",
    "node_exporter.service": "ExecStart=/usr/bin/node_exporter",
    "nvidia-cdi-refresh.service": "Type=oneshot\nExecStart=/usr/bin/nvidia-ctk cdi generate",
    "nvidia-dcgm-exporter.service": "ExecStart=/usr/bin/dcgm-exporter",
    "nvidia-persistenced.service": "Type=forking\nExecStart=/usr/bin/nvidia-persistenced",
    "opensearch.service": "Type=notify\nExecStart=/usr/share/opensearch/bin/systemd-entrypoint",
    "opensearch-dashboards.service": "ExecStart=/usr/share/opensearch-dashboards/bin/opensearch-dashboards",
    "polkit.service": "Type=dbus\nBusName=org.freedesktop.PolicyKit1\nExecStart=/usr/lib/polkit-1/polkitd",
    "prometheus.service": "ExecStart=/usr/bin/prometheus",
    "prometheus-alertmanager.service": "ExecStart=/usr/bin/prometheus-alertmanager",
    "prometheus-blackbox-exporter.service": "ExecStart=/usr/bin/prometheus-blackbox-exporter",
    "prometheus-mysqld-exporter.service": "ExecStart=/usr/bin/prometheus-mysqld-exporter",
    "prometheus-node-exporter.service": "ExecStart=/usr/bin/prometheus-node-exporter",
    "sackd.service": "Type=notify\nExecStart=/usr/sbin/sackd --systemd",
    "slurmctld.service": "Type=simple\nExecStart=/usr/sbin/slurmctld -D\nPIDFile=/run/slurmctld.pid",
    "slurmd.service": "Type=simple\nExecStart=/usr/sbin/slurmd -D\nLimitMEMLOCK=infinity\nPIDFile=/run/slurmd.pid",
    "slurmdbd.service": "Type=simple\nExecStart=/usr/sbin/slurmdbd -D\nPIDFile=/run/slurmdbd.pid",
}
SECTIONS = {"nvidia-cdi-refresh.path": "[Path]\nPathChanged=/usr/bin/nvidia-ctk", "user.slice": "[Slice]"}


class RefusedError(AssertionError):
    """A program refuses a file, with what it prints."""


def run(*argv: str | Path, quiet: bool = True) -> None:
    """Run a program that reads a file; without `quiet` it may print something of a file that is right."""
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=60)
    if done.returncode or (quiet and done.stdout.strip()):
        raise RefusedError(f"{argv[0]} ended with {done.returncode}: {done.stdout}")


def as_root(*words: str) -> list[str]:
    """Return the prefix of a command that needs root, which an ordinary user is in a namespace of its own."""
    own = [] if os.getuid() == 0 else ["--map-root-user"]
    return ["unshare", *own, *words] if own or words else []


def put(root: Path, path: str, content: bytes) -> Path:
    place = root / path.lstrip("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(content)
    return place


def check_users(root: Path, written: Iterable[File]) -> None:
    """systemd-sysusers ends with 0 for a line it cannot use, so the users are looked up as well."""
    for file in written:
        put(root, file.path, file.content)
        asked = [line.split()[:3] for line in file.content.decode().splitlines() if line and line[0] not in "#"]
        run(*as_root(), "systemd-sysusers", f"--root={root}", quiet=False)
        users = {line.split(":")[0]: line.split(":")[2:4] for line in lines(root / "etc/passwd")}
        groups = {line.split(":")[0]: line.split(":")[2] for line in lines(root / "etc/group")}
        for kind, name, *number in asked:
            numbers = [one for one in number if one.isdigit()]
            if name not in groups or (kind == "u" and name not in users):
                raise RefusedError(f"{file.path}: {name} is not made")
            if numbers and (groups[name] != numbers[0] or (kind == "u" and users[name] != numbers * 2)):
                raise RefusedError(f"{file.path}: {name} has the number {groups[name]}, expected {numbers[0]}")


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def check_units(root: Path, written: Iterable[File]) -> None:
    """Check the units and drop-ins with all programs that they start in place, as stubs."""
    own = root / "usr/lib/systemd/system"
    shutil.copytree("/usr/lib/systemd/system", own, symlinks=True, ignore=shutil.ignore_patterns("*.d", "*.wants"))
    for name, text in SECTIONS.items():
        put(own, name, f"{text}\n".encode())
    for name, text in VENDORS.items():
        put(own, name, f"[Service]\n{text}\n".encode())
    names = set()
    for file in written:
        put(root, file.path, file.content)
        name = file.path.removeprefix(f"/{UNITS}/").split("/")[0].removesuffix(".d")
        names.add(name.replace("@.", "@1.").replace("user-.slice", "user-1000.slice"))
    for unit in root.rglob("*"):
        if unit.is_file() and not unit.is_symlink() and "systemd" in unit.parts:
            for program in re.findall(r"(?m)^Exec\w+=[-+!@:|]*(/\S+)", unit.read_text(encoding="utf-8")):
                put(root, program, b"#!/bin/sh\n").chmod(0o755)
    run("systemd-analyze", "verify", f"--root={root}", "--man=no", "--recursive-errors=no", *sorted(names))


def check_each(program: Callable[[Path], object]) -> Callable[[Path, Iterable[File]], None]:
    """Return a check that gives a program each file by itself."""

    def check(root: Path, written: Iterable[File]) -> None:
        for file in written:
            program(put(root, file.path, file.content))

    return check


def check_sshd(root: Path, written: Iterable[File]) -> None:
    """Check all parts together, as the systems' own file includes them, then each alone."""
    # As root it asks for a user and a directory of its own, which this machine need not have.
    prefix = ["unshare", "--user"] if os.getuid() == 0 else []
    key = root / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True, timeout=60)
    keys = f"HostKey {key}".encode()
    parts = [put(root, file.path, re.sub(rb"(?m)^HostKey .*$", keys, file.content)) for file in written]
    whole = put(root, "sshd_config", f"Include {root}/etc/ssh/sshd_config.d/*.conf\n".encode())
    for file in [whole, *parts]:
        run(*prefix, SSHD, "-t", "-f", file, "-h", key)


def check_haproxy(root: Path, written: Iterable[File]) -> None:
    """Check the configuration with the files that it names, for a user whom this machine has."""
    for file in written:
        place = put(root, file.path, file.content)
        if place.suffix == ".cfg":
            text = file.content.decode().replace("/etc/haproxy/", f"{root}/etc/haproxy/")
            place.write_text(re.sub("(?m)^( *(?:user|group)) haproxy$", r"\1 root", text), encoding="utf-8")
            run(HAPROXY, "-dW", "-c", "-f", place, quiet=False)


def check_nginx(root: Path, written: Iterable[File]) -> None:
    """Check the configuration in directories of this test, with this machine's address, as no other is taken."""
    for file in written:
        text = file.content.decode().replace("/var/cache/nginx", str(root))
        text = re.sub(r"(?m)^( *listen) .*:(\d+;)$", r"\1 127.0.0.1:\2", text)
        text = re.sub("proxy_ssl_trusted_certificate .*;", f"proxy_ssl_trusted_certificate {root}/authority.pem;", text)
        put(root, "authority.pem", certificates.authority(SECRET, "company").encode())
        (root / "packages").mkdir()
        run(NGINX, "-e", "stderr", "-t", "-q", "-g", "pid /dev/null;", "-c", put(root, file.path, text.encode()))


def check_python(path: Path) -> None:
    compile(path.read_bytes(), path, "exec")


def check_shell(path: Path) -> None:
    run("sh", "-n", path)


def check_program(path: Path) -> None:
    first = path.read_bytes().splitlines()[0]
    (check_python if b"python" in first else check_shell)(path)


def check_tmpfiles(root: Path, written: Iterable[File]) -> None:
    """Make what they say, for users that are there."""
    known = {"root": 0} | {user["name"]: user["uid"] for user in VARIABLES["users_accounts"]}
    put(root, "etc/passwd", "".join(f"{name}:x:{uid}:{uid}::/:/bin/sh\n" for name, uid in known.items()).encode())
    put(root, "etc/group", "".join(f"{name}:x:{gid}:\n" for name, gid in known.items()).encode())
    for file in written:
        put(root, file.path, file.content)
        run(*as_root(), "systemd-tmpfiles", f"--root={root}", "--create")


Check = Callable[[Path, Iterable[File]], None]
CHECKS: dict[str, Check] = {
    r"/etc/sysusers[.]d/": check_users,
    rf"/{UNITS}/": check_units,
    r"/etc/sudoers[.]d/": check_each(lambda path: run("visudo", "--check", "--file", path, quiet=False)),
    r"/etc/clusterctl/firewall[.]nft$": check_each(
        lambda path: run(*as_root("--net"), "nft", "--check", "--file", path)
    ),
    r"/etc/ssh/sshd_config[.]d/": check_sshd,
    r"/etc/tmpfiles[.]d/": check_tmpfiles,
    r"/usr/local/(bin|sbin|libexec)/|/usr/libexec/keepalived/": check_each(check_program),
    r"/etc/slurm/(gpu-prolog|job-epilog)$": check_each(check_program),
    r"/etc/clusterctl/package-cache/resolver$": check_each(check_program),
    r"/etc/haproxy/": check_haproxy,
    r"/etc/clusterctl/package-cache/nginx[.]conf$": check_nginx,
    r"/etc/profile\.d/|/etc/dhc|/etc/dkms/framework": check_each(check_shell),
    r"/etc/logstash/clusterctl\.conf$": check_each(lambda path: Pipeline(path.read_text()).parse()),
    r".*[.]ndjson$": check_each(lambda path: [json.loads(line) for line in path.read_text().splitlines()]),
    r".*[.]json$": check_each(lambda path: json.loads(path.read_bytes())),
    r"/etc/grafana/grafana\.ini$": check_each(  # its settings: tests/unit/test_dashboards.py
        lambda path: configparser.ConfigParser(interpolation=None).read_string(path.read_text(encoding="utf-8"))
    ),
    r".*[.]py$": check_each(check_python),
    r".*[.]toml$|/etc/containers/": check_each(lambda path: tomllib.loads(path.read_text(encoding="utf-8"))),
    r"(?!/etc/haproxy/).*[.](ya?ml|cfg)$|/etc/kubernetes/kubelet[.]conf[.]d/": check_each(
        lambda path: list(yaml.safe_load_all(path.read_bytes()))
    ),
}
# Their programs come with packages that this machine has no need of. Labs and role scenarios start them: Debian alone.
BY_LABS = re.compile(
    r"/etc/(apt|dnf|yum\.repos\.d|chrony|dnsmasq|dbus-1|keepalived|slurm|sssd|munge|mysql|my\.cnf\.d|pam\.d|security|openmpi|lmod|modulefiles)\b"
    r"|/etc/(openmpi-\w+|prometheus/(tls|endpoints/[\w-]+\.pem|mysqld-exporter\.cnf|own-password|remote-write-password|alertmanager-(tls|password)|alertmanager_templates)|enroot/enroot\.conf|dcgm-exporter/|clusterctl-metrics/\w+\.pem|nvidia-|ssh/authorized_keys\.d/)"
    r"|/etc/(clusterctl/log-store|elasticsearch|filebeat|logrotate\.d|opensearch)/"
    r"|/etc/(clusterctl/log-pages|kibana/tls|logstash/tls|opensearch-dashboards/tls)/"
    r"|/etc/(modprobe\.d|modules-load\.d|environment\.d|systemd/journald\.conf\.d)/"
    r"|/usr/share/pam-configs/"
    r"|/usr/local/lib/clusterctl/landing_page\.(css|js)$"  # scripts/pages, in a browser
)
# Values alone, or data of ours. What the kernel's NFS server reads has no check: labs have none.
VALUES = re.compile(
    r"/etc/(hostname|hosts|locale\.conf|timezone|(kubernetes/)?resolv\.conf|cron\.allow|at\.allow|default/\w+|sysconfig/\w+)$"
    r"|/etc/(clusterctl/scratch|clusterctl/(gpu|kubernetes)-health\.key|clusterctl/(directory-ca\.pem|sssd-profile)|clusterctl/alert-drain/(token|\w+\.pem)|clusterctl/landing-page/(key|login|prometheus-password|\w+\.pem)|grafana/(clusterctl-password|tls/\w+\.pem)|kubernetes/pki/.*|exports\.d/.*|nfs\.conf\.d/.*|pki/ca-trust/.*)$"
    r"|/usr/local/share/ca-certificates/|/var/lib/clusterctl|/etc/ssh/ssh_host_login_\w+(\.pub)?$"
)


def checks_of(path: str) -> list[str]:
    """Return the patterns of the checks that a file gets."""
    return [pattern for pattern in CHECKS if re.match(pattern, path)]


def test_file__of_every_system__has_its_program_or_a_reason() -> None:
    paths = {file.path for system in SYSTEMS for file in files(system)}
    assert len(paths) > 80
    unlisted = [path for path in sorted(paths) if not (checks_of(path) or BY_LABS.match(path) or VALUES.match(path))]
    assert unlisted == [], "give it a check, or a reason why it has none"


def have(pattern: str) -> None:
    """Skip where a check's program is missing, with the reason."""
    needed = {
        r"/etc/sudoers[.]d/": "visudo",
        r"/etc/clusterctl/firewall[.]nft$": "nft",
        rf"/{UNITS}/": "systemd-analyze",
    }
    name = needed.get(pattern, "sh")
    if not shutil.which(name):
        pytest.skip(f"{name} is not installed: scripts/prepare dev")
    for word, program in (("sshd", SSHD), ("haproxy", HAPROXY), ("nginx", NGINX)):
        if word in pattern and not program.exists():
            pytest.skip(f"{program} is missing: scripts/prepare dev")


@pytest.mark.proves("systems", "Units, users, sudo, firewall and SSH files of every system pass their own programs.")
@pytest.mark.parametrize("pattern", CHECKS)
@pytest.mark.parametrize("system", SYSTEMS)
def test_files__of_every_role__pass_their_own_program(system: str, pattern: str, tmp_path: Path) -> None:
    have(pattern)
    for host in ("head1", "gpu01", "kubernetes-head1", "kubernetes-gpu01"):
        root = tmp_path / host
        root.mkdir()
        CHECKS[pattern](root, [one for one in files(system) if one.host == host and re.match(pattern, one.path)])


@pytest.mark.proves("systems", "No role deletes a file that another role of the host writes.")
@pytest.mark.parametrize("monitored", [True, False])
@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_files__of_all_roles_of_a_host__are_deleted_by_none(tmp_path: Path, scheduler: str, monitored: bool) -> None:
    """Else each bootstrap would delete and write it again."""
    a_cluster(tmp_path, "debian-13", scheduler)
    if not monitored:
        tree = yaml.safe_load((tmp_path / "inventory.yaml").read_text())
        del tree["all"]["children"]["monitoring"]
        (tmp_path / "inventory.yaml").write_text(yaml.safe_dump(tree))
    cluster = Cluster(tmp_path / "inventory.yaml", "debian-13")
    for host in cluster.hosts:
        groups = {"all", *(group.name for group in cluster.manager.hosts[host].get_groups())}
        kept, deleted = dict[str, str](), dict[str, str]()
        for name in bootstrap_plays.roles_of_host(bootstrap_plays.load(CONTENT), groups):
            for _, call in cluster.role(name, host).calls(lambda path: path.name != "remove.yml"):
                for item in call.get("files", []):
                    (deleted if item.get("state") == "absent" else kept)[item["dest"]] = name
        assert kept
        assert {path: (deleted[path], kept[path]) for path in deleted.keys() & kept.keys()} == {}


@pytest.mark.parametrize("pattern", CHECKS)
def test_check__by_pattern__has_a_file_of_a_role(pattern: str) -> None:
    assert any(re.match(pattern, file.path) for system in SYSTEMS for file in files(system))


@pytest.mark.parametrize(
    ("path", "content", "reported"),
    [
        # What the roles once wrote: the name of a group where its number is due.
        ("/etc/sysusers.d/slurm.conf", 'u slurm 64030:64030 "Slurm" /var/lib/slurm\n', "slurm"),
        (f"/{UNITS}/slurmd.service.d/clusterctl.conf", "[Service]\nLimitMEMLOK=infinity\n", "LimitMEMLOK"),
        (f"/{UNITS}/slurmd.service.d/clusterctl.conf", "[Service]\nType=oneshot\nRestart=always\n", "Restart"),
        (f"/{UNITS}/gpu-config.service", "[Service]\nExecStart=gpu-config --now\n", "gpu-config"),
        ("/etc/sudoers.d/60-clusterctl", "ada ALL=(ALL:ALL) NOPASSWD ALL\n", "syntax error"),
        ("/etc/clusterctl/firewall.nft", "table inet x {\n chain y {\n tcp dprt 22 accept\n }\n}\n", "dprt"),
        ("/etc/ssh/sshd_config.d/00-clusterctl.conf", "PasswordAuthentication maybe\n", "maybe"),
        ("/etc/haproxy/haproxy.cfg", "global\n  maxcon 8000\n", "maxcon"),
        ("/etc/clusterctl/package-cache/nginx.conf", "events {}\nhttp { proxy_cash packages; }\n", "proxy_cash"),
        ("/etc/tmpfiles.d/clusterctl-enroot.conf", "d relative 0755\n", "relative"),
        ("/usr/local/sbin/slurm-conf-check", "#!/bin/sh\nif true; then\n", "end of file"),
    ],
)
def test_check__of_a_wrong_line__fails(tmp_path: Path, path: str, content: str, reported: str) -> None:
    (pattern,) = checks_of(path)
    have(pattern)
    with pytest.raises(RefusedError, match=reported):
        CHECKS[pattern](tmp_path, [File("gpu01", "x", path, content.encode())])
