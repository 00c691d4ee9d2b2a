"""Pages of the logs and the receiver of devices' lines: files for each engine, against what the vendors document."""

import hashlib
import itertools
from pathlib import Path
from typing import Any

import pytest
import yaml
from logstash_pipeline_parser import Pipeline

from tests.labs import REPOSITORY
from tests.systems.rendering import Role
from tests.systems.test_logging import SETTINGS, role

OPTIONS = yaml.safe_load((REPOSITORY / "tests/samples/logs/logstash.yaml").read_text())
ENGINES = ["elasticsearch", "opensearch"]
SENDERS = ["192.0.2.0/24", "198.51.100.7"]


def pages(folder: Path, engine: str, **variables: Any) -> tuple[Role, dict[str, Any]]:
    """Return role kibana, and what it writes into the program's own file."""
    found = role(folder, "kibana", logging_engine=engine, **variables)
    name = {"elasticsearch": "kibana", "opensearch": "opensearch_dashboards"}[engine]
    content: dict[str, Any] = yaml.safe_load(found.render(found.path / f"templates/{name}.yml.j2"))
    return found, content


@pytest.mark.proves("log_stack", "Settings of the logs' pages are those that their vendors document.")
@pytest.mark.parametrize("engine", ENGINES)
def test_settings__of_the_pages__are_documented(engine: str, tmp_path: Path) -> None:
    _, content = pages(tmp_path, engine)
    sources = SETTINGS[{"elasticsearch": "kibana", "opensearch": "opensearch_dashboards"}[engine]]
    assert content.keys() == {name for names in sources.values() for name in names}


@pytest.mark.proves("log_stack", "The logs' pages have TLS, the engine's login, and keys and passwords of the cluster.")
@pytest.mark.parametrize("engine", ENGINES)
def test_pages__of_an_engine__are_closed(engine: str, tmp_path: Path) -> None:
    found, content = pages(tmp_path, engine)
    assert (content["server.host"], content["server.ssl.enabled"]) == ("10.0.0.10", True)
    prefix = "elasticsearch" if engine == "elasticsearch" else "opensearch"
    assert content[f"{prefix}.hosts"] == ["https://10.0.0.10:9200"]
    assert content[f"{prefix}.ssl.verificationMode"] == "full"
    assert content[f"{prefix}.username"] == "kibanaserver"
    secret = [name for name in content if name.endswith(("ncryptionKey", "password"))]
    values = [content[name] for name in secret]
    assert len(secret) == (4 if engine == "elasticsearch" else 2)
    assert all(isinstance(value, str) and len(value) >= 48 for value in values)
    assert len(set(values)) == len(values)
    assert not [name for name in content if "anonymous" in name and content[name] is not False]
    assert "basic" in content.get("opensearch_security.auth.type", "basic")
    [(_, call), _] = found.calls()
    for item in call["files"]:
        if any(value in str(item.get("content")) for value in values) or item["dest"].endswith((".yml", "password")):
            assert item["secret"] is True and item["mode"] in ("0640", "0400"), item["dest"]


@pytest.mark.parametrize(
    ("system", "engine", "url", "package"),
    [
        ("debian-13", "elasticsearch", "packages/9.x/apt", {"name": "kibana", "version": "9.*"}),
        ("rocky-9", "elasticsearch", "packages/9.x/yum", {"name": "kibana", "version": "9.*"}),
        (
            "debian-13",
            "opensearch",
            "releases/bundle/opensearch-dashboards/2.x/apt",
            {"name": "opensearch-dashboards", "version": "2.19.*"},
        ),
        (
            "rocky-9",
            "opensearch",
            "releases/bundle/opensearch-dashboards/2.x/yum",
            {"name": "opensearch-dashboards", "version": "2.19.*"},
        ),
    ],
)
def test_pages__on_a_system__come_from_their_vendor(
    system: str, engine: str, url: str, package: dict[str, str], tmp_path: Path
) -> None:
    found = role(tmp_path, "kibana", system=system, logging_engine=engine)
    [(_, call), _] = found.calls()
    assert call["repositories"][0]["url"].endswith(url)
    assert call["packages"] == [package]


@pytest.mark.proves("log_stack", "A package source of the log stack has one file and key on a host.")
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("system", ["debian-13", "rocky-9"])
@pytest.mark.parametrize("mirror", ["", "https://mirror.example.org/elastic"])
def test_sources__of_the_log_stack__are_each_one_file(system: str, engine: str, mirror: str, tmp_path: Path) -> None:
    """apt refuses two files of one source that name different keys."""
    by_name: dict[str, Any] = {}
    by_url: dict[str, Any] = {}
    variables = {"elasticsearch_repository_url": mirror} if mirror else {}
    for name in ("elasticsearch", "kibana", "logstash", "filebeat"):
        folder = tmp_path / name
        folder.mkdir()
        found = role(folder, name, system=system, logging_engine=engine, **variables)
        for one in itertools.chain.from_iterable(call.get("repositories", []) for _, call in found.calls()):
            assert by_name.setdefault(one["name"], one) == one, name
            assert by_url.setdefault(one["url"], one) == one, name
    assert len(by_name) == len(by_url) == (1 if engine == "elasticsearch" else 3)


