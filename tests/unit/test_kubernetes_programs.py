"""The programs of a Kubernetes head: the drain ledger, etcd's members, tokens of joining nodes, persons."""

import argparse
import base64
import copy
import hashlib
import io
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.head_programs import load
from tests.unit.test_role_plugins import plugin

DRAIN, ETCD, JOIN, USER = (
    load(name) for name in ("kubernetes-drain", "kubernetes_etcd", "kubernetes-join", "kubernetes-user")
)
Data = dict[str, Any]
CLUSTER = {"name": "head1", "heads": {"head1": "10.0.0.1", "head2": "10.0.0.2", "head3": "fd00::3"}, "port": 6443}


# --- kubernetes-drain -----------------------------------------------------------------------------------------------


class Api:
    """Nodes with the rules of the API for a merge patch: a null deletes, and an old version is a conflict."""

    def __init__(self) -> None:
        self.nodes: dict[str, Data] = {}
        self.events: list[Data] = []
        self.before_patch: Callable[[], None] = lambda: None

    def add(self, name: str, **spec: Any) -> None:
        self.nodes[name] = {"metadata": {"name": name, "resourceVersion": "1"}, "spec": spec}

    def get(self, *argv: str) -> list[Data]:
        if argv[0] == "nodes":
            return copy.deepcopy(list(self.nodes.values()))
        return copy.deepcopy([self.nodes[argv[1]]] if argv[1] in self.nodes else [])

    def kubectl(self, *argv: str, stdin: Any = None) -> str:
        if argv[0] == "get":
            assert argv[2:] == ("--selector=!node-role.kubernetes.io/control-plane", "--output=name")
            return "".join(f"node/{name}\n" for name in self.nodes if name.startswith("gpu"))
        if argv[0] == "delete":
            return f"node {argv[2]} deleted\n" if self.nodes.pop(argv[2], None) else ""
        if argv[0] == "create":
            self.events.append(stdin)
            return ""
        self.before_patch()
        node, patch = self.nodes[argv[2]], json.loads(json.dumps(stdin))
        metadata = patch["metadata"]
        if metadata.pop("resourceVersion") != node["metadata"]["resourceVersion"]:
            raise DRAIN.KubernetesError(
                "kubectl patch node: Error from server (Conflict): the object has been modified"
            )
        for target, values in (
            (node["metadata"].setdefault("annotations", {}), metadata["annotations"]),
            (node["spec"], patch.get("spec", {})),
        ):
            target.update({key: value for key, value in values.items() if value is not None})
            for key in [key for key, value in values.items() if value is None]:
                target.pop(key, None)
        node["metadata"]["resourceVersion"] += "1"
        return ""


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Api:
    found = Api()
    for name in ("gpu01", "gpu02", "gpu03"):
        found.add(name)
    monkeypatch.setattr(DRAIN.kubernetes_api, "get", found.get)
    monkeypatch.setattr(DRAIN.kubernetes_api, "cluster", lambda: CLUSTER)
    monkeypatch.setattr(DRAIN, "kubectl", found.kubectl)
    monkeypatch.setattr(DRAIN.kubernetes_api, "only_root", lambda _: None)
    return found


def drain(*argv: str) -> list[str]:
    """Run the program; return the lines that it prints."""
    out, before = io.StringIO(), (sys.argv, sys.stdout)
    sys.argv, sys.stdout = ["kubernetes-drain", *argv], out
    try:
        DRAIN.main()
    finally:
        sys.argv, sys.stdout = before
    return out.getvalue().splitlines()


def ledger() -> Data:
    found: Data = json.loads("\n".join(drain()))
    return found


@pytest.mark.proves("kubernetes", "A node is uncordoned when its last cause is removed, and not before.")
def test_drain__two_causes__node_returns_after_the_last(api: Api) -> None:
    assert drain("health", "--out", "gpu01", "--reason", "XID\n 79") == ["gpu01 out: health"]
    assert drain("upgrade", "--out", "gpu01,gpu02", "--reason", "1.36") == ["gpu02 out: upgrade"]
    assert ledger() == {"gpu01": {"health": "XID 79", "upgrade": "1.36"}, "gpu02": {"upgrade": "1.36"}}
    assert drain("upgrade", "--in", "gpu01,gpu02") == ["gpu02 in"]
    assert api.nodes["gpu01"]["spec"] == {"unschedulable": True}
    assert drain("health", "--in", "gpu01") == ["gpu01 in"]
    assert (ledger(), api.nodes["gpu01"]["spec"]) == ({}, {})
    assert drain("health", "--in", "gpu01") == []


