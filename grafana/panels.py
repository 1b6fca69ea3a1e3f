"""The vocabulary of our dashboards: panels that always have a title, a description, a unit and a legend."""

from __future__ import annotations

from typing import NamedTuple

from grafana_foundation_sdk.builders import common, heatmap, stat, statetimeline, timeseries
from grafana_foundation_sdk.builders import dashboard as d
from grafana_foundation_sdk.builders import prometheus as prom
from grafana_foundation_sdk.models import common as cm
from grafana_foundation_sdk.models import dashboard as m
from grafana_foundation_sdk.models import heatmap as hm
from grafana_foundation_sdk.models import prometheus as pm

__all__ = [
    "HISTOGRAMS",
    "SOURCE",
    "Q",
    "against_target",
    "base",
    "by_pool",
    "heat",
    "lines",
    "quantile",
    "rate",
    "row",
    "seen",
    "stacked",
    "state",
    "value",
]

SOURCE = m.DataSourceRef(type_val="prometheus", uid="${datasource}")
POOL = '{pool=~"$pool"}'
HISTOGRAMS = {
    "ttft": "trimtab_time_to_first_token_seconds",
    "tpot": "trimtab_inter_token_latency_seconds",
    "e2e": "trimtab_request_duration_seconds",
    "queue": "trimtab_queue_duration_seconds",
}


class Q(NamedTuple):
    """One query and how its series are called."""

    expr: str
    legend: str


def rate(metric: str, by: str, where: str = 'pool=~"$pool"') -> str:
    """Return the rate of a counter, summed by `by`."""
    return f"sum by ({by}) (rate({metric}{{{where}}}[$__rate_interval]))"


def quantile(q: float, metric: str, by: str = "pool", where: str = 'pool=~"$pool"') -> str:
    """Return a quantile of a classic histogram over the rate interval."""
    return f"histogram_quantile({q:g}, sum by ({by}, le) (rate({metric}_bucket{{{where}}}[$__rate_interval])))"


def seen(metric: str, by: str) -> str:
    """Return a counter's rate by a label, of the values that occurred in the time shown; `none` where none did."""
    occurred = f"sum by ({by}) (increase({metric}{POOL}[$__range] @ end())) > 0"
    nothing = f'label_replace(vector(0), "{by}", "none", "", "")'
    return f"({rate(metric, by)} and on ({by}) ({occurred})) or ({nothing} unless on () ({occurred}))"


def by_pool(metric: str) -> str:
    """Return a gauge of the selected pools."""
    return f"{metric}{POOL}"


def base(title: str, uid: str, description: str, *, worker: bool = False) -> d.Dashboard:
    """Return an empty dashboard with our variables, links and the decisions as annotations."""
    board = (
        d.Dashboard(title)
        .uid(uid)
        .description(description)
        .tags(["trimtab", "generated"])
        .refresh("10s")
        .time("now-30m", "now")
        .timezone("browser")
        .tooltip(m.DashboardCursorSync.CROSSHAIR)
        .editable()
        .link(
            d.DashboardLink("Trimtab")
            .type(m.DashboardLinkType.DASHBOARDS)
            .tags(["trimtab"])
            .as_dropdown(True)
            .keep_time(True)
            .include_vars(True)
            .tooltip("The other Trimtab dashboards")
        )
        .with_variable(d.DatasourceVariable("datasource").type("prometheus").label("Data source"))
    )
    if worker:
        models = "label_values(vllm:num_requests_running, model_name)"
        return board.with_variable(_choice("model_name", "Model", models))
    return board.with_variable(_choice("pool", "Pool", "label_values(trimtab_setpoint_generation, pool)")).annotation(
        _decisions()
    )