def receiver(folder: Path, engine: str, **variables: Any) -> Role:
    return role(folder, "logstash", logging_engine=engine, logstash_senders=SENDERS, **variables)


def plugins(found: Role) -> list[tuple[str, dict[str, Any]]]:
    """Return each plugin of Logstash's pipeline with its options, read by a parser of Logstash's language."""
    tree = Pipeline(found.render(found.path / "templates/clusterctl.conf.j2")).parse()
    flat: list[tuple[str, dict[str, Any]]] = []

    def walk(kind: str, items: list[Any]) -> None:
        for name, content in items:
            if name == "if":  # condition and body
                walk(kind, content[1][0])
            else:
                flat.append((f"{kind}-{name}", {option: value[0] for option, value in content}))

    for kind, items in tree:
        walk(kind, items)
    return flat


@pytest.mark.proves("log_stack", "Logstash's pipeline is in its language, with options that its release has.")
@pytest.mark.parametrize(("engine", "release"), [("elasticsearch", "new"), ("opensearch", "old")])
def test_logstash__pipeline_of_an_engine__has_documented_options(engine: str, release: str, tmp_path: Path) -> None:
    found = receiver(tmp_path, engine)
    seen = plugins(found)
    names = [name for name, _ in seen]
    filters = ["filter-cidr", "filter-drop", "filter-fingerprint", "filter-mutate"]
    assert names == ["input-udp", "input-tcp", *filters, "output-elasticsearch"]
    for name, options in seen:
        known = {*OPTIONS[release]["plugins"].get(name, []), *OPTIONS["common"][name.partition("-")[0]]}
        assert options.keys() <= known, name


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("drop { }", "drop {"),
        ("method =>", "method ="),
        ('"sender" not in', '"sender" not inn'),
        ('["%{host}"]', '["%{host}"'),
    ],
)
def test_logstash__pipeline_with_an_error__is_refused_by_the_parser(right: str, wrong: str, tmp_path: Path) -> None:
    found = receiver(tmp_path, "elasticsearch")
    text = found.render(found.path / "templates/clusterctl.conf.j2")
    assert right in text
    with pytest.raises(Exception, match="Expected"):
        Pipeline(text.replace(right, wrong)).parse()


@pytest.mark.parametrize(("engine", "release"), [("elasticsearch", "new"), ("opensearch", "old")])
def test_logstash__settings_of_a_release__are_documented(engine: str, release: str, tmp_path: Path) -> None:
    found = receiver(tmp_path, engine)
    own = yaml.safe_load(found.render(found.path / "templates/logstash.yml.j2"))
    [(_, call), _] = found.calls()
    (text,) = [item["content"] for item in call["files"] if item["dest"].endswith("/pipelines.yml")]
    (pipeline,) = yaml.safe_load(text)
    assert {*own, *pipeline} <= {*OPTIONS[release]["settings"]}
    assert pipeline["path.config"] in {item["dest"] for item in call["files"]}
    assert own["api.http.host" if release == "new" else "http.host"] == "127.0.0.1"
    assert (own["queue.type"], own["queue.max_bytes"]) == ("persisted", "1024mb")
    assert found.variables["logstash_heap_mb"] == 256


@pytest.mark.proves(
    "log_stack", "Logstash drops lines of other senders, and only adds lines with ids of their content."
)
@pytest.mark.parametrize("engine", ENGINES)
def test_logstash__lines_of_senders__get_ids_and_the_pipeline(engine: str, tmp_path: Path) -> None:
    found = receiver(tmp_path, engine)
    seen = dict(plugins(found))
    assert seen["filter-cidr"]["network"] == ["192.0.2.0/24", "198.51.100.7/32"]
    assert seen["filter-fingerprint"]["source"] == ["@timestamp", "host", "message"]
    output = seen["output-elasticsearch"]
    assert output["document_id"] == "%{[@metadata][id]}"
    assert (output["action"], output["pipeline"], output["user"]) == ("create", "clusterlog", "receiver")
    assert str(output["hosts"]) == "['https://10.0.0.10:9200']"
    assert len(output["password"]) == 48
    [(_, call), _] = found.calls()
    name = {"elasticsearch": "logstash", "opensearch": "logstash-oss"}[engine]
    assert call["packages"][0]["name"] == name
    [own] = [item for item in call["files"] if item["dest"].endswith("clusterctl.conf") and "secret" in item]
    assert (own["group"], own["mode"]) == ("logstash", "0640")


@pytest.mark.parametrize("name", ["kibana", "logstash"])
def test_password__of_a_program__is_what_log_store_sets(name: str, tmp_path: Path) -> None:
    """Role and program derive it separately."""
    found = role(tmp_path, name, logging_engine="opensearch")
    seed = found.value("lookup('cluster_secret', 'logging_shipper_seed')")
    text = (REPOSITORY / "roles/logging/files/log-store").read_text()
    word = {"kibana": "kibana server", "logstash": "device receiver"}[name]
    assert f'"{word}"' in text
    expected = hashlib.sha512(f"{seed} {word}".encode()).hexdigest()[:48]
    assert found.value(f"__{name}_password") == expected
