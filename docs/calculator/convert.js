// A plan at another batch size, from the tables in table.js. What is computed here is what `rootscale scale` computes:
// forms are evaluated by their kind, and texts are templates that are filled in.
"use strict";

/** A form for each kind: a value at kappa. What has no value throws, or is no finite number. */
const FORMS = {
  kept: (x) => x,
  power: (x, kappa, form) => {
    const exponent = exponentOf(form);
    if (x instanceof Exact && Number.isInteger(exponent)) return x.times(kappa.power(exponent));
    return float(x) * kappa.number ** exponent;
  },
  shortened: (x, kappa, form) => x && 1 - kappa.number ** exponentOf(form) * (1 - x),
  window: (x, kappa, form) => (x ? FORMS.shortened(x, kappa, form) : NaN),
  floored: (x, kappa, form) => x && Math.max(1 - kappa.number * (1 - x), Math.min(form.floor, x)),
  "to the power": (x, kappa) => x ** kappa.number,
  complement: (x, kappa) => (x === 1 ? 1 : -Math.expm1(kappa.number * Math.log1p(-x))),
};

function exponentOf(form) {
  const [top, bottom = 1] = form.exponent.split("/");
  return top / bottom;
}

/** The kappa that must not be reached. */
function limitOf(form, x) {
  if (!["shortened", "window"].includes(form.kind) || x === 0 || x === 1) return Infinity;
  const exponent = exponentOf(form);
  return exponent === 1 ? 1 / (1 - x) : (1 - x) ** (-1 / exponent);
}

// ---- rules

/** A form with a floor of the user's own; "kappa" is one that follows kappa. */
function flooredForm(floor) {
  return { kind: "floored", floor: Number(floor), text: say("floored", { floor: general(Number(floor), 6) }) };
}

/** A rule with its rows by unit; "floor:0.7,0.9" has floors of the user's own. */
function ruleOf(key, averaging, optimizer) {
  const own = ROOTSCALE.optimizers[optimizer].rules[0], rule = ROOTSCALE.rules[key || own];
  const [kind, floors] = (averaging || "floor").split(":"), rows = {};
  for (const [unit, place] of Object.entries(rule.rows[kind])) {
    rows[unit] = ROOTSCALE.rows[place];
    if (floors && rows[unit].form.kind === "floored") {
      const floor = floors.split(",")[ROOTSCALE.floors[unit] === "beta1" ? 0 : 1];
      rows[unit] = { ...rows[unit], form: flooredForm(floor) };
    }
    if (!rule.holds_for.includes(optimizer) && rows[unit].status === "theorem" && unit !== "steps") {
      rows[unit] = { ...rows[unit], status: "heuristic", why: say("compared", rows[unit]) };
    }
  }
  const name = (key || own) + (averaging && averaging !== "floor" ? ` with ${averaging}` : "");
  return { ...rule, key: key || own, name, own, rows };
}

/** What holds at any kappa: a list of warnings. */
function checkRule(rule, optimizer) {
  const words = { rule: rule.name, optimizer, own: rule.own };
  if (rule.refuses.includes(optimizer)) {
    words.able = Object.keys(ROOTSCALE.optimizers).filter((name) => !rule.refuses.includes(name)).join(", ");
    refuse("rule", "refused", words);
  }
  if (rule.holds_for.includes(optimizer)) return [];
  return [say(rule.key === "invariant" ? "invariant" : "other dynamics", words)];
}

/** A quantity of a unit at kappa times the batch size. */
function converted(rule, unit, value, kappa, name, field) {
  const row = rule.rows[unit];
  if (!row || kappa.equals(ONE)) return value;
  const form = row.form, limit = limitOf(form, value);
  if (kappa.number >= limit * (1 - 1e-12)) {
    const usual = ROOTSCALE.rows[ROOTSCALE.units[unit]].form, words = { kappa: show(kappa), name, limit: show(limit) };
    let text = say("too large", { ...words, value: show(FORMS[form.kind](value, kappa, form)) });
    if (given(usual.floor)) text += say("or floors", { name, value: show(FORMS[usual.kind](value, kappa, usual)) });
    throw new PlanError(text, field);
  }
  const result = FORMS[form.kind](value, kappa, form), domain = ROOTSCALE.domains[unit] ?? ROOTSCALE.domains.positive;
  if (Number.isNaN(float(result)) || (float(value) && !inside(domain, float(result)))) {
    refuse(field, "out of range", { kappa: show(kappa), name, value: show(value), form: form.text });
  }
  return result;
}

