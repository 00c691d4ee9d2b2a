"""Containers on the GPUs of a job, with what the kit builds; the toolkit is NVIDIA's own, the GPUs are simulated."""

import dataclasses
import re
import shutil
import signal
import ssl
import subprocess
import sys
import time
import urllib.request
import uuid
from pathlib import Path

import pytest
import yaml

from clusterctl.lab import cache, kit, kit_recipe
from clusterctl.lab.podman import LabError
from tests.cluster.gpus import RECIPES, Site
from tests.cluster.lab import ALICE, CALL_LIMIT, TestLab, clusterctl, podman
from tests.faults.injury import GUARD
from tests.programs import conversation

TOOLKIT = "nvidia-container-toolkit"


@pytest.fixture(scope="module")
def cluster(gpus: Site) -> TestLab:
    return gpus.lab


def fetch(cluster: TestLab, path: str) -> bytes:
    """Read a file of the package source as apt does: by the authority that the inventory names."""
    known = yaml.safe_load(cluster.inventory.read_text())["all"]["vars"]
    context = ssl.create_default_context(cafile=str(cluster.inventory.parent / "kit/ca.crt"))
    url = f"{known['nvidia_container_toolkit_repository_url']}/{path}"
    with urllib.request.urlopen(url, context=context, timeout=60) as answer:  # noqa: S310 - https
        return bytes(answer.read())


@pytest.mark.proves("lab", "The kit serves the toolkit's packages and key in the vendor's layout.")
def test_the_package_source_is_laid_out_as_the_vendors(cluster: TestLab) -> None:
    listed = re.findall(
        r"^Package: (\S+)$", fetch(cluster, f"stable/deb/{kit_recipe.architecture()}/Packages").decode(), re.MULTILINE
    )
    assert sorted(listed) == [TOOLKIT, f"{TOOLKIT}-base", f"{TOOLKIT}-operator-extensions"]
    assert b"PUBLIC KEY" in fetch(cluster, "gpgkey")


@pytest.mark.proves("containers", "On a cluster with all GPU and container features a second run changes nothing.")
def test_a_second_run_changes_nothing(cluster: TestLab) -> None:
    cluster.unchanged()


def job(cluster: TestLab, gpus: int, script: str) -> str:
    """What a shell script in a job of alice's prints."""
    return cluster.ssh("head1", *ALICE, "srun", f"--gres=gpu:{gpus}", "sh", "-eu", "-s", stdin=script)


SEEN = "ls /dev | grep -x 'nvidia[0-9]*'; nvidia-smi -L"


@pytest.mark.proves("containers", "podman in a user's job sees the job's GPUs and no others.")
def test_podman_in_a_job_sees_exactly_the_jobs_gpus(cluster: TestLab) -> None:
    told = job(
        cluster, 2,
        f"""
        podman pull --quiet {cluster.image} > /dev/null
        nvidia-smi -L; echo ==
        podman run --rm --quiet $(job-gpus) {cluster.image} sh -c "{SEEN}"
        """,
    )  # fmt: skip
    outside, inside = (part.strip().splitlines() for part in told.split("==\n"))
    assert len(outside) == 2
    assert [line for line in inside if line.startswith("GPU")] == outside
    assert len([line for line in inside if line.startswith("nvidia")]) == 2


@pytest.mark.proves("containers", "Containers of two users' jobs share no GPU.")
def test_two_users_containers_share_no_gpu(cluster: TestLab) -> None:
    """Both jobs are on one node, and each keeps its GPU until the other has shown its own."""
    image, meeting = cluster.image, f"/var/tmp/meeting-{uuid.uuid4().hex}"
    cluster.root("gpu01", f"mkdir --mode=1777 {meeting}")
    script = f"""
    podman pull --quiet {image} > /dev/null; podman run --rm $(job-gpus) {image} sh -c "{SEEN}"
    touch {meeting}/$SLURM_JOB_ID
    until [ "$(ls {meeting} | wc -l)" = 2 ]; do sleep 0.2; done
    """
    options = ("--gres=gpu:1", "--nodelist=gpu01", "--mem=500M")
    users = (ALICE, (*ALICE[:-1], "bob"))
    argvs = [cluster.ssh_argv("head1", *user, "srun", *options, "sh", "-eu", "-s") for user in users]
    both = [subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for argv in argvs]
    try:
        for process in both:
            assert process.stdin
            process.stdin.write(script)
            process.stdin.close()
            process.stdin = None
        told = [process.communicate(timeout=GUARD)[0].splitlines() for process in both]
    finally:
        for process in both:
            process.kill()
    assert [process.returncode for process in both] == [0, 0]
    devices, uuids = ({line for lines in told for line in lines if line.startswith(what)} for what in ("nvidia", "GPU"))
    assert len(devices) == 2
    assert len(uuids) == 2


