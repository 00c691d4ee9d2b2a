"""Files of the log stack for each engine and version, against what the vendors document."""

import re
from pathlib import Path, PurePath
from typing import Any

import pytest
import yaml

from tests.labs import REPOSITORY
from tests.systems.rendering import Cluster, Role, a_cluster

SETTINGS = yaml.safe_load((REPOSITORY / "tests/samples/logs/settings.yaml").read_text())


def role(folder: Path, name: str, host: str = "head1", system: str = "debian-13", **variables: Any) -> Role:
    """Return a role on a host of a cluster with the group logging."""
    a_cluster(folder, system, **variables)
    path = folder / "inventory.yaml"
    inventory = yaml.safe_load(path.read_text())
    inventory["all"]["children"]["logging"] = {"hosts": {"head1": {}}}
    path.write_text(yaml.safe_dump(inventory))
    return Cluster(path, system).role(name, host)


def configuration(found: Role, engine: str) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load(found.render(found.path / f"templates/{engine}.yml.j2"))
    return content


@pytest.mark.proves("log_stack", "Settings of search engines are those that their vendors document.")
@pytest.mark.parametrize("engine", ["elasticsearch", "opensearch"])
def test_settings__of_an_engine__are_documented(engine: str, tmp_path: Path) -> None:
    written = configuration(role(tmp_path, "elasticsearch", logging_engine=engine), engine).keys()
    documented = {name for names in SETTINGS[engine].values() for name in names}
    assert written - documented == {*SETTINGS["unsourced"][engine]}
    assert documented - written == set()


@pytest.mark.proves("log_stack", "Elasticsearch without a login listens on the loopback address only.")
def test_elasticsearch__of_the_apache_licence__listens_on_loopback(tmp_path: Path) -> None:
    found = role(tmp_path, "elasticsearch", elasticsearch_version="7.10.2")
    settings = configuration(found, "elasticsearch")
    assert settings["http.host"] == "127.0.0.1"
    assert not [name for name in settings if name.startswith(("xpack.", "ingest."))]
    *_, (_, call) = found.calls(lambda path: path.name == "main.yml")
    assert call["packages"] == [{"name": "elasticsearch-oss", "version": "7.10.2"}]
    assert call["repositories"][0]["url"].endswith("/packages/oss-7.x/apt")
    assert not [item for item in call["files"] if "tls" in item["dest"]]


@pytest.mark.proves("log_stack", "On one host, no two package sources have the same URL.")
@pytest.mark.parametrize("system", ["debian-13", "rocky-9"])
@pytest.mark.parametrize(
    ("engine", "version", "sources"),
    [("elasticsearch", "9.*", 1), ("elasticsearch", "7.10.2", 1), ("opensearch", "2.19.*", 2)],
)
def test_sources__of_engine_and_filebeat__have_a_name_each(
    engine: str, version: str, sources: int, system: str, tmp_path: Path
) -> None:
    found: dict[str, str] = {}
    variables = {"logging_engine": engine, "elasticsearch_version": version}
    variables |= {"filebeat_version": version} if version == "7.10.2" else {}
    for name in ("elasticsearch", "filebeat"):
        (tmp_path / name).mkdir()
        of_role = role(tmp_path / name, name, system=system, **variables)
        *_, (_, call) = of_role.calls(lambda path: path.name == "main.yml")
        (source,) = call["repositories"]
        assert found.setdefault(source["url"], source["name"]) == source["name"]
    assert len(found) == len({*found.values()}) == sources


@pytest.mark.proves("log_stack", "A change of the engine uninstalls the one that clusterctl has installed before.")
@pytest.mark.parametrize(("engine", "other"), [("elasticsearch", "opensearch"), ("opensearch", "elasticsearch")])
def test_engine__beside_another__is_in_its_place(engine: str, other: str, tmp_path: Path) -> None:
    found = role(tmp_path, "elasticsearch", logging_engine=engine)
    first, second = (call for _, call in found.calls(lambda path: path.name == "main.yml"))
    assert (first["name"], first["state"]) == (other, "absent")
    assert (second["name"], second.get("state", "present")) == (engine, "present")


