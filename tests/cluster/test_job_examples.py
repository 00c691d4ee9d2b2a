"""The examples of docs/jobs.md, submitted unchanged by an ordinary user."""

import re
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from clusterctl.lab import cache
from tests import programs
from tests.cluster.lab import ALICE, ALICES, SSH_LIMIT, TestLab, fresh, podman
from tests.cluster.members import states
from tests.faults.injury import container, wait_until
from tests.labs import REPOSITORY

EXAMPLES = REPOSITORY / "docs/examples/slurm"
HOME = "/home/alice"
FOUND = dict[str, str]
"""Text of the output by the file's name."""
WHEELS = "jupyterlab==4.6.6"
NODES_PYTHON = "3.13"
LIMIT = 600.0  # seconds for a download
RECIPES = ("debian", "nvidia-container-toolkit")
pytestmark = pytest.mark.timeout(1800)  # PyTorch's packages are compiled on each worker


@pytest.fixture(scope="module")
def lab(key: Path) -> Iterator[TestLab]:
    """A cluster of two workers with two GPUs each, with podman, MPI, Debian's PyTorch and the examples."""
    with fresh("examples", "--gpus", "2", *(f"--recipe={name}" for name in RECIPES)) as lab:
        public = Path(f"{key}.pub").read_text().strip()
        person = f"      - {{name: alice, uid: 5001, ssh_keys: ['{public}']}}\n"
        lab.inventory.write_text(lab.inventory.read_text().replace(ALICES, person))
        variables = lab.inventory.parent / "group_vars"
        variables.mkdir(exist_ok=True)
        (variables / "slurm_workers.yml").write_text("base_packages: [curl, less, python3-torch, python3-venv]\n")
        lab.switch_on("mpi", "nvidia_container_toolkit", "podman")
        lab.run("bootstrap", limit=1800)
        for node in lab.nodes:  # homes in a lab are not shared
            for path in EXAMPLES.iterdir():
                lab.ssh(node, *ALICE, "tee", f"{HOME}/{path.name}", stdin=path.read_text())
        yield lab


def start(lab: TestLab, script: str, *options: str) -> str:
    """Submit an example as it is; return the job's number."""
    return lab.ssh("head1", *ALICE, "sbatch", "--parsable", *options, script).strip()


def finish(lab: TestLab, job: str, tasks: int = 1) -> FOUND:
    """Wait until a job is completed; return its output."""
    wait_until(
        lambda: states(lab, job) == ["COMPLETED"] * tasks, lambda: f"{job}: {states(lab, job)} {output(lab, job)}"
    )
    return output(lab, job)


def output(lab: TestLab, job: str) -> FOUND:
    """Return what a job has written until now, from whichever node has it."""
    found = {}
    for node in lab.nodes[1:]:
        for path in lab.root(node, f"find {HOME} -name '*-{job}.out' -o -name '*-{job}-*.out'").split():
            found[Path(path).name] = lab.root(node, f"cat {path}")
    return found


def gpus_in(text: str) -> int:
    return len(re.findall(r"(?m)^GPU \d: ", text))


@pytest.mark.proves("jobs", "Every example script is submitted by a test, and every file belongs to a script.")
def test_examples__each_script__has_a_test_that_submits_it() -> None:
    scripts = {path.name: path.read_text() for path in EXAMPLES.glob("*.sh")}
    tested = re.findall(r'start\(lab, "([^"]+)"', Path(__file__).read_text())
    assert sorted(tested) == sorted(scripts)
    others = {path.name for path in EXAMPLES.iterdir()} - {*scripts}
    assert [name for name in others if not any(name in text for text in scripts.values())] == []
    page = (REPOSITORY / "docs/jobs.md").read_text()
    assert [name for name in (*scripts, *others) if f"(examples/slurm/{name})" not in page] == []


@pytest.mark.long
@pytest.mark.proves("jobs", "The example of a job with one GPU runs unchanged and sees one GPU.")
def test_single_gpu__as_it_is__sees_one_gpu(lab: TestLab) -> None:
    job = start(lab, "single-gpu.sh")
    text = finish(lab, job)[f"single-gpu-{job}.out"]
    assert gpus_in(text) == 1
    assert re.search(rf"(?m)^job {job} on gpu0[12]: CUDA_VISIBLE_DEVICES=0$", text)


