"""The map from paths to layers: complete, without lines that match nothing."""

import re
import subprocess

import pytest

from tests import layers
from tests.labs import REPOSITORY

TRACKED = subprocess.run(
    ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
    cwd=REPOSITORY, capture_output=True, text=True, check=True, timeout=60,
).stdout.splitlines()  # fmt: skip


def test_layers__every_test_file__has_exactly_one() -> None:
    files = [path for path in TRACKED if re.search(r"(^|/)test_[^/]+\.py$", path) and path.startswith("tests/")]
    assert len(files) > 60
    for file in files:
        names = [name for listed in layers.LAYERS.values() for name in listed if file == name or file.startswith(name)]
        assert len(names) == 1, f"{file}: {names}"


def test_layers__every_listed_file__exists() -> None:
    for names in layers.LAYERS.values():
        for name in names:
            assert (REPOSITORY / name).exists(), name


@pytest.mark.parametrize("pattern", [pattern for pattern, _ in layers.TOUCHES])
def test_touches__every_line__matches_a_file(pattern: str) -> None:
    assert any(re.match(pattern, path) for path in TRACKED)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("docs/operations.md", set()),
        ("tests/unit/test_cli.py", {"unit"}),
        ("tests/cluster/test_driver.py", {"gpu"}),
        ("tests/cluster/gpus.py", {"gpu"}),
        ("roles/gpu_health/tasks/main.yml", {"gpu", "kubernetes", "roles"}),
        ("roles/backup/tasks/main.yml", {"day2", "kubernetes", "roles"}),
        ("roles/containerd/tasks/main.yml", {"gpu", "kubernetes", "roles"}),
        ("clusterctl/workspace/kubernetes_pki.py", {"kubernetes"}),
        ("roles/kubernetes_head/tasks/main.yml", {"kubernetes", "roles"}),
        ("tests/cluster/kubernetes.py", {"kubernetes"}),
        ("clusterctl/commands/usage.html.j2", {"gpu", "kubernetes"}),
        ("clusterctl/commands/backup.py", {"day2", "contract", "kubernetes"}),
        ("roles/base/tasks/main.yml", set(layers.ALL)),
        ("clusterctl/ansible/runner.py", set(layers.ALL)),
        ("a-file-in-no-line", set(layers.ALL)),
        ("pyproject.toml", set(layers.ALL)),
        ("scripts/prepare", set(layers.ALL)),
        ("tests/cluster/lab.py", set(layers.ALL)),
        (".ci/run", set()),
        ("scripts/test", set()),
        ("playbooks/replace-node.yml", {"day2", "contract", "kubernetes"}),
        ("plugins/modules/nvidia_build.py", {"gpu", "roles"}),
        ("scripts/demo", {"kubernetes", "systems"}),
    ],
)
def test_touched__a_path__touches_what_the_map_says(path: str, expected: set[str]) -> None:
    assert layers.touched([path]) == expected


def test_touched__several_paths__touch_the_layers_of_all() -> None:
    paths = ["clusterctl/commands/backup.py", "tests/cluster/gpus.py"]
    assert layers.touched(paths) == {"contract", "day2", "gpu", "kubernetes"}


def test_layer_of__unknown_test_file__is_refused() -> None:
    with pytest.raises(LookupError, match="test_new"):
        layers.layer_of("tests/cluster/test_new.py")


def test_tier_of__long_test_of_the_core__is_in_the_rotation() -> None:
    assert layers.tier_of("tests/cluster/test_bootstrap.py", long=False) == "ci"
    assert layers.tier_of("tests/cluster/test_bootstrap.py", long=True) == "rotation"
    assert layers.tier_of("tests/cluster/test_backup.py", long=False) == "rotation"
