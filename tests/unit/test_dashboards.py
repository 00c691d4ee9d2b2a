"""The dashboards' definitions: current in the role, of Grafana's own types, complete, and honest."""

import configparser
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as models

from tests.dashboards.asking import Result, filled, legend
from tests.dashboards.drawing import FORMATS, page_html
from tests.dashboards.pages import PAGES
from tests.dashboards.parts import SOURCE, WIDTH, Page, Panel, document, text
from tests.labs import REPOSITORY

ROLE = REPOSITORY / "roles/grafana"
PROMTOOL = REPOSITORY / ".cache/programs/usr/bin/promtool"
PANELS = [pytest.param(panel, id=f"{page.name}-{n}") for page in PAGES for n, panel in enumerate(page.panels)]
BY_PAGE = pytest.mark.parametrize("page", [pytest.param(page, id=page.name) for page in PAGES])


def test_dashboards__in_the_role__are_those_of_the_definitions() -> None:
    """If not: python -m tests.dashboards."""
    found = {path.name: path.read_text() for path in (ROLE / "files").glob("*.json")}
    assert found == {f"{page.name}.json": text(page) for page in PAGES}


@BY_PAGE
def test_dashboards__read_by_grafanas_types__lose_nothing(page: Page) -> None:
    shipped = json.loads((ROLE / f"files/{page.name}.json").read_text())
    read = models.Dashboard.from_json(shipped)
    assert json.loads(json.dumps(read, cls=JSONEncoder)) == shipped
    assert shipped["uid"] == f"clusterctl-{page.name}"
    assert shipped["editable"] is False
    sources = {json.dumps(one["datasource"]) for one in [*shipped["panels"], *shipped["templating"].get("list", [])]}
    assert sources == {json.dumps({"type": "prometheus", "uid": SOURCE})}
    assert f"uid: {SOURCE}" in (ROLE / "templates/data-sources.yaml.j2").read_text()


@BY_PAGE
def test_dashboards__panels__do_not_overlap(page: Page) -> None:
    cells: list[tuple[int, int]] = []
    for panel in document(page)["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= WIDTH
        cells += [(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])]
    assert len(cells) == len(set(cells))


@pytest.mark.parametrize("panel", PANELS)
def test_dashboards__panel__has_unit_legend_and_description(panel: Panel) -> None:
    assert panel.title
    assert panel.description.endswith(".")
    assert panel.unit in FORMATS
    assert all(query.legend for query in panel.queries)
    assert panel.kind != "table" or panel.columns
    for query in panel.queries:
        assert not re.search(r"vector\(|absent\(|or on\(\) ", query.expression)
        for label in re.findall(r"\{\{(\w+)\}\}", query.legend):
            assert re.search(rf"\b{label}\b", query.expression) or label in ("instance", "device", "mountpoint")


@BY_PAGE
def test_dashboards__queries__use_only_their_pages_variables(page: Page) -> None:
    values = {choice.name: "x" for choice in page.choices}
    for panel in page.panels:
        for query in panel.queries:
            assert "$" not in filled(query.expression, values, 60)
    with pytest.raises(KeyError):
        filled("up{a='$nothing'}", values, 60)


def test_dashboards__queries__are_valid_for_prometheus(tmp_path: Path) -> None:
    expressions = [
        filled(query.expression, {choice.name: "x" for choice in page.choices}, 60)
        for page in PAGES
        for panel in page.panels
        for query in panel.queries
    ]
    rules = [{"record": f"a:{n}", "expr": expression} for n, expression in enumerate(expressions)]
    (tmp_path / "rules.yml").write_text(json.dumps({"groups": [{"name": "a", "rules": rules}]}))
    done = subprocess.run(
        [PROMTOOL, "check", "rules", tmp_path / "rules.yml"], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert f"SUCCESS: {len(rules)} rules found" in done.stdout


def settings() -> dict[str, dict[str, str]]:
    """Return the sections of the role's grafana.ini."""
    parser = configparser.ConfigParser(interpolation=None)
    parser.read_string((ROLE / "templates/grafana.ini.j2").read_text())
    return {section: dict(parser[section]) for section in parser.sections()}


def test_settings__each__is_one_of_grafanas() -> None:
    known: dict[str, dict[str, str]] = yaml.safe_load((REPOSITORY / "tests/samples/grafana/settings.yaml").read_text())
    assert {name: set(keys) for name, keys in settings().items()} == {name: set(keys) for name, keys in known.items()}


def test_settings__of_login_and_vendor__are_strict() -> None:
    found: dict[str, Any] = settings()
    assert found["server"]["protocol"] == "https"
    assert found["users"] == {"allow_sign_up": "false", "allow_org_create": "false"}
    assert found["auth.anonymous"] == {"enabled": "false"}
    assert set(found["analytics"].values()) == {"false"}
    assert found["snapshots"] == {"external_enabled": "false"}
    security = found["security"]
    assert (security["cookie_secure"], security["cookie_samesite"], security["disable_gravatar"]) == (
        "true",
        "strict",
        "true",
    )
    assert "cluster_secret" in security["admin_password"] and "cluster_secret" in security["secret_key"]


def test_legend__of_a_series__has_its_labels() -> None:
    assert legend("{{node}} GPU {{gpu}}", {"node": "gpu01", "gpu": "3"}) == "gpu01 GPU 3"


@BY_PAGE
def test_drawing__of_a_page__escapes_what_labels_contain(page: Page) -> None:
    labels = dict.fromkeys(("instance", "node", "gpu", "user", "name", "severity", "state", "use"), "<b>x")
    series = [{"metric": labels, "values": [[1.0, "2"], [2.0, "NaN"], [3.0, "4"]]}]
    found = [Result(panel, [], [series for _ in panel.queries]) for panel in page.panels]
    drawn, height = page_html(page, found, 3.0)
    assert "<b>" not in drawn
    assert height > 300
