// The panels our dashboards use. Time series and single numbers are drawn by @grafana/ui itself; the code of heatmaps
// and state timelines is in no published package, so those two are drawn here from the same data and field settings.
import { FieldConfigProperty, PanelPlugin, getFieldDisplayValues, getValueFormat, formattedValueToString } from "@grafana/data";
import { config } from "@grafana/runtime";
import { BigValue, TimeSeries } from "@grafana/ui";
import React, { useEffect, useRef } from "react";

const CUSTOM = {
  drawStyle: "line", lineWidth: 1, lineInterpolation: "linear", lineStyle: { fill: "solid" }, fillOpacity: 10,
  gradientMode: "none", showPoints: "auto", pointSize: 5, spanNulls: false, axisPlacement: "auto", axisLabel: "",
  axisSoftMin: undefined, axisSoftMax: undefined, scaleDistribution: { type: "linear" },
  stacking: { mode: "none", group: "A" }, hideFrom: { viz: false, legend: false, tooltip: false },
  thresholdsStyle: { mode: "off" },
};

function custom(builder: any) {
  for (const [id, defaultValue] of Object.entries(CUSTOM)) {
    builder.addCustomEditor({
      id, path: id, name: id, defaultValue, editor: () => null, override: () => null, process: (value: any) => value,
      shouldApply: () => true,
    });
  }
}

const Lines = (p: any) => (
  <TimeSeries
    frames={p.data.series} structureRev={p.data.structureRev} timeRange={p.timeRange} timeZone={p.timeZone}
    width={p.width} height={p.height} options={p.options}
    legend={{ showLegend: true, displayMode: "list", placement: "bottom", calcs: [] } as any}
  />
);

function Number_(p: any) {
  const reduceOptions = p.options.reduceOptions ?? { calcs: ["lastNotNull"], values: false };
  const values = getFieldDisplayValues({
    fieldConfig: p.fieldConfig, reduceOptions, replaceVariables: p.replaceVariables, theme: config.theme2,
    data: p.data.series, sparkline: true, timeZone: p.timeZone,
  });
  return (
    <div style={{ display: "flex" }}>
      {values.map((value: any, index: number) => (
        <BigValue
          key={index} value={{ ...value.display, title: values.length > 1 ? value.display.title : undefined }} sparkline={value.sparkline} width={p.width / values.length}
          height={p.height} theme={config.theme2} colorMode={p.options.colorMode} graphMode={p.options.graphMode}
        />
      ))}
    </div>
  );
}

const AXIS = 22;
const clock = (at: number) => new Date(at).toTimeString().slice(0, 8);

function ticks(from: number, to: number, count: number) {
  return Array.from({ length: count }, (_, index) => from + ((index + 0.5) * (to - from)) / count);
}

function Canvas({ p, paint }: { p: any; paint: (context: CanvasRenderingContext2D, ink: string) => void }) {
  const ref = useRef<HTMLCanvasElement>(null);
  useEffect(() => {
    const canvas = ref.current!;
    const ratio = window.devicePixelRatio;
    canvas.width = p.width * ratio;
    canvas.height = p.height * ratio;
    const context = canvas.getContext("2d")!;
    context.scale(ratio, ratio);
    context.font = "11px Inter, sans-serif";
    paint(context, config.theme2.colors.text.secondary);
  });
  return <canvas ref={ref} style={{ width: p.width, height: p.height }} />;
}

// Turbo, a few stops of it: from few to many.
const STOPS = ["#30123b", "#4662d7", "#36aaf9", "#1ae4b6", "#72fe5e", "#c7ef34", "#faba39", "#f66b19", "#ca2a04"];

