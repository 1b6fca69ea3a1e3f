// A data source for @grafana/scenes that asks a real Prometheus, through the server this page came from.
import { FieldType, LoadingState, renderLegendFormat } from "@grafana/data";
import { RuntimeDataSource, sceneGraph } from "@grafana/scenes";
import { Observable } from "rxjs";

export const UID = "prometheus";
const FIXED = { __rate_interval: "15s", __interval: "5s", __range: "60s" };
const STEP_S = 2;

// What the photographer reads: queries without an answer, and how many are still under way.
export const report = { faults: [] as string[], pending: 0, asked: 0 };
(window as any).report = report;

async function get(path: string) {
  const answer = await (await fetch(`/prom/api/v1/${path}`)).json();
  if (answer.status !== "success") throw new Error(answer.error);
  return answer.data;
}

export class Prometheus extends RuntimeDataSource {
  query(request: any): any {
    const owner = request.scopedVars.__sceneObject.value.valueOf();
    const fixed = Object.fromEntries(Object.entries(FIXED).map(([name, value]) => [name, { value, text: value }]));
    const expand = (text: string) => sceneGraph.interpolate(owner, text, { ...request.scopedVars, ...fixed });
    return new Observable((to) => {
      report.pending += 1;
      report.asked += 1;
      this.all(request, expand)
        .then((data) => to.next({ data, state: LoadingState.Done }))
        .catch((error) => {
          report.faults.push(String(error));
          to.next({ data: [], state: LoadingState.Error, error: { message: String(error) } });
        })
        .finally(() => {
          report.pending -= 1;
          to.complete();
        });
    });
  }

  async all(request: any, expand: (text: string) => string) {
    const frames = [];
    const start = Math.floor(request.range.from.valueOf() / 1000);
    const end = Math.floor(request.range.to.valueOf() / 1000);
    for (const target of request.targets) {
      const query = encodeURIComponent(expand(target.expr));
      const data = await get(`query_range?query=${query}&start=${start}&end=${end}&step=${STEP_S}`);
      for (const one of data.result) frames.push(frame(target, one));
    }
    return frames;
  }

  async metricFindQuery(query: any) {
    const text = typeof query === "string" ? query : query.query;
    const [, metric, label] = /label_values\((.+), (\w+)\)/.exec(text)!;
    const values = await get(`label/${label}/values?match[]=${encodeURIComponent(metric)}`);
    return values.map((value: string) => ({ text: value, value }));
  }

  testDatasource(): any {
    return Promise.resolve({ status: "success", message: "OK" });
  }
}

function frame(target: any, series: any) {
  const displayNameFromDS = renderLegendFormat(target.legendFormat, series.metric);
  return {
    refId: target.refId,
    length: series.values.length,
    fields: [
      { name: "Time", type: FieldType.time, config: {}, values: series.values.map(([at]: any) => at * 1000) },
      {
        name: "Value",
        type: FieldType.number,
        config: { displayNameFromDS },
        labels: series.metric,
        values: series.values.map(([, value]: any) => (Number.isFinite(+value) ? +value : null)),
      },
    ],
  };
}
