"""The kit's log programs in their vendors' packages: OpenSearch with TLS and login, Elasticsearch, two beats.

The head has Debian 13 and OpenSearch, the worker has Debian 12 and Elasticsearch; both ship with Filebeat.
"""

import json
import secrets
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import pipelines
from tests.cluster import shipping
from tests.cluster.lab import TestLab, fresh
from tests.faults.injury import wait_until

RECIPES = ("elasticsearch", "filebeat", "opensearch")
LINES = 1000
HEAP = "-Xms512m\n-Xmx512m\n"
# The vendors' units wait 75 s, which is short for a machine that many tests share.
PATIENT = """mkdir -p /etc/systemd/system/{0}.service.d
printf '[Service]\\nTimeoutStartSec=300\\n' > /etc/systemd/system/{0}.service.d/patient.conf
systemctl daemon-reload
"""
# The subjects of the certificates; the last one may change the security plugin's configuration.
NODE, ADMIN = "CN=head1", "CN=admin"


@dataclass(frozen=True)
class Engine:
    """A search engine on a node, and how its own node reaches it."""

    lab: TestLab
    node: str
    unit: str
    url: str
    options: str  # of curl, for the administrator
    output: Mapping[str, Any]  # of a shipper

    def ask(self, path: str, *options: str) -> dict[str, Any]:
        """Return the answer to a request of the administrator."""
        answer = self.lab.root(
            self.node, f"curl --silent --show-error {self.options} {' '.join(options)} {self.url}/{path}"
        )
        document: dict[str, Any] = json.loads(answer)
        return document

    def count(self, index: str) -> int:
        """Return the number of documents that a search can see."""
        return int(self.ask(f"{index}/_count?ignore_unavailable=true")["count"])

    def has(self, index: str, count: int) -> bool:
        """Return whether an index has that many documents; just after a start, answers have no count or are no JSON."""
        try:
            self.ask(f"{index}/_refresh?ignore_unavailable=true", "-X POST")
            return self.count(index) >= count
        except (json.JSONDecodeError, KeyError):
            return False


@pytest.fixture(scope="module")
def lab() -> Iterator[TestLab]:
    """A lab whose nodes have the kit's package sources, as a person adds those of the vendors."""
    options = [word for recipe in RECIPES for word in ("--recipe", recipe)]
    with fresh("log-programs", *options, "--worker-os", "debian-12", workers=1) as lab:
        known = yaml.safe_load(lab.inventory.read_text())["all"]["vars"]
        authority = (lab.inventory.parent / "kit/ca.crt").read_text()
        base = known["elasticsearch_repository_url"]
        assert base == known["filebeat_repository_url"]
        sources = {
            "opensearch": (f"{base}/releases/bundle/opensearch/2.x/apt", f"{base}/publickeys/opensearch.pgp"),
            "elastic": (f"{base}/packages/oss-7.x/apt", f"{base}/GPG-KEY-elasticsearch"),
        }
        for node in lab.nodes:
            lab.root(node, f"cat > /etc/ssl/kit.crt <<'END'\n{authority}END\n")
            lab.root(node, "echo 'Acquire::https::CAInfo \"/etc/ssl/kit.crt\";' > /etc/apt/apt.conf.d/99kit")
            lab.root(node, "apt-get -q update && apt-get -q install --yes --no-install-recommends curl openssl")
            for name, (url, signer) in sources.items():
                key = f"/usr/share/keyrings/{name}.asc"
                lab.root(node, f"curl --fail --silent --cacert /etc/ssl/kit.crt {signer} > {key}")
                source = f"deb [signed-by={key}] {url} stable main"
                lab.root(node, f"echo '{source}' > /etc/apt/sources.list.d/{name}.list")
            lab.root(node, "apt-get -q update")
        yield lab