def _choice(name: str, label: str, query: str) -> d.QueryVariable:
    return (
        d.QueryVariable(name)
        .label(label)
        .query(query)
        .datasource(SOURCE)
        .multi(True)
        .include_all(True)
        .all_value(".*")
        .current(m.VariableOption(text="All", value="$__all", selected=True))
        .refresh(m.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(m.VariableSort.ALPHABETICAL_ASC)
    )


def _decisions() -> d.AnnotationQuery:
    return (
        d.AnnotationQuery()
        .name("Decisions")
        .datasource(SOURCE)
        .enable(True)
        .icon_color("light-purple")
        .expr('sum by (pool, rule) (increase(trimtab_decisions_total{pool=~"$pool"}[$__interval])) > 0')
        .step("15s")
        .title_format("{{pool}}")
        .text_format("{{rule}}")
    )


def row(title: str) -> d.Row:
    """Return a heading."""
    return d.Row(title)


def _target(query: Q, index: int) -> prom.Dataquery:
    return prom.Dataquery().expr(query.expr).legend_format(query.legend).ref_id(chr(ord("A") + index)).range()


def lines(
    title: str, description: str, unit: str, *queries: Q, width: int = 8, height: int = 8, fill: int = 8,
    dashed: str | None = None, thin: str | None = None, log: int | None = None, top: float | None = None,
    at_least: float | None = None,
) -> timeseries.Panel:  # fmt: skip
    """Return a time series.

    Series whose name matches `dashed` (a target, a limit) are drawn as dashed red lines, those that match `thin` (an
    interval) as thin grey ones. `log` is the base of a logarithmic axis, `top` its end, `at_least` the least value
    that it reaches, so that a flat zero is not drawn under a scale of its own invention.
    """
    panel = (
        timeseries.Panel()
        .title(title)
        .description(description)
        .unit(unit)
        .datasource(SOURCE)
        .span(width)
        .height(height)
        .line_width(1.5)
        .fill_opacity(fill)
        .show_points(cm.VisibilityMode.NEVER)
        .tooltip(common.VizTooltipOptions().mode(cm.TooltipDisplayMode.MULTI).sort(cm.SortOrder.DESCENDING))
        .legend(
            common.VizLegendOptions()
            .display_mode(cm.LegendDisplayMode.LIST)
            .placement(cm.LegendPlacement.BOTTOM)
            .show_legend(True)
        )
    )
    if log is not None:
        panel = panel.scale_distribution(common.ScaleDistributionConfig().type(cm.ScaleDistribution.LOG).log(log))
    else:
        panel = panel.axis_soft_min(0)
    if at_least is not None:
        panel = panel.axis_soft_max(at_least)
    if top is not None:
        panel = panel.max(top)
    if dashed:
        panel = panel.override_by_regexp(
            f"/{dashed}/",
            [
                m.DynamicConfigValue(id_val="custom.lineStyle", value={"fill": "dash", "dash": [8, 6]}),
                m.DynamicConfigValue(id_val="custom.fillOpacity", value=0),
                m.DynamicConfigValue(id_val="custom.lineWidth", value=2),
                m.DynamicConfigValue(id_val="color", value={"mode": "fixed", "fixedColor": "red"}),
            ],
        )
    if thin:
        panel = panel.override_by_regexp(
            f"/{thin}/",
            [
                m.DynamicConfigValue(id_val="custom.fillOpacity", value=0),
                m.DynamicConfigValue(id_val="custom.lineWidth", value=1),
                m.DynamicConfigValue(id_val="color", value={"mode": "fixed", "fixedColor": "text"}),
            ],
        )
    for index, query in enumerate(queries):
        panel = panel.with_target(_target(query, index))
    return panel


def stacked(
    title: str, description: str, unit: str, *queries: Q, width: int = 8, height: int = 8,
    at_least: float | None = None,
) -> timeseries.Panel:  # fmt: skip
    """Return a time series whose areas add up."""
    panel = lines(title, description, unit, *queries, width=width, height=height, fill=40, at_least=at_least)
    return panel.stacking(common.StackingConfig().mode(cm.StackingMode.NORMAL))


def value(
    title: str, description: str, unit: str, query: Q, *, width: int = 4, height: int = 4,
    steps: tuple[tuple[float | None, str], ...] = ((None, "text"),), decimals: int | None = None,
) -> stat.Panel:  # fmt: skip
    """Return one big number with a sparkline; `steps` are (from, colour), the first from minus infinity."""
    panel = (
        stat.Panel()
        .title(title)
        .description(description)
        .unit(unit)
        .datasource(SOURCE)
        .span(width)
        .height(height)
        .color_mode(cm.BigValueColorMode.VALUE)
        .color_scheme(d.FieldColor().mode(m.FieldColorModeId.THRESHOLDS))
        .graph_mode(cm.BigValueGraphMode.AREA)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .thresholds(
            d.ThresholdsConfig()
            .mode(m.ThresholdsMode.ABSOLUTE)
            .steps([m.Threshold(value=start, color=color) for start, color in steps])
        )
        .with_target(_target(query, 0))
    )
    return panel if decimals is None else panel.decimals(decimals)


def heat(title: str, description: str, unit: str, metric: str, *, width: int = 12, height: int = 8) -> heatmap.Panel:
    """Return the distribution of a classic histogram over time."""
    return (
        heatmap.Panel()
        .title(title)
        .description(description)
        .unit(unit)
        .datasource(SOURCE)
        .span(width)
        .height(height)
        .calculate(False)
        .y_axis(heatmap.YAxisConfig().unit(unit))
        .color(heatmap.HeatmapColorOptions().mode(hm.HeatmapColorMode.SCHEME).scheme("Turbo").steps(64))
        .with_target(
            prom.Dataquery()
            .expr(f'sum by (le) (increase({metric}_bucket{{pool=~"$pool"}}[$__rate_interval]))')
            .format(pm.PromQueryFormat.HEATMAP)
            .legend_format("{{le}}")
            .ref_id("A")
            .range()
        )
    )


def state(
    title: str, description: str, query: Q, colors: dict[str, tuple[str, str]], *, width: int = 12, height: int = 6
) -> statetimeline.Panel:
    """Return a band per series; `colors` maps a value to (text, colour)."""
    mapping = m.ValueMap(
        options={
            key: m.ValueMappingResult(text=text, color=color, index=index)
            for index, (key, (text, color)) in enumerate(colors.items())
        }
    )
    return (
        statetimeline.Panel()
        .title(title)
        .description(description)
        .unit("none")
        .datasource(SOURCE)
        .span(width)
        .height(height)
        .mappings([mapping])
        .with_target(_target(query, 0))
    )


def against_target(name: str, title: str, what: str, width: int = 12) -> timeseries.Panel:
    """Return live quantiles of one latency, their interval, and the target as a dashed line."""
    live = f'trimtab_latency_quantile_seconds{{pool=~"$pool", latency="{name}", q="%s"}}'
    bound = f'trimtab_latency_quantile_%s_seconds{{pool=~"$pool", latency="{name}", q="0.99"}}'
    return lines(
        title,
        f"{what} Live quantiles over the controller's window; the dashed line is the SLO, the thin ones are the "
        "95% interval of P99 (absent where there are too few requests to know).",
        "s",
        Q(live % "0.99", "{{pool}} p99"),
        Q(live % "0.5", "{{pool}} p50"),
        Q(bound % "upper", "{{pool}} p99 upper"),
        Q(bound % "lower", "{{pool}} p99 lower"),
        Q(f'trimtab_slo_target_seconds{{pool=~"$pool", slo="{name}"}}', "{{pool}} target"),
        width=width,
        dashed="target$",
        thin="(upper|lower)$",
    )
