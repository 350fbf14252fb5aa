// The web UI. `state` is what is chosen and typed. The address contains it, so that it can be shared as a link, and each
// change requests a prediction. Texts of the user and of the server become text nodes, never HTML.

const NAMES = {
  pos: "Parts of speech", ner: "Named entities", dep: "Dependency tree", nli: "Inference", cls: "Classification",
  copa: "Multiple choice", qa: "Question answering", mt: "Translation",
};
const FIELDS = { // in place of the server's names, where those do not say enough
  copa: ["Premise", "Question (cause, effect, or your own)", "First choice", "Second choice"],
};
const TAGS = ["NOUN", "VERB", "ADJ", "ADV", "PRON", "DET", "ADP", "PROPN", "AUX", "CCONJ", "SCONJ", "NUM", "PART", "INTJ",
  "PUNCT", "SYM", "X", "PER", "LOC", "ORG", "MISC", "DATE"]; // each gets a colour of its own
const PAUSE = 80; // milliseconds without a key before a request is sent
const SHOWN = 100; // languages that a list shows at a time
const DEFAULT_TARGETS = 3;

const state = { task: "", language: "", targets: [], texts: [] };
const tasks = new Map(); // name → {fields, bilingual, languages, targets: source → targets}
let running = new AbortController(); // of the last request
let requestTimer, linkTimer;

// -- small helpers ----------------------------------------------------------------------------------------------------

const find = (id) => document.getElementById(id);

function make(tag, attributes = {}, ...children) {
  const svg = ["svg", "path", "text"].includes(tag);
  const node = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

const percent = (share) => `${Math.round(100 * share)} %`;
const milliseconds = (value) => `${value < 10 ? value.toFixed(1) : Math.round(value)} ms`;

const tagOf = (code) => code.replaceAll("_", "-"); // as BCP 47 writes it
const displayNames = new Intl.DisplayNames(["en"], { type: "language", fallback: "none" });
const knownNames = new Map();
function nameOf(code) {
  if (!knownNames.has(code)) {
    let name; // stays undefined if the browser does not know the code
    try { name = displayNames.of(tagOf(code)); } catch {}
    knownNames.set(code, name ?? code);
  }
  return knownNames.get(code);
}
const langOf = (code) => (code && nameOf(code) !== code ? tagOf(code) : ""); // empty: unknown
const collator = new Intl.Collator("en");
const sorted = (codes) => [...codes].sort((a, b) => collator.compare(nameOf(a), nameOf(b)));
const titleOf = (code) => (nameOf(code) === code ? code : `${nameOf(code)} (${code})`);

function coloured(node, label) {
  let number = TAGS.indexOf(label);
  if (number < 0) for (const letter of label) number = (number * 31 + letter.codePointAt(0)) % 997;
  node.style.setProperty("--hue", (25 + Math.abs(number) * 137.5) % 360);
  return node;
}

// -- a field with a list of languages (the ARIA pattern of a combobox) ------------------------------------------------

class LanguageField {
  constructor(id, onChoose) {
    [this.input, this.list, this.onChoose] = [find(id), find(`${id}-list`), onChoose];
    [this.choices, this.value, this.active] = [[], "", -1];
    this.input.addEventListener("focus", () => this.input.select());
    this.input.addEventListener("click", () => {
      if (this.list.hidden) this.open("");
      setTimeout(() => this.input.select()); // Chromium places the cursor after this event
    });
    this.input.addEventListener("input", () => this.open(this.input.value));
    this.input.addEventListener("blur", () => this.leave());
    this.input.addEventListener("keydown", (event) => this.onKey(event));
    this.list.addEventListener("pointerdown", (event) => event.preventDefault()); // the field keeps the focus
    this.list.addEventListener("click", (event) => this.choose(event.target.closest("[data-code]")?.dataset.code));
  }

  set(codes, value) {
    this.choices = codes.map((code) => ({ code, title: titleOf(code), words: `${code}\n${nameOf(code)}`.toLowerCase() }));
    this.value = value;
    this.close();
  }

  matching(typed) {
    const text = typed.trim().toLowerCase();
    const rank = ({ words }) => (words.startsWith(text) ? 0 : words.includes(`\n${text}`) ? 1 : 2);
    return this.choices.filter(({ words }) => words.includes(text)).sort((a, b) => rank(a) - rank(b));
  }

  open(typed) {
    const matches = this.matching(typed);
    this.list.replaceChildren(...matches.slice(0, SHOWN).map(({ code, title }, place) => make("li",
      { role: "option", id: `${this.list.id}-${place}`, "data-code": code, "aria-selected": code === this.value }, title)));
    const more = matches.length - SHOWN;
    const note = !matches.length ? "No such language" : more > 0 ? `${more.toLocaleString("en")} more: type to find them` : "";
    if (note) this.list.append(make("li", { role: "option", "aria-disabled": true }, note));
    this.list.hidden = false;
    this.input.setAttribute("aria-expanded", true);
    const chosen = matches.slice(0, SHOWN).findIndex(({ code }) => code === this.value);
    this.activate(typed ? 0 : chosen);
  }

  close() {
    this.list.hidden = true;
    this.input.setAttribute("aria-expanded", false);
    this.input.removeAttribute("aria-activedescendant");
    this.input.value = this.value && titleOf(this.value);
    if (document.activeElement === this.input) this.input.select(); // what is typed next replaces it
  }

  activate(place) {
    const options = this.list.querySelectorAll("[data-code]");
    this.active = Math.max(-1, Math.min(place, options.length - 1));
    options.forEach((option, number) => option.classList.toggle("active", number === this.active));
    options[this.active]?.scrollIntoView({ block: "nearest" });
    this.input.setAttribute("aria-activedescendant", options[this.active]?.id ?? "");
  }

  choose(code) {
    if (code) this.onChoose(code);
    this.close();
  }

  leave() { // choose a language whose whole code or name was typed
    const typed = this.input.value.trim().toLowerCase();
    this.choose(this.list.hidden ? "" : this.choices.find(({ words }) => words.split("\n").includes(typed))?.code);
  }

  onKey(event) {
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10 }[event.key];
    if (step) {
      if (this.list.hidden) this.open("");
      else this.activate(Math.max(0, this.active + step));
    } else if (event.key === "Enter") {
      this.choose(this.list.hidden ? "" : this.list.querySelectorAll("[data-code]")[this.active]?.dataset.code);
    } else if (event.key === "Escape") this.close();
    else if (event.key === "Backspace" && !this.input.value && this.input.id === "target") removeTarget(state.targets.at(-1));
    else return;
    event.preventDefault();
  }
}