function Heat(p: any) {
  const paint = (c: CanvasRenderingContext2D, ink: string) => {
    const rows = p.data.series
      .map((frame: any) => ({ le: Number(frame.fields[1].labels.le.replace("+Inf", "Infinity")), frame }))
      .sort((a: any, b: any) => a.le - b.le);
    if (!rows.length) return;
    const counts = rows.map(({ frame }: any, index: number) => {
      const below = index ? new Map(zip(rows[index - 1].frame)) : new Map();
      return new Map(zip(frame).map(([at, value]) => [at, Math.max(0, value - (below.get(at) ?? 0))]));
    });
    const used = counts.map((row: any) => Math.max(0, ...row.values()) > 0);
    const [first, last] = [Math.max(0, used.indexOf(true) - 1), used.lastIndexOf(true)];
    const most = Math.max(...counts.flatMap((row: any) => [...row.values()]));
    const left = 56, bottom = p.height - AXIS, high = bottom / (last - first + 1);
    const [from, to] = [p.timeRange.from.valueOf(), p.timeRange.to.valueOf()];
    const x = (at: number) => left + ((at - from) / (to - from)) * (p.width - left);
    const format = getValueFormat(p.fieldConfig.defaults.unit ?? "none");
    for (let row = first; row <= last; row += 1) {
      const y = bottom - (row - first + 1) * high;
      for (const [at, count] of counts[row] ?? []) {
        if (!count) continue;
        c.fillStyle = STOPS[Math.min(STOPS.length - 1, Math.floor((count / most) * STOPS.length))];
        c.fillRect(x(at), y + 0.5, Math.max(2, x(at + 2000) - x(at)) - 0.5, high - 1);
      }
      c.fillStyle = ink;
      c.textAlign = "right";
      const label = rows[row].le === Infinity ? "more" : formattedValueToString(format(rows[row].le));
      if (high > 11 || (row - first) % 2 === 0) c.fillText(label, left - 6, y + Math.min(high, 10) / 2 + 4);
    }
    c.textAlign = "center";
    for (const at of ticks(from, to, Math.max(1, Math.floor((p.width - left) / 80)))) c.fillText(clock(at), x(at), p.height - 6);
  };
  return <Canvas p={p} paint={paint} />;
}

function zip(frame: any): [number, number][] {
  return frame.fields[0].values.map((at: number, index: number) => [at, frame.fields[1].values[index] ?? 0]);
}

function Bands(p: any) {
  const paint = (c: CanvasRenderingContext2D, ink: string) => {
    const left = Math.min(190, 0.4 * p.width), bottom = p.height - AXIS, high = Math.min(40, bottom / Math.max(1, p.data.series.length));
    const [from, to] = [p.timeRange.from.valueOf(), p.timeRange.to.valueOf()];
    const x = (at: number) => left + ((at - from) / (to - from)) * (p.width - left);
    p.data.series.forEach((frame: any, row: number) => {
      const [time, value] = frame.fields;
      const y = row * high;
      let start = 0;
      for (let index = 1; index <= time.values.length; index += 1) {
        if (index < time.values.length && value.values[index] === value.values[start]) continue;
        const shown = value.display(value.values[start]);
        const [a, b] = [x(time.values[start]), x(time.values[Math.min(index, time.values.length - 1)])];
        c.fillStyle = shown.color;
        c.fillRect(a, y + 3, b - a, high - 6);
        c.fillStyle = config.theme2.colors.getContrastText(shown.color);
        c.textAlign = "left";
        if (b - a > 60) c.fillText(shown.text, a + 6, y + high / 2 + 4);
        start = index;
      }
      c.fillStyle = ink;
      c.textAlign = "right";
      c.fillText(value.config.displayNameFromDS.slice(0, Math.floor(left / 6)), left - 8, y + high / 2 + 4);
    });
    c.textAlign = "center";
    for (const at of ticks(from, to, Math.max(1, Math.floor((p.width - left) / 80)))) c.fillText(clock(at), x(at), p.height - 6);
  };
  return <Canvas p={p} paint={paint} />;
}

function plugin(id: string, draw: any, settings?: any) {
  const made = new PanelPlugin(draw).useFieldConfig(settings);
  made.meta = { id, name: id, info: { version: "1.0.0", logos: {} } } as any;
  return made;
}

export const PANELS: Record<string, PanelPlugin> = {
  timeseries: plugin("timeseries", Lines, { useCustomConfig: custom }),
  stat: plugin("stat", Number_, {
    standardOptions: { [FieldConfigProperty.Color]: { defaultValue: { mode: "thresholds" } } },
  }),
  heatmap: plugin("heatmap", Heat),
  "state-timeline": plugin("state-timeline", Bands),
};
