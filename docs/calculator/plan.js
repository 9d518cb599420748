// Plans: what a run is made of, checked as `rootscale.Plan` checks it.
"use strict";

/** A mistake of the user; `field` is where it is: "optimizer.eta", "schedule.warmup", "batch_size", "to" ... */
class PlanError extends Error {
  constructor(message, field = "") {
    super(message);
    this.field = field;
  }
}

const say = (message, words = {}) => fill(ROOTSCALE.messages[message], words);
const refuse = (field, message, words) => { throw new PlanError(say(message, words), field); };
const given = (value) => value !== null && value !== undefined;

function inside(domain, x) {
  const above = domain.ends[0] === "[" ? x >= domain.low : x > domain.low;
  const below = domain.high === null || (domain.ends[1] === "]" ? x <= domain.high : x < domain.high);
  return Number.isFinite(x) && above && below;
}

function checked(domain, field, name, value) {
  if (typeof value !== "number" || !inside(domain, value)) {
    refuse(field, "value", { name, expected: domain.expected, value: repr(value) });
  }
  return value;
}

/** An exact count of steps or samples. */
function counted(field, name, value, zero = false, written = null) {
  const fraction = value instanceof Exact && (!value.whole || value.n >= 2n ** 53n);
  if (written instanceof Exact) written = null; // it is the value itself
  const converted = fraction && `Fraction(${value.n}, ${value.d})`;
  if (value instanceof Exact) value = value.whole && value.n < 2n ** 53n ? Number(value.n) : String(value);
  const readable = typeof value === "number" ? Number.isFinite(value)
    : typeof value === "string" && /^\d{1,4000}(\/\d{1,4000}|\.\d{1,40})?$/.test(value) && !/\/0+$/.test(value);
  const exact = readable ? Exact.of(value) : new Exact(-1n);
  const largest = new Exact(2n ** 53n), smallest = new Exact(1n, 10n ** 12n);
  if (zero && exact.equals(ZERO)) return exact;
  if (!exact.less(smallest) && !largest.less(exact)) return exact;
  let expected = say(zero ? "count or 0" : "count");
  if (largest.less(exact)) expected = say("count, largest", { largest: show(largest) });
  else if (ZERO.less(exact)) expected = say("count, smallest");
  return refuse(field, "value", { name, expected, value: written === null ? converted || repr(value) : repr(written) });
}

// ---- sizes, as `rootscale.sizes` reads them

const LETTERS = { "": 1n, k: 10n ** 3n, m: 10n ** 6n, b: 10n ** 9n, t: 10n ** 12n };
const DIGITS = /^\d{1,4000}(\/\d{1,4000}|\.\d{1,40})?$/;

/** The number that a text says, such as "0.5M" or "2**19"; null if it is none. */
function numberOf(text) {
  const power = /^(\d{1,20}(?:\.\d{1,20})?)e\+?(\d{1,2})$/i.exec(text.trim());
  if (power) return Exact.of(power[1]).times(new Exact(10n ** BigInt(power[2])));
  let product = ONE;
  for (const factor of text.replace(/[_ ]/g, "").replaceAll("**", "^").split("*")) {
    const m = /^(\d+(?:\.\d+)?)([kmbt]?)(?:\^(\d{1,2}))?$/i.exec(factor);
    if (!m) return null;
    const base = Exact.of(m[1]).times(new Exact(LETTERS[m[2].toLowerCase()]));
    product = product.times(base.power(Number(m[3] ?? 1)));
  }
  return product;
}

/** A number as it was written: the number (or the text, if it is none), its unit, and whether it is digits alone. */
function amountOf(value) {
  if (typeof value !== "string") return { number: value, unit: "", plain: true };
  const m = /^([^]*?)\s*\b(steps?|samples?|sequences?|tokens?)$/i.exec(value.trim());
  const text = m ? m[1] : value.trim(), letter = m ? m[2][0].toLowerCase() + m[2][1].toLowerCase() : "";
  const unit = { st: "steps", sa: "samples", se: "samples", to: "tokens", "": "" }[letter];
  if (DIGITS.test(text)) return { number: text, unit, plain: true };
  return { number: numberOf(text) ?? value, unit, plain: false };
}

function sequencesOf(field, name, tokens, value, length) {
  if (!given(length)) refuse(field, "sequence length", { name, value: repr(value) });
  return counted(field, name, tokens.over(length), true, value);
}

