// The answer to a request: what the page shows, and what the tests compare with Python's, as plain data.
"use strict";

const plain = (value) => (value instanceof Exact ? (value.whole ? Number(value.n) : String(value)) : value);

/** A plan as `Plan.to_dict` gives it: what is set, in JSON's types. */
function planData(plan) {
  const { batch, optimizer } = plan, data = { optimizer: { name: optimizer.name, ...optimizer.values } };
  data.batch_size = batch.laidOut ? `${batch.micro}x${batch.accumulation}x${batch.workers}` : plain(batch.micro);
  for (const { name } of ROOTSCALE.plan) {
    if (given(plan[name]) && name !== "intervals") data[name] = plain(plan[name]);
  }
  if (plan.intervals.length) {
    data.intervals = Object.fromEntries(plan.intervals.map(([name, every]) => [name, plain(every)]));
  }
  data.schedule = {};
  for (const field of ROOTSCALE.schedule) {
    const value = plan.schedule[field.name];
    if (field.name !== "name" && !isGiven(plan.schedule, field)) continue;
    data.schedule[field.name] = Array.isArray(value) ? value.map(plain) : plain(value);
  }
  return data;
}

function answerTo(request) {
  let made;
  try {
    made = convert(request);
  } catch (error) {
    if (!(error instanceof PlanError)) throw error;
    return { error: error.message, field: error.field };
  }
  let text;
  try {
    text = torchCode(made.plan);
  } catch (error) {
    if (!(error instanceof PlanError)) throw error;
    text = `error: ${error.message}`;
  }
  const { plan, ...rest } = made;
  return { ...rest, code: text, to: planData(plan) };
}