/** The fields of a record that have a unit, converted. */
function convertedFields(rule, fields, values, kappa, path) {
  const made = { ...values };
  for (const { name, unit, label } of fields) {
    const value = values[name];
    if (!unit || !given(value)) continue;
    const one = (item, called) => converted(rule, unit, item, kappa, called, path + name);
    if (name === "intervals") made[name] = value.map(([key, item]) => [key, one(item, `${label} ${key}`)]);
    else made[name] = Array.isArray(value) ? value.map((item) => one(item, label)) : one(value, label);
  }
  return made;
}

/** Steps among an optimizer's values are exact while they are converted, and floats in the end. */
function convertedOptimizer(rule, { name, values }, kappa) {
  const fields = ROOTSCALE.optimizers[name].fields, exact = { ...values };
  for (const { name: field, unit } of fields) {
    if (unit && !(unit in ROOTSCALE.domains) && Number.isInteger(values[field])) exact[field] = Exact.of(values[field]);
  }
  const made = convertedFields(rule, fields, exact, kappa, "optimizer.");
  for (const field of Object.keys(made)) if (made[field] instanceof Exact) made[field] = made[field].number;
  return optimizerOf(name, made);
}

/** How much the samples of a forward grow: all of kappa where one of the layouts is not known. */
const forwardKappa = (old, size) =>
  (old.laidOut === size.laidOut ? size.forward.over(old.forward) : size.total.over(old.total));

/** Warnings about this plan at this kappa. */
function guards(plan, made, rule, kappa) {
  const found = [], size = made.batch, old = plan.batch;
  const weights = {};
  const { name: optimizer, values } = plan.optimizer;
  for (const { name, unit } of ROOTSCALE.optimizers[optimizer].fields) weights[unit] = values[name];
  for (const [unit, beta] of [["beta2", weights.beta2], ["beta1", weights.beta1 || null]]) {
    const shortens = unit in rule.rows && !given(rule.rows[unit].form.floor), shortest = 1 / (2 * (1 - beta));
    if (given(beta) && shortens && kappa.number >= shortest) {
      found.push(say(`short ${unit}`, { value: show(kappa.number * (1 - beta)), limit: show(shortest) }));
    }
  }
  const noise = plan.noise_scale;
  if (given(noise) && Exact.of(noise).less(size.total)) {
    const kappa = show(noise / old.total.number);
    found.push(say("noise scale", {
      size: showSamples(size.total, size.length), noise: showSamples(noise, size.length), kappa,
      seen: ROOTSCALE.evidence.beyond_noise,
    }));
  }
  if (old.laidOut && !size.laidOut && !size.total.equals(old.total)) {
    found.push(say("layout", { size: show(size.total), micro: old.micro, workers: old.workers }));
  }
  const few = ROOTSCALE.evidence.fewest_steps;
  if (made.total && made.total.less(ONE)) found.push(say("short run", { steps: show(made.total) }));
  else if (made.total && kappa.number > 1 && made.total.number < few) {
    found.push(say("few steps", { steps: show(Math.ceil(made.total.number)), least: few }));
  }
  for (const [name, value] of made.intervals) {
    if (value.less(new Exact(1n, 2n))) found.push(say("short interval", { name, steps: show(value) }));
  }
  return found;
}

// ---- changes