@pytest.mark.proves("containers", "A container with all GPUs of the node can open only its job's.")
def test_a_container_that_is_given_all_gpus_can_use_those_of_its_job_alone(cluster: TestLab) -> None:
    told = job(
        cluster, 1,
        f"""
        nvidia-smi -L; echo ==
        podman run --rm --device nvidia.com/gpu=all {cluster.image} sh -c "nvidia-smi -L; echo ==
          for device in /dev/nvidia[0-3]; do (: < \\$device) 2>&1 || true; done"
        """,
    )  # fmt: skip
    outside, inside, opened = (part.strip().splitlines() for part in told.split("==\n"))
    assert len(outside) == 1
    assert inside == outside
    assert len([line for line in opened if "Operation not permitted" in line]) == 3


@pytest.mark.proves("containers", "`job-gpus` in a job without GPUs fails and names the option.")
def test_without_gpus_a_job_is_told_how_to_get_some(cluster: TestLab) -> None:
    told = job(cluster, 0, "job-gpus 2>&1 || echo exit $?")
    assert "srun --gres=gpu:1" in told
    assert told.endswith("exit 1\n")


@pytest.mark.proves("containers", "The CDI description of the GPUs is back after a container's restart.")
def test_the_description_of_the_gpus_is_back_after_a_reboot(cluster: TestLab) -> None:
    """What /run holds is gone then; that the container is switched on again is simulated."""
    cluster.root("gpu01", "rm /run/cdi/nvidia.yaml")
    name = f"clusterctl-{cluster.name}-gpu01"
    podman("restart", "--time", "5", name)
    cluster.up()
    deadline = time.monotonic() + 120
    while "nvidia.com/gpu=3" not in cluster.root("gpu01", "nvidia-ctk cdi list 2>&1 || true"):
        assert time.monotonic() < deadline, "the description was not renewed"
        time.sleep(1)
    cluster.healthy()


# The kit itself


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, in which everything is to be built; returns where it keeps what is built."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return cache.directory("kit") / "built"


@pytest.mark.proves("lab", "The kit refuses a module with another hash and builds nothing.")
def test_a_module_with_another_hash_is_refused(elsewhere: Path, tmp_path: Path) -> None:
    (recipe,) = kit_recipe.load((TOOLKIT,))
    directory = tmp_path / "recipes" / TOOLKIT
    shutil.copytree(recipe.directory, directory)
    pins = (directory / "go.sum").read_text()
    forged = re.sub(r"(container-toolkit v1.20.1 h1:)....", r"\1AAAA", pins)
    assert forged != pins
    (directory / "go.sum").write_text(forged)
    with pytest.raises(
        LabError, match=r"does not match its hash in .*/go.sum; nothing was built:(.|\n)*checksum mismatch"
    ):
        kit.build([dataclasses.replace(recipe, directory=directory)], lambda step: None)
    assert list(elsewhere.iterdir()) == []


@pytest.mark.proves("lab", "An interrupted or killed kit build leaves no partial result.")
def test_an_interrupted_build_leaves_nothing_half(elsewhere: Path) -> None:
    """One that is killed leaves what it was at, which the next one removes.

    A shell starts what runs in its background with SIGINT ignored, and children inherit that: env undoes it.
    """
    for stop in (signal.SIGKILL, signal.SIGINT):
        build = ["env", "--default-signal=INT", sys.executable, "-m", "clusterctl", "lab", "kit", TOOLKIT]
        with conversation(build, CALL_LIMIT, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr
            assert any("programs" in line for line in process.stderr)
            process.send_signal(stop)
            process.communicate()
        assert process.returncode != 0
        assert [path for path in elsewhere.iterdir() if not path.name.startswith(".")] == []
    assert list(elsewhere.iterdir()) == []
    assert "clusterctl-kit-build" not in podman("ps", "--all", "--format", "{{.Names}}")


@pytest.mark.proves("lab", "The kit builds nothing twice.")
def test_what_is_built_is_not_built_again() -> None:
    done = clusterctl("lab", "kit", *RECIPES)
    assert done.returncode == 0, done.stderr
    assert "lab/debian:13" in done.stdout
    assert "kit:" not in done.stderr  # no step was needed
