"""Digests of what a run can change on a node, besides what its records list, and of what its roles read there."""

import glob
import hashlib
import json
import os
import re
import subprocess
import tempfile
import time
from typing import Callable, Dict, List, Optional, Tuple

from clusterctl.nodes.probe.common import MAX_DIRECTORY, MAX_RECORDS, Facts, Questions, UnhealthyError, read
from clusterctl.nodes.probe.kubernetes import kubernetes_questions
from clusterctl.nodes.probe.reservations import reservation_questions

_ACCOUNTS = ("/etc/group", "/etc/passwd")
_PASSWORDS = "/etc/shadow"  # mode, size and time of change
# Their content is in the digests, as is that of the roles' records.
_CONTENTS = (
    "/etc/dnf/dnf.conf",
    "/etc/os-release",
    "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
    "/proc/sys/kernel/unprivileged_userns_clone",
    "/proc/sys/user/max_user_namespaces",
    "/sys/fs/selinux/booleans/container_use_devices",
    "/sys/fs/selinux/booleans/haproxy_connect_any",
    "/sys/fs/selinux/booleans/httpd_can_network_connect",
    "/var/lib/clusterctl/kubernetes-images.json",
    "/var/lib/clusterctl/kubernetes-worker.version",
)
_DRIVER = "/proc/driver/nvidia/version"
_DIRECTORY = "/var/lib/clusterctl/slurm-directory.json"
_BOOT = "/proc/sys/kernel/random/boot_id"
_RECORDS = "/var/lib/clusterctl/state/*.json"
# Of these files only the enabled repositories of CodeReady Builder, which role base enables. RHEL's cloud images have
# them in other files than redhat.repo.
_REPOSITORIES = "/etc/yum.repos.d/*.repo"
# Of these files only mode, size and time of change: what kubeadm keeps, what NVIDIA's own installer leaves, programs
# that are no packages, and plugins that were built for Slurm; modules that were built for the kernel, and what dkms
# knows of them.
_STATUS = (
    "/etc/kubernetes/*.conf",
    "/etc/kubernetes/clusterctl/**/*",
    "/etc/kubernetes/pki/**",
    "/usr/bin/nvidia-uninstall",
    "/usr/local/lib/alertmanager/*/bin/*",
    "/usr/local/lib/prometheus/*/bin/*",
    "/usr/local/lib/slurm/*",
)
_BUILT = (
    "/lib/modules/*/extra/**/*.ko*",
    "/lib/modules/*/updates/**/*.ko*",
    "/lib/modules/*/weak-updates/**/*.ko*",
    "/var/lib/dkms/gdrdrv/kernel-*",
    "/var/lib/dkms/nvidia*/kernel-*",
)
_MODULES = r"(?m)^(nvidia\w*|nouveau|gdrdrv|ib_umad) "
_KERNELS = "/lib/modules/*"  # role nvidia_driver needs the headers of each, and builds modules for it
_ETCD = "/var/lib/etcd"  # its mode alone
# Devices of MIG instances: role gpu_config makes the links. The second has their numbers.
_INSTANCES = ("/dev/nvidia-mig/*/*", "/proc/driver/nvidia/capabilities/gpu*/mig/gi*/**")
# What each new pod needs: of the first two the size counts, as flannel's pod writes its own at each start.
_NETWORK_OF_PODS = ("/opt/cni/bin/*", "/usr/lib/cni/*", "/sys/class/net/flannel*")
# Part of the state, text for the case that it cannot be read, file, command: the output is in the digests if the file
# exists. Which packages are installed, and what roles keep in the databases of a head. Versions of the packages that
# roles name are compared with the records: a security update of another one is nothing that a role would change.
_OUTPUTS = (
    (
        "packages",
        "its packages cannot be listed",
        "/etc/os-release",
        "if [ -e /var/lib/dpkg/status ];"
        " then dpkg-query --show --showformat '${Package} ${Architecture} ${db:Status-Status}\\n';"
        " else rpm --query --all --queryformat '%{NAME} %{ARCH}\\n'; fi",
    ),
    (
        "accounting",
        "slurmdbd does not answer",
        "/etc/slurm/slurmdbd.conf",
        "sacctmgr='sacctmgr --immediate --noheader --parsable2 show'; $sacctmgr cluster format=cluster"
        " && $sacctmgr account format=account,description && $sacctmgr user format=user,defaultaccount,adminlevel"
        # All options that module slurm_accounts sets (module_utils/slurm_limits.py), without those that are inherited.
        " && $sacctmgr qos format=name,Flags,GraceTime,GrpJobs,GrpJobsAccrue,GrpSubmitJobs,GrpTRES,"
        "GrpTRESMins,GrpTRESRunMins,GrpWall,LimitFactor,MaxJobsAccruePerAccount,MaxJobsAccruePerUser,"
        "MaxJobsPerAccount,MaxJobsPerUser,MaxSubmitJobsPerAccount,MaxSubmitJobsPerUser,MaxTRESMinsPerJob,"
        "MaxTRESPerAccount,MaxTRESPerJob,MaxTRESPerNode,MaxTRESPerUser,MaxTRESRunMinsPA,MaxTRESRunMinsPU,"
        "MaxWall,MinPrioThresh,MinTRESPerJob,Preempt,PreemptMode,Priority,UsageFactor,UsageThreshold"
        " && $sacctmgr assoc wopl format=cluster,account,user,partition,parentname,DefaultQOS,Fairshare,"
        "GrpJobs,GrpJobsAccrue,GrpSubmitJobs,GrpTRES,GrpTRESMins,GrpTRESRunMins,GrpWall,MaxJobs,"
        "MaxJobsAccrue,MaxSubmitJobs,MaxTRESMinsPerJob,MaxTRESPerJob,MaxTRESPerNode,MaxWall,MinPrioThresh,"
        "Priority,QOS",
    ),
    (
        "database",
        "its database does not answer",
        "/var/lib/clusterctl/state/slurm_head_database.json",
        # A run sets the password again, even if it is the same.
        "mariadb --batch --skip-column-names --execute"
        " \"SELECT user, host, JSON_REMOVE(priv, '$.password_last_changed') FROM mysql.global_priv ORDER BY 1, 2;"
        " SELECT * FROM mysql.db ORDER BY user, host, db;"
        ' SELECT schema_name FROM information_schema.schemata ORDER BY 1"',
    ),
)
_FIT = 'python3 -c \'import json, sys; sys.exit(any(one["drains"] for one in json.load(sys.stdin)["findings"]))\''
_AS_SET = "python3 -c 'import json, sys; sys.exit(bool(json.load(sys.stdin)[\"changes\"]))'"
_SETTINGS = "/etc/clusterctl/gpu-config.json"
_LOG_STORE = "/etc/clusterctl/log-store/configuration.json"
# Text for the case that the test fails, file, command: the test runs if the file exists. What role verify tests on a
# node, and what roles would change in the GPUs and in the search engine of the logs. GPU health is not reported here.
_TESTS = (
    (
        "its GPUs are not as configured",
        _SETTINGS,
        '/usr/local/sbin/gpu-config --check --given "$(cat %s)" | %s' % (_SETTINGS, _AS_SET),
    ),
    (
        "the search engine of the logs lacks an object",
        _LOG_STORE,
        'missing=$(/usr/local/sbin/log-store %s apply --check) && [ -z "$missing" ]' % _LOG_STORE,
    ),
    ("munge does not work", "/usr/bin/munge", "munge --no-input | unmunge"),
    (
        "its firewall is not as it was set up",
        "/usr/local/sbin/clusterctl-firewall",
        "/usr/local/sbin/clusterctl-firewall status",
    ),
    ("a check of its GPUs fails", "/usr/local/sbin/gpu-health", "/usr/local/sbin/gpu-health --json | " + _FIT),
)
_SECONDS = 20.0  # for all tests and outputs together
_LARGEST = 32 << 20  # bytes of an output