def test_drain__same_again__changes_nothing(api: Api) -> None:
    drain("health", "--out", "gpu01", "--reason", "a")
    before, events = copy.deepcopy(api.nodes), len(api.events)
    assert drain("health", "--out", "gpu01", "--reason", "a") == []
    assert (api.nodes, len(api.events)) == (before, events)


@pytest.mark.proves("health", "An event of the Kubernetes node has the reason of a GPU fault.")
def test_drain__causes_change__is_an_event_of_the_node(api: Api) -> None:
    drain("health", "--out", "gpu01", "--reason", "GPU 1: XID 79")
    drain("upgrade", "--out", "gpu01", "--reason", "1.36")
    drain("health", "--in", "gpu01")
    drain("upgrade", "--in", "gpu01")
    assert [(one["type"], one["message"]) for one in api.events] == [
        ("Warning", "health: GPU 1: XID 79"),
        ("Warning", "health: GPU 1: XID 79; upgrade: 1.36"),
        ("Warning", "upgrade: 1.36"),
        ("Normal", "no cause is left to keep pods away"),
    ]
    assert {one["involvedObject"]["name"] for one in api.events} == {"gpu01"}


def test_drain__event_that_cannot_be_written__does_not_matter(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*argv: str, stdin: Any = None) -> str:
        if argv[0] == "create":
            raise DRAIN.KubernetesError("forbidden")
        return api.kubectl(*argv, stdin=stdin)

    monkeypatch.setattr(DRAIN, "kubectl", refuse)
    assert drain("health", "--out", "gpu01") == ["gpu01 out: health"]


@pytest.mark.proves("kubernetes", "A node that an operator cordoned stays cordoned.")
def test_drain__operators_cordon__stays(api: Api) -> None:
    drain("bootstrap", "--in", "gpu01")  # the node has been in service before
    api.nodes["gpu01"]["spec"]["unschedulable"] = True
    assert drain("upgrade", "--out", "gpu01") == []
    assert drain("upgrade", "--in", "gpu01") == []
    assert api.nodes["gpu01"]["spec"] == {"unschedulable": True}


def test_drain__operator_uncordons__next_call_cordons_again(api: Api) -> None:
    drain("health", "--out", "gpu01", "--reason", "a")
    del api.nodes["gpu01"]["spec"]["unschedulable"]
    assert drain("health", "--out", "gpu01", "--reason", "b") == ["gpu01 out: health"]
    del api.nodes["gpu01"]["spec"]["unschedulable"]
    assert drain("health", "--in", "gpu01") == []  # it is in service already
    assert DRAIN.CORDONED not in api.nodes["gpu01"]["metadata"]["annotations"]


def test_drain__new__takes_only_nodes_that_it_has_not_seen(api: Api) -> None:
    drain("bootstrap", "--in", "gpu01")
    every = ("bootstrap", "--new", "--out", "gpu01,gpu02,gpu03,gone", "--reason", "not proven yet")
    assert drain(*every) == ["gpu02 out: bootstrap", "gpu03 out: bootstrap"]
    assert drain("bootstrap", "--in", "gpu02") == ["gpu02 in"]
    assert drain(*every) == []
    assert ledger() == {"gpu03": {"bootstrap": "not proven yet"}}


def test_drain__new_node_that_joined_cordoned__returns_after_its_cause(api: Api) -> None:
    api.add("gpu04", unschedulable=True)
    assert drain("bootstrap", "--new", "--out", "gpu04") == []
    assert ledger() == {"gpu04": {"bootstrap": "see there"}}
    assert drain("bootstrap", "--in", "gpu04") == ["gpu04 in"]


def test_drain__another_program_at_the_same_time__loses_no_cause(api: Api) -> None:
    def other() -> None:
        api.before_patch = lambda: None
        drain("alert", "--out", "gpu01", "--reason", "hot")

    api.before_patch = other
    assert drain("health", "--out", "gpu01", "--reason", "XID 79") == []
    assert ledger() == {"gpu01": {"alert": "hot", "health": "XID 79"}}


