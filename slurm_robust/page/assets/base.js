"use strict";
// What all pages draw with. Text goes into a page as text only.
const LETTER = 6.4; // pixels of a character on an axis, at most
const figure = (value) => (value == null ? "–" : Number(value.toPrecision(5)).toString());
const percent = (value) => (value == null ? "–" : `${(100 * value).toFixed(2)} %`);
const lasted = (s) => (s < 10 ? `${s.toFixed(1)} s` : s < 180 ? `${Math.round(s)} s` : s < 10800 ? `${Math.round(s / 60)} min`
  : s < 172800 ? `${(s / 3600).toFixed(1)} h` : `${(s / 86400).toFixed(1)} d`);
const wide = (text) => LETTER * String(text).length;

// -- pieces of a drawing ------------------------------------------------------------------------

function el(name, attributes = {}, text = null) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) if (value != null) made.setAttribute(key, value);
  if (text != null) made.textContent = text;
  return made;
}
const put = (parent, ...all) => parent.appendChild(el(...all));

// The whole numbers of 1, 2 and 5 times a power of ten that divide a range into few parts.
function round(min, max, most) {
  const rough = (max - min) / Math.max(1, most), power = 10 ** Math.floor(Math.log10(rough || 1));
  const step = power * ([1, 2, 5].find((one) => one * power >= rough) ?? 10);
  const found = [];
  for (let at = Math.ceil(min / step - 1e-9) * step; at <= max + step * 1e-9; at += step) found.push(Number(at.toPrecision(12)));
  return found;
}

// Names in the bar of shares that do not fit into their part are left out.
function labels() {
  for (const text of document.querySelectorAll("svg.shares text")) {
    const room = text.previousElementSibling.getBoundingClientRect().width;
    text.setAttribute("visibility", text.getComputedTextLength() + 14 <= room ? "visible" : "hidden");
  }
}

function nearest(values, value, first, last) {
  let best = first, off = Infinity;
  for (let place = first; place <= last; place += 1) {
    const apart = Math.abs(values[place] - value);
    if (apart < off) [best, off] = [place, apart];
  }
  return best;
}

const tip = document.createElement("div");
tip.className = "tip";
tip.hidden = true;
tip.setAttribute("aria-hidden", "true");
document.body.append(tip);
function told(text, event) {
  tip.hidden = !text;
  if (!text) return;
  tip.textContent = text;
  const { offsetWidth: width, offsetHeight: height } = tip;
  tip.style.left = `${Math.max(4, Math.min(innerWidth - width - 4, event.clientX + 14))}px`;
  tip.style.top = `${event.clientY + 18 + height > innerHeight ? event.clientY - height - 10 : event.clientY + 18}px`;
}