def records() -> Dict[str, str]:
    """Return a digest of each record of roles, by its scope (module_utils/node_state). Raises UnhealthyError."""
    found = {os.path.basename(path)[: -len(".json")]: _content(path) or "" for path in sorted(glob.glob(_RECORDS))}
    if len(found) > MAX_RECORDS or not all(re.match("[a-z0-9_]+$", scope) for scope in found):
        raise UnhealthyError("its records have too many or unexpected names")
    return found


def state(found: List[Facts], driver: Optional[str], recorded: Dict[str, str]) -> Dict[str, str]:
    """Return the digests of a node with these GPUs, this driver and these records. Raises UnhealthyError.

    They are of its `accounts`, those in Slurm (`accounting`), `boot`, `database`, `devices`, `kernel`, the user who
    logs in (`login`), `packages`, `records`, `reservations` in Slurm, of other settings of the `machine`, and of
    Kubernetes the `node`, `images`, and the `objects of` each part.
    """
    try:
        questions = []  # type: Questions
        questions.extend((failing, command, _nothing) for failing, path, command in _TESTS if os.path.exists(path))
        for part, failing, path, command in _OUTPUTS:
            if os.path.exists(path):
                questions.append((failing, command, _accounting if part == "accounting" else _lines_of(part)))
        questions.extend(kubernetes_questions())
        questions.extend(reservation_questions())
        outputs = _outputs(questions)
        machine = [(path, _content(path)) for path in _CONTENTS]  # type: List[object]
        machine.append([(path, _enabled(read(path))) for path in sorted(glob.glob(_REPOSITORIES))])
        machine.extend(_statuses(_STATUS))
        machine.append(os.uname().nodename)
        machine.append([line.split()[0] for line in read("/proc/swaps").splitlines()[1:]])
        machine.append(os.stat(_ETCD).st_mode if os.path.exists(_ETCD) else None)
        machine.append([(path, os.path.getsize(path)) for path in _found(_NETWORK_OF_PODS)])
        machine.append(_mounts(read("/etc/fstab"), read("/proc/self/mounts")))
        instances = [(path, os.path.realpath(path), read(path)) for path in _found(_INSTANCES)]
        modules = sorted(re.findall(_MODULES, read("/proc/modules")))
        gpus = [{key: gpu.get(key) for key in ("uuid", "device", "mig")} for gpu in found]
        parts = {
            "accounts": [[_content(path) for path in _ACCOUNTS], _status(_PASSWORDS)],
            "boot": _content(_BOOT),
            "devices": [_pci_devices(), driver, _content(_DRIVER), gpus, instances],
            "kernel": [os.uname().release, sorted(glob.glob(_KERNELS)), modules, _statuses(_BUILT)],
            "login": os.environ.get("SUDO_USER"),  # roles keep the access of this user
            "machine": machine,
            "records": recorded,
        }  # type: Dict[str, object]
        for number, (_, _, parts_of) in enumerate(questions):
            parts.update(parts_of(outputs[number]))
    except (OSError, ValueError, KeyError, TypeError):
        raise UnhealthyError("its state cannot be read") from None
    dumped = {part: json.dumps(content, sort_keys=True) for part, content in parts.items()}
    return {part: hashlib.sha256(text.encode()).hexdigest() for part, text in dumped.items()}


