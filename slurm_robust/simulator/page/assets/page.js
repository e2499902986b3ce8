// Draws the charts of simulated lives from the data that the page holds.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent).charts;
  const spoken = document.getElementById("spoken");
  const TOP = 8, LINE = 170, AXIS = 36, RIGHT = 14, ON_PAPER = 690; // pixels
  let paper = false;
  const share = (value) => `${figure(100 * value)} %`;
  const time = (hours) => lasted(3600 * hours);

  class Plot {
    constructor(place) {
      this.place = place;
      this.readout = document.getElementById(`${place.dataset.chart}-readout`);
      this.said = this.readout.textContent;
      Object.assign(this, data[place.dataset.chart]);
      this.value = this.share ? share : figure;
    }
    get isEmpty() { return !this.stops; }
    get stops() { return this.kind === "bars" ? this.counts.length : this.mean.length; }

    // The ranges of both axes.
    measure() {
      this.width = paper ? ON_PAPER : Math.max(240, this.place.parentElement.clientWidth);
      this.left = !paper && innerWidth < 600 ? 54 : 64;
      this.inner = this.width - this.left - RIGHT;
      if (this.kind === "bars") {
        this.x0 = this.edges[0];
        this.x1 = this.edges[this.edges.length - 1];
        if (this.x0 === this.x1) [this.x0, this.x1] = [this.x0 - 0.005, this.x1 + 0.005];
        [this.y0, this.y1] = [0, Math.max(...this.counts)];
        return;
      }
      [this.x0, this.x1] = this.kind === "band" ? [0, this.x[this.x.length - 1]] : [-0.5, this.mean.length - 0.5];
      // A band is scaled by what follows the start of the first life.
      const first = this.kind === "band" ? Math.ceil(this.low.length / 20) : 0;
      const all = [...this.low.slice(first), ...this.high, ...(this.line == null ? [] : [this.line])];
      const min = Math.min(...all), max = Math.max(...all), room = 0.08 * (max - min) || (this.share ? 0.005 : 0.5);
      this.y0 = Math.max(0, min - room);
      this.y1 = this.share ? Math.min(1, max + room) : max + room;
    }
    px(value) { return this.left + ((value - this.x0) / (this.x1 - this.x0)) * this.inner; }
    py(value) { return TOP + LINE - ((Math.max(this.y0, value) - this.y0) / (this.y1 - this.y0)) * LINE; }

    draw() {
      this.measure();
      const old = [...this.place.childNodes], height = TOP + LINE + AXIS;
      const svg = put(this.place, "svg", { width: this.width, height, viewBox: `0 0 ${this.width} ${height}` });
      for (const value of round(this.y0, this.y1, 4)) {
        if (this.kind === "bars" && !Number.isInteger(value)) continue;
        const y = this.py(value);
        put(svg, "line", { class: "rule", x1: this.left, x2: this.left + this.inner, y1: y, y2: y });
        put(svg, "text", { class: "ytick", x: this.left - 6, y: y + 4, "text-anchor": "end" }, this.kind === "bars" ? figure(value) : this.value(value));
      }
      this.axis(svg);
      this[this.kind](svg);
      put(svg, "line", { class: "edge", x1: this.left, x2: this.left + this.inner, y1: TOP + LINE, y2: TOP + LINE });
      this.hair = put(svg, "line", { class: "hair", y1: TOP, y2: TOP + LINE, visibility: "hidden" });
      for (const one of old) one.remove();
    }
    axis(svg) {
      const ticks = this.kind === "points" ? this.labels.map((text, place) => ({ at: place, text }))
        : this.kind === "bars" ? round(this.x0, this.x1, this.inner / 80).map((at) => ({ at, text: share(at) })) : this.hours();
      let free = -Infinity;
      for (const { at, text } of ticks) {
        const x = this.px(at), half = wide(text) / 2;
        if (x - half < free || x + half > this.width) continue;
        put(svg, "text", { class: "tick", x, y: TOP + LINE + 18, "text-anchor": "middle" }, text);
        free = x + half + 10;
      }
    }
    // Round moments of a life: of one unit, so that they are compared at first sight.
    hours() {
      const [unit, size] = [["d", 24], ["h", 1], ["min", 1 / 60], ["s", 1 / 3600]].find(([, one]) => this.x1 >= 2 * one) ?? ["s", 1 / 3600];
      return round(0, this.x1 / size, this.inner / 70).map((at) => ({ at: at * size, text: `${figure(at)} ${unit}` }));
    }
    band(svg) {
      const path = (values) => values.map((value, place) => `${this.px(this.x[place]).toFixed(1)},${this.py(value).toFixed(1)}`);
      put(svg, "path", { class: "spread", d: `M${path(this.high).join("L")}L${path(this.low).reverse().join("L")}Z` });
      put(svg, "path", { class: "curve c0", d: `M${path(this.mean).join("L")}` });
    }
    bars(svg) {
      this.counts.forEach((count, place) => {
        const [from, to] = [this.px(this.edges[place]), this.px(this.edges[place + 1])], y = this.py(count);
        const [x, width] = to > from ? [from + 1, Math.max(1, to - from - 2)] : [from - 12, 24];
        put(svg, "rect", { class: "count", x, y, width, height: TOP + LINE - y });
      });
    }
    points(svg) {
      if (this.line != null) {
        const y = this.py(this.line);
        put(svg, "line", { class: "own", x1: this.left, x2: this.left + this.inner, y1: y, y2: y });
      }
      const drawn = this.mean.map((value, place) => `${this.px(place).toFixed(1)},${this.py(value).toFixed(1)}`);
      put(svg, "path", { class: "curve c0", d: `M${drawn.join("L")}` });
      this.mean.forEach((value, place) => {
        const x = this.px(place);
        put(svg, "line", { class: "interval", x1: x, x2: x, y1: this.py(this.low[place]), y2: this.py(this.high[place]) });
        for (const end of [this.low[place], this.high[place]]) put(svg, "line", { class: "interval", x1: x - 4, x2: x + 4, y1: this.py(end), y2: this.py(end) });
        put(svg, "circle", { class: "c0", cx: x, cy: this.py(value), r: 3 });
      });
    }

    says(place) {
      if (this.kind === "bars") {
        return `${share(this.edges[place])} to ${share(this.edges[place + 1])}: ${this.counts[place].toLocaleString("en")} ${this.counts[place] === 1 ? "life" : "lives"}`;
      }
      const at = this.kind === "band" ? `after ${time(this.x[place])}` : this.labels[place];
      return `${at}: ${this.value(this.mean[place])} (${this.value(this.low[place])} to ${this.value(this.high[place])})`;
    }
    middle(place) {
      if (this.kind === "band") return this.px(this.x[place]);
      return this.px(this.kind === "bars" ? (this.edges[place] + this.edges[place + 1]) / 2 : place);
    }
    point(place) {
      for (const end of ["x1", "x2"]) this.hair.setAttribute(end, this.middle(place));
      this.hair.setAttribute("visibility", "visible");
      this.readout.textContent = this.says(place);
    }
    rest() {
      this.hair.setAttribute("visibility", "hidden");
      this.readout.textContent = this.said;
    }
    listen() {
      let cursor = null;
      const places = () => Array.from({ length: this.stops }, (_, place) => this.middle(place));
      this.place.addEventListener("pointermove", (event) => {
        const x = event.clientX - this.place.getBoundingClientRect().left;
        cursor = nearest(places(), x, 0, this.stops - 1);
        this.point(cursor);
        told(this.readout.textContent, event);
      });
      this.place.addEventListener("pointerleave", (event) => {
        told("", event);
        this.rest();
      });
      this.place.addEventListener("keydown", (event) => {
        const direction = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
        if (!direction || event.ctrlKey || event.metaKey || event.altKey) return;
        event.preventDefault();
        cursor = cursor == null ? (direction > 0 ? 0 : this.stops - 1) : Math.max(0, Math.min(this.stops - 1, cursor + direction));
        this.point(cursor);
        spoken.textContent = this.says(cursor);
      });
      this.place.addEventListener("blur", () => this.rest());
    }
  }

  const plots = [...document.querySelectorAll(".plot")].map((place) => new Plot(place)).filter((one) => !one.isEmpty || one.place.removeAttribute("tabindex"));
  const drawAll = () => {
    for (const one of plots) one.draw();
    labels();
  };
  for (const one of plots) one.listen();
  let width = document.body.clientWidth;
  new ResizeObserver(() => {
    if (paper || width === document.body.clientWidth) return;
    width = document.body.clientWidth;
    drawAll();
  }).observe(document.body);
  const print = (on) => () => {
    paper = on;
    document.documentElement.classList.toggle("paper", on);
    drawAll();
  };
  addEventListener("beforeprint", print(true));
  addEventListener("afterprint", print(false));
  drawAll();
})();