def test_drain__conflict_without_end__is_an_error(api: Api) -> None:
    def other() -> None:
        api.nodes["gpu01"]["metadata"]["resourceVersion"] += "x"

    api.before_patch = other
    with pytest.raises(SystemExit, match="gpu01: other programs change this node"):
        drain("health", "--out", "gpu01")


def test_drain__unknown_node__is_left_out(api: Api) -> None:
    assert drain("health", "--out", "gone") == []


@pytest.fixture
def etcd(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The calls of etcd: the URLs of each list of members, and the members that were removed."""
    calls: list[Any] = []
    found = members("head1", "head2", "head3", "old")
    monkeypatch.setattr(DRAIN.kubernetes_etcd, "members", recorder(calls, lambda _: found))
    monkeypatch.setattr(DRAIN.kubernetes_etcd, "call", recorder(calls))
    return calls


@pytest.mark.proves("kubernetes", "Several forgotten nodes cost one request for etcd's members, and workers none.")
def test_drain__forget__deletes_nodes_and_members(api: Api, etcd: list[Any]) -> None:
    api.add("head2")
    assert drain("--forget", "head2,gpu01,old,gone") == [
        "head2 removed from etcd",
        "head2 removed",
        "gpu01 removed",
        "old removed from etcd",
    ]
    listed, *removed = etcd
    assert listed == (["https://127.0.0.1:2379", "https://[fd00::3]:2379"],)
    assert [(len(urls), body) for urls, _, body in removed] == [(3, {"ID": "head2"}), (2, {"ID": "old"})]
    etcd.clear()
    assert drain("--forget", "gpu02,gpu03") == ["gpu02 removed", "gpu03 removed"]
    assert etcd == []


def test_drain__forget_this_head__is_refused(api: Api, etcd: list[Any]) -> None:
    with pytest.raises(SystemExit, match="head1 is this head"):
        drain("--forget", "gpu01,head1")
    assert "gpu01" in api.nodes


@pytest.mark.parametrize("argv", [["--out", "gpu01"], ["a b", "--in", "gpu01"], ["health", "--out", "-x"], ["x" * 60]])
def test_drain__bad_arguments__are_refused(api: Api, argv: list[str]) -> None:
    with pytest.raises(SystemExit):
        drain(*argv)


def test_cause__as_annotation__is_valid() -> None:
    """The name has at most 63 characters: letters, digits, -, _ and . between letters or digits."""
    assert DRAIN.cause("job-cleanup") == "job-cleanup"
    for text in ("", "-a", "a-", "a/b", "a b", "x" * 58):
        with pytest.raises(argparse.ArgumentTypeError):
            DRAIN.cause(text)


# --- etcd -----------------------------------------------------------------------------------------------------------

# `curl .../v3/cluster/member/list` of etcd 3.6, shortened: numbers are texts, empty fields are left out.
LISTED = {
    "header": {"cluster_id": "14841639068965178418", "member_id": "10276657743932975437", "raft_term": "2"},
    "members": [
        {"ID": "10276657743932975437", "name": "head1", "peerURLs": ["https://10.0.0.1:2380"], "clientURLs": ["https://10.0.0.1:2379"]},
        {"ID": "13803658152347727308", "peerURLs": ["https://10.0.0.2:2380"], "isLearner": True},
    ],
}  # fmt: skip


def members(*names: str, learner: str = "", sick: tuple[str, ...] = ()) -> list[Data]:
    return [
        {"id": name, "name": name, "learner": name == learner, "clients": [f"https://{name}:2379"], "peers": [],
         "healthy": name not in sick, "bytes": 1}
        for name in names
    ]  # fmt: skip


def test_parse__members__have_id_and_name() -> None:
    first, second = ETCD.parse(LISTED)
    assert (first["id"], first["name"], first["learner"]) == ("10276657743932975437", "head1", False)
    assert (second["name"], second["learner"], second["clients"]) == ("", True, [])
    assert ETCD.named([first, second], "head2", "10.0.0.2") == [second]
    assert ETCD.named([first, second], "head1", "10.0.0.1") == [first]
    assert ETCD.named([first, second], "head3") == []


@pytest.mark.proves("kubernetes", "A member of etcd is removed only if the others keep the quorum.")
@pytest.mark.parametrize(
    ("found", "name", "why"),
    [
        (members("a", "b", "c"), "a", ""),
        (members("a", "b", "c", sick=("a",)), "a", ""),
        (members("a", "b", "c", sick=("b",)), "a", "1 of 2 members, expected 2 or more; b does not respond"),
        (members("a", "b"), "a", ""),
        (members("a", "b", sick=("b",)), "a", "0 of 1 members"),
        (members("a"), "a", "it is the only member"),
        (members("a", "b", learner="b"), "a", "it is the only member"),
        (members("a", "b", learner="b", sick=("b",)), "b", ""),
        (members("a", "b", "c", "d", "e", sick=("d",)), "a", ""),
        (members("a", "b", "c", "d", "e", sick=("d", "e")), "a", "2 of 4 members, expected 3"),
    ],
)
def test_refusal__of_a_removal__is_for_the_quorum(found: list[Data], name: str, why: str) -> None:
    answer = ETCD.refusal(found, next(one for one in found if one["name"] == name))
    assert why in answer if why else answer == ""


def test_remove__member__is_asked_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[object, ...]] = []
    found = members("a", "b", "c", sick=("c",))
    monkeypatch.setattr(ETCD, "call", lambda *given: calls.append(given))
    assert ETCD.remove(found, "c") == found[:2]
    assert calls == [(["https://a:2379", "https://b:2379"], "/v3/cluster/member/remove", {"ID": "c"})]
    assert ETCD.remove(found, "unknown") == found
    with pytest.raises(ETCD.EtcdError, match="a stays a member of etcd: etcd would have 1 of 2"):
        ETCD.remove(found, "a")


def test_call__no_member_responds__has_all_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(url: str, *_: object, **__: object) -> None:
        raise ETCD.EtcdError(f"{url}: refused")

    monkeypatch.setattr(ETCD, "request", refused)
    with pytest.raises(ETCD.EtcdError, match="no member of etcd responds: a: refused; b: refused"):
        ETCD.call(["a", "b"], "/v3/cluster/member/list", {})
    assert ETCD.health(["a"]) == {"healthy": False, "bytes": 0}


@pytest.mark.parametrize(
    ("status", "healthy"),
    [
        ({"leader": "7", "dbSize": "20480"}, True),
        ({"leader": "0", "dbSize": "20480"}, False),
        ({"dbSize": "20480"}, False),
    ],
)
def test_health__by_the_leader__is_known(monkeypatch: pytest.MonkeyPatch, status: Data, healthy: bool) -> None:
    monkeypatch.setattr(ETCD, "request", lambda *_, **__: io.BytesIO(json.dumps(status).encode()))
    assert ETCD.health(["a"]) == {"healthy": healthy, "bytes": 20480}


def stream(database: bytes, digest: bytes) -> list[bytes]:
    """A snapshot as etcd sends it: one JSON document a line, with parts of the database and its digest at the end."""
    data = database + digest
    parts = [data[at : at + 700] for at in range(0, len(data), 700)]
    return [json.dumps({"result": {"blob": base64.b64encode(part).decode()}}).encode() + b"\n" for part in parts]


DATABASE = bytes(range(256)) * 8
DIGEST = hashlib.sha256(DATABASE).digest()


@pytest.mark.parametrize(
    ("lines", "error"),
    [
        (stream(DATABASE, DIGEST), ""),
        (stream(DATABASE, bytes(32)), "its SHA-256 differs"),
        (stream(DATABASE[:-1], DIGEST), "not a whole snapshot"),
        ([*stream(DATABASE, b""), b'{"error": {"message": "no space"}}\n'], "snapshot: no space"),
        ([], "not a whole snapshot"),
    ],
)
def test_snapshot__of_each_answer__is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: list[bytes], error: str
) -> None:
    monkeypatch.setattr(ETCD, "request", lambda *_, **__: lines)
    target = tmp_path / "snapshot.db"
    if error:
        with pytest.raises(ETCD.EtcdError, match=error):
            ETCD.snapshot(target)
    else:
        ETCD.snapshot(target)
        assert (target.read_bytes(), target.stat().st_mode & 0o777) == (DATABASE + DIGEST, 0o600)


def recorder(calls: list[Any], answer: Any = "") -> Callable[..., Any]:
    """Return a function that records its arguments and returns an answer."""

    def record(*given: Any, **_: Any) -> Any:
        calls.append(given)
        return answer(*given) if callable(answer) else answer

    return record


def test_urls__of_the_heads__begin_with_this_one() -> None:
    assert ETCD.urls(CLUSTER) == ["https://127.0.0.1:2379", "https://10.0.0.2:2379", "https://[fd00::3]:2379"]
    assert ETCD.urls(CLUSTER, "head3") == ["https://127.0.0.1:2379", "https://10.0.0.2:2379"]
    assert ETCD.urls(CLUSTER, "head3", "head2", "gpu01") == ["https://127.0.0.1:2379"]


# --- kubernetes-join ------------------------------------------------------------------------------------------------

PLACE = {"server": "https://kubernetes-api.aurora.cluster:6443", "certificate-authority-data": "Q0E="}
ADMIN = {
    "clusters": [{"name": "aurora", "cluster": PLACE}],
    "users": [{"name": "kubernetes-admin", "user": {"client-certificate-data": "QQ==", "client-key-data": "S0VZ"}}],
}


class TokenApi:
    """Keeps what kubernetes-join gives kubectl, and answers with the administrator's kubeconfig."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[str, ...]] = []
        self.given: list[Data] = []
        monkeypatch.setattr(JOIN, "kubectl", self.kubectl)
        monkeypatch.setattr(JOIN, "run", recorder(self.calls, ""))
        monkeypatch.setattr(JOIN.kubernetes_api, "cluster", lambda: CLUSTER | {"nodes": {"gpu01": {}, "gpu02": {}}})
        monkeypatch.setattr(JOIN.kubernetes_api, "only_root", lambda _: None)

    def kubectl(self, *argv: str, stdin: Data | None = None) -> str:
        self.calls.append(argv)
        if stdin is not None:
            self.given += stdin["items"]
        return json.dumps(ADMIN)


@pytest.mark.proves("kubernetes", "The tokens of all joining workers are made at once, each for one node.")
def test_create__discovery_files__have_a_token_each_and_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    api = TokenApi(monkeypatch)
    found = JOIN.create(["gpu01", "gpu02"], 15)
    assert [argv[0] for argv in api.calls] == ["create", "config"]
    assert [one["stringData"]["description"] for one in api.given] == ["clusterctl: gpu01", "clusterctl: gpu02"]
    tokens = [f"{one['stringData']['token-id']}.{one['stringData']['token-secret']}" for one in api.given]
    assert len({*tokens}) == len(tokens)
    assert all(re.fullmatch("[a-z0-9]{6}[.][a-z0-9]{16}", token) for token in tokens)
    for (node, file), token in zip(found.items(), tokens, strict=True):
        assert node in found
        assert file["users"] == [{"name": "join", "user": {"token": token}}]
        assert file["clusters"][0]["cluster"] == PLACE
    assert "S0VZ" not in json.dumps(found)
    assert not [word for argv in api.calls for word in argv for token in tokens if token in word], "in a command line"


def test_secret__of_a_token__ends_and_only_authenticates() -> None:
    found = JOIN.secret("gpu01", "abcdef", "0123456789abcdef", 1_800_000_000)
    assert found["metadata"]["name"] == "bootstrap-token-abcdef"
    assert found["stringData"]["expiration"] == "2027-01-15T08:00:00Z"
    assert [key for key in found["stringData"] if key.startswith("usage")] == ["usage-bootstrap-authentication"]


def secret(name: str, description: str) -> Data:
    return {"metadata": {"name": name}, "data": {"description": base64.b64encode(description.encode()).decode()}}


SECRETS = [secret("a", "clusterctl: gpu01"), secret("b", "clusterctl: gpu02"), {"metadata": {"name": "c"}}]


@pytest.mark.parametrize(
    ("nodes", "deleted"), [(["gpu01"], ["a"]), (["gpu01", "gpu02"], ["a", "b"]), ([], ["a", "b", "c"])]
)
def test_tokens_of__nodes__are_found_by_their_description(nodes: list[str], deleted: list[str]) -> None:
    assert JOIN.tokens_of(SECRETS, nodes) == deleted


@pytest.mark.proves("kubernetes", "Tokens for nodes start the approval of their certificates.")
@pytest.mark.parametrize(
    ("argv", "nodes", "fails"),
    [
        (["gpu01"], ["gpu01"], False),
        (["gpu01"], ["gpu01"], True),
        (["--each", "gpu01,gpu02"], ["gpu01", "gpu02"], False),
    ],
)
def test_join__tokens_of_nodes__start_the_approval(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], argv: list[str], nodes: list[str], fails: bool
) -> None:
    """The timer of kubernetes-certificates approves, too, so a service that does not start is no error."""
    api = TokenApi(monkeypatch)

    def run(*argv: str) -> str:
        api.calls.append(argv)
        if fails:
            raise JOIN.KubernetesError("systemctl start: Unit not found")
        return ""

    monkeypatch.setattr(JOIN, "run", run)
    monkeypatch.setattr(sys, "argv", ["kubernetes-join", *argv])
    JOIN.main()
    assert api.calls[-1] == ("systemctl", "start", "--no-block", "kubernetes-join.service")
    out, err = capsys.readouterr()
    files = json.loads(out) if "--each" in argv else {"gpu01": json.loads(out)}
    assert {node: file["kind"] for node, file in files.items()} == dict.fromkeys(nodes, "Config")
    assert ("Unit not found" in err) is fails


