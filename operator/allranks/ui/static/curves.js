// Draws the curves of the metrics with uPlot: by step, time or epoch, with the values at the pointer, and zoom.
"use strict";

(() => {
  const HEIGHT = 230;
  const COLOURS = ["--curve", "--lost", "--good", "--warn", "--ink", "--dim"]; // as .line-0 to .line-5 of ui.css
  const DASHES = [[], [7, 3], [2, 3], [9, 3, 2, 3], [14, 4], [4, 4]];
  const AGAIN_MS = 5000;
  const place = document.getElementById("curves");
  if (!place || typeof uPlot === "undefined") return;

  let data = null;
  let charts = [];
  let loadedAt = 0;
  let waiting = 0;

  function make(tag, properties = {}, ...children) {
    const element = Object.assign(document.createElement(tag), properties);
    element.append(...children);
    return element;
  }

  const x = make("select", { onchange: draw });
  const smooth = make("input", { type: "range", min: 0, max: 0.98, step: 0.02, value: 0, oninput: draw });
  const logs = make("input", { type: "checkbox", onchange: draw });
  const grid = make("div", { className: "charts" });
  const note = make("p", { className: "detail" });

  function build() {
    const epochs = data.series.some((series) => series.epoch.some((epoch) => epoch !== null));
    const before = x.value;
    x.replaceChildren(...["step", "time", ...(epochs ? ["epoch"] : [])].map((name) => make("option", {}, name)));
    if (before) x.value = before;
    if (place.hidden) {
      place.append(
        make("div", { className: "filters" },
          make("label", {}, "X axis ", x),
          make("label", {}, "Smoothing ", smooth),
          make("label", { className: "check" }, logs, " Log scale"),
          make("button", { type: "button", onclick: draw }, "Reset zoom")),
        note, grid);
      place.hidden = false;
      place.dataset.drawn = "";
    }
    note.textContent = data.thinned ? "There are too many values: some are left out." : "";
    note.hidden = !data.thinned;
  }

  // An exponential average that begins with the first value.
  function smoothed(values) {
    const weight = Number(smooth.value);
    if (!weight) return values;
    let sum = 0, norm = 0;
    return values.map((value) => {
      if (value === null) return null;
      sum = weight * sum + (1 - weight) * value;
      norm = weight * norm + (1 - weight);
      return sum / norm;
    });
  }

  // [x, y] without the values that a later attempt has again, of an axis that only grows.
  function points(series) {
    const values = smoothed(series.value);
    const kept = [];
    if (x.value === "time") {
      series.at.forEach((at, index) => {
        if (index && series.attempts.includes(index)) kept.push([(series.at[index - 1] + at) / 2, null]);
        kept.push([at, values[index]]);
      });
    } else {
      const places = x.value === "step" ? series.step : series.epoch;
      const begins = new Set(series.attempts);
      places.forEach((at, index) => {
        if (at === null) return;
        if (begins.has(index)) while (kept.length && kept[kept.length - 1][0] >= at) kept.pop();
        kept.push([at, values[index]]);
      });
      kept.sort((one, other) => one[0] - other[0]);
    }
    const last = new Map(kept.map(([at, value]) => [at, logs.checked && value <= 0 ? null : value]));
    return [[...last.keys()], [...last.values()]];
  }

  function label(series, group) {
    const job = data.jobs.length > 1 ? data.jobs[series.job] : "";
    const metric = job && group.every((other) => other.metric === series.metric) ? "" : series.metric;
    return [job, metric].filter(Boolean).join(" ") + (Number(smooth.value) ? ", smoothed" : "");
  }

  function duration(seconds) {
    if (seconds < 120) return `${+seconds.toFixed(1)}s`;
    if (seconds < 7200) return `${+(seconds / 60).toFixed(1)}m`;
    return `${+(seconds / 3600).toFixed(2)}h`;
  }

  const number = (value) => (value == null ? "" : String(+value.toPrecision(4)));
  const along = (value) => (value == null ? "" : x.value === "time" ? duration(value) : String(+value.toFixed(2)));

  // Metrics have values at different places: the pointer shows the nearest one of each.
  function nearest(plot, series, index) {
    const values = plot.data[series];
    for (let away = 0; series && away < values.length; away++) {
      for (const other of [index - away, index + away]) if (values[other] != null) return other;
    }
    return index;
  }

  function box(name, group) {
    const element = make("div", { className: "chart", role: "group", tabIndex: 0 }, make("h2", {}, name));
    element.setAttribute("aria-label", `${name} by ${x.value}: ${group.map((series) => label(series, group)).join(", ")}`);
    return element;
  }

  function chart(box, group) {
    const style = getComputedStyle(document.body);
    const colour = (variable) => style.getPropertyValue(variable).trim();
    const axis = { stroke: colour("--dim"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: "12px system-ui" };
    const metrics = [...new Set(group.map((series) => series.metric))];
    const tables = group.map(points);
    const joined = uPlot.join(tables);
    const positive = tables.some(([, values]) => values.some((value) => value !== null));
    const plot = new uPlot({
      width: box.clientWidth,
      height: HEIGHT,
      scales: { x: { time: false }, y: { distr: logs.checked && positive ? 3 : 1 } },
      axes: [{ ...axis, values: (_, ticks) => ticks.map(along) }, { ...axis, size: 64, values: (_, ticks) => ticks.map(number) }],
      cursor: { sync: { key: "curves" }, drag: { x: true, y: false }, dataIdx: nearest },
      series: [
        { label: x.value, value: (_, value) => along(value) },
        ...group.map((series, index) => {
          const kind = data.jobs.length > 1 ? series.job : index;
          return {
            label: label(series, group),
            stroke: colour(COLOURS[kind % COLOURS.length]),
            dash: DASHES[kind % DASHES.length],
            width: data.jobs.length > 1 && metrics.indexOf(series.metric) ? 1 : 2,
            value: (_, value) => number(value),
            points: { show: tables[index][0].length < 30 },
          };
        }),
      ],
    }, joined, box);
    // The arrow keys move the pointer along the curve.
    box.addEventListener("keydown", (event) => {
      const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!move) return;
      event.preventDefault();
      const index = Math.min(joined[0].length - 1, Math.max(0, (plot.cursor.idx ?? (move > 0 ? -1 : joined[0].length)) + move));
      plot.setCursor({ left: plot.valToPos(joined[0][index], "x"), top: HEIGHT / 2 });
    });
    return plot;
  }

  function draw() {
    for (const plot of charts) plot.destroy();
    const groups = new Map();
    for (const series of data.series) groups.set(series.group, [...(groups.get(series.group) || []), series]);
    // All boxes first: they share the width.
    const boxes = [...groups].map(([name, group]) => box(name, group));
    grid.replaceChildren(...boxes);
    charts = [...groups.values()].map((group, index) => chart(boxes[index], group));
  }

  async function load() {
    loadedAt = Date.now();
    const answer = await fetch(place.dataset.curves);
    if (!answer.ok) return; // the page says why it is not current
    const text = await answer.text();
    if (text === load.text) return;
    load.text = text;
    data = JSON.parse(text);
    build();
    // A zoom stays as it is: the next change of a control, or Reset zoom, shows the new values.
    if (!charts.some((plot) => plot.scales.x.min > plot.data[0][0] || plot.scales.x.max < plot.data[0].at(-1))) draw();
  }

  addEventListener("resize", () => charts.forEach((plot) => plot.setSize({ width: plot.root.parentElement.clientWidth, height: HEIGHT })));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => data && draw());
  document.addEventListener("refreshed", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => load().catch(() => {}), Math.max(0, loadedAt + AGAIN_MS - Date.now()));
  });
  load().catch(() => {});
})();
