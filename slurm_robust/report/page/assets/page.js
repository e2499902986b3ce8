// Draws the charts of a report from the data that the page holds.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const MIN_S = 2; // seconds that a chart shows at least
  const BADGES = 20, FLAGS = 15, AXIS = 38; // pixels of the strips above and below what is drawn
  const LINE = 170; // pixels of a curve's height
  const ON_PAPER = 16; // lanes, where a page cannot be scrolled
  const LANE = 22, APART = 4; // pixels of a lane, and between two
  const DOING = ["slot", "standby", "aside", "evicted"];
  const DONE = ["holds the slot", "stands by", "does not answer", "is evicted"];
  const WAITS = ["queue", "suspended or idle"]; // parts that are hatched
  const spoken = document.getElementById("spoken");
  const shown = document.getElementById("shown");
  const whole = { min: data.begin, max: Math.max(data.end, data.begin + MIN_S) };
  const view = { ...whole };
  const progress = data.progress;
  let bySteps = false, smooth = false, paper = false;

  // -- words ------------------------------------------------------------------------------------

  // The page shows the time zone of the machine that made it, wherever it is read.
  const offset = (t) => {
    let found = data.zone[0][1];
    for (const [since, seconds] of data.zone) if (since <= t) found = seconds;
    return found;
  };
  const local = (t) => new Date((t + offset(t)) * 1000).toISOString();
  const clock = (t) => local(t).slice(0, 19).replace("T", " ");

  const DAY = 86400;
  const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, DAY, 2 * DAY, 5 * DAY,
    10 * DAY, 30 * DAY, 60 * DAY, 180 * DAY, 365 * DAY];

  // Moments on the axis, each with its time and, where that is new and there is room, its day.
  function moments(width) {
    const span = view.max - view.min;
    const text = (t, apart) => (apart >= DAY ? local(t).slice(5, 10) : local(t).slice(11, apart < 60 ? 19 : 16));
    const fits = (apart) => (apart / span) * width >= wide(text(view.min, apart)) + 18;
    const apart = STEPS.find(fits) ?? STEPS[STEPS.length - 1];
    const found = [];
    const ahead = offset(view.min);
    for (let t = Math.ceil((view.min + ahead) / apart) * apart - ahead; t <= view.max; t += apart) {
      const at = t - (offset(t) - ahead);
      found.push({ t: at, text: text(at, apart), day: apart >= DAY ? local(at).slice(0, 4) : local(at).slice(0, 10) });
    }
    return found;
  }

  // -- charts -----------------------------------------------------------------------------------

  const narrow = () => !paper && innerWidth < 600;
  const charts = [];

  class Chart {
    constructor(place) {
      this.place = place;
      this.name = place.dataset.chart;
      this.readout = document.getElementById(`${this.name}-readout`);
      this.said = this.readout.textContent;
      this.hair = null;
    }
    get bySteps() { return bySteps && this.name in CURVES && this.name !== "ettr"; }

    // What of the progress is in view: places of points.
    points() {
      const { t } = this.source;
      let first = t.findIndex((at) => at >= view.min), last = t.findLastIndex((at) => at <= view.max);
      if (first < 0) first = t.length;
      return [Math.max(0, first - 1), Math.min(t.length - 1, last + 1)];
    }
    measure() {
      this.width = paper ? 690 : Math.max(240, this.place.clientWidth);
      this.left = narrow() ? 50 : 84;
      this.right = 14;
      this.inner = this.width - this.left - this.right;
      this.top = (data.incidents.length ? BADGES : 4) + (data.marks.length ? FLAGS : 0);
      this.range = view;
      if (!this.bySteps) return;
      const { t, step } = progress;
      const seen = step.filter((_, place) => t[place] >= view.min && t[place] <= view.max);
      const min = seen.length ? Math.min(...seen) : 0;
      this.range = { min, max: Math.max(min + 1, seen.length ? Math.max(...seen) : 1) };
    }
    x(value) { return this.left + ((value - this.range.min) / (this.range.max - this.range.min)) * this.inner; }
    // Where a moment is: on an axis of steps, at the step that was newest then, or that came next.
    at(t, next = false) {
      if (!this.bySteps) return this.x(t);
      const times = progress.t;
      let place = times.findLastIndex((each) => each <= t);
      if (next && place < times.length - 1) place += 1;
      return this.x(progress.step[Math.max(0, place)]);
    }
    isIn(begin, end = begin) { return end >= view.min && begin <= view.max; }

    draw() {
      this.measure();
      const old = [...this.place.childNodes];
      this.paint();
      for (const one of old) one.remove();
    }

    svg(height, parent = this.place) {
      return put(parent, "svg", { width: this.width, height, viewBox: `0 0 ${this.width} ${height}` });
    }

    // Labels of the axis, with a line of each through the drawing if it is `tall`.
    axis(svg, y, top, tall) {
      const ticks = this.bySteps
        ? round(this.range.min, this.range.max, this.inner / 90).filter((at) => Number.isInteger(at))
            .map((at) => ({ at: this.x(at), text: at.toLocaleString("en"), day: "" }))
        : moments(this.inner).map((one) => ({ ...one, at: this.x(one.t) }));
      let day = "", free = -Infinity, freeDay = -Infinity;
      for (const one of ticks) {
        if (tall) put(svg, "line", { class: "rule", x1: one.at, x2: one.at, y1: top, y2: top + tall });
        const half = wide(one.text) / 2;
        if (one.at - half > free && one.at + half <= this.width) {
          put(svg, "text", { class: "tick", x: one.at, y: y + 18, "text-anchor": "middle" }, one.text);
          free = one.at + half + 8;
        }
        const from = Math.max(2, one.at - wide(one.day) / 2);
        if (one.day !== day && from > freeDay && from + wide(one.day) <= this.width) {
          put(svg, "text", { class: "tick day", x: from, y: y + 31 }, one.day);
          day = one.day;
          freeDay = from + wide(one.day) + 8;
        }
      }
      if (this.bySteps) put(svg, "text", { class: "tick", x: this.left, y: y + 31 }, "step");
    }

    marks(svg, top, height) {
      const inside = (x) => Math.max(this.left, Math.min(this.left + this.inner, x));
      const few = (all) => all.length < this.inner / 6;
      const restarts = data.restarts.filter((t) => this.isIn(t));
      if (few(restarts)) {
        for (const t of restarts) {
          const x = this.at(t);
          put(svg, "line", { class: "restarts", x1: x, x2: x, y1: top, y2: top + height });
        }
      }
      const badges = [];
      svg.classList.toggle("many", !few(data.incidents.filter((one) => this.isIn(one.begin, one.end))));
      for (const one of data.incidents) {
        if (!this.isIn(one.begin, one.end)) continue;
        const from = inside(this.at(one.begin)), to = Math.max(from + 2, this.bySteps ? 0 : inside(this.at(one.end)));
        const tip = `Incident ${one.name}${one.open ? " (open)" : ""}: ${one.text}\n${clock(one.begin)}, ${lasted(one.end - one.begin)}`;
        const link = put(svg, "a", { href: `#incident-${one.number}`, tabindex: -1, "aria-hidden": "true", "data-i": one.number, "data-tip": tip });
        put(link, "rect", { class: `band${one.open ? " open" : ""}`, x: from, y: top, width: to - from, height });
        if (one.open) put(link, "line", { class: "begins", x1: from, x2: from, y1: top, y2: top + height });
        put(link, "rect", { class: "rail", x: from, y: top - 3, width: to - from, height: 3 });
        badges.push({ one, x: (from + Math.min(to, from + 60)) / 2, tip });
      }
      this.flags(svg, top, height);
      this.badges(svg, badges);
    }

    // Numbers of incidents; those without room for their own share one.
    badges(svg, all) {
      const sets = [];
      for (const each of all) {
        const last = sets[sets.length - 1];
        const half = wide(each.one.name) / 2 + 6;
        if (last && each.x - half < last.end) {
          last.all.push(each);
          const text = `${last.all[0].one.name}–${each.one.name}`;
          last.text = text;
          last.end = Math.max(last.end, last.begin + wide(text) + 14);
        } else sets.push({ all: [each], text: each.one.name, begin: each.x - half, end: each.x + half + 2 });
      }
      for (const set of sets) {
        const one = set.all[0].one, many = set.all.length > 1, width = wide(set.text) + 10;
        const from = Math.max(0, Math.min(this.width - width, set.begin));
        const last = set.all[set.all.length - 1].one;
        const tip = many ? `${set.all.length} incidents: ${set.text}. Click to zoom.` : set.all[0].tip;
        const timeline = this.name === "timeline";
        const link = put(svg, "a", {
          class: `badge${set.all.some((each) => each.one.open) ? " open" : ""}`, href: `#incident-${one.number}`,
          "aria-label": tip, tabindex: timeline ? null : -1, "aria-hidden": timeline ? null : "true",
          "data-i": many ? null : one.number, "data-tip": tip,
        });
        put(link, "rect", { x: from, y: 1, width, height: 15, rx: 4 });
        put(link, "text", { x: from + width / 2, y: 12.5 }, set.text);
        if (many) link.addEventListener("click", (event) => { event.preventDefault(); around(one.begin, last.end); });
      }
    }

    // A line for each mark; what is close together shares a label, in which what is unusual comes first.
    flags(svg, top, height) {
      const sets = [];
      const seen = data.marks.filter((one) => this.isIn(one.t))
        .map((one) => ({ one, x: this.at(one.t, one.kind === "restart" || one.kind === "run") })).sort((a, b) => a.x - b.x);
      for (const { one, x } of seen) {
        const flag = put(svg, "g", { class: `flag ${one.kind}`, "data-tip": `${one.text}\n${clock(one.t)}` });
        put(flag, "line", { x1: x, x2: x, y1: top - FLAGS + 2, y2: top + height });
        const last = sets[sets.length - 1];
        if (last && x - last.x < 16) last.all.push({ one, flag });
        else sets.push({ x, all: [{ one, flag }] });
      }
      let free = this.left - 2;
      sets.forEach(({ x, all }, place) => {
        const sorted = all.toSorted((a, b) => (b.one.kind === "restart") - (a.one.kind === "restart"));
        const end = Math.min(this.width, sets[place + 1]?.x ?? Infinity);
        for (let many = Math.min(3, sorted.length); many > 0; many -= 1) {
          const label = sorted.slice(0, many).map(({ one }) => one.label).join(", "), width = wide(label) + 6;
          const from = x + 4 + width <= end ? x + 4 : end === this.width ? x - width - 2 : 0;
          if (from < Math.max(free, (sets[place - 1]?.x ?? 0) + 3)) continue;
          put(sorted[0].flag, "text", { class: "label", x: from, y: top - 5 }, label);
          free = from + width + 4;
          break;
        }
      });
    }

    // The hair shows the same moment in all charts.
    point(t, place = null) {
      if (!this.hair) return;
      const x = this.bySteps ? this.at(t) : this.x(t);
      const isIn = x >= this.left - 1 && x <= this.left + this.inner + 1;
      for (const one of this.hair) {
        one.setAttribute("x1", x);
        one.setAttribute("x2", x);
        one.setAttribute("visibility", isIn ? "visible" : "hidden");
      }
      this.readout.textContent = this.says(t, place);
    }
    rest() {
      for (const one of this.hair ?? []) one.setAttribute("visibility", "hidden");
      this.readout.textContent = this.said;
    }
    incidentsAt(t) {
      return data.incidents.filter((one) => one.begin <= t && t <= one.end).map((one) => `; incident ${one.name}: ${one.text}`).join("");
    }
    // The moment that a pointer at `x` means.
    moment(x) {
      const value = this.range.min + ((x - this.left) / this.inner) * (this.range.max - this.range.min);
      if (!this.bySteps) return value;
      const place = nearest(progress.step, value, ...this.points());
      return progress.t[place] ?? view.min;
    }
    get source() { return this.name === "ettr" ? data.ettr : progress; }
  }

  const CURVES = {
    loss: { unit: "" }, grad_norm: { unit: "" }, step_s: { unit: " s" }, steps_s: { unit: " steps/s" }, ettr: { unit: "" },
  };

  class Curve extends Chart {
    get lines() {
      if (this.name !== "ettr") return [{ values: progress[this.name], style: "" }];
      const found = [{ values: data.ettr.since_start, style: "c0" }];
      if (data.ettr.last_hour) found.push({ values: data.ettr.last_hour, style: "c1 dashed" });
      return found;
    }
    get isEmpty() { return !this.lines.some((line) => line.values.some((value) => value != null)); }

    paint() {
      if (this.isEmpty) return;
      const height = this.top + LINE + AXIS, svg = this.svg(height);
      const [first, last] = this.points();
      const lines = this.lines, t = this.source.t;
      let min = Infinity, max = -Infinity;
      for (const { values } of lines) {
        for (let place = first; place <= last; place += 1) {
          if (values[place] == null || t[place] < view.min || t[place] > view.max) continue;
          min = Math.min(min, values[place]);
          max = Math.max(max, values[place]);
        }
      }
      if (this.name === "ettr") [min, max] = [Math.max(0, Math.floor(20 * (Number.isFinite(min) ? min : 0) - 0.5) / 20), 1];
      else if (!(min < max)) [min, max] = Number.isFinite(min) ? [min - Math.abs(min || 1) * 0.1, max + Math.abs(max || 1) * 0.1] : [0, 1];
      else [min, max] = [min - 0.05 * (max - min), max + 0.05 * (max - min)];
      const y = (value) => this.top + LINE - ((value - min) / (max - min)) * LINE;
      for (const value of round(min, max, 4)) {
        put(svg, "line", { class: "rule", x1: this.left, x2: this.left + this.inner, y1: y(value), y2: y(value) });
        const text = this.name === "ettr" ? `${figure(100 * value)} %` : figure(value);
        put(svg, "text", { class: "ytick", x: this.left - 6, y: y(value) + 4, "text-anchor": "end" }, text);
      }
      this.axis(svg, this.top + LINE, this.top, LINE);
      const inside = put(svg, "svg", { x: this.left, y: this.top - 1, width: this.inner, height: LINE + 2, overflow: "hidden" });
      const at = (place) => (this.bySteps ? this.x(progress.step[place]) : this.x(t[place])) - this.left;
      for (const line of lines) this.path(inside, line, at, (value) => y(value) - this.top + 1, first, last);
      put(svg, "line", { class: "edge", x1: this.left, x2: this.left + this.inner, y1: this.top + LINE, y2: this.top + LINE });
      this.marks(svg, this.top, LINE);
      this.hair = [put(svg, "line", { class: "hair", y1: this.top, y2: this.top + LINE, visibility: "hidden" })];
    }

    // One line for each piece: where training stood still there is none.
    path(svg, { values, style }, at, y, first, last) {
      const begins = this.name === "ettr" ? [0] : progress.pieces;
      begins.forEach((begin, number) => {
        const from = Math.max(first, begin), to = Math.min(last, (begins[number + 1] ?? values.length) - 1);
        const places = [];
        for (let place = from; place <= to; place += 1) if (values[place] != null) places.push(place);
        if (!places.length) return;
        const color = style || `c${number % 2}`;
        const drawn = (value) => places.map((place, order) => `${at(place).toFixed(1)},${y(value(place, order)).toFixed(1)}`);
        if (places.length === 1) {
          put(svg, "circle", { class: color, cx: at(places[0]), cy: y(values[places[0]]), r: 2.5 });
          return;
        }
        const raw = `M${drawn((place) => values[place]).join("L")}`;
        put(svg, "path", { class: `curve ${color}${smooth && !style ? " raw" : ""}`, d: raw });
        if (!smooth || style) return;
        let mean = values[places[0]];
        const share = 2 / (Math.min(40, Math.max(4, places.length / 8)) + 1);
        const means = places.map((place) => (mean += share * (values[place] - mean)));
        put(svg, "path", { class: `curve ${color}`, d: `M${drawn((_, order) => means[order]).join("L")}` });
      });
    }

    says(t, chosen) {
      const source = this.source, place = chosen ?? nearest(source.t, t, ...this.points());
      if (!source.t.length) return this.said;
      if (this.name === "ettr") {
        const hour = source.last_hour ? `, last hour ${percent(source.last_hour[place])}` : "";
        return `${clock(t)}: since the start ${percent(source.since_start[place])}${hour}${this.incidentsAt(t)}`;
      }
      const off = Math.abs(source.t[place] - t) / (view.max - view.min);
      if (off > 0.02) return `${clock(t)}: no step${this.incidentsAt(t)}`;
      const value = `${figure(source[this.name][place])}${CURVES[this.name].unit}`;
      return `${clock(source.t[place])}: step ${progress.step[place].toLocaleString("en")} (generation ${progress.generation[place]}): ${value}${this.incidentsAt(t)}`;
    }
    get stops() { return this.source.t; }
  }

  class Timeline extends Chart {
    get isEmpty() { return !data.stages.length; }
    paint() {
      if (this.isEmpty) return;
      const box = document.createElement("div");
      box.className = "rows";
      const lanes = paper && data.lanes.length > 24 ? data.lanes.slice(0, ON_PAPER) : data.lanes, slots = lanes.filter((lane) => lane.slot).length;
      const job = this.svg(this.top + AXIS + LANE + 6);
      this.defs(job);
      this.axis(job, this.top + LANE + 4, this.top, 0);
      put(job, "text", { class: "lane", x: this.left - 6, y: this.top + 15, "text-anchor": "end" }, "job");
      for (const [begin, end, part] of data.stages) {
        const name = data.parts[part], style = data.styles[part];
        const text = WAITS.includes(name) ? `${name === "queue" ? "queued" : name} ${lasted(end - begin)}` : name;
        this.bar(job, begin, end, this.top, style, `${name}\n${clock(begin)}, ${lasted(end - begin)}`, text, `on-${style}`, WAITS.includes(name));
      }
      this.marks(job, this.top, LANE);
      this.place.append(box);
      const height = lanes.length * (LANE + APART) + (slots < lanes.length ? APART : 0);
      const body = lanes.length ? this.svg(height, box) : null;
      if (body) this.lanes(body, lanes, height, slots);
      const more = data.lanes.length - lanes.length;
      if (more) box.append(`and ${more} more lanes, on the screen`);
      this.hair = [job, body].filter(Boolean).map((svg) => put(svg, "line", { class: "hair", y1: 0, y2: 9999, visibility: "hidden" }));
      this.hair[0].setAttribute("y1", this.top);
      this.hair[0].setAttribute("y2", this.top + LANE);
    }
    defs(svg) {
      const made = put(put(svg, "defs"), "pattern", { id: "hatch", width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" });
      put(made, "line", { class: "hatched", x1: 0, y1: 0, x2: 0, y2: 6 });
    }
    lanes(svg, lanes, height, slots) {
      for (const [begin, end, part] of data.stages) {
        if (data.parts[part] !== "queue" || !this.isIn(begin, end)) continue;
        const [from, width] = this.span(begin, end);
        put(svg, "rect", { x: from, y: 0, width, height, class: "waits hatch", "data-tip": `queued ${lasted(end - begin)}` });
      }
      lanes.forEach((lane, place) => {
        const y = place * (LANE + APART) + (lane.slot ? 0 : APART);
        const name = lane.slot || place === slots ? lane.name : "";
        put(svg, "text", { class: "lane", x: this.left - 6, y: y + 15, "text-anchor": "end" }, narrow() ? name.replace("slot ", "").replace("standby", "spare") : name);
        for (const [begin, end, doing, nodes, evicted] of lane.bars) {
          const tip = `${lane.slot ? `${lane.name}: ` : ""}${nodes} ${DONE[doing]}\n${clock(begin)}, ${lasted(end - begin)}${evicted ? "\nthen it was evicted" : ""}`;
          const text = doing > 1 ? `${nodes} ${doing === 3 ? "evicted" : "no answer"}` : nodes;
          this.bar(svg, begin, end, y, DOING[doing], tip, text, "in");
          if (evicted && this.isIn(end)) put(svg, "line", { class: "gone", x1: this.x(end), x2: this.x(end), y1: y, y2: y + LANE });
        }
      });
      svg.classList.toggle("many", this.place.querySelector("svg.many") != null);
      for (const one of data.incidents) {
        if (!this.isIn(one.begin, one.end)) continue;
        const [from, width] = this.span(one.begin, one.end);
        const link = put(svg, "a", { href: `#incident-${one.number}`, tabindex: -1, "aria-hidden": "true", "data-i": one.number, "pointer-events": "none" });
        put(link, "rect", { class: `band${one.open ? " open" : ""}`, x: from, y: 0, width, height });
        if (one.open) put(link, "line", { class: "begins", x1: from, x2: from, y1: 0, y2: height });
      }
      for (const one of data.marks) {
        if (!this.isIn(one.t)) continue;
        put(put(svg, "g", { class: `flag ${one.kind}`, "pointer-events": "none" }), "line", { x1: this.x(one.t), x2: this.x(one.t), y1: 0, y2: height });
      }
    }
    span(begin, end) {
      const from = Math.max(this.left, this.x(begin)), to = Math.min(this.left + this.inner, this.x(end));
      return [from, Math.max(1.5, to - from)];
    }
    bar(svg, begin, end, y, style, tip, text, on, hatched = false) {
      if (!this.isIn(begin, end)) return;
      const [from, width] = this.span(begin, end);
      put(svg, "rect", { class: style, x: from, y, width, height: LANE, rx: 2, "data-tip": tip });
      if (hatched && width > 4) put(svg, "rect", { x: from, y, width, height: LANE, class: "hatch half", "pointer-events": "none" });
      const room = Math.floor((width - 10) / (LETTER + 0.4));
      const label = text.length <= room ? text : room >= 10 ? `${text.slice(0, room - 1)}…` : "";
      if (label) put(svg, "text", { class: on, x: from + 5, y: y + 15, "pointer-events": "none" }, label);
    }
    says(t) {
      const stage = data.stages.find(([begin, end]) => begin <= t && t <= end);
      const holding = data.lanes.filter((lane) => lane.slot && lane.bars.some(([begin, end]) => begin <= t && t <= end)).length;
      return `${clock(t)}: ${stage ? data.parts[stage[2]] : "–"}, ${holding} of ${data.lanes.filter((lane) => lane.slot).length} lanes of slots held${this.incidentsAt(t)}`;
    }
    get stops() { return data.stages.flatMap(([begin, end]) => [begin + 0.001, (begin + end) / 2]).sort((a, b) => a - b); }
  }

  // -- what is in view --------------------------------------------------------------------------

  let waits = 0;
  function show(min, max) {
    const span = Math.min(whole.max - whole.min, Math.max(MIN_S, max - min));
    view.min = Math.max(whole.min, Math.min(min, whole.max - span));
    view.max = view.min + span;
    const [from, to] = [clock(view.min), clock(view.max)];
    shown.textContent = `${from} to ${from.slice(0, 10) === to.slice(0, 10) ? to.slice(11) : to}`;
    redraw();
  }
  function redraw() {
    cancelAnimationFrame(waits);
    if (paper) drawAll();
    else waits = requestAnimationFrame(drawAll);
  }
  function drawAll() {
    for (const one of charts) one.draw();
    labels();
  }
  const zoom = (factor) => {
    const middle = (view.min + view.max) / 2, half = (factor * (view.max - view.min)) / 2;
    show(middle - half, middle + half);
  };
  const move = (share) => show(view.min + share * (view.max - view.min), view.max + share * (view.max - view.min));
  const around = (begin, end) => {
    const room = Math.max(10, 0.75 * (end - begin));
    show(begin - room, end + room);
  };

  function incident(number) {
    const one = data.incidents.find((each) => each.number === number);
    if (!one) return;
    around(one.begin, one.end);
    spoken.textContent = `Incident ${one.name}, ${clock(one.begin)}: ${one.text}`;
    hot("i", String(number), true);
  }
  function neighbour(direction) {
    const middle = (view.min + view.max) / 2, zoomed = view.max - view.min < whole.max - whole.min;
    const center = (one) => (one.begin + one.end) / 2;
    const after = data.incidents.filter((one) => !zoomed || center(one) > middle + 0.01);
    const before = data.incidents.filter((one) => !zoomed || center(one) < middle - 0.01);
    const one = direction > 0 ? after[0] : before[before.length - 1];
    if (one) incident(one.number);
    else spoken.textContent = direction > 0 ? "No later incident" : "No earlier incident";
  }
  function pressed(button, on) {
    button.setAttribute("aria-pressed", String(on));
    redraw();
  }
  const ACTIONS = {
    all: () => show(whole.min, whole.max),
    in: () => zoom(0.5),
    out: () => zoom(2),
    left: () => move(-0.5),
    right: () => move(0.5),
    previous: () => neighbour(-1),
    next: () => neighbour(1),
    axis: (button) => pressed(button, (bySteps = !bySteps)),
    smooth: (button) => pressed(button, (smooth = !smooth)),
  };
  const KEYS = { "+": "in", "=": "in", "-": "out", 0: "all", PageUp: "left", PageDown: "right" };

  // -- what a reader does -----------------------------------------------------------------------

  // What belongs together is lit together, in all charts and in the list.
  function hot(kind, value, on) {
    for (const one of document.querySelectorAll(`[data-${kind}].hot`)) one.classList.remove("hot");
    if (on && value) for (const one of document.querySelectorAll(`[data-${kind}="${CSS.escape(value)}"]`)) one.classList.add("hot");
  }
  function listen(chart) {
    const { place } = chart;
    let cursor = null, began = null, band = null, dragged = false;
    const at = (event) => event.clientX - place.getBoundingClientRect().left;
    const point = (t) => { for (const one of charts) one.point(t); };
    place.addEventListener("pointermove", (event) => {
      const x = at(event);
      if (began != null && Math.abs(x - began) > 4) {
        dragged = true;
        const svg = place.querySelector("svg");
        band ??= put(svg, "rect", { class: "chosen", y: 0, height: 9999 });
        band.setAttribute("x", Math.min(began, x));
        band.setAttribute("width", Math.abs(x - began));
        told("", event);
        return;
      }
      if (x < chart.left || x > chart.left + chart.inner || chart.isEmpty) return;
      cursor = chart.moment(x);
      point(cursor);
      const under = event.target.closest?.("[data-tip]")?.dataset.tip;
      told(under ?? (chart.name === "timeline" ? "" : chart.readout.textContent), event);
    });
    place.addEventListener("pointerleave", (event) => {
      told("", event);
      if (began == null) for (const one of charts) one.rest();
    });
    place.addEventListener("pointerdown", (event) => {
      dragged = false;
      if (event.button === 0 && event.pointerType !== "touch" && at(event) >= chart.left) began = at(event);
    });
    addEventListener("pointerup", (event) => {
      const from = began;
      began = null;
      band?.remove();
      band = null;
      if (from == null || !dragged) return;
      const [low, high] = [Math.min(from, at(event)), Math.max(from, at(event))].map((x) => chart.moment(Math.max(chart.left, Math.min(chart.left + chart.inner, x))));
      show(Math.min(low, high), Math.max(low, high));
    });
    place.addEventListener("click", (event) => { if (dragged) event.preventDefault(); }, true);
    place.addEventListener("dragstart", (event) => event.preventDefault());
    place.addEventListener("dblclick", ACTIONS.all);
    place.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const direction = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (direction) {
        // To the next value that is a pixel away at least.
        const stops = chart.stops.filter((t) => t >= view.min && t <= view.max), pixel = (view.max - view.min) / chart.inner;
        const from = cursor ?? (direction > 0 ? -Infinity : Infinity);
        const next = direction > 0 ? stops.find((t) => t > from + pixel) : stops.findLast((t) => t < from - pixel);
        cursor = next ?? cursor ?? stops[0] ?? view.min;
      } else if (KEYS[event.key]) ACTIONS[KEYS[event.key]]();
      else return;
      event.preventDefault();
      cursor = Math.max(view.min, Math.min(view.max, cursor ?? view.min));
      point(cursor);
      spoken.textContent = chart.says(cursor);
    });
  }

  for (const place of document.querySelectorAll(".plot")) {
    const chart = place.dataset.chart === "timeline" ? new Timeline(place) : new Curve(place);
    if (chart.isEmpty) { place.removeAttribute("tabindex"); continue; }
    charts.push(chart);
    listen(chart);
  }
  for (const button of document.querySelectorAll("[data-do]")) button.addEventListener("click", () => ACTIONS[button.dataset.do](button));
  for (const button of document.querySelectorAll("[data-incident]")) {
    button.hidden = false;
    button.addEventListener("click", () => {
      incident(Number(button.dataset.incident));
      document.getElementById("charts").scrollIntoView();
    });
  }
  for (const kind of ["i", "part"]) {
    for (const [event, on] of [["pointerover", true], ["pointerout", false], ["focusin", true]]) {
      document.addEventListener(event, (happened) => {
        const found = happened.target.closest?.(`[data-${kind}]`);
        if (found) hot(kind, found.dataset[kind], on);
      });
    }
  }
  // A link to an incident opens it, and all that it is folded into.
  const open = () => {
    const found = location.hash.length > 1 ? document.getElementById(location.hash.slice(1)) : null;
    if (!found) return;
    for (let one = found.closest("details"); one; one = one.parentElement.closest("details")) one.open = true;
    found.querySelector("details")?.setAttribute("open", "");
    found.scrollIntoView();
    if (found.dataset.i) found.querySelector("summary").focus({ preventScroll: true });
  };
  addEventListener("hashchange", open);
  const print = (on) => () => {
    paper = on;
    document.documentElement.classList.toggle("paper", on);
    drawAll();
  };
  addEventListener("beforeprint", print(true));
  addEventListener("afterprint", print(false));
  let width = innerWidth;
  new ResizeObserver(() => {
    if (paper || width === document.body.clientWidth) return;
    width = document.body.clientWidth;
    redraw();
  }).observe(document.body);
  document.querySelector(".tools").hidden = false;
  const button = document.querySelector("[data-do=axis]");
  if (!progress.t.length) for (const one of [button, document.querySelector("[data-do=smooth]")]) one.hidden = true;
  show(whole.min, whole.max);
  drawAll();
  open();
})();
