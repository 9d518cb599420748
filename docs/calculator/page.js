// The page: a form made from the tables, the result, links that carry the form, and copying.
"use strict";

const $ = (id) => document.getElementById(id);
const state = {};

/** An element with its attributes and what is in it. */
function make(tag, attributes = {}, ...inner) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...inner);
  return element;
}

// ---- the form

function makeField({ id, label, hint, choices, wide }) {
  const about = id === "batch_size" || id === "to" ? "sizes-hint " : id === "optimizer" ? "optimizer-hint " : "";
  const shared = { id, name: id, "aria-describedby": `${about}${id}-mistake` };
  const input = choices
    ? make("select", shared, ...choices.map(([value, text]) => make("option", { value }, text)))
    : make("input", { ...shared, placeholder: hint, autocapitalize: "off", autocomplete: "off", spellcheck: "false" });
  input.value = state[id] ?? "";
  if (choices && input.selectedIndex < 0) input.selectedIndex = 0;
  const mistake = make("p", { class: "mistake", id: `${id}-mistake`, hidden: true });
  return make("div", { class: wide ? "field wide" : "field" }, make("label", { for: id }, label), input, mistake);
}

/** Draws the groups whose fields have changed; the field that has the focus stays. */
function drawForm(groups) {
  for (const [group, fields] of Object.entries(groups)) {
    const box = $(group), key = JSON.stringify(fields);
    if (box.dataset.key === key) continue;
    const focus = document.activeElement?.id;
    box.replaceChildren(...fields.map(makeField));
    box.dataset.key = key;
    if (focus && box.querySelector(`#${CSS.escape(focus)}`)) $(focus).focus();
  }
  const row = ROOTSCALE.optimizers[state.optimizer];
  const measured = row.measured ? `, and measured (${row.measured})` : "";
  $("optimizer-hint").textContent = `How sure: ${row.status}${measured}. ${row.why}`;
}

/** Shows a message at each field that has one, and takes the others away. */
function mark(mistakes) {
  for (const input of $("form").querySelectorAll("input, select")) {
    const message = mistakes[input.id], line = $(`${input.id}-mistake`);
    input.toggleAttribute("aria-invalid", false);
    if (message) input.setAttribute("aria-invalid", "true");
    if (!line) continue;
    line.hidden = !message;
    line.textContent = message ?? "";
    input.parentElement.classList.toggle("long", (message ?? "").length > 80);
    if (message) input.closest("details")?.setAttribute("open", "");
  }
}

// ---- the result

function drawChange({ name, shown: [before, after], status, why, form, source: where, label }) {
  const same = before === after;
  const item = make("li", { class: same ? "same" : "" },
    make("span", { class: "name", title: label || null }, name), make("span", { class: "before" }, before),
    make("span", { class: "arrow", "aria-label": "becomes", role: "img" }, "→"),
    make("span", { class: "after" }, after),
    make("span", { class: `chip ${status}` }, status), make("span", { class: "why" }, why));
  if ($("formulas").checked) {
    const text = form === "x" ? "x stays" : `x becomes ${form}`;
    item.append(make("span", { class: "form" }, make("code", {}, text), where ? ` · ${where}` : ""));
  }
  return item;
}

/** How far kappa may go. */
function limitLines(answer) {
  const lines = answer.limits.map(
    ({ name, limit }) => [`kappa < ${show(limit)}`, `: beyond it ${name} has no value under this averaging.`],
  );
  const none = ["No largest kappa", ": no value of this run ends at one under this rule and averaging."];
  if (!lines.length) lines.push(none);
  for (const text of answer.evidence) lines.push(["What is known", `: ${text}`]);
  lines.push(["Where noise dominates", ": the rule holds up to the measured noise scale of the gradient, and not in "
    + "the first steps from scratch. rootscale check says whether it holds for your model."]);
  return lines.map(([bold, text]) => make("li", {}, make("b", {}, bold), text));
}

function stateLines(answer) {
  const held = Object.entries(ROOTSCALE.optimizers[state.optimizer].state);
  return held.map(([name, unit]) => {
    const row = answer.rows[unit];
    const text = !row || row.form.kind === "kept" ? "stays" : `becomes ${row.form.text.replaceAll("x", name)}`;
    return make("li", {}, make("b", {}, name), ` ${text}${row ? `: ${row.why}` : ""}`);
  });
}

function drawAnswer(answer) {
  const [first, ...rest] = answer.heading.split(", ");
  const changed = answer.changes.filter(({ shown }) => shown[0] !== shown[1]).length, count = answer.warnings.length;
  $("heading").textContent = `${first.replace("->", "→").replace(/^batch/, "Batch")}, ${rest[0]}`;
  const warned = count ? `; ${count} warning${count > 1 ? "s" : ""}` : "", of = answer.changes.length;
  $("summary").textContent = `${rest.slice(1).join(", ")}; ${changed} of ${of} values change${warned}`;
  $("warnings").replaceChildren(...answer.warnings.map((text) => make("li", {}, make("b", {}, "Warning: "), text)));
  $("changes").replaceChildren(...answer.changes.map(drawChange));
  $("code").textContent = answer.code.startsWith("error: ") ? `# ${answer.code.slice(7)}` : answer.code;
  $("limits").replaceChildren(...limitLines(answer));
  $("state").replaceChildren(...stateLines(answer));
}