INSTALL = "DEBIAN_FRONTEND=noninteractive apt-get -q install --yes --no-install-recommends"
CERTIFICATES = f"""
cd /etc/opensearch
openssl req -x509 -newkey rsa:2048 -nodes -days 30 -subj /CN=authority -keyout ca.key -out ca.crt
make() {{
  openssl req -newkey rsa:2048 -nodes -subj "/$2" -keyout "$1.key" -out "$1.csr"
  printf 'subjectAltName=DNS:localhost,DNS:head1,IP:127.0.0.1\\n' > extensions
  openssl x509 -req -in "$1.csr" -CA ca.crt -CAkey ca.key -CAcreateserial -days 30 -extfile extensions -out "$1.crt"
  openssl pkcs8 -topk8 -nocrypt -in "$1.key" -out "$1.pkcs8"
}}
make node {NODE}
make admin {ADMIN}
chown opensearch: node.* ca.crt
"""
SETTINGS = {
    "cluster.name": "logs",
    "path.data": "/var/lib/opensearch",
    "path.logs": "/var/log/opensearch",
    "network.host": "0.0.0.0",  # noqa: S104 - the lab's network
    "discovery.type": "single-node",
    "compatibility.override_main_response_version": True,  # Filebeat 7 takes 2 for an Elasticsearch before 7
    **{
        f"plugins.security.ssl.{layer}.{key}": f"/etc/opensearch/{file}"
        for layer in ("http", "transport")
        for key, file in (
            ("pemcert_filepath", "node.crt"),
            ("pemkey_filepath", "node.pkcs8"),
            ("pemtrustedcas_filepath", "ca.crt"),
        )
    },
    "plugins.security.ssl.http.enabled": True,
    "plugins.security.authcz.admin_dn": [ADMIN],
    "plugins.security.nodes_dn": [NODE],
}
TOOLS = "/usr/share/opensearch/plugins/opensearch-security/tools"


def security(name: str, entries: Mapping[str, Any]) -> str:
    """Return a shell script that writes a file of the security plugin's configuration."""
    kind = name.replace("_", "")
    text = yaml.safe_dump({"_meta": {"type": kind, "config_version": 2}, **entries})
    return f"cat > /etc/opensearch/opensearch-security/{name}.yml <<'END'\n{text}END\n"


@pytest.fixture(scope="module")
def opensearch(lab: TestLab) -> Engine:
    """OpenSearch with certificates of a CA, an administrator and a shipper that may write its own indices alone."""
    once = secrets.token_urlsafe(16)
    lab.root(
        "head1",
        f"export OPENSEARCH_INITIAL_ADMIN_PASSWORD={once} DISABLE_INSTALL_DEMO_CONFIG=true\n{INSTALL} opensearch",
    )
    passwords = {name: secrets.token_urlsafe(16) for name in ("operator", "shipper")}
    hashes = {
        name: lab.root("head1", f"bash {TOOLS}/hash.sh -p '{word}' | tail -n 1").strip()
        for name, word in passwords.items()
    }
    shipper = {
        "cluster_permissions": ["cluster_monitor", "indices:data/write/bulk"],
        "index_permissions": [{"index_patterns": ["ours-*"], "allowed_actions": ["create_index", "index", "create"]}],
    }
    lab.root("head1", CERTIFICATES)
    lab.root(
        "head1",
        security("internal_users", {name: {"hash": word} for name, word in hashes.items()})
        + security("roles", {"shipper": shipper})
        + security("roles_mapping", {"all_access": {"users": ["operator"]}, "shipper": {"users": ["shipper"]}})
        + f"cat > /etc/opensearch/opensearch.yml <<'END'\n{yaml.safe_dump(SETTINGS)}END\n"
        + f"cat > /etc/opensearch/jvm.options.d/heap.options <<'END'\n{HEAP}END\n"
        + PATIENT.format("opensearch")
        + "systemctl enable --now opensearch.service\n"
        + f"admin() {{ bash {TOOLS}/securityadmin.sh -cd /etc/opensearch/opensearch-security -icl -nhnv -h localhost "
        + "-cacert /etc/opensearch/ca.crt -cert /etc/opensearch/admin.crt -key /etc/opensearch/admin.pkcs8; }\n"
        # The plugin answers a while after the unit has started.
        + "admin || { sleep 30; admin; } || { sleep 60; admin; }",
    )
    output = {
        "hosts": ["https://localhost:9200"],
        "username": "shipper",
        "password": passwords["shipper"],
        "ssl": {"certificate_authorities": ["/etc/opensearch/ca.crt"]},
    }
    options = f"--cacert /etc/opensearch/ca.crt --user operator:{passwords['operator']}"
    engine = Engine(lab, "head1", "opensearch", "https://localhost:9200", options, output)
    wait_until(lambda: code(engine, options) == "200")  # it reads the new configuration a moment later
    return engine


