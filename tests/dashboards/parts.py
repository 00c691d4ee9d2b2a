"""What a dashboard is made of: pages, panels and queries, and how Grafana's SDK writes them as JSON.

The classes here are all that the pages say. Tests run their queries, and tests/dashboards/drawing.py draws them.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, table, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as kinds
from grafana_foundation_sdk.models import dashboard as models

SOURCE = "clusterctl-prometheus"
"""The uid of the data source that the role provisions."""
WIDTH = 24  # columns of Grafana's grid


@dataclass(frozen=True)
class Query:
    """A query of Prometheus, and what its series are called: Grafana replaces {{label}} there."""

    expression: str
    legend: str


@dataclass(frozen=True)
class Limit:
    """A value from which on a colour shows: orange needs a look, red an action."""

    value: float
    colour: Literal["orange", "red", "green"]


@dataclass(frozen=True)
class Panel:
    """One picture of a page. `unit` is one of Grafana's units."""

    title: str
    description: str
    unit: str
    queries: Sequence[Query]
    kind: Literal["graph", "number", "table"] = "graph"
    limits: Sequence[Limit] = ()
    span: int = 8
    height: int = 7
    stacked: bool = False
    top: float | None = None
    """The end of the axis, where it is known."""
    columns: Sequence[str] = ()
    """Of a table: its labels in their order; then come the values of the queries, by their legends."""


@dataclass(frozen=True)
class Choice:
    """A variable of a page that the reader chooses: the values of a label."""

    name: str
    title: str
    query: str
    several: bool = False
    free: bool = False
    """Whether the reader may type a value that is not listed, such as the number of a job that has ended."""


@dataclass(frozen=True)
class Page:
    """A dashboard. `name` is its uid and its file's name."""

    name: str
    title: str
    description: str
    panels: Sequence[Panel]
    choices: Sequence[Choice] = ()
    period: str = "now-3h"
    scheduler: Literal["", "slurm", "kubernetes"] = ""
    """Whose clusters have this page; empty means all."""
    tags: Sequence[str] = field(default=("clusterctl",))


def _reference() -> models.DataSourceRef:
    return models.DataSourceRef(type_val="prometheus", uid=SOURCE)


def _targets(builder: Any, panel: Panel) -> None:
    for index, query in enumerate(panel.queries):
        target = prometheus.Dataquery().ref_id(chr(ord("A") + index)).expr(query.expression).legend_format(query.legend)
        target = target.range() if panel.kind == "graph" else target.instant()
        if panel.kind == "table":
            target = target.format("table")  # type: ignore[arg-type]
        builder.with_target(target)


def _thresholds(panel: Panel) -> dashboard.ThresholdsConfig:
    steps = [models.Threshold(value=None, color="green")]
    steps += [models.Threshold(value=limit.value, color=limit.colour) for limit in panel.limits]
    return dashboard.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(steps)


def _graph(panel: Panel) -> timeseries.Panel:
    builder = timeseries.Panel().line_width(1).fill_opacity(60 if panel.stacked else 10).min(0)
    builder = builder.show_points(kinds.VisibilityMode.NEVER)
    builder = builder.legend(
        common.VizLegendOptions()
        .display_mode(kinds.LegendDisplayMode.LIST)
        .placement(kinds.LegendPlacement.BOTTOM)
        .show_legend(True)
    )
    builder = builder.tooltip(
        common.VizTooltipOptions().mode(kinds.TooltipDisplayMode.MULTI).sort(kinds.SortOrder.DESCENDING)
    )
    if panel.stacked:
        builder = builder.stacking(common.StackingConfig().mode(kinds.StackingMode.NORMAL).group("A"))
    if panel.limits:
        builder = builder.thresholds_style(
            common.GraphThresholdsStyleConfig().mode(kinds.GraphThresholdsStyleMode.DASHED)
        )
    return builder.max(panel.top) if panel.top is not None else builder


def _number(panel: Panel) -> stat.Panel:
    builder = stat.Panel().reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).values(False))
    builder = builder.graph_mode(kinds.BigValueGraphMode.NONE).text_mode(
        kinds.BigValueTextMode.VALUE_AND_NAME if len(panel.queries) > 1 or "{{" in panel.queries[0].legend
        else kinds.BigValueTextMode.VALUE
    )  # fmt: skip
    return builder.color_mode(kinds.BigValueColorMode.VALUE)


def _table(panel: Panel) -> table.Panel:
    names = {f"Value #{chr(ord('A') + index)}": query.legend for index, query in enumerate(panel.queries)}
    if len(panel.queries) == 1:
        names = {"Value": panel.queries[0].legend}
    order = [*panel.columns, *names]
    organise = {
        "excludeByName": {"Time": True},
        "includeByName": dict.fromkeys(order, True),
        "indexByName": {name: index for index, name in enumerate(order)},
        "renameByName": names,
    }
    builder = table.Panel().with_transformation(models.DataTransformerConfig(id_val="merge", options={}))
    builder = builder.with_transformation(models.DataTransformerConfig(id_val="organize", options=organise))
    return builder.show_header(True).cell_height(kinds.TableCellHeight.SM)


_BUILDERS = {"graph": _graph, "number": _number, "table": _table}


def _panel(panel: Panel) -> Any:
    builder: Any = _BUILDERS[panel.kind](panel)
    builder = builder.title(panel.title).description(panel.description).unit(panel.unit).datasource(_reference())
    builder = builder.span(panel.span).height(panel.height).thresholds(_thresholds(panel))
    _targets(builder, panel)
    return builder


def _variable(choice: Choice) -> dashboard.QueryVariable:
    builder = dashboard.QueryVariable(choice.name).label(choice.title).query(choice.query).datasource(_reference())
    builder = builder.refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED).sort(
        models.VariableSort.NATURAL_ASC if not choice.free else models.VariableSort.NUMERICAL_DESC
    )
    builder = builder.multi(choice.several).include_all(choice.several).allow_custom_value(choice.free)
    return builder.all_value(".*") if choice.several else builder


def document(page: Page) -> dict[str, Any]:
    """Return a page as Grafana's JSON."""
    builder = dashboard.Dashboard(page.title).uid(f"clusterctl-{page.name}").description(page.description)
    builder = builder.tags(list(page.tags)).readonly().refresh("30s").time(page.period, "now").timezone("browser")
    builder = builder.tooltip(models.DashboardCursorSync.CROSSHAIR)
    builder = builder.link(
        dashboard.DashboardLink("Dashboards").type(models.DashboardLinkType.DASHBOARDS).tags(list(page.tags))
        .as_dropdown(True).keep_time(True)
    )  # fmt: skip
    for choice in page.choices:
        builder = builder.with_variable(_variable(choice))
    for panel in page.panels:
        builder = builder.with_panel(_panel(panel))
    built: dict[str, Any] = json.loads(json.dumps(builder.build(), cls=JSONEncoder))
    return built


def text(page: Page) -> str:
    """Return a page as the file that the role installs."""
    return json.dumps(document(page), indent=1, sort_keys=True) + "\n"
