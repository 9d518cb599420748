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
function counted(field, name, value, zero = false) {
  const converted = value instanceof Exact && !value.whole && `Fraction(${value.n}, ${value.d})`;
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
  return refuse(field, "value", { name, expected, value: converted || repr(value) });
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
function batchOf(value, field) {
  const parts = typeof value === "string"
    ? value.toLowerCase().replaceAll("×", "x").split("x").map((one) => one.trim())
    : [value];
  if (![1, 3].includes(parts.length)) refuse(field, "batch size", { value: repr(value) });
  const [micro, accumulation, workers] = ["batch_size", "accumulation", "workers"].map(
    (name, i) => counted(field, name, parts[i] ?? 1),
  );
  return layoutOf(micro, accumulation, workers, parts.length === 3, field);
}

function layoutOf(micro, accumulation, workers, laidOut, field) {
  const size = { micro, accumulation, workers, laidOut };
  size.plain = accumulation.equals(ONE) && workers.equals(ONE);
  for (const name of ["micro", "accumulation", "workers"]) {
    if (!size[name].whole && (name !== "micro" || !size.plain)) {
      refuse(field, "whole", { name, value: show(size[name]) });
    }
  }
  size.total = micro.times(accumulation).times(workers);
  size.forward = micro.times(workers);
  size.text = size.plain ? show(size.total) : say("layout of batch", { ...size, total: show(size.total) });
  return size;
}

/** The layout for another total: where it divides, the accumulation follows and the rest stays. */
function layoutAt(old, value) {
  const size = batchOf(value, "to");
  if (!old.laidOut || size.laidOut) return size;
  const accumulation = size.total.over(old.forward);
  return accumulation.whole ? layoutOf(old.micro, accumulation, old.workers, true, "to") : size;
}

function planOf(optimizer, batch, schedule, rest) {
  const plan = { optimizer, batch, schedule };
  for (const { name } of ROOTSCALE.plan) plan[name] = rest[name] ?? null;
  for (const name of ["steps", "epochs", "dataset_size"]) {
    if (given(plan[name])) plan[name] = counted(name, name, plan[name]);
  }
  if (given(plan.steps) && given(plan.epochs)) refuse("epochs", "steps or epochs");
  if (given(plan.epochs) && !given(plan.dataset_size)) refuse("dataset_size", "dataset size");
  for (const { name, unit } of ROOTSCALE.plan) {
    if (unit in ROOTSCALE.domains && given(plan[name])) checked(ROOTSCALE.domains[unit], name, name, plan[name]);
  }
  plan.intervals = Object.entries(plan.intervals ?? {}).map(
    ([name, value]) => [name, counted("intervals", `intervals[${repr(name)}]`, value)],
  );
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