@pytest.fixture(scope="module")
def elasticsearch(lab: TestLab) -> Engine:
    """Elasticsearch on its node's loopback address: this build has no login."""
    lab.root("gpu01", f"{INSTALL} elasticsearch-oss")
    lab.root(
        "gpu01",
        f"cat > /etc/elasticsearch/jvm.options.d/heap.options <<'END'\n{HEAP}END\n"
        f"{PATIENT.format('elasticsearch')}systemctl enable --now elasticsearch.service",
    )
    return Engine(lab, "gpu01", "elasticsearch", "http://localhost:9200", "", {"hosts": ["http://localhost:9200"]})


@pytest.fixture(scope="module", params=["opensearch", "elasticsearch"])
def engine(request: pytest.FixtureRequest) -> Engine:
    found: Engine = request.getfixturevalue(request.param)
    return found


@pytest.mark.proves("lab", "The kit's OpenSearch package demands a password, as its vendor's does.")
def test_opensearch__without_a_password__is_not_installed(lab: TestLab) -> None:
    lab.root("head1", "apt-get -q install --yes --download-only opensearch")
    answer = lab.root("head1", f"! {INSTALL} opensearch 2>&1 && ! getent passwd opensearch")
    assert "require OPENSEARCH_INITIAL_ADMIN_PASSWORD" in answer


@pytest.mark.proves("lab", "The kit's search engines run under systemd as their own users.")
def test_engine__started__runs_as_its_user(engine: Engine) -> None:
    version = {"opensearch": "2.19.1", "elasticsearch": "7.10.2"}[engine.unit]
    nodes = engine.ask("_nodes/_local")["nodes"].values()
    assert [node["version"] for node in nodes] == [version]
    assert engine.ask("")["version"]["number"] == "7.10.2"
    shown = engine.lab.root(engine.node, f"systemctl show --value --property MainPID {engine.unit}").strip()
    user, memory = engine.lab.root(engine.node, f"ps -o user:20=,rss= -p {shown}").split()
    assert user == engine.unit
    assert int(memory) < 1.5 * 1024**2  # kB: the heap of 512 MB and the program
    assert engine.lab.root(engine.node, f"stat -c %U /var/lib/{engine.unit}/nodes").strip() == engine.unit


def code(engine: Engine, options: str, path: str = "") -> str:
    """Return the HTTP status that a request gets, or 000."""
    argv = f"curl --silent --output /dev/null --write-out '%{{http_code}}' {options} {engine.url}/{path} || true"
    return engine.lab.root(engine.node, argv)


@pytest.mark.proves("lab", "OpenSearch of the kit answers nobody without credentials, nor the default users.")
def test_opensearch__without_valid_credentials__refuses(opensearch: Engine) -> None:
    trusted = "--cacert /etc/opensearch/ca.crt"
    assert code(opensearch, opensearch.options) == "200"
    assert code(opensearch, trusted) == "401"
    for user in ("admin:admin", "kibanaserver:kibanaserver", "shipper:wrong", "logstash:logstash"):
        assert code(opensearch, f"{trusted} --user {user}") == "401", user
    assert code(opensearch, "") == "000"  # the certificate is of an unknown CA
    plain = Engine(opensearch.lab, "head1", "opensearch", "http://localhost:9200", "", {})
    assert code(plain, opensearch.options) == "000"


