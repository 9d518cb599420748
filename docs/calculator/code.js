// A plan as PyTorch code, from the templates in table.js.
"use strict";

const code = (template, words = {}) => fill(ROOTSCALE.code[template], words);

function optimizerCode({ name, values }) {
  if (values.eps_root) refuse("optimizer.eps_root", "no eps_root in torch", { value: literal(values.eps_root) });
  const torch = ROOTSCALE.optimizers[name].torch;
  const held = Object.entries(torch.arguments).map(
    ([argument, fields]) => [argument, Array.isArray(fields) ? fields.map((one) => values[one]) : values[fields]],
  );
  const texts = [...held, ...Object.entries(torch.fixed)].filter(([, value]) => given(value));
  const args = texts.map(([argument, value]) => `${argument}=${source(value)}`).join(", ");
  return code(torch.in_torch ? "in torch" : "elsewhere", { name: torch.name, arguments: args });
}

function progressCode(warmup, steps) {
  const since = warmup.n ? code("since", { warmup: source(warmup) }) : "step";
  return code("progress", { since, length: warmup.less(steps) ? source(steps.minus(warmup)) : "1" });
}

function shapeCode({ schedule, optimizer, total }) {
  const steps = total ?? ZERO, every = schedule.every ?? ONE;
  const factor = fill(ROOTSCALE.shape_code[schedule.name], {
    progress: progressCode(schedule.warmup, steps),
    periods: code(every.whole ? "periods" : "periods of parts", { every: every.n, parts: every.d }),
    milestones: schedule.milestones.map(source).join(", "),
    steps: source(steps), decay: source(schedule.decay ?? ONE), every: source(every),
    power: source(schedule.power), gamma: source(schedule.gamma), warmup: source(schedule.warmup),
  });
  if (!schedule.min_eta) return factor;
  return code("above lowest", { lowest: source(schedule.min_eta / optimizer.values.eta), factor });
}

function scheduleCode(plan) {
  const { name, warmup: length, warmup_shape: shape, warmup_start: from } = plan.schedule;
  if (name === "constant" && !length.n) return [];
  const lines = [code("factor")];
  if (length.n) {
    const warmup = source(length);
    const factor = code(shape === "linear" && !from ? "linear from 0" : shape, { start: source(from), warmup });
    lines.push(code("warm-up", { warmup, factor }));
  }
  return [...lines, code("body", { factor: shapeCode(plan) }), code("scheduler")];
}

/** The PyTorch calls that build the plan's optimizer and schedule, to paste behind `model = ...`. */
function torchCode(plan) {
  const length = plan.total ? code("steps", { steps: source(new Exact(plan.total.ceil)) }) : "";
  const header = [code("batch size", { size: plan.batch.text }) + length];
  for (const [name, every] of plan.intervals) {
    header.push(code("every", { name, steps: source(new Exact(every.rounded < 1n ? 1n : every.rounded)) }));
  }
  const schedule = scheduleCode(plan), lines = [optimizerCode(plan.optimizer), ...schedule];
  if (given(plan.batchnorm_momentum)) lines.push(code("batchnorm", { momentum: source(plan.batchnorm_momentum) }));
  if (given(plan.ema)) lines.push(code("ema", { decay: source(plan.ema) }));
  if (given(plan.clip)) lines.push(code("clip", { clip: source(plan.clip) }));
  const imports = schedule.some((line) => line.includes("math.")) ? [code("math")] : [];
  return [...header, ...imports, code("torch"), ...lines].join("\n");
}