/** A size in samples; with a sequence length, texts with a letter or a power count tokens. */
function samplesOf(field, name, value, length) {
  const amount = amountOf(value);
  if (amount.unit === "steps") refuse(field, "no steps", { name, value: repr(value) });
  const number = counted(field, name, amount.number, false, value);
  if (amount.unit === "tokens") return sequencesOf(field, name, number, value, length);
  if (amount.unit || !given(length) || typeof value !== "string" || value.includes("/")) return number;
  if (!amount.plain) return sequencesOf(field, name, number, value, length);
  if (!number.less(length)) refuse(field, "samples or tokens", { name, value, length: show(length) });
  return number;
}

/** A length in steps of a batch size in samples: "2000", "5M samples", "10B tokens". */
function stepsOf(field, name, value, total, length, zero = false) {
  const amount = amountOf(value), number = counted(field, name, amount.number, zero, value);
  if (!["samples", "tokens"].includes(amount.unit)) return number;
  const samples = amount.unit === "tokens" ? sequencesOf(field, name, number, value, length) : number;
  return counted(field, name, samples.over(total), zero, value);
}

/** Samples, and tokens where the length of a sequence is known. */
function showSamples(samples, length) {
  if (!given(length)) return show(samples);
  return say("and tokens", { samples: show(samples), tokens: show(Exact.of(samples).times(length)) });
}

/** The tokens of a sequence, a whole number. */
function lengthOf(value) {
  if (!given(value)) return null;
  const length = counted("sequence_length", "sequence_length", value);
  if (!length.whole) refuse("sequence_length", "whole", { name: "sequence_length", value: show(length) });
  return length;
}

/** A schedule whose lengths are in steps, where they are texts that count samples or tokens. */
function inSteps(schedule, total, length) {
  const found = { ...schedule }, field = (name) => `schedule.${name}`;
  const steps = (name, value) => (
    typeof value === "string" ? stepsOf(field(name), name, value, total, length, true) : value
  );
  for (const { name, unit } of ROOTSCALE.schedule) {
    if (!["steps", "warmup", "schedule"].includes(unit) || !(name in found)) continue;
    found[name] = Array.isArray(found[name]) ? found[name].map((one) => steps(name, one)) : steps(name, found[name]);
  }
  return found;
}

// ---- plans

/** The values of an optimizer's record, checked. */
function optimizerOf(name, values) {
  const made = {};
  if (!given(values.eta)) refuse("optimizer.eta", "lr", { what: `optimizer ${name}` });
  for (const field of ROOTSCALE.optimizers[name].fields) {
    const domain = ROOTSCALE.domains[field.unit], value = field.name in values ? values[field.name] : field.default;
    made[field.name] = value;
    if (domain && !(value === null && field.default === null)) {
      checked(domain, `optimizer.${field.name}`, field.name, value);
    }
  }
  return { name, values: made };
}

function scheduleOf(values) {
  const made = {}, field = (name) => `schedule.${name}`;
  for (const { name, default: usual } of ROOTSCALE.schedule) made[name] = name in values ? values[name] : usual;
  const shape = ROOTSCALE.shapes[made.name];
  checked(ROOTSCALE.domains.min_eta, field("min_eta"), "min_eta", made.min_eta);
  made.warmup = counted(field("warmup"), "warmup", made.warmup, true);
  checked(ROOTSCALE.domains.warmup_start, field("warmup_start"), "warmup_start", made.warmup_start);
  made.milestones = made.milestones.map((one) => counted(field("milestones"), "milestones", one));
  for (const name of ["every", "decay"]) {
    if (given(made[name])) made[name] = counted(field(name), name, made[name]);
  }
  checked(ROOTSCALE.domains.gamma, field("gamma"), "gamma", made.gamma);
  checked(ROOTSCALE.domains.positive, field("power"), "power", made.power);
  if (made.warmup_shape === "exponential" && !made.warmup_start) refuse(field("warmup_start"), "warm-up start");
  if (made.milestones.some((one, i) => i && !made.milestones[i - 1].less(one))) {
    refuse(field("milestones"), "milestones", { milestones: made.milestones.map(show).join(", ") });
  }
  const always = ["name", "warmup", "warmup_shape", "warmup_start"];
  for (const one of ROOTSCALE.schedule) {
    const words = { schedule: made.name, name: one.name, takes: shape.takes.join(", ") || "no parameters" };
    if (isGiven(made, one) && !always.includes(one.name) && !shape.takes.includes(one.name)) {
      refuse(field(one.name), "schedule takes", words);
    }
    if (shape.needs.includes(one.name) && isEmpty(made[one.name])) refuse(field(one.name), "schedule needs", words);
  }
  return made;
}

/** Whether a value of a schedule is not the default. */
function isGiven(made, { name, default: usual }) {
  const value = made[name];
  if (Array.isArray(value)) return value.length > 0;
  return value instanceof Exact ? !given(usual) || !value.equals(Exact.of(usual)) : value !== usual;
}