@pytest.mark.long
@pytest.mark.proves("jobs", "The example of an array runs unchanged, each task with an input of its own.")
def test_array__as_it_is__has_an_input_for_each_task(lab: TestLab) -> None:
    job = start(lab, "array.sh")
    rates = {name: re.findall(r"rate (\S+) on GPU 0$", text.strip()) for name, text in finish(lab, job, 4).items()}
    assert rates == {f"array-{job}-{task}.out": [rate] for task, rate in enumerate(("0.1", "0.03", "0.01", "0.003"))}


@pytest.mark.long
@pytest.mark.proves("jobs", "The example of PyTorch on two nodes trains one model, unchanged.")
def test_ddp__on_two_nodes__trains_one_model(lab: TestLab) -> None:
    job = start(lab, "ddp.sh")
    text = finish(lab, job)[f"ddp-{job}.out"]
    ranks = sorted(re.findall(r"(?m)^rank (\d) of 2 on (gpu0\d): gloo$", text))
    assert ranks == [("0", "gpu01"), ("1", "gpu02")]
    losses = [float(loss) for loss in re.findall(r"(?m)^step \d+: loss (\S+)$", text)]
    assert len(losses) == 5
    assert losses[-1] < losses[0] / 100
    first, second = re.findall(r"(?m)^rank \d: parameters (\[.*\])$", text)
    assert first == second


@pytest.mark.long
@pytest.mark.proves("jobs", "The example of PyTorch fails if its tasks do not train one model.")
def test_ddp__whose_tasks_do_not_communicate__fails(lab: TestLab) -> None:
    """Without DistributedDataParallel each task trains with its own points alone."""
    alone = r"sed 's/= DistributedDataParallel(\(.*\))$/= \1/; s/range(201)/range(3)/' ddp.py > alone/ddp.py"
    for node in lab.nodes:
        lab.ssh(node, *ALICE, "sh", "-eu", "-s", stdin=f"mkdir -p alone; {alone}; ! cmp ddp.py alone/ddp.py")
    job = lab.ssh("head1", *ALICE, "sbatch", "--parsable", f"--chdir={HOME}/alone", "ddp.sh").strip()
    wait_until(lambda: states(lab, job) == ["FAILED"], lambda: f"{job}: {states(lab, job)} {output(lab, job)}")
    (text,) = output(lab, job).values()
    assert "other tasks have other parameters" in text


@pytest.mark.long
@pytest.mark.proves("jobs", "The example of MPI computes on two nodes, unchanged.")
def test_mpi__on_two_nodes__adds_what_both_computed(lab: TestLab) -> None:
    job = start(lab, "mpi.sh")
    text = finish(lab, job)[f"mpi-{job}.out"]
    ranks = sorted(re.findall(r"(?m)^rank (\d) of 2 on (gpu0\d)", text))
    assert ranks == [("0", "gpu01"), ("1", "gpu02")]
    assert "\npi: 3.141593\n" in text


@pytest.mark.long
@pytest.mark.kit(*RECIPES)
@pytest.mark.proves("jobs", "The example of a container sees the job's GPU, unchanged.")
def test_container__as_it_is__has_the_jobs_gpu(lab: TestLab) -> None:
    job = start(lab, "container.sh", f"--export=ALL,IMAGE={lab.image}")
    assert gpus_in(finish(lab, job)[f"container-{job}.out"]) == 1


def interactive_commands() -> list[str]:
    """Return the command lines of the page's section about interactive jobs."""
    section = (REPOSITORY / "docs/jobs.md").read_text().split("## Interactive\n")[1].split("\n## ")[0]
    (block,) = re.findall(r"(?s)```sh\n(.*?)```", section)
    return [str(line) for line in block.splitlines()]


