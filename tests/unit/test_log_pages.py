"""Saved searches of the logs' pages: current in the role, in the form of exports, imported only if they are missing."""

import email
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from clusterctl.workspace import certificates
from tests.labs import REPOSITORY
from tests.log_pages import FOLDER, PRODUCTS, SEARCHES, Product, objects, text
from tests.unit.test_log_store import program

EXPORTS = yaml.safe_load((REPOSITORY / "tests/samples/logs/exports.yaml").read_text())
BY_PRODUCT = pytest.mark.parametrize("product", [pytest.param(one, id=one.name) for one in PRODUCTS])
FIELDS = set(
    re.findall(r'"([@\w]+)": \{"type"', (REPOSITORY / "roles/logging/templates/clusterlog.json.j2").read_text())
)


@pytest.fixture(scope="module")
def loader() -> ModuleType:
    return program("roles/kibana/files/log-pages", "log_pages_program")


def test_saved_objects__in_the_role__are_those_of_the_definitions() -> None:
    """If not: python -m tests.log_pages."""
    found = {path.name: path.read_text() for path in FOLDER.glob("*.ndjson")}
    assert found == {f"{one.name}.ndjson": text(one) for one in PRODUCTS}


@pytest.mark.proves("log_stack", "The searches of docs/logs.md are the saved ones.")
def test_documentation__of_searches__is_that_of_the_definitions() -> None:
    rows = re.findall(r"^\| ([^|`]+) \| `(\w[^`]*:[^`]+)` \|$", (REPOSITORY / "docs/logs.md").read_text(), re.MULTILINE)
    assert rows == [(one.purpose, one.asked("4242", "gpu01")) for one in SEARCHES]


def test_columns__of_searches__are_fields_of_the_index() -> None:
    assert len(FIELDS) > 40
    for one in SEARCHES:
        assert set(one.columns) <= FIELDS, one.name
        assert set(re.findall(r"\b([a-z_]+):", one.query)) <= FIELDS, one.name


def within(value: Any, real: Any, further: list[str], where: str) -> None:
    """Check that a value has the form of a real one: no other keys, and the same types."""
    assert type(value) is type(real), where
    if isinstance(value, dict):
        assert value.keys() <= {*real, *further}, where
        for key in value.keys() & real.keys():
            if key.endswith("JSON"):
                within(json.loads(value[key]), json.loads(real[key]), further, f"{where}.{key}")
            else:
                within(value[key], real[key], further, f"{where}.{key}")
    elif isinstance(value, list) and real:
        for item in value:
            within(item, real[0], further, f"{where}[]")


@pytest.mark.proves("log_stack", "Saved searches have the form of each program's own exports.")
@BY_PRODUCT
def test_saved_objects__of_a_program__have_the_form_of_its_exports(product: Product) -> None:
    real = {one["type"]: one for one in (json.loads(item["object"]) for item in EXPORTS[product.name])}
    for one in objects(product):
        like = real[one["type"]]
        within(one, like, EXPORTS["time"], f"{product.name} {one['type']}")
        assert one.keys() >= like.keys() - {"created_at", "managed", "originId", "updated_at", "version"}
        assert {one[key] for key in one if key.endswith("Version") and isinstance(one[key], str)} == {
            like[key] for key in like if key.endswith("Version") and isinstance(like[key], str)
        }
        assert one.get("migrationVersion") == like.get("migrationVersion")


@BY_PRODUCT
def test_references__of_saved_objects__exist(product: Product) -> None:
    found = objects(product)
    known = {(one["type"], one["id"]) for one in found}
    assert len(known) == len(found) == len(SEARCHES) + 2
    named = [(item["type"], item["id"]) for one in found for item in one["references"]]
    assert set(named) <= known
    panels = json.loads(found[-1]["attributes"]["panelsJSON"])
    names = [item["name"].rpartition(":")[2] for item in found[-1]["references"]]
    assert [panel["panelRefName"] for panel in panels] == names
    for one in found[1:-1]:
        assert (
            json.loads(one["attributes"]["kibanaSavedObjectMeta"]["searchSourceJSON"])["indexRefName"]
            == (one["references"][0]["name"])
        )