def test_filebeat__of_an_engine_without_login__ships_on_its_host_alone(tmp_path: Path) -> None:
    found = role(tmp_path, "filebeat", "gpu01", elasticsearch_version="7.10.2")
    [(_, call)] = found.calls(lambda path: path.name == "main.yml")
    assert call["state"] == "absent"
    assert call["packages"] == []


@pytest.mark.proves("log_stack", "A node without the group logging is as if it never had a shipper.")
def test_filebeat__without_the_group__is_absent(tmp_path: Path) -> None:
    [(_, call)] = a_cluster(tmp_path, "debian-13").role("filebeat", "gpu01").calls(lambda path: path.name == "main.yml")
    assert call["state"] == "absent"
    assert [call[name] for name in ("repositories", "packages", "directories", "files", "units")] == [[]] * 5


def test_filebeat__on_a_head_of_slurm__has_logrotate_for_its_file(tmp_path: Path) -> None:
    for host, there in (("head1", True), ("gpu01", False)):
        (tmp_path / host).mkdir()
        [(_, call)] = role(tmp_path / host, "filebeat", host).calls(lambda path: path.name == "main.yml")
        assert any(item["dest"].startswith("/etc/logrotate.d/") for item in call["files"]) is there
        assert ("logrotate" in [item["name"] if isinstance(item, dict) else item for item in call["packages"]]) is there


@pytest.mark.proves("log_stack", "Files are read under the names that rotation gives them, not compressed ones.")
@pytest.mark.parametrize("engine", ["elasticsearch", "opensearch"])
def test_inputs__of_rotated_files__match_uncompressed_ones(engine: str, tmp_path: Path) -> None:
    found = role(tmp_path, "filebeat", logging_engine=engine)
    inputs = yaml.safe_load(found.render(found.path / "templates/filebeat.yml.j2"))["filebeat.inputs"]
    # Names of logrotate with and without dateext, of auditd, and of Kubernetes' kubelet (pkg/kubelet/logs).
    names = {
        "/var/log/slurm/slurmctld.log": "slurm",
        "/var/log/slurm/slurmctld.log.1": "slurm",
        "/var/log/slurm/slurmd.log-20261127": "slurm",
        "/var/log/slurm/slurmctld.log.2.gz": None,
        "/var/log/slurm/jobcomp.log.2": "jobs",
        "/var/log/audit/audit.log.4": "audit",
        "/var/log/pods/team-a_train-0_0b1c5ce4/main/0.log": "containers",
        "/var/log/pods/team-a_train-0_0b1c5ce4/main/0.log.20261127-001800": "containers",
        "/var/log/pods/team-a_train-0_0b1c5ce4/main/0.log.20261127-001800.gz": None,
        "/var/log/pods/team-a_train-0_0b1c5ce4/main/0.log.20261127-001800.tmp": None,
    }
    for name, dataset in names.items():
        matched = [
            one["fields"]["dataset"]
            for one in inputs
            if any(PurePath(name).match(pattern) for pattern in one["paths"])
            and not any(re.search(pattern, name) for pattern in excluded(one))
        ]
        assert matched == ([dataset] if dataset else []), name


def excluded(one: dict[str, Any]) -> list[str]:
    found: list[str] = one.get("exclude_files") or one.get("prospector.scanner.exclude_files") or []
    return found