@pytest.mark.proves("lab", "A shipper of OpenSearch writes its own indices and can neither read nor write others.")
def test_shipper__other_indices__are_refused(opensearch: Engine) -> None:
    user = f"{opensearch.output['username']}:{opensearch.output['password']}"
    options = f"--cacert /etc/opensearch/ca.crt --user {user} -H 'Content-Type: application/json'"
    document = """-X PUT -d '{"message": "x"}'"""
    assert code(opensearch, f"{options} {document}", "ours-login/_create/1") == "201"
    assert code(opensearch, f"{options} {document}", "theirs-login/_create/1") == "403"
    assert code(opensearch, options, "ours-login/_search") == "403"
    assert code(opensearch, f"{options} -X DELETE", "ours-login") == "403"
    assert code(opensearch, options, "_plugins/_security/api/internalusers") == "403"


PIPELINE = {
    "processors": [
        {"grok": {"field": "message", "patterns": ["%{WORD:kind} %{NUMBER:number:int} %{GREEDYDATA:rest}"]}},
        {"dissect": {"field": "rest", "pattern": "at=%{when} %{pairs}"}},
        {"kv": {"field": "pairs", "field_split": " ", "value_split": "="}},
        {"date": {"field": "when", "formats": ["ISO8601"], "target_field": "parsed"}},
        {"script": {"source": "ctx.doubled = ctx.number * 2"}},
        {"remove": {"field": ["rest", "pairs", "when"]}},
    ]
}


@pytest.mark.proves("lab", "Ingest pipelines and index templates work in both search engines of the kit.")
def test_pipeline__with_grok_date_and_script__parses(engine: Engine) -> None:
    headers = "-H 'Content-Type: application/json' -X PUT -d"
    assert engine.ask("_ingest/pipeline/parse", headers, f"'{json.dumps(PIPELINE)}'") == {"acknowledged": True}
    template = {
        "index_patterns": ["parsed-*"],
        "template": {"settings": {"number_of_replicas": 0}, "mappings": {"properties": {"node": {"type": "keyword"}}}},
    }
    assert engine.ask("_index_template/parsed", headers, f"'{json.dumps(template)}'") == {"acknowledged": True}
    message = {"message": "job 21 at=2026-11-27T06:00:00Z node=gpu01 user=alice"}
    engine.ask("parsed-1/_create/1?pipeline=parse", headers, f"'{json.dumps(message)}'")
    found = engine.ask("parsed-1/_doc/1")["_source"]
    assert found == {
        **message, "kind": "job", "number": 21, "doubled": 42, "node": "gpu01", "user": "alice",
        "parsed": "2026-11-27T06:00:00.000Z",
    }  # fmt: skip
    assert engine.ask("parsed-1")["parsed-1"]["mappings"]["properties"]["node"] == {"type": "keyword"}


@pytest.mark.proves("lab", "These builds have no index lifecycle, and the Elasticsearch build has no login.")
def test_engines__lifecycle_and_login__are_missing_as_stated(opensearch: Engine, elasticsearch: Engine) -> None:
    assert "error" in opensearch.ask("_plugins/_ism/policies")
    assert "error" in elasticsearch.ask("_ilm/policy")
    assert "error" in elasticsearch.ask("_security/_authenticate")
    assert code(elasticsearch, "") == "200"


def beat(engine: Engine, name: str, inputs: Mapping[str, Any], index: str, fields: list[str]) -> None:
    """Configure and start a beat; a document's id is a hash of these fields."""
    settings = {
        **inputs,
        "processors": [{"fingerprint": {"fields": fields, "target_field": "@metadata._id"}}],
        "seccomp.enabled": False,  # this release's filter does not know how today's libc starts threads
        "setup.ilm.enabled": False,
        "setup.template.enabled": False,
        "queue.mem": {"events": 64, "flush.min_events": 16},
        "output.elasticsearch": {**engine.output, "index": index, "bulk_max_size": 16, "backoff.max": "2s"},
    }
    path = f"/etc/{name}/{name}.yml"
    engine.lab.root(
        engine.node, f"{INSTALL} {name}\ncat > {path} <<'END'\n{yaml.safe_dump(settings)}END\nchmod 0600 {path}"
    )
    engine.lab.root(engine.node, f"{name} test config && {name} test output && systemctl restart {name}.service")


def numbers(engine: Engine, index: str) -> list[int]:
    """Return the sequence numbers of all stored lines, sorted."""
    hits = engine.ask(f"{index}/_search?size=10000")["hits"]["hits"]
    return sorted(int(hit["_source"]["message"].split()[1]) for hit in hits)


