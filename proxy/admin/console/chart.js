// A chart over time: lines that break where nothing is known, ticks in round numbers, marks, and a readout at the pointer
// or, for hands that have none, at the arrow keys. To a screen reader it is a slider over the moments it shows.

const SVG = "http://www.w3.org/2000/svg";
const WIDE = 1000, HIGH = 1000; // the picture's own units; the page stretches them
const GAP_MS = 5000; // a longer silence is drawn as a gap

const STEPS = { ArrowLeft: -0.02, ArrowDown: -0.02, ArrowRight: 0.02, ArrowUp: 0.02, PageDown: -0.1, PageUp: 0.1, Home: -1, End: 1 };

const clock = (at) => new Date(at).toLocaleTimeString([], { hour12: false });

// Round numbers from 0 to just above `most`, about `count` of them.
export function ticks(most, count) {
  const raw = most / count;
  const unit = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].find((one) => one * unit >= raw) * unit;
  return Array.from({ length: Math.ceil(most / step - 1e-9) + 1 }, (_, index) => Number((index * step).toPrecision(12)));
}

// lines: [{ name, values, step }]; at: a time in ms for each value; breach: [name, name], shaded where the first is above.
export class Chart {
  constructor(box, { count, format, span }) {
    Object.assign(this, { box, count, format, span, cursor: null });
    box.addEventListener("pointermove", (event) => {
      const { left, width } = box.getBoundingClientRect();
      this.move((event.clientX - left) / width);
    });
    const leave = () => { this.cursor = null; this.paint(); };
    box.addEventListener("pointerleave", leave);
    box.addEventListener("blur", leave);
    box.addEventListener("focus", () => this.move(1));
    box.addEventListener("keydown", (event) => {
      if (event.key === "Escape") leave();
      else if (event.key in STEPS) {
        event.preventDefault();
        this.move((this.cursor ?? 1) + STEPS[event.key]);
      }
    });
  }

  move(share) {
    this.cursor = Math.min(1, Math.max(0, share));
    this.paint();
  }

  show(at, lines, { breach = null, marks = [] } = {}) {
    Object.assign(this, { at, lines, breach, marks });
    this.paint();
  }

  paint() {
    const { at, lines } = this;
    if (!at?.length) return;
    const end = at[at.length - 1];
    const span = Math.min(this.span, Math.max(60_000, end - at[0]));
    const most = Math.max(1e-6, ...lines.flatMap(({ values }) => values.map((value) => value ?? 0)));
    const rungs = ticks(most * 1.05, this.count);
    const top = rungs[rungs.length - 1];
    const x = (time) => WIDE * (1 - (end - time) / span);
    const y = (value) => HIGH * (1 - value / top);
    const paths = [["grid", rungs.map((rung) => `M0,${y(rung)}H${WIDE}`).join("")]];
    if (this.breach) paths.push(["breach", this.above(x, y)]);
    paths.push(["mark", this.marks.filter((mark) => mark > end - span && mark <= end).map((mark) => `M${x(mark)},0V${HIGH}`).join("")]);
    for (const { name, values, step } of lines) paths.push([name, this.line(values, step, x, y)]);
    const labels = [
      ...rungs.map((rung) => ["y", this.format(rung), { top: `${y(rung) / 10}%` }]),
      ...[0.1, 0.5, 0.9].map((share) => ["x", clock(end - (1 - share) * span), { left: `${100 * share}%` }]),
    ];
    let told = this.readout(at.length - 1);
    if (this.cursor !== null) {
      const time = end - (1 - this.cursor) * span;
      const index = at.findLastIndex((one) => one <= time);
      paths.push(["cursor", `M${WIDE * this.cursor},0V${HIGH}`]);
      told = index >= 0 ? this.readout(index) : `${clock(time)} · nothing known`;
      labels.push(["readout", told, {}]);
    }
    this.box.setAttribute("aria-valuenow", Math.round(100 * (this.cursor ?? 1)));
    this.box.setAttribute("aria-valuetext", told);
    this.put(paths, labels);
  }

  line(values, step, x, y) {
    let path = "", last = null;
    values.forEach((value, index) => {
      const time = this.at[index];
      if (value === null || value === undefined) { last = null; return; }
      const joined = last !== null && time - this.at[index - 1] < GAP_MS;
      if (!joined) path += `M${x(time).toFixed(1)},${y(value).toFixed(1)}h0.1`;
      else path += step ? `H${x(time).toFixed(1)}V${y(value).toFixed(1)}` : `L${x(time).toFixed(1)},${y(value).toFixed(1)}`;
      last = value;
    });
    return path;
  }

  above(x, y) {
    const [high, low] = this.breach.map((wanted) => this.lines.find(({ name }) => name === wanted).values);
    let path = "";
    for (let index = 1; index < high.length; index += 1) {
      const bounds = low[index];
      if (bounds === null || high[index] === null || high[index] <= bounds || this.at[index] - this.at[index - 1] > GAP_MS) continue;
      const [from, to] = [x(this.at[index - 1]), x(this.at[index])];
      path += `M${from},${y(bounds)}V${y(Math.max(high[index - 1] ?? bounds, bounds))}L${to},${y(high[index])}V${y(bounds)}Z`;
    }
    return path;
  }

  readout(index) {
    const shown = this.lines.filter(({ values }) => values[index] !== null && values[index] !== undefined)
      .map(({ label, values }) => `${label} ${this.format(values[index])}`);
    return [clock(this.at[index]), ...shown].join(" · ");
  }

  put(paths, labels) {
    const svg = document.createElementNS(SVG, "svg");
    svg.setAttribute("viewBox", `0 0 ${WIDE} ${HIGH}`);
    svg.setAttribute("preserveAspectRatio", "none");
    svg.setAttribute("aria-hidden", "true");
    for (const [name, path] of paths) {
      const node = document.createElementNS(SVG, "path");
      node.setAttribute("class", name);
      node.setAttribute("d", path);
      svg.append(node);
    }
    const texts = labels.map(([name, text, place]) => {
      const node = document.createElement("span");
      node.className = name;
      node.textContent = text;
      Object.assign(node.style, place);
      return node;
    });
    this.box.replaceChildren(svg, ...texts);
  }
}
