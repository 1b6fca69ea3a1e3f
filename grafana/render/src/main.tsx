// One dashboard, drawn by Grafana's own libraries: /?board=overview&from=MS&to=MS
import * as data from "@grafana/data";
import { initPluginTranslations } from "@grafana/i18n";
import * as runtime from "@grafana/runtime";
import {
  EmbeddedScene, QueryVariable, SceneGridItem, SceneGridLayout, SceneGridRow, SceneQueryRunner, SceneTimeRange,
  SceneVariableSet, VariableValueSelectors, VizPanel, sceneUtils,
} from "@grafana/scenes";
import { GlobalStyles, ThemeContext } from "@grafana/ui";
import React from "react";
import { createRoot } from "react-dom/client";
import { MemoryRouter } from "react-router-dom";
import { Observable } from "rxjs";

const asked = new URLSearchParams(location.search);
const theme = data.createTheme({ colors: { mode: asked.get("theme") === "light" ? "light" : "dark" } });
(runtime.config as any).theme2 = theme;
document.body.style.cssText = `margin:0;background:${theme.colors.background.canvas}`;

const STANDARD = {
  displayName: undefined, unit: undefined, min: undefined, max: undefined, decimals: undefined, noValue: undefined,
  color: { mode: "palette-classic" }, thresholds: { mode: "absolute", steps: [{ value: -Infinity, color: "green" }] },
  mappings: [], links: [], actions: [], filterable: undefined, fieldMinMax: false,
};

// What Grafana's application sets up before it draws a panel.
function prepare(panels: Record<string, any>, source: string) {
  data.standardEditorsRegistry.setInit((() => []) as any);
  data.standardFieldConfigEditorRegistry.setInit((() =>
    Object.entries(STANDARD).map(([id, defaultValue]) => ({
      id, path: id, name: id, defaultValue, editor: () => null, override: () => null, process: (value: any) => value,
      shouldApply: () => true, settings: {},
    }))) as any);
  runtime.setTemplateSrv({
    replace: (text: string) => text, getVariables: () => [], containsTemplate: () => false, updateTimeRange() {},
  } as any);
  runtime.setAppEvents(new data.EventBusSrv());
  runtime.setEchoSrv({ addEvent() {}, addBackend() {}, flush() {} } as any);
  runtime.setDataSourceSrv({
    get: async () => { throw new Error("only the runtime data source is known"); },
    getList: () => [],
    getInstanceSettings: () => ({ uid: source, type: source, name: source, meta: {} }),
    reload() {},
  } as any);
  runtime.setPluginImportUtils({
    importPanelPlugin: async (id: string) => panels[id],
    getPanelPluginFromCache: (id: string) => panels[id],
  } as any);
  runtime.setRunRequest(((from: any, request: any) =>
    new Observable((to) => {
      const running = from.query(request).subscribe({
        next: (answer: any) =>
          to.next({
            state: answer.state, series: answer.data.map((one: any) => data.toDataFrame(one)), annotations: [],
            timeRange: request.range, request, error: answer.error,
          }),
        complete: () => to.complete(),
        error: (fault: any) => to.error(fault),
      });
      return () => running.unsubscribe();
    })) as any);
}

function scene(board: any, source: string, from: number, to: number) {
  const datasource = { uid: source, type: source };
  const variables = board.templating.list
    .filter((one: any) => one.type === "query")
    .map((one: any) => new QueryVariable({
      name: one.name, label: one.label, datasource, query: one.query, isMulti: one.multi, includeAll: one.includeAll,
      allValue: one.allValue, value: "$__all", text: "All",
    }));
  const place = (panel: any) => ({
    x: panel.gridPos.x, y: panel.gridPos.y, width: panel.gridPos.w, height: panel.gridPos.h,
  });
  const item = (panel: any) => new SceneGridItem({
    ...place(panel),
    body: new VizPanel({
      title: panel.title, description: panel.description, pluginId: panel.type, options: panel.options ?? {},
      fieldConfig: { overrides: [], ...panel.fieldConfig },
      $data: new SceneQueryRunner({
        datasource, queries: panel.targets.map((one: any) => ({ ...one, datasource: undefined })),
      }),
    }),
  });
  const rows: SceneGridRow[] = [];
  for (const panel of board.panels) {
    if (panel.type === "row") {
      rows.push(new SceneGridRow({ title: panel.title, isCollapsible: false, y: panel.gridPos.y, children: [] }));
    } else {
      const last = rows[rows.length - 1];
      last.setState({ children: [...last.state.children, item(panel)] });
    }
  }
  return new EmbeddedScene({
    $timeRange: new SceneTimeRange({ from: new Date(from).toISOString(), to: new Date(to).toISOString() }),
    $variables: new SceneVariableSet({ variables }),
    controls: [new VariableValueSelectors({})],
    body: new SceneGridLayout({ children: rows }),
  });
}

async function main() {
  await initPluginTranslations("grafana");
  const { PANELS } = await import("./panels");
  const { Prometheus, UID } = await import("./prometheus");
  prepare(PANELS, UID);
  sceneUtils.registerRuntimeDataSource({ dataSource: new Prometheus(UID, UID) as any });
  const board = await (await fetch(`/boards/${asked.get("board")}.json`)).json();
  const shown = scene(board, UID, Number(asked.get("from")), Number(asked.get("to")));
  createRoot(document.getElementById("root")!).render(
    <ThemeContext.Provider value={theme}>
      <GlobalStyles />
      <MemoryRouter>
        <runtime.LocationServiceProvider service={runtime.locationService}>
          <h1 style={{ font: "500 20px Inter, sans-serif", color: theme.colors.text.primary, margin: "14px 16px 0" }}>
            {board.title}
          </h1>
          <shown.Component model={shown} />
        </runtime.LocationServiceProvider>
      </MemoryRouter>
    </ThemeContext.Provider>,
  );
  (window as any).started = true;
}

main().catch((fault) => {
  (window as any).report = { faults: [String(fault.stack)], pending: 0, asked: 0 };
  document.body.innerText = String(fault.stack);
  (window as any).started = true;
});