/** Every value of a plan that has a unit, by its field, but for none and a 0 that is the default. */
function quantities(plan) {
  const found = new Map();
  const put = (field, name, unit, value) => found.set(field, { name, unit, value });
  const record = (fields, values, path) => {
    for (const { name, unit, label, default: usual } of fields) {
      const value = values[name], field = path + name;
      if (name === "epochs" && path === "" && given(value)) put("steps", "steps", "steps", plan.total);
      else if (!unit || !given(value)) continue;
      else if (name === "intervals") {
        value.forEach(([key, item]) => put(`${field}.${key}`, `${label} ${key}`, unit, item));
      }
      else if (Array.isArray(value)) value.forEach((item, i) => put(`${field}.${i}`, `${label} ${i + 1}`, unit, item));
      else if (float(value) || usual || usual === undefined) put(field, label, unit, value);
    }
  };
  record(ROOTSCALE.optimizers[plan.optimizer.name].fields, plan.optimizer.values, "optimizer.");
  const [before, after] = [["steps", "epochs", "dataset_size"], ["ema", "batchnorm_momentum", "clip", "intervals"]];
  const some = (names) => ROOTSCALE.plan.filter(({ name }) => names.includes(name));
  record(some(before), plan, "");
  record(ROOTSCALE.schedule, plan.schedule, "schedule.");
  record(some(after), plan, "");
  return found;
}

/** The whole number of steps to use, and what the rounding does. */
function wholeSteps(field, value, plan) {
  if (!(value instanceof Exact) || value.whole) return { note: "" };
  if (field === "steps") {
    const rest = value.minus(new Exact(value.floor)).times(plan.batch.total);
    return { used: new Exact(value.ceil), note: say("last step", { steps: show(value), samples: show(rest) }) };
  }
  const used = value.rounded;
  return { used: new Exact(used < 1n ? 1n : used), note: say("rounded", { value: show(value) }) };
}

const close = (a, b) => a === b || Math.abs(a - b) <= Math.max(1e-9 * Math.max(Math.abs(a), Math.abs(b)), 1e-12);

/** The row that was applied; where a weight has stopped at its floor, one that says so. */
function appliedRow(rule, unit, before, after, kappa) {
  const row = rule.rows[unit];
  if (!row || after === null || !given(row.form.floor) || kappa.equals(ONE)) return row;
  const paper = before && 1 - kappa.number * (1 - before);
  if (close(paper, after)) return row;
  const words = { value: show(paper), floor: show(row.form.floor) };
  if (row.form.kind === "floored" && before < row.form.floor) {
    return { ...row, status: "heuristic", why: say("below floor", words) };
  }
  return { ...row, status: "measured", source: "experiments/floors.py", why: say("floor", words) };
}

function changesOf(plan, made, rule, kappa) {
  const after = quantities(made), rows = [];
  for (const [field, { name, unit, value: before }] of quantities(plan)) {
    const value = after.get(field)?.value ?? null; // a 0 that is the default is no value
    let { used, note } = ["steps", "warmup", "schedule"].includes(unit) ? wholeSteps(field, value, made) : { note: "" };
    if (unit === "batchnorm" && !forwardKappa(plan.batch, made.batch).equals(kappa)) {
      note = say("forwards", { before: plan.batch.accumulation, after: made.batch.accumulation });
    }
    const row = appliedRow(rule, unit, before, value, kappa);
    rows.push({
      name, field, kind: row ? unit : "", before: float(before), after: float(value), used: float(used ?? value),
      form: row ? row.form.text : "x", status: row ? row.status : "kept", source: row ? row.source : "",
      why: [row ? row.why : say("kept"), note].filter(Boolean).join("; "),
      shown: [show(before), show(used ?? value)], label: row ? row.label : "",
    });
  }
  return rows;
}

// ---- what is known of such a change

/** The sentence of what was measured, and the warning, of a family under a rule. */
function seen(family, rule, kappa, batchnorm) {
  const { families, texts, usual } = ROOTSCALE.evidence, { record, rules } = ROOTSCALE.optimizers[family];
  const measured = families[family][rule.name], keeps = rules.includes(rule.key);
  const found = measured ?? (keeps ? families[usual][ROOTSCALE.optimizers[usual].rules[0]] : null);
  const missing = say("not measured", { family: record, rule: rule.name });
  if (!found) return [missing, ""];
  const [smaller, ...larger] = batchnorm ? found.at(-1) : found[0];
  const answer = kappa < 1 ? smaller : larger.find(([most]) => most === null || kappa <= most);
  const [promise, doubt] = answer.slice(1).map((place) => texts[place]);
  return [measured ? promise : missing, doubt];
}

