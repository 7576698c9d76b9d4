// The form: which model, what to ask it, and the asking.
"use strict";

const DEFAULT_SIGNATURE = "serving_default", EXPLAIN = "explain";
const FIELDS = {
  text: {label: "Text", rows: 4},
  text_pair: {label: "Second text", rows: 3},
  question: {label: "Question", rows: 2},
  context: {label: "Context", note: "in which the answer is looked for", rows: 8},
  choices: {label: "Choices", note: "one a line", rows: 4},
};

const byId = id => document.getElementById(id);
let models = [];
let key = ""; // that the server asked for
let asked = 0; // requests so far: the answer to an older one is not shown any more

function chosen() {
  return models[byId("model").selectedIndex];
}

function signatureOf(model) {
  const names = Object.keys(model.signatures);
  const name = names.includes(DEFAULT_SIGNATURE) ? DEFAULT_SIGNATURE : names[0];
  return {name, ...(model.signatures[name] || {inputs: {}, outputs: {}})};
}

// Whether each input is one string, or a list of strings, so that it can be typed into a field of its own.
function isTyped(signature) {
  const inputs = Object.entries(signature.inputs);
  return inputs.length > 0 && inputs.every(([, [type, rank]]) => type === "string" && (rank === 1 || rank === 2));
}

function fieldOrder(signature) {
  const order = Object.keys(FIELDS), place = name => (order.includes(name) ? order.indexOf(name) : order.length);
  return Object.keys(signature.inputs).sort((one, other) => place(one) - place(other));
}

function addField(name, {label, note, rows}, isCode) {
  const id = `input-${name}`;
  const field = make("textarea", {id, name, rows, spellcheck: false, dir: "auto", className: isCode ? "code" : ""});
  field.addEventListener("keydown", event => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) byId("form").requestSubmit();
  });
  const text = make("label", {htmlFor: id}, label);
  if (note) text.append(" ", make("span", {className: "soft"}, note));
  byId("fields").append(make("div", {className: "field"}, text, field));
}

function showModel() {
  const model = chosen(), signature = signatureOf(model), description = model.description || {};
  const title = typeof description.title === "string" ? description.title : model.name;
  const summary = typeof description.summary === "string" ? description.summary : "";
  const separator = /[.?!:…]$/.test(title) ? " " : ". ";
  byId("about").textContent = summary && summary !== title ? title + separator + summary : title;
  document.title = `${model.name} · bert-serve`;
  const versions = [["", `latest (${model.version})`], ...model.versions.map(number => [`/versions/${number}`, number]),
    ...model.labels.map(label => [`/labels/${encodeURIComponent(label)}`, label])];
  byId("version").replaceChildren(...versions.map(([value, text]) => make("option", {value}, text)));
  byId("version-field").hidden = model.versions.length < 2 && !model.labels.length;
  byId("fields").replaceChildren();
  if (isTyped(signature)) {
    for (const name of fieldOrder(signature)) {
      const note = signature.inputs[name][1] === 2 ? "one a line" : undefined;
      addField(name, FIELDS[name] || {label: name, note, rows: 3});
    }
    const mask = kindOf(signature) === "masks" && byId("input-text");
    if (mask) mask.parentElement.querySelector("label").append(" ", make("span", {className: "soft"}, "with [MASK] in it"));
  } else {
    addField("", {label: "Instance", note: "as JSON: " + Object.keys(signature.inputs).join(", "), rows: 6}, true);
  }
  byId("example").hidden = exampleOf(model) === null;
  clearAnswer();
  fillExample();
}

function exampleOf(model) {
  const instances = model.description && model.description.example && model.description.example.instances;
  return Array.isArray(instances) && instances.length ? instances[0] : null;
}

function fillExample() {
  const example = exampleOf(chosen());
  if (example === null) return;
  const code = byId("input-");
  if (code) {
    code.value = JSON.stringify(example);
    return;
  }
  const names = fieldOrder(signatureOf(chosen()));
  const values = typeof example === "object" && !Array.isArray(example) ? example : {[names[0]]: example};
  for (const name of names) {
    const value = values[name];
    if (value !== undefined) byId(`input-${name}`).value = Array.isArray(value) ? value.map(textOf).join("\n") : textOf(value);
  }
}

// What the form asks: one instance.
function readInstance(signature) {
  const code = byId("input-");
  if (code) return JSON.parse(code.value);
  const instance = {};
  for (const [name, [, rank]] of Object.entries(signature.inputs)) {
    const value = byId(`input-${name}`).value;
    instance[name] = rank === 1 ? value : value.split("\n").map(line => line.trim()).filter(line => line !== "");
  }
  return instance;
}