@pytest.mark.proves("lab", "Filebeat of the kit ships each line once past a stopped server and kill -9.")
def test_filebeat__server_stopped_and_shipper_killed__each_line_once(engine: Engine) -> None:
    lab, node, index = engine.lab, engine.node, "ours-lines"
    inputs = {"filebeat.inputs": [{"type": "log", "paths": ["/var/log/lines"], "scan_frequency": "1s"}]}
    lab.root(node, ": > /var/log/lines")
    beat(engine, "filebeat", inputs, index, ["message", "log.offset", "log.file.path"])
    third = LINES // 3
    write = "for n in $(seq {} {}); do echo line $n; done >> /var/log/lines"
    lab.root(node, write.format(1, third))
    wait_until(lambda: engine.has(index, 16))
    pid = f"systemctl show --value --property MainPID {engine.unit}"
    lab.root(node, f"systemctl stop {engine.unit}; [ $({pid}) = 0 ]")
    lab.root(node, write.format(third + 1, 2 * third))
    lab.root(node, "systemctl kill --signal KILL filebeat.service")
    lab.root(node, f"systemctl start {engine.unit}")
    lab.root(node, write.format(2 * third + 1, LINES))
    wait_until(lambda: engine.has(index, 2 * third))
    lab.root(node, "systemctl kill --signal KILL filebeat.service")
    # A registry that is lost makes Filebeat send everything again.
    lab.root(
        node, "systemctl stop filebeat.service; rm -r /var/lib/filebeat/registry; systemctl start filebeat.service"
    )
    wait_until(lambda: engine.has(index, LINES))
    size = lab.root(node, "stat -c %s /var/log/lines").strip()
    sent = f"cat /var/lib/filebeat/registry/filebeat/log.json | grep -c '\"offset\":{size}[,}}]' || true"
    wait_until(lambda: int(lab.root(node, sent)))
    lab.root(node, "systemctl stop filebeat.service")
    assert engine.has(index, LINES)
    assert numbers(engine, index) == list(range(1, LINES + 1))


@pytest.mark.proves("log_stack", "Messages of any size and bytes are exported within 128 MB, cut at 32 KB.")
@pytest.mark.parametrize("node", ["head1", "gpu01"])
def test_export__of_messages_of_any_size__has_their_start(lab: TestLab, node: str) -> None:
    large = "[Journal]\nStorage=persistent\nSystemMaxUse=2G\nSystemMaxFileSize=1G\nSystemKeepFree=1M\n"
    lab.root(node, f"mkdir -p {shipping.FOLDER} /etc/systemd/journald.conf.d")
    shipping.put(lab, node, "/etc/systemd/journald.conf.d/large.conf", large)
    shipping.put(lab, node, "/root/sender.py", shipping.SENDER)
    shipping.put(lab, node, "/root/journal-export", shipping.EXPORTER.read_text())
    lab.root(
        node,
        "systemctl restart systemd-journald; chmod a+rx /root; python3 /root/sender.py",
    )
    limits = "--property=MemoryMax=128M --property=MemorySwapMax=0 --property=Restart=always --property=RestartSec=1"
    lab.root(node, f"systemd-run --quiet --unit=export {limits} python3 /root/journal-export {shipping.FOLDER} 100")
    wait_until(lambda: any(line["identifier"] == "last" for line in shipping.exported(lab, node)))
    assert lab.root(node, "systemctl show --value --property=NRestarts export").strip() == "0"
    # The first 32 KB of a line are kept, also while the program restarts after each.
    lab.root(
        node, "systemctl kill --signal=KILL export; setpriv --reuid=65534 --clear-groups logger -t slurmctld after"
    )
    wait_until(lambda: any(line["message"] == "after" for line in shipping.exported(lab, node)))
    lab.root(
        node, "systemctl stop export; rm /etc/systemd/journald.conf.d/large.conf; systemctl restart systemd-journald"
    )
    lines = shipping.exported(lab, node)
    assert max(Counter(line["cursor"] for line in lines).values()) == 1
    names = {
        "short",
        "over-4096",
        "over-32k",
        "huge",
        "huge-zeros",
        "binary",
        "newline",
        "n" * 256,
        "last",
        "slurmctld",
    }
    assert max(len(line["identifier"]) for line in lines) == 256
    found = {line["identifier"]: line for line in lines if line["identifier"] in names}
    sizes = {name: (len(line["message"]), line.get("cut", False)) for name, line in found.items()}
    huge = sizes.pop("huge")
    assert huge[1] and huge[0] > 10_000  # of 32 KB of random bytes
    assert sizes == {
        "short": (4000, False), "over-4096": (5000, False), "over-32k": (32768, True), "huge-zeros": (32768, True),
        "binary": (5, False), "newline": (7, False), "n" * 256: (1, False), "last": (8, False), "slurmctld": (5, False),
    }  # fmt: skip
    assert found["binary"]["message"] == "\ufffd\0abc"
    assert found["newline"]["message"] == "one\ntwo"
    assert "priority" not in found["last"]
    # The journal's own field: the sender's `_UID` is not taken.
    assert (found["last"]["uid"], found["slurmctld"]["uid"]) == (0, 65534)


