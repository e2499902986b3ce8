"use strict";
// Draws the charts of a report from the data that the page holds. Text goes into the page as text only.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const MIN_S = 2; // seconds that a chart shows at least
  const ROW = 14; // pixels of a node's row
  const LINE = 200; // pixels of a curve's height
  const LABELS = 88; // pixels of the labels on the left, in all charts alike
  const DENSE = 6; // pixels between two marks: with less, some are left out
  const DOING = ["slot", "standby", "aside", "evicted"];
  const spoken = document.getElementById("spoken");
  const shown = document.getElementById("shown");
  const view = { min: data.begin, max: Math.max(data.end, data.begin + MIN_S) };
  const whole = { ...view };
  let charts = [];
  let syncing = false;
  let paper = false;

  // -- times ------------------------------------------------------------------------------------

  // The page shows the time zone of the machine that made it, wherever it is read.
  const offset = (t) => {
    let found = data.zone[0][1];
    for (const [since, seconds] of data.zone) if (since <= t) found = seconds;
    return found;
  };
  const two = (number) => String(number).padStart(2, "0");
  const clock = (t) => {
    const at = new Date((t + offset(t)) * 1000);
    const day = `${at.getUTCFullYear()}-${two(at.getUTCMonth() + 1)}-${two(at.getUTCDate())}`;
    return `${day} ${two(at.getUTCHours())}:${two(at.getUTCMinutes())}:${two(at.getUTCSeconds())}`;
  };
  const tzDate = (t) => uPlot.tzDate(new Date((t + offset(t)) * 1000), "Etc/UTC");
  const figure = (value) => (value == null ? "–" : Number(value.toPrecision(5)).toString());
  const percent = (value) => (value == null ? "–" : `${(100 * value).toFixed(2)} %`);

  // -- marks that all charts have ---------------------------------------------------------------

  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

  function marks(u) {
    const { ctx, bbox } = u;
    const x = (t) => u.valToPos(t, "x", true);
    const inside = (from, to) => to >= u.scales.x.min && from <= u.scales.x.max;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    const few = (all) => all.length < bbox.width / devicePixelRatio / DENSE;
    const restarts = data.generations.filter((one) => inside(one.launched, one.launched));
    ctx.globalAlpha = few(data.incidents.filter((one) => inside(one.begin, one.end))) ? 0.3 : 0.15;
    ctx.fillStyle = color("incident");
    for (const one of data.incidents) {
      if (!inside(one.begin, one.end)) continue;
      ctx.fillRect(x(one.begin), bbox.top, Math.max(devicePixelRatio, x(one.end) - x(one.begin)), bbox.height);
    }
    const line = (t, name, alpha, dash) => {
      ctx.globalAlpha = alpha;
      ctx.strokeStyle = color(name);
      ctx.setLineDash(dash.map((length) => length * devicePixelRatio));
      ctx.lineWidth = devicePixelRatio;
      ctx.beginPath();
      ctx.moveTo(Math.round(x(t)), bbox.top);
      ctx.lineTo(Math.round(x(t)), bbox.top + bbox.height);
      ctx.stroke();
    };
    if (few(restarts)) for (const one of restarts) line(one.launched, "restart", 0.7, [2, 3]);
    for (const one of data.marks) {
      if (!inside(one.t, one.t)) continue;
      if (one.kind === "requeue" || one.kind === "chapter") line(one.t, "requeue", 0.9, [6, 3]);
      if (one.kind === "update") line(one.t, "update", 1, []);
    }
    ctx.restore();
  }

  function nodes(u) {
    const { ctx, bbox } = u;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    const height = bbox.height / data.nodes.length;
    data.nodes.forEach((row, place) => {
      const top = bbox.top + place * height + 0.1 * height;
      for (const [begin, end, doing] of row.pieces) {
        if (end < u.scales.x.min || begin > u.scales.x.max) continue;
        const left = Math.max(bbox.left, u.valToPos(begin, "x", true));
        const right = Math.min(bbox.left + bbox.width, u.valToPos(end, "x", true));
        ctx.fillStyle = color(DOING[doing]);
        ctx.fillRect(left, top, Math.max(devicePixelRatio, right - left), 0.8 * height);
      }
    });
    ctx.restore();
  }

  // -- charts -----------------------------------------------------------------------------------

  const width = (place) => (paper ? 680 : Math.max(280, place.clientWidth));

  // Times on the axis: of days, of minutes or of seconds, with the day wherever it changes.
  function ticks(_, splits, __, ___, apart) {
    let before = "";
    return splits.map((t) => {
      const [day, time] = clock(t).split(" ");
      const changed = day !== before;
      before = day;
      if (apart >= 86400) return day.slice(5);
      return time.slice(0, apart < 60 ? 8 : 5) + (changed ? `\n${day.slice(5)}` : "");
    });
  }

  function axes(labels) {
    const look = { stroke: color("ink"), grid: { stroke: color("line"), width: 1 }, ticks: { stroke: color("line") } };
    return [{ ...look, values: ticks }, { ...look, size: LABELS, values: labels }];
  }

  // x values of a curve reach over the whole job, so that all charts show the same time.
  const wide = (t) => [whole.min, ...t, whole.max];
  const gap = (values) => [null, ...values, null];

  // Generations take turns in two colours, as the runs of the paper's figure 2.
  function turns(values) {
    const generations = gap(data.progress.generation);
    const order = new Map();
    for (const number of data.progress.generation) if (!order.has(number)) order.set(number, order.size);
    const pick = (rest) => gap(values).map((v, place) => (v != null && order.get(generations[place]) % 2 === rest ? v : null));
    return [pick(0), pick(1)];
  }

  const curve = (stroke, label) => ({ stroke: color(stroke), width: 1.5, label, points: { size: 4 } });

  const KINDS = {
    timeline: {
      when: () => data.nodes.length > 0,
      height: () => 50 + ROW * data.nodes.length,
      make: () => ({
        data: [[whole.min, whole.max], [0, 0]],
        series: [{}, { paths: () => null, points: { show: false } }],
        scale: { range: [0, data.nodes.length] },
        axes: (() => {
          const all = axes((_, splits) => splits.map((at) => data.nodes[Math.floor(data.nodes.length - at)]?.name ?? ""));
          all[1].splits = () => data.nodes.map((_, place) => data.nodes.length - place - 0.5);
          all[1].grid = { show: false };
          all[0].side = 0; // in sight however many rows there are
          all[1].font = "11px system-ui, sans-serif";
          return all;
        })(),
        under: nodes,
      }),
      says: (_, t, u) => {
        const row = data.nodes[Math.floor((u.cursor.top / u.over.clientHeight) * data.nodes.length)];
        const piece = row?.pieces.find(([begin, end]) => begin <= t && t <= end);
        const doing = piece ? ["holds a slot", "stands by", "does not answer", "evicted"][piece[2]] : "not held";
        return row ? `${row.title}: ${doing}` : "";
      },
    },
    ettr: {
      when: () => data.ettr.t.length > 0,
      height: () => LINE,
      make: () => ({
        data: [wide(data.ettr.t), gap(data.ettr.since_start), gap(data.ettr.last_hour)],
        series: [{}, curve("first", "since the start"), curve("second", "last hour")],
        scale: { range: (_, least) => [Math.max(0, Math.floor(20 * (least ?? 0) - 0.5) / 20), 1] },
        axes: axes((_, splits) => splits.map((v) => `${figure(100 * v)}%`)),
      }),
      says: (place) =>
        `since the start ${percent(data.ettr.since_start[place])}, last hour ${percent(data.ettr.last_hour[place])}`,
    },
  };
  for (const [name, unit] of [["loss", ""], ["grad_norm", ""], ["step_s", " s"]]) {
    KINDS[name] = {
      when: () => data.progress[name].some((value) => value != null),
      height: () => LINE,
      make: () => ({
        data: [wide(data.progress.t), ...turns(data.progress[name])],
        series: [{}, curve("first", name), curve("second", name)],
        scale: {},
        axes: axes((_, splits) => splits.map((v) => figure(v))),
      }),
      says: (place) =>
        `step ${data.progress.step[place]} (generation ${data.progress.generation[place]}): ` +
        `${figure(data.progress[name][place])}${unit}`,
    };
  }

  function draw(place) {
    const name = place.dataset.chart;
    const kind = KINDS[name];
    if (!kind.when()) return null;
    const made = kind.make();
    const readout = document.getElementById(`${name}-readout`);
    const u = new uPlot(
      {
        width: width(place),
        height: kind.height(),
        tzDate,
        legend: { show: false },
        cursor: { sync: { key: "job" }, drag: { x: true, y: false } },
        scales: { x: { time: true }, y: made.scale },
        series: made.series,
        axes: made.axes,
        hooks: {
          drawClear: [(chart) => { if (made.under) made.under(chart); marks(chart); }],
          setScale: [(chart, key) => { if (key === "x") follow(chart); }],
          setCursor: [(chart) => { const text = said(chart); if (text) readout.textContent = text; }],
        },
      },
      made.data,
      place,
    );
    function said(chart) {
      const { idx, left } = chart.cursor;
      if (idx == null || left < 0) return "";
      const t = name === "timeline" ? chart.posToVal(left, "x") : chart.data[0][idx];
      const known = kind.says(idx - 1, t, chart);
      const incident = data.incidents.find((one) => one.begin <= t && t <= one.end);
      return `${clock(t)}: ${known}${incident ? `; incident ${incident.name}: ${incident.text}` : ""}`;
    }
    u.said = () => said(u);
    place.addEventListener("keydown", (event) => keyed(event, u));
    return u;
  }

  function follow(chart) {
    if (syncing) return;
    const { min, max } = chart.scales.x;
    if (min != null && max != null) show(min, max);
  }

  function show(min, max) {
    const span = Math.min(whole.max - whole.min, Math.max(MIN_S, max - min));
    view.min = Math.max(whole.min, Math.min(min, whole.max - span));
    view.max = view.min + span;
    syncing = true;
    for (const u of charts) u.setScale("x", { min: view.min, max: view.max });
    queueMicrotask(() => { syncing = false; });
    shown.textContent = `${clock(view.min)} to ${clock(view.max)}`;
  }

  function redraw() {
    const { min, max } = view;
    for (const u of charts) u.destroy();
    syncing = true;
    charts = [...document.querySelectorAll(".plot")].map((place) => {
      const fresh = place.cloneNode(false); // without the listeners of the chart before
      place.replaceWith(fresh);
      seen.observe(fresh);
      return draw(fresh);
    }).filter(Boolean);
    show(min, max);
  }

  const seen = new ResizeObserver((entries) => {
    if (paper) return;
    for (const entry of entries) {
      const u = charts.find((one) => one.root.parentNode === entry.target);
      if (u && u.width !== width(entry.target)) u.setSize({ width: width(entry.target), height: u.height });
    }
  });

  // -- what a reader does -----------------------------------------------------------------------

  const zoom = (factor) => {
    const middle = (view.min + view.max) / 2;
    const half = (factor * (view.max - view.min)) / 2;
    show(middle - half, middle + half);
  };
  const move = (share) => show(view.min + share * (view.max - view.min), view.max + share * (view.max - view.min));

  function incident(number) {
    const one = data.incidents.find((each) => each.number === number);
    if (!one) return;
    const around = Math.max(10, 0.75 * (one.end - one.begin));
    show(one.begin - around, one.end + around);
    spoken.textContent = `Incident ${one.name}, ${clock(one.begin)}: ${one.text}`;
  }

  function neighbour(direction) {
    const middle = (view.min + view.max) / 2;
    const zoomed = view.max - view.min < whole.max - whole.min;
    const center = (one) => (one.begin + one.end) / 2;
    const after = data.incidents.filter((one) => !zoomed || center(one) > middle + 0.01);
    const before = data.incidents.filter((one) => !zoomed || center(one) < middle - 0.01);
    const one = direction > 0 ? after[0] : before[before.length - 1];
    if (one) incident(one.number);
    else spoken.textContent = direction > 0 ? "No later incident" : "No earlier incident";
  }

  const ACTIONS = {
    all: () => show(whole.min, whole.max),
    in: () => zoom(0.5),
    out: () => zoom(2),
    left: () => move(-0.5),
    right: () => move(0.5),
    previous: () => neighbour(-1),
    next: () => neighbour(1),
  };
  const KEYS = { "+": "in", "=": "in", "-": "out", 0: "all", PageUp: "left", PageDown: "right" };

  function keyed(event, u) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const steps = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (steps) step(u, steps);
    else if (KEYS[event.key]) ACTIONS[KEYS[event.key]]();
    else return;
    event.preventDefault();
    spoken.textContent = u.said();
  }

  // To the next value that is a pixel away at least.
  function step(u, direction) {
    const inner = u.over.clientWidth;
    const from = u.cursor.left < 0 || u.cursor.left == null ? (direction > 0 ? 0 : inner) : u.cursor.left;
    const points = u.data[0].slice(1, -1).map((t) => u.valToPos(t, "x")).filter((at) => at >= 0 && at <= inner);
    const next = direction > 0 ? points.find((at) => at > from + 1) : points.reverse().find((at) => at < from - 1);
    const left = Math.max(0, Math.min(inner, next ?? from + (direction * inner) / 40));
    u.setCursor({ left, top: u.cursor.top > 0 ? u.cursor.top : 1 });
  }

  for (const button of document.querySelectorAll("[data-do]")) button.addEventListener("click", ACTIONS[button.dataset.do]);
  for (const button of document.querySelectorAll("[data-incident]")) {
    button.hidden = false;
    button.addEventListener("click", () => {
      incident(Number(button.dataset.incident));
      document.getElementById("curves").scrollIntoView();
    });
  }
  // A link to an incident opens it.
  const open = () => document.getElementById(location.hash.slice(1))?.querySelector("details")?.setAttribute("open", "");
  addEventListener("hashchange", open);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  const print = (on) => () => {
    paper = on;
    document.documentElement.classList.toggle("paper", on);
    redraw();
  };
  addEventListener("beforeprint", print(true));
  addEventListener("afterprint", print(false));
  document.querySelector(".tools").hidden = false;
  redraw();
  open();
})();