@pytest.mark.parametrize(
    ("engine", "settings"),
    [
        ("elasticsearch", {"close.on_state_change.removed": False, "close.reader.after_interval": "24h"}),
        ("opensearch", {"close_removed": False, "close_timeout": "24h"}),
    ],
)
def test_inputs__of_files_that_are_deleted__read_them_to_the_end(
    engine: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    found = role(tmp_path, "filebeat", logging_engine=engine)
    inputs = yaml.safe_load(found.render(found.path / "templates/filebeat.yml.j2"))["filebeat.inputs"]
    for one in inputs:
        got = {name: one[name] for name in settings if name in one}
        # The exported journal has a limit of its own, which a file that is kept open would exceed.
        assert got == ({} if one["fields"]["dataset"] == "journal" else settings)


@pytest.mark.parametrize(
    ("system", "engine", "url", "version"),
    [
        ("debian-13", "elasticsearch", "packages/9.x/apt", "9.*"),
        ("rocky-9", "elasticsearch", "packages/9.x/yum", "9.*"),
        ("debian-13", "opensearch", "releases/bundle/opensearch/2.x/apt", "2.19.*"),
        ("rocky-9", "opensearch", "releases/bundle/opensearch/2.x/yum", "2.19.*"),
    ],
)
def test_engine__on_a_system__comes_from_its_vendor(
    system: str, engine: str, url: str, version: str, tmp_path: Path
) -> None:
    found = role(tmp_path, "elasticsearch", system=system, logging_engine=engine)
    *_, (_, call) = found.calls(lambda path: path.name == "main.yml")
    assert call["repositories"][0]["url"].endswith(url)
    assert call["packages"] == [{"name": engine, "version": version}]


@pytest.mark.parametrize(
    ("engine", "kind", "url"), [("elasticsearch", "filestream", "9.x/apt"), ("opensearch", "log", "oss-7.x/apt")]
)
def test_filebeat__for_an_engine__reads_files_its_way(engine: str, kind: str, url: str, tmp_path: Path) -> None:
    found = role(tmp_path, "filebeat", logging_engine=engine)
    content = yaml.safe_load(found.render(found.path / "templates/filebeat.yml.j2"))
    inputs = content["filebeat.inputs"]
    assert {one["type"] for one in inputs} == {kind}
    assert {one["pipeline"] for one in inputs} == {"clusterlog"}
    assert [one["fields"]["dataset"] for one in inputs] == ["journal", "slurm", "jobs", "audit", "containers"]
    assert len({one.get("id", one["fields"]["dataset"]) for one in inputs}) == len(inputs)
    [(_, call)] = found.calls(lambda path: path.name == "main.yml")
    assert call["repositories"][0]["url"].endswith(url)


@pytest.mark.proves("log_stack", "The Java heap is half of a dedicated host's memory, less of others'.")
@pytest.mark.parametrize(
    ("memory", "alone", "heap"),
    [(24105, False, 3013), (2000, False, 512), (512000, False, 8192), (24105, True, 12052), (512000, True, 31744)],
)
def test_heap__of_a_host__follows_its_memory(memory: int, alone: bool, heap: int, tmp_path: Path) -> None:
    found = role(tmp_path, "elasticsearch")
    found.variables["__elasticsearch_memory"] = memory
    if alone:
        found.variables["group_names"] = ["logging"]
    assert int(found.value("__elasticsearch_heap")) == heap


@pytest.mark.parametrize("wanted", [True, False])
def test_slurm__with_logging__writes_records_of_jobs(wanted: bool, tmp_path: Path) -> None:
    found = role(tmp_path, "slurm_head") if wanted else a_cluster(tmp_path, "debian-13").role("slurm_head", "head1")
    text = found.render(found.path / "templates/slurm.conf.j2")
    assert ("JobCompType=jobcomp/filetxt" in text) is wanted


@pytest.mark.proves("log_stack", "A worker that stores the logs reports the newest lines of the other nodes.")
def test_targets__worker_with_the_logs__keeps_the_label_of_other_nodes(tmp_path: Path) -> None:
    role(tmp_path, "prometheus")
    path = tmp_path / "inventory.yaml"
    inventory = yaml.safe_load(path.read_text())
    for hosts in ("head1", "gpu01"):
        inventory["all"]["children"]["logging"] = {"hosts": {hosts: {}}}
        path.write_text(yaml.safe_dump(inventory))
        found = Cluster(path, "debian-13").role("prometheus", "head1")
        targets = yaml.safe_load(found.render(found.path / "templates/nodes.json.j2"))
        (of_worker,) = [one["labels"] for one in targets if one["labels"]["instance"] == "gpu01"]
        assert of_worker.get("node") == (None if hosts == "gpu01" else "gpu01")