const languageField = new LanguageField("language", (code) => change({ language: code }));
const targetField = new LanguageField("target", (code) => change({ targets: [...new Set([...state.targets, code])] }));

function removeTarget(code) {
  change({ targets: state.targets.filter((other) => other !== code) });
  find("target").focus();
}

// -- state and form ---------------------------------------------------------------------------------------------------

const textFields = () => [...document.querySelectorAll("#texts textarea")];
const targetsOf = (language) => sorted(tasks.get(state.task).targets.get(language) ?? []);
const fieldsOf = (task) => FIELDS[task] ?? tasks.get(task).fields.map((name) => name[0].toUpperCase() + name.slice(1));
const inputTexts = () => fieldsOf(state.task).map((_, place) => state.texts[place] ?? "");

function readLink() {
  const link = new URLSearchParams(location.hash.slice(1));
  Object.assign(state, { task: link.get("task"), language: link.get("language"),
    targets: link.getAll("target"), texts: link.getAll("text") });
  if (!tasks.has(state.task)) state.task = [...tasks.keys()][0];
  chooseDefaults();
  showForm();
  predict();
}

function writeLink() {
  const { bilingual } = tasks.get(state.task);
  const pairs = [["task", state.task], ["language", state.language],
    ...(bilingual ? state.targets : []).map((code) => ["target", code]), ...inputTexts().map((text) => ["text", text])];
  history.replaceState(null, "", `#${new URLSearchParams(pairs)}`);
}

function chooseDefaults() {
  const { bilingual, languages } = tasks.get(state.task);
  state.language ||= languages[0] ?? "";
  if (bilingual && !state.targets.length) state.targets = targetsOf(state.language).slice(0, DEFAULT_TARGETS);
}

function change(changes) {
  Object.assign(state, changes);
  if (changes.task || changes.language) {
    if (!tasks.get(state.task).languages.includes(state.language)) state.language = "";
    chooseDefaults(); // of a language, on which the possible targets depend
    const targets = targetsOf(state.language);
    state.targets = state.targets.filter((code) => targets.includes(code));
    chooseDefaults(); // of targets, if none is left
  }
  showForm();
  schedule(0);
}

function schedule(pause) { // a request, and an update of the address
  clearTimeout(requestTimer);
  clearTimeout(linkTimer);
  requestTimer = setTimeout(predict, pause);
  linkTimer = setTimeout(writeLink, 300); // browsers allow few changes of the address per second
}