def _nothing(_printed: str) -> Facts:
    return {}


def _lines_of(part: str) -> Callable[[str], Facts]:
    """Return a function that makes a part of the state from an output, sorted: rpm's order is that of installation."""
    return lambda printed: {part: sorted(printed.splitlines())}


def _accounting(printed: str) -> Facts:
    """Return the accounting in Slurm without the people of a directory, whom a timer adds and removes (role sssd)."""
    people = json.loads(read(_DIRECTORY, "{}", MAX_DIRECTORY)).get("people", {})
    rows = [line for line in printed.splitlines() if not people.keys() & set(line.split("|")[:3:2])]
    return {"accounting": sorted(rows)}


def _pci_devices() -> List[Tuple[str, str]]:
    """Return all devices with their drivers: a GPU may be added, removed or given to a virtual machine."""
    return [(one, os.path.realpath(one + "/driver")) for one in sorted(glob.glob("/sys/bus/pci/devices/*"))]


def _found(patterns: Tuple[str, ...]) -> List[str]:
    return [path for pattern in patterns for path in sorted(glob.glob(pattern, recursive=True))]


def _statuses(patterns: Tuple[str, ...]) -> List[object]:
    return [(path, _status(path)) for path in _found(patterns)]


def _content(path: str) -> Optional[str]:
    try:
        with open(path, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except OSError:
        return None


def _status(path: str) -> Optional[List[int]]:
    """Return mode, size and time of change of what a path leads to; None if it leads nowhere, or is gone meanwhile."""
    try:
        known = os.stat(path)
    except OSError:
        return None
    return [known.st_mode, known.st_size, known.st_mtime_ns]


def _enabled(repositories: str) -> List[str]:
    """Return the repositories of CodeReady Builder that are enabled in the text of a file; dnf's default is enabled."""
    sections = re.split(r"(?m)^\[(?=[^]\n]*codeready-builder[^]\n]*\])", repositories)[1:]
    sections = [re.split(r"(?m)^\[", one)[0] for one in sections]
    return [one.split("]")[0] for one in sections if not re.search(r"(?mi)^enabled\s*=\s*(0|no|false|off)\s*$", one)]


def _mounts(table: str, mounted: str) -> List[List[str]]:
    """Return place, type and whether it is read-only of each mount in fstab that is there."""
    places = {line.split()[1] for line in table.splitlines() if line.split()[1:] and not line.startswith("#")}
    rows = [line.split() for line in mounted.splitlines()]
    return sorted([row[1], row[2], row[3].split(",")[0]] for row in rows if len(row) > 3 and row[1] in places)


def _outputs(questions: Questions) -> List[str]:
    """Return what the commands printed, which run at the same time. Raises UnhealthyError, with the text of one."""
    deadline = time.monotonic() + _SECONDS
    nothing = subprocess.DEVNULL
    found = []
    with tempfile.TemporaryDirectory() as folder:
        running = []
        for number, (failing, command, _) in enumerate(questions):
            path = os.path.join(folder, str(number))
            with open(path, "wb") as printed:
                argv = ["sh", "-c", command]
                running.append((failing, path, subprocess.Popen(argv, stdin=nothing, stdout=printed, stderr=nothing)))
        for failing, path, process in running:
            while process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.02)
            if process.poll() is None:
                process.kill()  # and not waited for: a process that hangs in the driver does not end
                raise UnhealthyError("%s (no result within %g s)" % (failing, _SECONDS))
            if process.poll() != 0 or os.path.getsize(path) > _LARGEST:
                raise UnhealthyError(failing)
            with open(path, "rb") as content:
                found.append(content.read().decode("utf-8", "replace"))
    return found