class Server:
    """A server's API with these objects; an operator's own are there, too."""

    def __init__(self, present: list[dict[str, Any]]) -> None:
        self.present, self.loads = present, 0

    def found(self, wanted: list[dict[str, Any]]) -> list[dict[str, Any]]:
        known = {(one["type"], one["id"]): one for one in self.present}
        names = [(one["type"], one["id"]) for one in wanted]
        return [known[name] for name in names] if known.keys() >= set(names) else []

    def load(self, content: bytes) -> None:
        self.loads += 1
        new = [json.loads(line) for line in content.splitlines()]
        names = {(one["type"], one["id"]) for one in new}
        self.present = [one for one in self.present if (one["type"], one["id"]) not in names] + new


OWN = {"type": "search", "id": "mine", "attributes": {"title": "mine"}}


@pytest.mark.proves("log_stack", "Saved searches are imported once; an operator's own, and changes, stay.")
@BY_PRODUCT
def test_apply__twice__imports_once(loader: ModuleType, product: Product) -> None:
    server = Server([OWN])
    content = text(product).encode()
    assert loader.apply(server, content) == [f"imported {len(SEARCHES) + 2} saved objects"]
    assert OWN in server.present
    server.present[2]["attributes"]["title"] = "changed by a person"
    assert loader.apply(server, content) == []
    assert server.loads == 1


@BY_PRODUCT
def test_apply__object_missing_or_of_another_release__imports_again(loader: ModuleType, product: Product) -> None:
    content = text(product).encode()
    server = Server([json.loads(line) for line in content.splitlines()][1:])
    assert loader.apply(server, content) != []
    other = re.sub(rb"\(clusterctl [0-9a-f]{12}\)", b"(clusterctl 0123456789ab)", content)
    assert other != content
    assert loader.apply(server, other) != []
    assert loader.apply(server, other) == []
    server.present[-1]["attributes"]["description"] = "a person's"
    assert loader.apply(server, other) != []


@pytest.fixture
def pages(loader: ModuleType, tmp_path: Path) -> Any:
    (tmp_path / "password").write_text("right\n")
    authority = tmp_path / "authority.pem"
    authority.write_text(certificates.authority("x" * 44, "aurora"))
    given = {"user": "admin", "password": str(tmp_path / "password"), "authority": str(authority)}
    return loader.Pages({**given, "engine": "opensearch", "url": "https://127.0.0.1:1"})


def test_pages__of_opensearch__send_its_header(pages: Any) -> None:
    assert pages.header["osd-xsrf"] == "true"
    assert pages.header["Authorization"] == "Basic YWRtaW46cmlnaHQ="


@BY_PRODUCT
def test_load__of_saved_objects__sends_one_file(pages: Any, product: Product) -> None:
    sent: list[tuple[str, bytes, str]] = []

    def ask(path: str, body: bytes, kind: str) -> bytes:
        sent.append((path, body, kind))
        return b'{"success": true}'

    pages.ask = ask
    pages.load(text(product).encode())
    ((path, body, kind),) = sent
    assert path == "/api/saved_objects/_import?overwrite=true"
    (part,) = list(email.message_from_bytes(f"Content-Type: {kind}\r\n\r\n".encode() + body).walk())[1:]
    assert part.get_param("name", header="content-disposition") == "file"
    assert str(part.get_filename()).endswith(".ndjson")
    assert str(part.get_payload()).replace("\r\n", "\n") == text(product)


def test_load__that_the_server_refuses__is_an_error(pages: Any) -> None:
    pages.ask = lambda *_args: b'{"success": false, "errors": [{"id": "x"}]}'
    with pytest.raises(OSError, match="import failed"):
        pages.load(b"{}")