function drawMistakes(mistakes) {
  const found = Object.entries(mistakes);
  $("heading").textContent = found.length > 1 ? `${found.length} values cannot be used` : "A value cannot be used";
  const label = (id) => document.querySelector(`[for="${id}"]`).textContent;
  $("summary").textContent = found.map(([id, text]) => `${label(id)}: ${text}`).join("; ");
  $("warnings").replaceChildren();
}

/** An error at its field does not repeat the field's name. */
const atField = (message) => message.replace(/^\S+ must /, "Must ");

function draw() {
  const groups = groupsOf(state);
  drawForm(groups);
  const { request, mistakes } = requestOf(state, Object.values(groups).flat());
  const readable = !Object.keys(mistakes).length;
  const answer = readable ? answerTo(request) : { error: null };
  const wrong = "error" in answer;
  if (answer.error) mistakes[$(answer.field) ? answer.field : "to"] = atField(answer.error);
  mark(mistakes);
  document.querySelector(".headline").classList.toggle("wrong", wrong);
  $("found").hidden = wrong;
  if (wrong) drawMistakes(mistakes);
  else drawAnswer(answer);
  $("peek").classList.toggle("wrong", wrong);
  $("peek").firstElementChild.textContent = $("heading").textContent.replace("Batch size ", "");
  document.body.dataset.drawn = Number(document.body.dataset.drawn ?? 0) + 1;
}

// ---- links

/** The fields of the form that are filled in, as the part of an address behind "#". */
function linkText() {
  const shown = Object.values(groupsOf(state)).flat().map(({ id }) => id);
  const filled = shown.filter((id) => (state[id] ?? "").trim());
  return `#${new URLSearchParams(filled.map((id) => [id, state[id].trim()]))}`;
}

/** Fills the form from the address, or with the example. */
function load() {
  const text = location.hash.slice(1);
  const found = text.includes("=") ? Object.fromEntries(new URLSearchParams(text)) : EXAMPLE;
  for (const id of Object.keys(state)) delete state[id];
  Object.assign(state, found);
  if (!Object.hasOwn(ROOTSCALE.optimizers, state.optimizer)) state.optimizer = EXAMPLE.optimizer;
  if (!Object.hasOwn(ROOTSCALE.rules, state.rule)) delete state.rule;
  if (!Object.hasOwn(ROOTSCALE.averagings, state.averaging)) delete state.averaging;
  if (!Object.hasOwn(ROOTSCALE.shapes, state["schedule.name"])) delete state["schedule.name"];
  if (!ROOTSCALE.warmups.includes(state["schedule.warmup_shape"])) delete state["schedule.warmup_shape"];
  if (state.epochs) state.unit = "epochs";
  for (const box of document.querySelectorAll("[data-key]")) delete box.dataset.key;
  draw();
  const filled = (group) => [...$(group).querySelectorAll("input, select")].some((one) => one.value);
  $("more").open = filled("rest");
  $("how").open = filled("rules");
}

function saveLink() {
  history.replaceState(null, "", linkText());
}

// ---- copying and the theme

let sayTimer = 0;
function tell(text) {
  $("said").textContent = text;
  $("said").hidden = false;
  clearTimeout(sayTimer);
  sayTimer = setTimeout(() => { $("said").hidden = true; }, 2500);
}

/** Copies a text; where the browser does not let pages do so, selects it instead. */
async function copy(text, what) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = make("textarea", { "aria-hidden": "true", style: "position: fixed; opacity: 0" });
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    if (!done) return tell("This browser does not let the page copy: select the text and copy it yourself");
  }
  return tell(`${what} is copied`);
}

const THEMES = { "": "auto", light: "light", dark: "dark" };

function setTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
  $("theme").textContent = `Theme: ${THEMES[theme]}`;
  try { localStorage.setItem("rootscale-theme", theme); } catch { /* a private window keeps nothing */ }
}

function nextTheme() {
  const names = Object.keys(THEMES);
  setTheme(names[(names.indexOf(document.documentElement.dataset.theme ?? "") + 1) % names.length]);
}

/** Keeps the values that mean the same to another optimizer. */
function changeOptimizer(from, to) {
  for (const { name, unit } of ROOTSCALE.optimizers[from].fields) {
    const there = ROOTSCALE.optimizers[to].fields.find((field) => field.name === name);
    if (!there || !unit || there.unit !== unit || there.default === null) delete state[`optimizer.${name}`];
  }
  if (!ROOTSCALE.optimizers[to].rules.includes(state.rule)) delete state.rule;
}

$("form").addEventListener("input", ({ target }) => {
  if (target.id === "optimizer") changeOptimizer(state.optimizer, target.value);
  state[target.id] = target.value;
  if (target.id === "unit") delete state[target.value ? "steps" : "epochs"];
  draw();
  saveLink();
});
$("form").addEventListener("submit", (event) => event.preventDefault());
$("form").addEventListener("reset", (event) => {
  event.preventDefault();
  history.replaceState(null, "", location.pathname + location.search);
  load();
});
$("formulas").addEventListener("change", draw);
$("copy-code").addEventListener("click", () => copy($("code").textContent, "The code"));
$("copy-link").addEventListener("click", () => copy(location.href.split("#")[0] + linkText(), "The link"));
$("theme").addEventListener("click", nextTheme);
for (const id of ["skip", "peek"]) {
  $(id).addEventListener("click", (event) => { // the address keeps the run
    event.preventDefault();
    $("result").scrollIntoView();
    $("result").focus({ preventScroll: true });
  });
}
addEventListener("hashchange", load);
let kept = "";
try { kept = localStorage.getItem("rootscale-theme") ?? ""; } catch { /* as above */ }
setTheme(kept in THEMES ? kept : "");
load();