const listed = (parts) => [parts.slice(0, -1).join(", "), ...parts.slice(-1)].filter(Boolean).join(" and ");
const BESIDE = ["l2", "ema", "v", "m", "step_counter"];

/** What the theorem does not cover; rows of a run that it does not cover are derived. */
function uncovered(name, changes, schedule) {
  const { status, record } = ROOTSCALE.optimizers[name];
  if (status !== "theorem" && name !== "adamw") return [record];
  const beside = schedule.name === "constant" ? [] : [`the ${schedule.name} schedule`];
  const rows = changes.filter((row) => row.status !== "theorem" && !BESIDE.includes(row.kind));
  return [...new Set([...beside, ...rows.map((row) => row.name)])];
}

/** What is proven and what was measured, in sentences. */
function evidenceOf(name, rule, changes, plan, kappa, measured) {
  const notes = [], beside = uncovered(name, changes, plan.schedule);
  if (beside.length && changes.some(({ status }) => status === "theorem")) {
    notes.push(say("not covered", { names: listed(beside) }));
    for (const row of changes) if (row.status === "theorem") row.status = "derived";
  }
  return kappa === 1 ? [] : [...notes, measured].filter(Boolean);
}

/** What a change of batch size makes of a plan; throws a PlanError where there is no such plan. */
function convert({ plan: asked, to, rule: key, averaging }) {
  const { optimizer: { name, ...values }, batch_size: size, schedule = {}, ...rest } = asked;
  const old = batchOf(size, "batch_size", lengthOf(rest.sequence_length)), first = optimizerOf(name, values);
  const plan = planOf(first, old, scheduleOf(inSteps(schedule, old.total, old.length)), rest);
  const rule = ruleOf(key, averaging, name), warnings = checkRule(rule, name);
  const batch = layoutAt(plan.batch, to), kappa = batch.total.over(plan.batch.total);
  const optimizer = convertedOptimizer(rule, plan.optimizer, kappa);
  const newSchedule = scheduleOf(convertedFields(rule, ROOTSCALE.schedule, plan.schedule, kappa, "schedule."));
  const parts = convertedFields(rule, ROOTSCALE.plan, plan, kappa, "");
  const made = planOf(optimizer, batch, newSchedule, { ...parts, intervals: Object.fromEntries(parts.intervals) });
  if (given(plan.batchnorm_momentum)) {
    const forward = forwardKappa(plan.batch, batch), field = "batchnorm_momentum";
    made[field] = converted(rule, "batchnorm", plan[field], forward, field, field);
  }
  warnings.push(...guards(plan, made, rule, kappa));
  const [measured, doubt] = seen(name, rule, kappa.number, given(plan.batchnorm_momentum));
  if (doubt && kappa.number > 1) warnings.push(fill(doubt, { kappa: show(kappa.number) }));
  const changes = changesOf(plan, made, rule, kappa);
  let title = say("title", { before: plan.batch.text, after: batch.text, kappa: show(kappa) });
  if (made.total) {
    const samples = counted("steps", "samples", made.total.times(batch.total));
    const tokens = batch.length && show(samples.times(batch.length));
    title += say(batch.length ? "tokens" : "samples", { samples: show(samples), tokens });
  }
  const limits = [...quantities(plan)].map(([field, { name: label, unit, value }]) => (
    { field, name: label, limit: unit in rule.rows ? limitOf(rule.rows[unit].form, float(value)) : Infinity }
  )).filter(({ limit }) => limit < Infinity);
  return {
    kappa: kappa.number, rule: rule.name, changes, warnings, limits, plan: made, rows: rule.rows,
    heading: say("rule", { title, rule: rule.name }), evidence: evidenceOf(name, rule, changes, plan, kappa.number, measured),
  };
}
