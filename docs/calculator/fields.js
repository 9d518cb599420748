// The fields of the form: what each is called, how its text is read, and what is said where it cannot be.
"use strict";

/** The README's run, which the page starts with. */
const EXAMPLE = {
  batch_size: "256", to: "1024", optimizer: "adamw", "optimizer.eta": "3e-4", "optimizer.beta1": "0.9",
  "optimizer.beta2": "0.95", "optimizer.weight_decay": "0.1", steps: "100000", "schedule.name": "cosine",
  "schedule.warmup": "2000", ema: "0.9999",
};
const NUMBER = /^[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?$/i;

/** A mistake in what was typed, before there is a value. */
class TextError extends Error {}

const mistaken = (expected, text) => { throw new TextError(`Must be ${expected}, got ${repr(text)}`); };

/** How the text of each kind of field becomes a value. */
const READ = {
  number: (text) => (NUMBER.test(text) ? Number(text) : mistaken("a number such as 0.001 or 1e-3", text)),
  count: (text) => {
    const digits = /^[1-9]\d{0,2}([ ,_]\d{3})+$/.test(text) ? text.replace(/[ ,_]/g, "") : text;
    return NUMBER.test(digits) ? Number(digits) : mistaken("a number such as 100000", text);
  },
  counts: (text) => text.split(/[\s,;]+/).filter(Boolean).map(READ.count),
  batch: (text) => (/^[1-9]\d{0,2}([ ,_]\d{3})+$/.test(text) ? text.replace(/[ ,_]/g, "") : text),
  length: (text) => (amountOf(READ.batch(text)).plain && !/[a-z]{3}/i.test(text) ? READ.count(text) : text),
  intervals: (text) => Object.fromEntries(text.split(/[\s,;]+/).filter(Boolean).map((word) => {
    const [name, steps] = word.split("=");
    return name && steps ? [name, READ.count(steps)] : mistaken("names and steps such as eval=1000 save=5000", word);
  })),
  floor: (text) => (text === "kappa" ? text : READ.number(text)),
  name: (text) => text,
  flag: (text) => text === "yes",
};

/** What fields are called that the tables name for programs; a field that is not here has the label of the tables. */
const CALLED = {
  batch_size: "Batch size now", to: "Batch size then", optimizer: "Optimizer", "optimizer.eta": "Learning rate (peak)",
  steps: "Steps", epochs: "Epochs", dataset_size: "Samples in the data",
  "schedule.name": "Schedule of the learning rate",
  "schedule.warmup": "Warm-up steps", "schedule.warmup_shape": "Warm-up shape",
  "schedule.warmup_start": "Warm-up from (share)", "schedule.min_eta": "Lowest lr",
  "schedule.milestones": "Milestones", "schedule.every": "Decay every",
  "schedule.decay": "Decay at the end", "schedule.gamma": "Factor (gamma)", "schedule.power": "Power",
  ema: "EMA decay", batchnorm_momentum: "BatchNorm momentum", clip: "Clip of the gradient",
  noise_scale: "Noise scale", sequence_length: "Tokens of a sample", intervals: "Intervals (eval=1000 save=5000)",
  rule: "Rule", averaging: "How averages (betas) are converted",
  floor1: "Floor of beta1 (or kappa)", floor2: "Floor of beta2",
};

/** A field: its id (which links and errors use), kind, label, placeholder and choices. */
function fieldOf(id, kind, { label, hint = "", choices = null, wide = false } = {}) {
  return { id, kind, label: CALLED[id] ?? label ?? id, hint, choices, wide };
}

/** What stands in an empty field: the value that is then used. */
function usual(field) {
  if (field.default === undefined) return "needed";
  if (field.default === null) return "none";
  return typeof field.default === "number" ? repr(field.default) : String(field.default);
}

const labelled = (field) => ({ label: field.label, hint: usual(field) });

/** Yes and no; an empty answer is the usual one. */
function flagged(usually) {
  const [first, other] = usually ? ["yes", "no"] : ["no", "yes"];
  return [["", first], [other, other]];
}

/** The floor that a beta has unless another is given. */
const usualFloor = (i) => ROOTSCALE.rows[ROOTSCALE.units[`beta${i + 1}`]].form.floor;

function optimizerFields(name) {
  const torch = ROOTSCALE.optimizers[name].torch, used = new Set([...Object.values(torch.arguments)].flat());
  return ROOTSCALE.optimizers[name].fields
    .filter((field) => field.unit || used.has(field.name))
    .map((field) => (field.kind === "flag"
      ? fieldOf(`optimizer.${field.name}`, "flag", { label: field.label, choices: flagged(field.default) })
      : fieldOf(`optimizer.${field.name}`, field.kind, labelled(field))));
}

function scheduleFields(shape, warmup) {
  const { takes } = ROOTSCALE.shapes[shape], shapes = Object.entries(ROOTSCALE.shapes);
  const shown = ["name", "warmup", ...(warmup ? ["warmup_shape", "warmup_start"] : []), ...takes];
  const choices = {
    name: shapes.map(([name]) => [name === "constant" ? "" : name, name]),
    warmup_shape: ROOTSCALE.warmups.map((name, i) => [i ? name : "", name]),
  };
  return shown.map((name) => {
    const field = ROOTSCALE.schedule.find((one) => one.name === name);
    const needed = ROOTSCALE.shapes[shape].needs.includes(name);
    const hint = field.kind === "counts" ? "30000, 60000" : needed ? "needed" : usual(field);
    const look = { label: field.label, hint, choices: choices[name], wide: name === "name" };
    return fieldOf(`schedule.${name}`, field.kind, look);
  });
}

function ruleFields(optimizer, averaging) {
  const [own, ...others] = ROOTSCALE.optimizers[optimizer].rules;
  const rest = Object.keys(ROOTSCALE.rules).filter((name) => name !== own && !others.includes(name));
  const rules = [
    ["", `${own} (its own)`],
    ...others.map((name) => [name, `${name} (also keeps its dynamics)`]),
    ...rest.map((name) => [name, name]),
  ];
  const forms = Object.entries(ROOTSCALE.averagings).map(([name, text], i) => [i ? name : "", `${name}: ${text}`]);
  const floors = averaging ? [] : ["floor1", "floor2"].map(
    (id, i) => fieldOf(id, i ? "number" : "floor", { hint: String(usualFloor(i)) }),
  );
  return [
    fieldOf("rule", "name", { choices: rules, wide: true }),
    fieldOf("averaging", "name", { choices: forms, wide: true }),
    ...floors,
  ];
}

const optimizerChoices = () => Object.entries(ROOTSCALE.optimizers).map(([name, { torch }]) => {
  const plainName = torch.name.toLowerCase() === name.replaceAll("-", "");
  return [name, plainName ? torch.name : `${torch.name} (${name})`];
});

/** The groups of fields of the form, for what is chosen now. */
function groupsOf(state) {
  const optimizer = state.optimizer in ROOTSCALE.optimizers ? state.optimizer : "adamw";
  const shape = state["schedule.name"] in ROOTSCALE.shapes ? state["schedule.name"] : "constant";
  const plan = (name) => {
    const field = ROOTSCALE.plan.find((one) => one.name === name);
    const kind = { steps: "length", noise_scale: "batch" }[name] ?? field.kind;
    return fieldOf(name, kind, labelled(field));
  };
  const epochs = state.unit === "epochs";
  return {
    sizes: [
      ...["batch_size", "to"].map((id) => fieldOf(id, "batch", { hint: "256, 0.5M or 32x4x2" })),
      plan("sequence_length"),
    ],
    family: [fieldOf("optimizer", "name", { choices: optimizerChoices() })],
    values: optimizerFields(optimizer),
    length: [
      fieldOf("unit", "name", { label: "Length given in", choices: [["", "steps"], ["epochs", "epochs"]] }),
      ...(epochs ? ["epochs", "dataset_size"] : ["steps"]).map(plan),
    ],
    schedule: scheduleFields(shape, Boolean(state["schedule.warmup"])),
    rest: [
      ...["ema", "batchnorm_momentum", "clip", "noise_scale"].map(plan),
      { ...plan("intervals"), hint: "none", wide: true },
    ],
    rules: ruleFields(optimizer, state.averaging),
  };
}

/** The request that the texts make, and what is wrong with single ones, by field. */
function requestOf(state, fields) {
  const mistakes = {}, values = {};
  for (const { id, kind } of fields) {
    const text = (state[id] ?? "").trim();
    if (!text) continue;
    try {
      values[id] = READ[kind](text);
    } catch (error) {
      if (!(error instanceof TextError)) throw error;
      mistakes[id] = error.message;
    }
  }
  for (const id of ["batch_size", "to"]) if (!(id in values)) mistakes[id] ??= "Needed: the samples of a step";
  const plan = { optimizer: { name: values.optimizer }, schedule: {} };
  for (const [id, value] of Object.entries(values)) {
    const [part, name] = id.split(".");
    if (name) plan[part][name] = value;
    else if (!["optimizer", "to", "rule", "averaging", "unit", "floor1", "floor2"].includes(id)) plan[id] = value;
  }
  const averaging = averagingOf(values, mistakes);
  return { request: { plan, to: values.to, rule: values.rule ?? null, averaging }, mistakes };
}

function averagingOf({ averaging, floor1, floor2 }, mistakes) {
  if (averaging || (floor1 === undefined && floor2 === undefined)) return averaging ?? "floor";
  const [one, two] = [floor1, floor2].map((floor, i) => floor ?? usualFloor(i));
  [one, two].forEach((floor, i) => {
    const domain = ROOTSCALE.domains.beta1;
    if (floor !== "kappa" && !inside(domain, floor)) {
      mistakes[`floor${i + 1}`] = `Must be ${domain.expected}, got ${repr(floor)}`;
    }
  });
  return `floor:${one},${two}`;
}
