// Pieces that the page is built from. Whatever a model or a person wrote becomes text, never markup.
"use strict";

// A new element: `properties` are set on it as they are ("class", "dir" and the like as attributes), children are
// elements or texts.
function make(tag, properties, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties || {})) {
    if (name in element && name !== "dir") element[name] = value;
    else element.setAttribute(name === "className" ? "class" : name, value);
  }
  element.append(...children.filter(child => child !== null && child !== undefined));
  return element;
}

function paragraph(className, ...children) {
  return make("p", {className}, ...children);
}

// A text's characters as the server counts them: code points, where JavaScript's indices count UTF-16 units.
function slice(characters, start, end) {
  return characters.slice(start, end).join("");
}

function percent(value) {
  return Number.isFinite(value) ? (100 * value).toFixed(1) + "\u00a0%" : String(value);
}

function decimal(value) {
  if (typeof value !== "number" || !Number.isFinite(value) || Number.isInteger(value)) return String(value);
  return value !== 0 && (Math.abs(value) < 0.001 || Math.abs(value) >= 1e6) ? value.toExponential(3) : value.toFixed(4);
}

// What an output holds as text: a string, or bytes that are no text, which come as {"b64": ...}.
function textOf(value) {
  if (typeof value === "string") return value;
  return value && typeof value.b64 === "string" ? "(bytes) " + value.b64 : JSON.stringify(value);
}

// Names with a probability each, as bars; the largest `limit` of them, in the order given or sorted.
function bars(entries, {best = -1, sorted = false, limit = 20, label = "Probabilities"} = {}) {
  let rows = entries.map(([name, value], index) => ({name, value, isBest: index === best}));
  if (sorted) rows.sort((one, other) => other.value - one.value);
  const hidden = rows.length - limit;
  rows = rows.slice(0, limit);
  const list = make("ul", {className: "bars", "aria-label": label});
  for (const {name, value, isBest} of rows) {
    const fill = make("div", {className: "fill", "aria-hidden": "true"});
    fill.style.width = 100 * Math.min(1, Math.max(0, Number(value) || 0)) + "%";
    const text = make("div", {className: "text"},
      make("span", {className: "name", dir: "auto"}, name), make("span", {className: "value"}, percent(value)));
    list.append(make("li", {className: isBest ? "best" : ""}, fill, text));
  }
  const parts = [list];
  if (hidden > 0) parts.push(paragraph("soft", `and ${hidden} more`));
  return parts;
}

// A text with spans of it marked: `{start, end, type, className, title}`, in code points, in order, none within another.
function passage(text, spans) {
  const characters = Array.from(text);
  const box = make("div", {className: "passage", dir: "auto", tabIndex: 0, role: "group", "aria-label": "Text"});
  let position = 0;
  for (const {start, end, type, className, title} of spans) {
    if (!(start >= position && end > start && end <= characters.length)) continue;
    box.append(slice(characters, position, start));
    const mark = make("mark", {className: className || "", title: title || ""}, slice(characters, start, end));
    if (type) mark.append(make("span", {className: "type"}, type));
    box.append(mark);
    position = end;
  }
  box.append(slice(characters, position));
  return box;
}

function table(headings, rows) {
  const cell = (tag, value) => {
    const isNumber = typeof value === "number";
    return make(tag, {className: isNumber ? "number" : "", dir: "auto"}, isNumber ? decimal(value) : String(value));
  };
  const isNumber = index => rows.every(row => typeof row[index] === "number");
  const head = make("tr", {}, ...headings.map((heading, index) =>
    make("th", {scope: "col", className: isNumber(index) ? "number" : ""}, heading)));
  const body = rows.map(row => make("tr", {}, ...row.map(value => cell("td", value))));
  return make("div", {className: "scroll", tabIndex: 0, role: "group", "aria-label": "Table"},
    make("table", {}, make("thead", {}, head), make("tbody", {}, ...body)));
}

// A vector's values as columns around a zero line.
function drawing(values, label) {
  const names = {svg: "http://www.w3.org/2000/svg"};
  const shape = (tag, attributes) => {
    const element = document.createElementNS(names.svg, tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    return element;
  };
  const most = Math.max(...values.map(Math.abs), 1e-12);
  const svg = shape("svg", {class: "values", viewBox: `0 0 ${values.length} 2`, preserveAspectRatio: "none", role: "img"});
  svg.setAttribute("aria-label", label);
  values.forEach((value, index) => {
    const height = Math.abs(value) / most;
    svg.append(shape("rect", {x: index + 0.1, y: value > 0 ? 1 - height : 1, width: 0.8, height}));
  });
  svg.append(shape("line", {x1: 0, x2: values.length, y1: 1, y2: 1, "vector-effect": "non-scaling-stroke"}));
  return svg;
}

function fold(title, ...children) {
  return make("details", {}, make("summary", {}, title), ...children);
}
