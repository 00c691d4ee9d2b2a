"""Elasticsearch 7.10.2 of the Apache licence through the roles, and the change to OpenSearch, with real programs."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest

from clusterctl.lab import kit_recipe
from tests import pipelines
from tests.cluster.lab import TestLab, fresh, submit
from tests.cluster.logs import ask, find, has_started, metrics, stored, switch_on
from tests.faults.injury import wait_until

RECIPES = ("elasticsearch", "filebeat", "opensearch")
LINES = 300


@pytest.fixture(scope="module")
def lab() -> Iterator[TestLab]:
    with fresh("engines", *(f"--recipe={name}" for name in RECIPES), workers=1) as made:
        switch_on(made)
        choose(made, "elasticsearch")
        made.run("bootstrap")
        yield made


def choose(lab: TestLab, engine: str) -> None:
    """Set the engine in the inventory. Only these two variables differ between the recipes of both."""
    (recipe,) = kit_recipe.load((engine,))
    text = lab.inventory.read_text()
    for name, value in (("logging_engine", engine), ("elasticsearch_version", recipe.version)):
        text, count = re.subn(rf"(?m)^( *{name}: ).*$", rf'\g<1>"{value}"', text)
        assert count == 1, name
    lab.inventory.write_text(text)


def listening(lab: TestLab, node: str) -> set[str]:
    """Return the addresses on which the engine's port is open."""
    return set(re.findall(r"\S+(?=:9200 )", lab.root(node, "ss --no-header --listening --tcp --numeric")))


def has_line(lab: TestLab, node: str, program: str) -> bool:
    return find(lab, f"node:{node} AND program:{program}") != []


@pytest.mark.kit(*RECIPES)
@pytest.mark.proves("log_stack", "Elasticsearch 7.10.2 of the roles serves its host alone; a second run is idle.")
def test_elasticsearch__of_the_apache_licence__serves_its_host_alone(lab: TestLab) -> None:
    assert ask(lab, "/")["version"]["build_flavor"] == "oss"
    assert listening(lab, "head1") in ({"127.0.0.1"}, {"[::ffff:127.0.0.1]"})
    assert "filebeat" not in lab.root("gpu01", "dpkg-query --show --showformat '${Package}\\n'").split()
    lab.unchanged()


@pytest.mark.kit(*RECIPES)
@pytest.mark.proves("log_stack", "Elasticsearch 7.10.2 finds the same fields in the sample lines as OpenSearch.")
def test_pipelines__in_elasticsearch__find_their_fields(lab: TestLab) -> None:
    assert pipelines.wrong(lambda path, body: ask(lab, path, body)) == []


@pytest.mark.kit(*RECIPES)
@pytest.mark.proves("log_stack", "Elasticsearch 7.10.2 stores a job's record, found by its number.")
def test_job__in_elasticsearch__is_found_by_its_number(lab: TestLab) -> None:
    job = submit(lab, "sleep 1")
    wait_until(lambda: find(lab, f"dataset:jobs AND job_id:{job}") != [])
    (record,) = find(lab, f"dataset:jobs AND job_id:{job}")
    assert (record["user"], record["job_state"], record["nodes"]) == ("alice", "COMPLETED", "gpu01")


@pytest.mark.kit(*RECIPES)
@pytest.mark.proves("log_stack", "Elasticsearch stopped and the shipper killed: every line is stored once.")
def test_lines__elasticsearch_stopped_and_shipper_killed__are_stored_once(lab: TestLab) -> None:
    lab.root("head1", "systemctl stop elasticsearch")
    lab.root("head1", f"for n in $(seq {LINES}); do logger --tag sequence number $n; done")
    lab.root("head1", "systemctl kill --signal=KILL filebeat journal-export")
    lab.root("head1", "systemctl start elasticsearch")
    wait_until(lambda: has_started(lab))
    lab.root("head1", "systemctl kill --signal=KILL filebeat")
    wait_until(lambda: stored(lab, "head1", (LINES, LINES), "sequence"))


@pytest.mark.kit(*RECIPES)
@pytest.mark.proves("log_stack", "Elasticsearch 7.10.2: indices older than the limit are deleted, the next made.")
def test_retention__in_elasticsearch__deletes_old_indices(lab: TestLab) -> None:
    assert ask(lab, "/clusterlog-2020.01.01", {}, "PUT")["acknowledged"]
    assert metrics(lab)["cluster_logs_refused"] == 0
    now = datetime.fromisoformat(lab.root("head1", "date --utc --iso-8601=seconds").strip()).astimezone(UTC)
    names = {one["index"] for one in ask(lab, "/_cat/indices/clusterlog-*?format=json&h=index")}
    assert names == {f"clusterlog-{now + timedelta(days=day):%Y.%m.%d}" for day in (-1, 0, 1, 2)}


@pytest.mark.kit(*RECIPES)
@pytest.mark.proves("log_stack", "After a change of engine the old one is gone, nodes ship to the new.")
def test_engine__that_is_another_one__replaces_it(lab: TestLab) -> None:
    choose(lab, "opensearch")
    lab.run("bootstrap")
    lab.unchanged()
    packages = lab.root("head1", "dpkg-query --show --showformat '${Package} ${db:Status-Status}\\n' '*search*'")
    assert re.findall(r"(?m)^(\S+) installed$", packages) == ["opensearch"]
    units = lab.root("head1", "systemctl list-unit-files --no-legend 'elasticsearch*' 'opensearch*'")
    assert [line.split()[:2] for line in units.splitlines()] == [["opensearch.service", "enabled"]]
    assert lab.root("head1", "ls /var/lib/elasticsearch/nodes").split() == ["0"]
    for node in lab.nodes:
        lab.root(node, "logger --tag changed a line")
        wait_until(partial(has_line, lab, node, "changed"))
    lab.healthy()