function showForm() {
  const { bilingual, languages } = tasks.get(state.task);
  for (const radio of document.getElementsByName("task")) radio.checked = radio.value === state.task;
  find("language-label").textContent = bilingual ? "From" : "Language";
  languageField.set(languages, state.language);
  find("target-choice").hidden = !bilingual;
  targetField.set(targetsOf(state.language).filter((code) => !state.targets.includes(code)), "");
  find("targets").replaceChildren(...(bilingual ? state.targets : []).map((code) => {
    const button = make("button", { type: "button", "aria-label": `Remove ${titleOf(code)}` }, titleOf(code));
    button.addEventListener("click", () => removeTarget(code));
    return button;
  }));
  showTexts(fieldsOf(state.task));
}

function showTexts(names) {
  if (textFields().map((field) => field.dataset.name).join("\n") !== names.join("\n")) {
    find("texts").replaceChildren(...names.map((name, place) => {
      const field = make("textarea", { id: `text-${place}`, "data-name": name, dir: "auto", rows: names.length > 1 ? 2 : 3,
        spellcheck: false, placeholder: "Type or paste a text" });
      field.addEventListener("input", () => {
        state.texts[place] = field.value;
        schedule(PAUSE);
      });
      return make("div", {}, make("label", { for: field.id }, name), field);
    }));
  }
  textFields().forEach((field, place) => {
    if (field.value !== (state.texts[place] ?? "")) field.value = state.texts[place] ?? "";
    field.lang = langOf(state.language);
  });
}

// -- requests ---------------------------------------------------------------------------------------------------------

async function request(path, options = {}) {
  const headers = { "Content-Type": "application/json" };
  const key = sessionStorage.getItem("polyloom-key");
  if (key) headers.Authorization = `Bearer ${key}`;
  const response = await fetch(path, { ...options, headers }).catch((error) => {
    throw options.signal?.aborted ? error : new Error("The server cannot be reached.");
  });
  const body = await response.json().catch(() => null); // not JSON, or aborted
  if (response.ok && body) return body;
  if (response.status === 401) askForKey();
  if (response.status === 401 && !key) throw new Error(); // no message: the form for the key says it
  throw new Error(body?.detail ?? `The server answered with status ${response.status}.`);
}

function askForKey() {
  sessionStorage.removeItem("polyloom-key");
  find("key-form").hidden = false;
  find("ask").hidden = true;
  find("key").value = "";
  find("key").focus();
}

function showProblem(error) {
  find("problem").hidden = !error?.message;
  find("problem-text").textContent = error?.message ?? "";
  find("output").removeAttribute("aria-busy");
  if (error) find("output").replaceChildren();
}

async function predict() {
  running.abort(); // an older answer must not replace a newer one; the server cancels the older rows
  running = new AbortController();
  const { signal } = running;
  const texts = inputTexts();
  const { bilingual } = tasks.get(state.task);
  const directions = bilingual ? state.targets.map((target) => `${state.language}/${target}`) : [state.language];
  if (!texts.every((text) => text.trim()) || !directions.length) return showAnswers([], texts, 0);
  const input = texts.length > 1 ? texts : texts[0];
  const rows = directions.map((direction) => ({ condition: `${state.task}/${direction}`, input }));
  find("output").setAttribute("aria-busy", true);
  const start = performance.now();
  try {
    const { results } = await request("v1/predict", { method: "POST", body: JSON.stringify({ rows }), signal });
    if (!signal.aborted) showAnswers(results, texts, performance.now() - start);
  } catch (error) {
    if (!signal.aborted) showProblem(error);
  }
}

// -- answers ----------------------------------------------------------------------------------------------------------

function showAnswers(answers, texts, roundTrip) {
  showProblem(null);
  const direction = getComputedStyle(textFields().at(-1)).direction;
  find("output").replaceChildren(...answers.map((answer) => {
    const target = answer.condition.split("/")[2];
    const heading = target ? [make("h2", {}, titleOf(target))] : [];
    if (answer.error) return make("article", { class: "card" }, ...heading, make("p", { class: "bad" }, answer.error.detail));
    const shown = showPrediction(answer.prediction, texts, direction, target);
    const cut = answer.cut ? [make("p", { class: "bad" }, "The text was too long for the model and was cut.")] : [];
    return make("article", { class: "card" }, ...heading, ...shown, ...cut, showFacts(answer, roundTrip));
  }));
  find("status").textContent = answers.length ? `Answered in ${milliseconds(roundTrip)}.` : "";
}