@pytest.fixture(scope="module")
def ssh(lab: TestLab, key: Path) -> list[str]:
    """Return the start of an SSH command of alice's on her own computer, which has the names of the lab."""
    shown = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}"
    hosts = {node: podman("inspect", "--format", shown, container(lab, node)).strip() for node in lab.nodes}
    known = lab.inventory.parent / "known_hosts"
    config = key.with_name("config")
    config.write_text(
        "".join(f"Host {node}\n  HostName {address}\n" for node, address in hosts.items())
        + f"Host *\nUser alice\nIdentityFile {key}\nIdentitiesOnly yes\nBatchMode yes\n"
        + f"UserKnownHostsFile {known}\nStrictHostKeyChecking yes\nExitOnForwardFailure yes\n"
    )
    return ["ssh", "-F", str(config)]


@pytest.mark.long
@pytest.mark.proves("jobs", "The interactive examples open a shell with a terminal and a GPU on a worker.")
@pytest.mark.parametrize("command", interactive_commands(), ids=lambda command: command.split()[0])
def test_interactive__as_it_is__is_a_shell_on_a_worker(ssh: list[str], command: str) -> None:
    typed = 'echo "on $(hostname) $(tty) $(nvidia-smi -L | wc -l)"\nexit\n'
    done = programs.call([*ssh, "-tt", "head1", command], SSH_LIMIT, input=typed)
    assert re.search(r"on gpu0[12] /dev/pts/\d+ 1\r?\n", done.stdout), programs.described(done)


def install_jupyterlab(lab: TestLab, node: str) -> None:
    """Install JupyterLab as the page says. The wheels are downloaded once for all labs of this machine."""
    wheels = cache.directory("wheels") / WHEELS
    if not wheels.exists():
        part = wheels.with_name(f"{WHEELS}.part")
        platforms = ("manylinux2014_x86_64", "manylinux_2_28_x86_64")
        argv = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:", f"--dest={part}", WHEELS]
        options = [f"--python-version={NODES_PYTHON}", *(f"--platform={one}" for one in platforms)]
        programs.output_of([*argv, *options], LIMIT)
        part.rename(wheels)
    podman("cp", str(wheels), f"{container(lab, node)}:/var/tmp/wheels")
    pip = "~/jupyter/bin/pip install --quiet --no-index --find-links=/var/tmp/wheels jupyterlab"
    lab.ssh(node, *ALICE, "sh", "-eu", "-s", stdin=f"python3 -m venv ~/jupyter\n{pip}\n")


def status(port: int, token: str) -> int:
    """Return the HTTP status of JupyterLab's list of files at the tunnel's end; 0 where nothing responds."""
    request = urllib.request.Request(f"http://localhost:{port}/api/contents")
    if token:
        request.add_header("Authorization", f"token {token}")
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310 - http
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


@pytest.mark.long
@pytest.mark.proves("jobs", "The notebook example serves JupyterLab by the printed tunnel, with its token only.")
def test_notebook__through_its_tunnel__needs_its_token(lab: TestLab, ssh: list[str]) -> None:
    install_jupyterlab(lab, "gpu01")
    job = start(lab, "notebook.sh", "--nodelist=gpu01")
    name = f"notebook-{job}.out"
    wait_until(lambda: "is running at" in output(lab, job).get(name, ""), lambda: str(output(lab, job)))
    text = output(lab, job)[name]
    (secret,) = re.findall(r"(?m)^Token: +cat (\S+)$", text)
    assert lab.root("gpu01", f"stat --format='%a %U' {secret}").strip() == "600 alice"
    token = lab.root("gpu01", f"cat {secret}").strip()
    assert token
    assert token not in text
    with closing(socket.socket()) as free:
        free.bind(("localhost", 0))
        port = int(free.getsockname()[1])
    (line,) = re.findall(r"(?m)^On your computer: +ssh (.*)$", text)
    tunnel = subprocess.Popen([*ssh, *line.replace("8888:", f"{port}:").split()])
    try:
        wait_until(lambda: status(port, token) == 200)
        assert status(port, "") == status(port, "wrong") == 403
        assert token not in lab.root("gpu01", "ps -eo args")
    finally:
        tunnel.terminate()
        tunnel.wait()
    lab.ssh("head1", *ALICE, "scancel", job)
    wait_until(lambda: states(lab, job)[0] == "CANCELLED", lambda: str(states(lab, job)))
    wait_until(lambda: "gone" in lab.root("gpu01", f"test -e {secret} || echo gone"))