@pytest.mark.proves("log_stack", "Only processes that root started count as steps of jobs.")
def test_running_jobs__of_users_processes__are_none(lab: TestLab) -> None:
    for node in lab.nodes:
        assert shipping.with_exporter(lab, node, shipping.STEPS).strip() == "[17]"


@pytest.mark.proves("log_stack", "A disk that was full has whole lines of the exported journal.")
def test_export__on_a_disk_that_is_full__waits_for_space(lab: TestLab) -> None:
    first, *lines = shipping.with_exporter(lab, "head1", shipping.FULL_DISK).splitlines()
    assert first == "waited"
    assert [json.loads(line)["cursor"] for line in lines] == ["first", "0", "1", "2", "3"]


def set_up(engine: Engine, folder: Path) -> Engine:
    """Give an engine the pipelines and the index template of role logging."""
    lab, node = engine.lab, engine.node
    objects = {f"_ingest/pipeline/{name}": pipeline for name, pipeline in shipping.pipelines().items()}
    objects["_index_template/clusterlog"] = shipping.template(folder)
    for path, body in objects.items():
        assert engine.ask(path, shipping.data(lab, node, body, "PUT")) == {"acknowledged": True}
    return engine


@pytest.mark.proves("log_stack", "Sample lines, forged ones included, are parsed alike by both engines.")
def test_pipelines__with_samples__find_their_fields(engine: Engine, tmp_path: Path) -> None:
    def ask(path: str, body: dict[str, Any]) -> dict[str, Any]:
        return engine.ask(path.lstrip("/"), shipping.data(engine.lab, engine.node, body, "POST"))

    set_up(engine, tmp_path)
    assert pipelines.wrong(ask) == []


@pytest.mark.proves("log_stack", "A line with a field of any length is stored.")
def test_line__with_long_fields__is_stored(engine: Engine, tmp_path: Path) -> None:
    set_up(engine, tmp_path)
    (tmp_path / "again").mkdir()
    fields = shipping.template(tmp_path / "again")["template"]["mappings"]["properties"]
    text = [name for name, field in fields.items() if field["type"] in ("keyword", "text")]
    long = {"@timestamp": "2026-11-27T10:00:00Z", **dict.fromkeys(text, "x" * 40_000)}
    made = engine.ask("clusterlog-2026.11.27/_doc/long", shipping.data(engine.lab, engine.node, long, "PUT"))
    assert made.get("result") == "created", made


DATASETS = ("slurm", "jobs", "containers")


def line_numbers(engine: Engine) -> dict[str, list[int]]:
    """Return the sorted numbers of the stored lines of each source."""
    engine.ask("clusterlog-*/_refresh", "-X POST")
    found: dict[str, list[int]] = {}
    for dataset in DATASETS:
        body = {"size": 10_000, "query": {"term": {"dataset": dataset}}, "_source": ["message", "job_id"]}
        answer = engine.ask("clusterlog-*/_search", shipping.data(engine.lab, engine.node, body, "POST"))
        lines = [hit["_source"] for hit in answer["hits"]["hits"]]
        found[dataset] = sorted(line.get("job_id") or int(line["message"].split()[1]) for line in lines)
    return found