@pytest.mark.parametrize(
    ("argv", "given"), [(["gpu03"], []), (["--each", "gpu03"], []), (["--each", "gpu01,gpu03"], ["gpu01"])]
)
def test_join__node_of_no_inventory__gets_no_token(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], argv: list[str], given: list[str]
) -> None:
    api = TokenApi(monkeypatch)
    monkeypatch.setattr(sys, "argv", ["kubernetes-join", *argv])
    if given:
        JOIN.main()
    else:
        with pytest.raises(SystemExit):
            JOIN.main()
    assert "gpu03: not in the inventory" in capsys.readouterr().err
    assert [one["stringData"]["description"] for one in api.given] == [f"clusterctl: {node}" for node in given]


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["gpu01", "--delete-all"],
        ["gpu01", "--each", "gpu02"],
        ["gpu01", "--minutes", "61"],
        ["../x"],
        ["--delete", "a,-b"],
        ["--each", "a,,b"],
    ],
)
def test_join__bad_arguments__are_refused(monkeypatch: pytest.MonkeyPatch, argv: list[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["kubernetes-join", *argv])
    with pytest.raises(SystemExit) as caught:
        JOIN.main()
    assert caught.value.code == 2


# --- kubernetes-user ------------------------------------------------------------------------------------------------


def test_objects__of_a_person__are_a_role_in_one_namespace() -> None:
    space, binding, quota = USER.objects("ada", "vision", {"requests.nvidia.com/gpu": "4"}, [""])
    assert space["metadata"]["name"] == binding["metadata"]["namespace"] == quota["metadata"]["namespace"] == "vision"
    assert binding["roleRef"] == {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"}
    assert [one["name"] for one in binding["subjects"]] == ["ada"]
    assert quota["spec"] == {"hard": {"requests.nvidia.com/gpu": "4"}}
    assert len(USER.objects("ada", "ada", {}, [""])) == 2


def test_objects__with_a_provider__are_also_for_its_user() -> None:
    _, binding = USER.objects("ada", "ada", {}, ["", "oidc:"])
    assert [(one["kind"], one["name"]) for one in binding["subjects"]] == [("User", "ada"), ("User", "oidc:ada")]


@pytest.mark.parametrize("text", ["", "Ada", "a_b", "-a", "system:masters", "x" * 64])
def test_name__of_a_person__is_a_label(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        USER.name(text)
    assert USER.name("ada-1") == "ada-1"


SETTINGS = {"quota": {"gpu": "2"}, "reserved": plugin("lookup/kubernetes_cluster").RESERVED}


@pytest.mark.proves("kubeconfig", "No person gets a namespace of the system, or one with privileged pods.")
@pytest.mark.parametrize(
    ("user", "namespace", "why"),
    [
        ("kubernetes-admin", "vision", "kubernetes-admin is a name of the system"),
        ("ada", "default", "default is a name"),
        ("ada", "kube-system", "kube-system is a name"),
        ("ada", "nvidia-device-plugin", "nvidia-device-plugin is a name"),
        ("ada", "clusterctl-verify", "clusterctl-verify is a name"),
        ("ada", "local-path-storage", "local-path-storage is a name"),
        ("ada", "csi-nfs", "csi-nfs is a name"),
        ("ada", "drivers", "pods in drivers can be root on nodes"),
    ],
)
def test_check_allowed__namespace_of_the_system__is_refused(
    monkeypatch: pytest.MonkeyPatch, user: str, namespace: str, why: str
) -> None:
    labels = {"drivers": "privileged", "vision": "baseline"}

    def get(kind: str, name: str, *_: str) -> list[Data]:
        return [{"metadata": {"labels": {USER.ENFORCED: labels[name]}}}] if name in labels else []

    monkeypatch.setattr(USER.kubernetes_api, "get", get)
    with pytest.raises(USER.KubernetesError, match=why):
        USER.check_allowed(user, namespace, SETTINGS)
    for free in ("vision", "ada", "nvidias"):
        USER.check_allowed("ada", free, SETTINGS)


def test_limit__of_a_quota__is_resource_and_amount() -> None:
    assert USER.limit("requests.nvidia.com/gpu=4") == ("requests.nvidia.com/gpu", "4")
    assert USER.limit("limits.memory=64Gi") == ("limits.memory", "64Gi")
    for text in ("gpu", "gpu=", "gpu=-1", "gpu=4;x", "GPU=1"):
        with pytest.raises(argparse.ArgumentTypeError):
            USER.limit(text)


def test_add__person__gets_a_certificate_of_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, ...]] = []
    monkeypatch.setattr(USER, "kubectl", recorder(calls))
    monkeypatch.setattr(USER, "run", recorder(calls, "kind: Config\n"))
    monkeypatch.setattr(USER, "in_namespace", lambda text, namespace: f"{text}# {namespace}\n")
    assert USER.add("ada", "vision", {}, 30, [""]) == "kind: Config\n# vision\n"
    assert calls[0][:2] == ("apply", "--server-side")
    assert {"--client-name=ada", "--org=clusterctl:users", "--validity-period=720h"} <= {*calls[1]}


@pytest.mark.parametrize(
    ("given", "exists", "expected"),
    [
        ({}, False, {"gpu": "2"}),
        ({}, True, {}),
        ({"gpu": "4"}, True, {"gpu": "4"}),
        ({"cpu": "8"}, False, {"gpu": "2", "cpu": "8"}),
    ],
)
def test_limits__of_a_namespace__keep_an_existing_quota(
    monkeypatch: pytest.MonkeyPatch, given: Data, exists: bool, expected: Data
) -> None:
    space = {"metadata": {"labels": {"kubernetes.io/metadata.name": "ada"}}}
    monkeypatch.setattr(USER.kubernetes_api, "get", lambda kind, *_: [space if kind == "namespace" else {}] * exists)
    assert USER.limits("ada", given, SETTINGS) == expected


@pytest.mark.proves("kubeconfig", "A person who is added to a team does not change the team's quota.")
def test_limits__of_a_team__are_those_of_the_inventory(monkeypatch: pytest.MonkeyPatch) -> None:
    space = {"metadata": {"labels": {"clusterctl/part": "kubernetes_quota"}}}
    monkeypatch.setattr(USER.kubernetes_api, "get", lambda kind, *_: [space] if kind == "namespace" else [])
    assert USER.limits("vision", {}, SETTINGS) == {}
    with pytest.raises(USER.KubernetesError, match="vision is a team: set its quota in kubernetes_quota_teams"):
        USER.limits("vision", {"gpu": "4"}, SETTINGS)


def test_listed__persons__have_their_namespaces() -> None:
    def binding(user: str, namespace: str) -> Data:
        return {"metadata": {"labels": {"clusterctl/user": user}, "namespace": namespace}}

    found = USER.listed([binding("bob", "b"), binding("ada", "vision"), binding("ada", "ada")])
    assert found == {"ada": ["ada", "vision"], "bob": ["b"]}


# --- what they share ------------------------------------------------------------------------------------------------


def test_run__command_fails__names_it_without_its_options() -> None:
    api = load("kubernetes_api")
    with pytest.raises(api.KubernetesError, match=r"^sh echo .*: no way$"):
        api.run("sh", "-c", "echo no way >&2; exit 3")
    with pytest.raises(api.KubernetesError, match="cannot run no-such-program"):
        api.run("no-such-program")
    with pytest.raises(api.KubernetesError, match=r"sleep did not end in 0\.1 s"):
        api.run("sleep", "5", seconds=0.1)
    assert api.run("cat", stdin={"a": 1}) == '{"a": 1}'