function showFacts(answer, roundTrip) {
  const facts = {
    Condition: answer.condition, Training: answer.zero_shot ? "zero-shot" : "trained", "Round trip": milliseconds(roundTrip),
    Adapter: answer.cached ? "cached" : "generated", Waited: milliseconds(1000 * answer.waited),
    Computed: milliseconds(1000 * answer.computed),
    Model: answer.model, Version: answer.version, Weights: answer.weights,
  };
  return make("dl", {}, ...Object.entries(facts).map(([name, value]) =>
    make("div", {}, make("dt", {}, name), make("dd", { class: value === "zero-shot" ? "badge" : "" }, value))));
}

function showPrediction(prediction, texts, direction, language) {
  if ("heads" in prediction) return prediction.words.length ? [drawTree(prediction, direction)] : [];
  if ("labels" in prediction) {
    const areEntities = prediction.labels.every((label) => label === "O" || label[1] === "-");
    return areEntities ? showEntities(prediction, texts[0], direction) : [showTags(prediction, direction)];
  }
  if ("start" in prediction) return showSpan(prediction, texts.at(-1), direction);
  if ("label" in prediction) return [showLabel(prediction, texts)];
  if ("text" in prediction) return [make("p", { class: "text", dir: "auto", lang: langOf(language) }, prediction.text)];
  return [make("pre", {}, JSON.stringify(prediction, null, 2))]; // of a kind that this page does not know
}

function showTags({ words, labels, scores }, dir) {
  return make("ol", { class: "words", dir }, ...words.map((word, place) => make("li", {},
    make("span", { dir: "auto" }, word), coloured(make("b", { dir: "ltr" }, labels[place]), labels[place]),
    ...(place in scores ? [make("small", { dir: "ltr" }, percent(scores[place]))] : []))));
}

function entitiesOf(labels) { // as metrics/spans.py finds them
  const entities = [];
  let [before, typeBefore] = ["O", ""];
  labels.forEach((label, place) => {
    const [prefix, type] = [label[0], label.slice(2)];
    if ("IE".includes(prefix) && "BI".includes(before) && type === typeBefore) entities.at(-1).stop = place + 1;
    else if (prefix !== "O") entities.push({ type, start: place, stop: place + 1 });
    [before, typeBefore] = [prefix, type];
  });
  return entities;
}

function showEntities({ labels, scores, offsets }, text, dir) {
  const letters = [...text]; // offsets count characters, and a character may be two units of a JavaScript string
  const shown = make("p", { class: "text", dir });
  let end = 0;
  for (const { type, start, stop } of entitiesOf(labels)) {
    const [from, to] = [offsets[start][0], offsets[stop - 1][1]];
    const about = scores.length ? ` ${percent(Math.min(...scores.slice(start, stop)))}` : "";
    shown.append(letters.slice(end, from).join(""), coloured(make("mark", {}, letters.slice(from, to).join(""),
      make("b", { dir: "ltr" }, type, make("small", {}, about))), type));
    end = to;
  }
  shown.append(letters.slice(end).join(""));
  return end ? [shown] : [shown, make("p", { class: "soft" }, "No entity was found.")];
}

function showSpan({ start, end, score }, context, dir) {
  if (start === end) return [make("p", { class: "soft" }, "No answer was found.")];
  const letters = [...context];
  const mark = make("mark", {}, letters.slice(start, end).join(""));
  const shown = make("p", { class: "text", dir }, letters.slice(0, start).join(""), mark, letters.slice(end).join(""));
  return score === null ? [shown] : [shown, make("p", { class: "soft" }, `Probability ${percent(score)}`)];
}

function showLabel({ label, score }, texts) {
  const text = texts.length > 2 ? texts[2 + Number(label)] : label; // of choices, the label is a position
  const shown = make("div", { class: "label" }, make("strong", { dir: "auto" }, text));
  if (score !== null) {
    const bar = make("span", { class: "bar" }, make("span"));
    bar.firstChild.style.width = `${100 * score}%`;
    shown.append(bar, make("span", {}, percent(score)));
  }
  return shown;
}

// -- the tree ---------------------------------------------------------------------------------------------------------

const LEVEL = 30; // height of an arc for each level
const FOOT = 7; // distance between the start of an arc and the middle of its head