function clearAnswer() {
  asked++;
  byId("answer").hidden = true;
  byId("answer").replaceChildren();
  byId("status").textContent = "";
  byId("ask").disabled = false;
}

async function ask(event) {
  event.preventDefault();
  clearAnswer();
  const number = asked, model = chosen(), signature = signatureOf(model);
  const path = `/v1/models/${encodeURIComponent(model.name)}${byId("version").value}:predict`;
  byId("ask").disabled = true;
  byId("status").textContent = "Asking …";
  try {
    const instance = readInstance(signature);
    const body = JSON.stringify({signature_name: signature.name, instances: [instance]});
    const start = performance.now();
    const prediction = await predict(path, body);
    const milliseconds = performance.now() - start;
    if (number !== asked) return;
    byId("status").textContent = `Answered in ${milliseconds.toFixed(0)} ms`;
    showAnswer(signature, instance, prediction, path, body);
  } catch (error) {
    if (number !== asked) return;
    byId("status").textContent = "";
    showParts([make("p", {className: "error", role: "alert"}, String(error.message))]);
  }
  byId("ask").disabled = false;
}

// Asks for the key of a server that needs one; it is forgotten with the page.
async function send(path, options = {}) {
  for (;;) {
    const headers = {...options.headers, ...(key ? {Authorization: `Bearer ${key}`} : {})};
    const response = await fetch(path, {...options, headers});
    if (response.status !== 401) return response;
    key = (prompt("Key of this server:") || "").trim();
    if (!key) return response;
  }
}

async function predict(path, body) {
  const response = await send(path, {method: "POST", headers: {"Content-Type": "application/json"}, body});
  const document_ = await response.json();
  if (!response.ok) throw new Error(document_.error || `Status ${response.status}`);
  return document_.predictions[0];
}

// A button that asks which words the answer comes from, and shows them in its place.
function whyButton(instance, path) {
  const button = make("button", {type: "button", className: "quiet"}, "Why?");
  const box = make("div", {id: "why"}, button), described = chosen().description || {};
  button.addEventListener("click", async () => {
    button.disabled = true;
    try {
      const prediction = await predict(path, JSON.stringify({signature_name: EXPLAIN, instances: [instance]}));
      box.replaceChildren(...answerNodes("shares", instance, prediction, described));
      box.querySelector(".passage, pre").focus(); // The button had it.
    } catch (error) {
      box.replaceChildren(make("p", {className: "error", role: "alert"}, String(error.message)));
    }
  });
  return box;
}

function showAnswer(signature, instance, prediction, path, body) {
  const quoted = `'${body.replaceAll("'", "'\\''")}'`;
  const described = chosen().description || {};
  const nodes = answerNodes(kindOf(signature), instance, prediction, described);
  if (signature.name === DEFAULT_SIGNATURE && EXPLAIN in chosen().signatures) nodes.push(whyButton(instance, path));
  const credentials = key ? '-H "Authorization: Bearer $KEY" ' : "";
  const command = `curl ${credentials}-d ${quoted} \\\n  ${location.origin}${path}`;
  nodes.push(fold("This request with curl", make("pre", {tabIndex: 0}, command)));
  nodes.push(fold("The answer as JSON", make("pre", {tabIndex: 0}, JSON.stringify(prediction, null, 1))));
  showParts(nodes);
}

function showParts(nodes) {
  byId("answer").replaceChildren(...nodes);
  byId("answer").hidden = false;
  for (const box of document.querySelectorAll(".passage")) {
    const mark = box.querySelector("mark"); // of a long text, the part with the answer
    if (mark && mark.offsetTop > box.clientHeight) box.scrollTop = mark.offsetTop - box.clientHeight / 2;
  }
  byId("answer").scrollIntoView({block: "nearest"});
}

async function start() {
  try {
    const response = await send("/models.json");
    const answer = await response.json();
    if (!response.ok) throw new Error(answer.error);
    models = answer.models;
  } catch (error) {
    byId("about").textContent = `The server does not answer (${error.message}). Load the page again.`;
    return;
  }
  if (!models.length) {
    byId("about").textContent = "No model is served.";
    return;
  }
  byId("model").replaceChildren(...models.map(model => make("option", {value: model.name}, model.name)));
  byId("model").addEventListener("change", showModel);
  byId("example").addEventListener("click", fillExample);
  byId("form").addEventListener("submit", ask);
  byId("form").hidden = false;
  showModel();
}

start();