def ship(engine: Engine, folder: Path) -> None:
    """Set up Filebeat with the inputs of its role, and logrotate with the role's file."""
    found = shipping.role(folder, "filebeat")
    inputs = yaml.safe_load(found.render(found.path / "templates/filebeat.yml.j2"))["filebeat.inputs"]
    user, password = engine.options.split("--user ")[1].split(":")
    settings = {
        "filebeat.inputs": inputs,
        "seccomp.enabled": False,
        "setup.ilm.enabled": False,
        "setup.template.enabled": False,
        "queue.mem": {"events": 64, "flush.min_events": 16},
        "output.elasticsearch": {
            **engine.output,
            "username": user,
            "password": password,
            "index": "clusterlog-%{+yyyy.MM.dd}",
            "bulk_max_size": 16,
            "backoff.max": "2s",
        },
    }
    lab, node = engine.lab, engine.node
    lab.root(node, f"{INSTALL} filebeat logrotate && systemctl stop filebeat && rm -rf /var/lib/filebeat")
    lab.root(node, "useradd --system --user-group slurm && install -d -o slurm -g slurm /var/log/slurm")
    shipping.put(lab, node, "/etc/filebeat/filebeat.yml", yaml.safe_dump(settings))
    shipping.put(lab, node, "/root/lines.py", shipping.LINES)
    jobs = found.render(found.path / "templates/jobcomp.j2")
    shipping.put(lab, node, "/root/logrotate.conf", shipping.LOGROTATE + jobs)
    lab.root(node, "chmod 0600 /etc/filebeat/filebeat.yml && filebeat test config")


@pytest.mark.proves("log_stack", "Rotated, renamed and deleted files lose no line with the engine down.")
def test_files__rotated_while_the_engine_is_down__are_stored_once(opensearch: Engine, tmp_path: Path) -> None:
    lab, node, total = opensearch.lab, opensearch.node, 3000
    for name in ("logging", "filebeat"):
        (tmp_path / name).mkdir()
    set_up(opensearch, tmp_path / "logging")
    ship(opensearch, tmp_path / "filebeat")
    write = "python3 /root/lines.py {} {} && chown slurm: /var/log/slurm/*"
    lab.root(node, write.format(1, 1000))
    lab.root(node, "systemctl start filebeat")
    wait_until(lambda: all(len(numbers) > 16 for numbers in line_numbers(opensearch).values()))
    lab.root(node, f"systemctl stop {opensearch.unit}")
    lab.root(node, write.format(1001, 2000))
    rotate = "logrotate --force --state /root/rotated /root/logrotate.conf"
    later = f"mv {shipping.PODS}/main/0.log {shipping.PODS}/main/0.log.20261126-100000"
    lab.root(node, f"systemctl kill --signal=KILL filebeat; {rotate} && {later} && systemctl restart filebeat")
    lab.root(node, write.format(2001, total))
    names = ["jobcomp.log", "jobcomp.log.1", "slurmctld.log", "slurmctld.log.1"]
    assert lab.root(node, "ls /var/log/slurm").split() == names
    paths = {f"/var/log/slurm/{name}" for name in names}
    paths |= {f"{shipping.PODS}/main/{name}" for name in ("0.log", "0.log.20261126-100000")}
    wait_until(lambda: paths <= shipping.opened(lab, node))
    # Filebeat has all files open: they may be renamed again, compressed and deleted.
    lab.root(node, f"{rotate} && rm -r {shipping.PODS}")
    assert "slurmctld.log.2.gz" in lab.root(node, "ls /var/log/slurm")
    lab.root(node, f"systemctl start {opensearch.unit}")
    wait_until(lambda: code(opensearch, opensearch.options) == "200")
    complete = {dataset: list(range(1, total + 1)) for dataset in DATASETS}
    wait_until(lambda: line_numbers(opensearch) == complete)
    lab.root(node, "systemctl stop filebeat")