function levelsOf(heads) { // the level of each word's arc: one above the highest arc that it spans
  const arcs = heads.map((head, place) => ({ place, from: Math.min(head - 1, place), to: Math.max(head - 1, place) }));
  const tops = heads.map(() => 0); // the highest level so far above the gap behind each word
  const levels = [];
  for (const { place, from, to } of arcs.filter(({ from }) => from >= 0).sort((a, b) => a.to - a.from - b.to + b.from)) {
    levels[place] = 1 + Math.max(0, ...tops.slice(from, to));
    tops.fill(levels[place], from, to);
  }
  return levels;
}

function middlesOf(words, relations) { // horizontal positions of words, which leave room for the relations
  const canvas = document.createElement("canvas").getContext("2d");
  const width = (text, size) => {
    canvas.font = `${size}px ${getComputedStyle(document.body).fontFamily}`;
    return canvas.measureText(text).width;
  };
  let end = 0;
  const middles = words.map((word, place) => {
    const slot = Math.max(width(word, 18), width(relations[place], 13)) + 26;
    end += slot;
    return end - slot / 2;
  });
  return [middles, end];
}

function drawTree({ words, heads, relations }, direction) {
  const [middles, width] = middlesOf(words, relations);
  const at = (place) => (direction === "rtl" ? width - middles[place] : middles[place]);
  const levels = levelsOf(heads);
  const floor = LEVEL * Math.max(1, ...levels.filter(Boolean)) + 26; // where arcs end
  const what = words.map((word, place) => `${word}: ${relations[place]}${heads[place] ? ` of ${words[heads[place] - 1]}` : ""}`);
  const svg = make("svg", { width, height: floor + 34, viewBox: `0 0 ${width} ${floor + 34}`, role: "img",
    "aria-label": `Dependency tree. ${what.join("; ")}` });
  const labels = [];
  words.forEach((word, place) => {
    const [head, to] = [heads[place] - 1, at(place)];
    const from = head < 0 ? to : at(head) + Math.sign(to - at(head)) * FOOT;
    const top = head < 0 ? 18 : floor - LEVEL * levels[place];
    const bend = Math.min(16, Math.abs(to - from) / 2) * Math.sign(to - from);
    const arc = head < 0 ? `M${to} ${top}V${floor}`
      : `M${from} ${floor}V${top + 14}Q${from} ${top} ${from + bend} ${top}H${to - bend}Q${to} ${top} ${to} ${top + 14}V${floor}`;
    svg.append(make("path", { class: "arc", d: arc }), make("path", { class: "tip", d: `M${to} ${floor + 2}l-4 -8h8z` }));
    labels.push(make("text", { class: "relation", x: (from + to) / 2, y: head < 0 ? 12 : top + 4 }, relations[place]),
      make("text", { class: "word", x: to, y: floor + 24, direction }, word));
  });
  svg.append(...labels); // above all arcs
  return make("div", { class: "tree", dir: direction, tabindex: 0, role: "group", "aria-label": "Tree, can be scrolled" }, svg);
}

// -- start ------------------------------------------------------------------------------------------------------------

function readModels(models) {
  tasks.clear();
  for (const model of models) {
    for (const [name, about] of Object.entries(model.tasks)) {
      if (!tasks.has(name)) tasks.set(name, { ...about, languages: new Set(), targets: new Map() });
      const { languages, targets } = tasks.get(name);
      for (const direction of about.bilingual ? model.directions : model.languages) {
        const [source, target] = direction.split("/");
        languages.add(source);
        if (target) targets.set(source, (targets.get(source) ?? new Set()).add(target));
      }
    }
  }
  for (const task of tasks.values()) task.languages = sorted(task.languages);
}

async function start() {
  try {
    showProblem(null);
    const { models } = await request("info");
    readModels(models);
    find("key-form").hidden = true;
    find("served").textContent = models.map(({ name }) => name).join(" · ");
    find("tasks").replaceChildren(...[...tasks.keys()].map((name) => {
      const radio = make("input", { type: "radio", name: "task", value: name });
      radio.addEventListener("change", () => change({ task: name }));
      return make("label", {}, radio, make("span", {}, NAMES[name] ?? name));
    }));
    find("ask").hidden = !tasks.size;
    if (tasks.size) readLink();
  } catch (error) {
    showProblem(error);
  }
}

find("ask").addEventListener("submit", (event) => event.preventDefault());
find("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("polyloom-key", find("key").value);
  start();
});
find("again").addEventListener("click", start);
addEventListener("hashchange", () => tasks.size && readLink());
start();