const isEmpty = (value) =>
  !given(value) || value === 0 || value.length === 0 || (value instanceof Exact && value.n === 0n);

/** Samples of a step: a number, or "MICROxACCUMULATIONxWORKERS". */
function batchOf(value, field, length = null) {
  const parts = typeof value === "string"
    ? value.toLowerCase().replaceAll("×", "x").split("x").map((one) => one.trim())
    : [value];
  if (![1, 3].includes(parts.length)) refuse(field, "batch size", { value: repr(value) });
  if (parts.length === 1) {
    return layoutOf(samplesOf(field, "batch_size", value, length), ONE, ONE, false, field, length);
  }
  const [micro, accumulation, workers] = ["batch_size", "accumulation", "workers"].map(
    (name, i) => counted(field, name, parts[i]),
  );
  return layoutOf(micro, accumulation, workers, true, field, length);
}

function layoutOf(micro, accumulation, workers, laidOut, field, length = null) {
  const size = { micro, accumulation, workers, laidOut, length };
  size.plain = accumulation.equals(ONE) && workers.equals(ONE);
  for (const name of ["micro", "accumulation", "workers"]) {
    if (!size[name].whole && (name !== "micro" || !size.plain)) {
      refuse(field, "whole", { name, value: show(size[name]) });
    }
  }
  size.total = micro.times(accumulation).times(workers);
  size.forward = micro.times(workers);
  const total = showSamples(size.total, length);
  size.text = size.plain ? total : say("layout of batch", { ...size, total });
  return size;
}

/** The layout for another total: where it divides, the accumulation follows and the rest stays. */
function layoutAt(old, value) {
  const size = batchOf(value, "to", old.length);
  if (!old.laidOut || size.laidOut) return size;
  const accumulation = size.total.over(old.forward);
  return accumulation.whole ? layoutOf(old.micro, accumulation, old.workers, true, "to", old.length) : size;
}

function planOf(optimizer, batch, schedule, rest) {
  const plan = { optimizer, batch, schedule };
  for (const { name } of ROOTSCALE.plan) plan[name] = rest[name] ?? null;
  plan.sequence_length = batch.length;
  const steps = (field, name, value) => stepsOf(field, name, value, batch.total, batch.length);
  if (given(plan.steps)) plan.steps = steps("steps", "steps", plan.steps);
  if (given(plan.epochs)) plan.epochs = counted("epochs", "epochs", plan.epochs);
  if (given(plan.dataset_size)) {
    plan.dataset_size = samplesOf("dataset_size", "dataset_size", plan.dataset_size, batch.length);
  }
  if (given(plan.steps) && given(plan.epochs)) refuse("epochs", "steps or epochs");
  if (given(plan.epochs) && !given(plan.dataset_size)) refuse("dataset_size", "dataset size");
  for (const { name, unit } of ROOTSCALE.plan) {
    if (unit in ROOTSCALE.domains && given(plan[name])) checked(ROOTSCALE.domains[unit], name, name, plan[name]);
  }
  plan.intervals = Object.entries(plan.intervals ?? {}).map(
    ([name, value]) => [name, steps("intervals", `intervals[${repr(name)}]`, value)],
  );
  if (typeof plan.noise_scale === "string") {
    plan.noise_scale = float(samplesOf("noise_scale", "noise_scale", plan.noise_scale, batch.length));
  }
  if (given(plan.noise_scale)) checked(ROOTSCALE.domains.positive, "noise_scale", "noise_scale", plan.noise_scale);
  plan.total = given(plan.epochs) ? plan.epochs.times(plan.dataset_size).over(batch.total) : plan.steps;
  checkSchedule(plan);
  return plan;
}

function checkSchedule({ schedule, optimizer, total }) {
  const eta = optimizer.values.eta;
  if (schedule.min_eta > eta) {
    refuse("schedule.min_eta", "lowest lr", { eta: show(eta), value: show(schedule.min_eta) });
  }
  if (ROOTSCALE.shapes[schedule.name].needs_length && total === null) {
    refuse("steps", "schedule needs length", { schedule: schedule.name });
  }
  if (total === null) return;
  const latest = { warmup: schedule.warmup, decay: schedule.warmup.plus(schedule.decay ?? ZERO) };
  if (schedule.milestones.length) latest.milestones = schedule.milestones.at(-1);
  for (const [name, value] of Object.entries(latest)) {
    if (total.less(value)) {
      refuse(`schedule.${name}`, "within the run", { name, steps: show(total), value: show(value) });
    }
  }
}
