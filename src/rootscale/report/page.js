"use strict";
// Draws the plots from the JSON in #data. Text is put into the page by Python; here it only reaches Plotly, escaped.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const form = document.querySelector("form.controls");
  const plots = { curve: "curve-plot", gap: "gap-plot", noise: "noise-plot" };
  const element = (name) => document.getElementById(plots[name]);
  // Arms switched off, and "warm": what comes after the switch is compared, and has the plots to itself at first.
  const hidden = new Set(["warm"]);
  const narrow = matchMedia("(max-width: 600px)");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const paper = document.documentElement.classList;
  const touch = matchMedia("(pointer: coarse)");

  // Plotly reads some tags and entities in text: users' text must have neither. Plots have no room for long names.
  const short = (text) => (text.length > 48 ? `${text.slice(0, 47)}…` : text);
  const plain = (text) => short(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const variable = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const colour = (arm) => variable(`--arm-${arm % data.colours}`);
  const dash = (arm) => data.dashes[arm % data.dashes.length];
  const chosen = () => Number(form.elements.function.value); // test functions are known by their numbers: names are users'

  function faded(hex, alpha) {
    const [r, g, b] = [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
    return `rgba(${r},${g},${b},${alpha})`;
  }

  // A band as one polygon for each stretch of times at which it is known.
  function band(x, low, high, hex) {
    const outline = { x: [], y: [] };
    let start = null;
    for (let i = 0; i <= x.length; i++) {
      const known = i < x.length && low[i] !== null && high[i] !== null;
      if (known && start === null) start = i;
      if (known || start === null) continue;
      for (let j = start; j < i; j++) { outline.x.push(x[j]); outline.y.push(high[j]); }
      for (let j = i - 1; j >= start; j--) { outline.x.push(x[j]); outline.y.push(low[j]); }
      outline.x.push(null);
      outline.y.push(null);
      start = null;
    }
    return {
      ...outline, type: "scatter", mode: "lines", fill: "toself", line: { width: 0 }, fillcolor: faded(hex, 0.17),
      hoverinfo: "skip",
    };
  }

  // Mean and band of two standard errors; on a logarithmic axis the band is cut off at `floor`.
  function curve(run, number, label, hex, style, floor) {
    const { mean, se } = run.curves[number];
    const spread = se.map((error) => (error === null ? null : 2 * error));
    const edge = (sign) => mean.map((value, i) => {
      if (value === null || spread[i] === null) return null;
      const y = value + sign * spread[i];
      return floor === null ? y : Math.max(y, floor);
    });
    return [
      band(run.x, edge(-1), edge(1), hex),
      {
        x: run.x, y: mean, customdata: spread.map((value) => (value === null ? "?" : value.toPrecision(2))), type: "scatter",
        mode: "lines", name: plain(label), line: { color: hex, dash: style, width: style === "solid" ? 3 : 2.2 },
        hovertemplate: "%{y:.4~g} ± %{customdata}",
      },
    ];
  }

  function axes(title, runs, extra) {
    const [ink, soft, grid, surface, line] = ["--ink", "--soft", "--grid", "--surface", "--line"].map(variable);
    const ends = runs.flatMap((run) => [run.x[0], run.x[run.x.length - 1]]);
    const [first, last] = [Math.min(...ends), Math.max(...ends)];
    const axis = { gridcolor: grid, linecolor: line, zeroline: false, automargin: true, tickfont: { color: soft }, exponentformat: "e" };
    const counted = data.counted ? { tickformat: narrow.matches || last >= 1e6 ? "~s" : ",d" } : {};
    return {
      font: { family: getComputedStyle(document.body).fontFamily, size: narrow.matches ? 12 : 13, color: ink },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false,
      margin: { l: narrow.matches ? 64 : 76, r: 14, t: 26, b: 12 }, // equal on the left, so that the plots are in line
      hovermode: narrow.matches ? "closest" : "x unified", dragmode: touch.matches ? false : "zoom",
      hoverlabel: { bgcolor: surface, bordercolor: line, font: { color: ink, size: 13 } },
      xaxis: { ...axis, ...counted, title: { text: data.clock, font: { color: soft } }, range: [first - (last - first) * 0.015, last + (last - first) * 0.005], nticks: narrow.matches ? 5 : 9 },
      yaxis: { ...axis, title: { text: title, font: { color: soft } }, nticks: 7, ...extra },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: soft, activecolor: ink },
      shapes: [], annotations: [],
    };
  }

  // 1, 2 and 5 times the powers of ten, written out; only the powers where there are many. Plotly's own where there are few.
  function logTicks(low, high) {
    const digits = Math.log10(high / low) > 2.5 ? [1] : [1, 2, 5];
    const ticks = [];
    const step = Math.ceil(Math.log10(high / low) / 8) || 1;
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += step) {
      ticks.push(...digits.map((digit) => Number(`${digit}e${power}`)));
    }
    if (ticks.filter((tick) => low <= tick && tick <= high).length < 2) return { type: "log" };
    const text = (value) => (value >= 1e6 || value < 1e-4 ? value.toExponential(0) : value.toLocaleString("en", { maximumFractionDigits: 6 }));
    return { type: "log", tickvals: ticks, ticktext: ticks.map(text) };
  }

  function markSwitches(layout) {
    const soft = variable("--soft");
    for (const { at, text } of data.switches) {
      layout.shapes.push({ type: "line", x0: at, x1: at, yref: "paper", y0: 0, y1: 1, line: { color: soft, width: 1.5, dash: "dot" } });
      layout.annotations.push({ x: at, yref: "paper", y: 1, yanchor: "bottom", text, showarrow: false, font: { color: soft, size: 12 } });
    }
  }

  const before = () => data.warm && !hidden.has("warm");
  const shown = () => data.arms.map((arm, i) => [arm, i]).filter(([, i]) => !hidden.has(i));
  const runs = () => (before() ? [data.warm, ...data.arms] : data.arms);

  function drawCurves(number) {
    const name = data.functions[number];
    const values = runs().flatMap((run) => run.curves[number]?.mean ?? []).filter((value) => value !== null);
    const smallest = Math.min(...values);
    const log = form.elements.scale[1];
    log.disabled = !(smallest > 0);
    log.parentElement.title = log.disabled ? "not all values are above 0" : "";
    const logarithmic = log.checked && !log.disabled;
    const floor = logarithmic ? smallest / 2 : null;
    const traces = [];
    if (before() && data.warm.curves[number]) {
      traces.push(...curve(data.warm, number, "before the switch", variable("--warm"), "solid", floor));
    }
    for (const [arm, i] of shown()) {
      if (arm.curves[number]) traces.push(...curve(arm, number, arm.label, colour(i), dash(i), floor));
    }
    const layout = axes(plain(name), runs(), logarithmic ? logTicks(smallest, Math.max(...values)) : {});
    markSwitches(layout);
    element("curve").setAttribute("aria-label", `${name} of ${data.arms.length} runs against ${data.clock}; the table below has the numbers`);
    return plot("curve", traces, layout);
  }

  function drawGaps(number) {
    const name = data.functions[number];
    const compared = shown().filter(([arm]) => arm.gaps[number]);
    const known = data.arms.some((arm) => arm.gaps[number]);
    element("gap").hidden = !known;
    document.getElementById("gap-none").hidden = known;
    if (!known) return null;
    const traces = [];
    const ends = [];
    const percent = (value) => (value === null ? "?" : `${(100 * value).toFixed(1)} %`);
    for (const [arm, i] of compared) {
      const { x, gap, low, high, inner_low, inner_high } = arm.gaps[number];
      const line = {
        x, y: gap, type: "scatter", mode: "lines", name: plain(arm.label), line: { color: colour(i), dash: dash(i), width: 2.2 },
        hovertemplate: "%{y:.1%} (not judged)",
      };
      ends.push(...gap);
      if (low) { // else it was not judged, and there is no band
        ends.push(...low, ...high);
        traces.push(band(x, low, high, colour(i)), band(x, inner_low, inner_high, colour(i)));
        line.customdata = low.map((value, j) => `${percent(value)} to ${percent(high[j])}`);
        line.hovertemplate = "%{y:.1%} (%{customdata})";
      }
      traces.push(line);
    }
    const tolerance = data.tolerances[number];
    const layout = axes("gap / range", runs(), { tickformat: ".2~%" });
    const [strip, soft] = [variable("--strip"), variable("--soft")];
    const across = { type: "line", xref: "paper", x0: 0, x1: 1, layer: "below" };
    if (tolerance !== null) {
      layout.shapes.push({ ...across, type: "rect", y0: -tolerance, y1: tolerance, fillcolor: faded(strip, 0.14), line: { width: 0 } });
      for (const y of [-tolerance, tolerance]) layout.shapes.push({ ...across, y0: y, y1: y, line: { color: strip, width: 1.2 } });
      layout.annotations.push({
        xref: "paper", x: 1, xanchor: "right", y: -tolerance, yanchor: "top", text: `${narrow.matches ? "" : "tolerance "}±${Number((100 * tolerance).toPrecision(3))} %`,
        showarrow: false, font: { color: strip, size: 12 },
      });
      ends.push(-1.5 * tolerance, 1.5 * tolerance); // the strip is seen whole, whatever the gaps are
    }
    layout.shapes.push({ ...across, y0: 0, y1: 0, line: { color: soft, width: 1 } });
    const [least, most] = [Math.min(0, ...ends), Math.max(0, ...ends)];
    if (most > least) layout.yaxis.range = [least - 0.06 * (most - least), most + 0.06 * (most - least)];
    markSwitches(layout);
    const against = tolerance === null ? "" : ", with the tolerance as a strip";
    element("gap").setAttribute("aria-label", `Gap of ${name} to ${data.arms[0].label} against ${data.clock}${against}; the table below has the numbers`);
    return plot("gap", traces, layout);
  }

  function drawNoise() {
    if (!data.noise) return null;
    const traces = [];
    // Also before the switch: how the noise grew is why it came when it did.
    const measured = [[data.noise.base, data.arms[0].label, colour(0)]];
    if (data.noise.warm) measured.unshift([data.noise.warm, "before the switch", variable("--warm")]);
    const [low, high] = data.noise.levels;
    const floor = low / 10;
    const positive = (values) => values.map((value) => (value === null ? null : Math.max(value, floor)));
    for (const [run, label, hex] of measured) {
      const range = run.low.map((value, i) => (value === null ? "?" : `${value.toPrecision(3)} to ${run.high[i].toPrecision(3)}`));
      traces.push(band(run.x, positive(run.low), positive(run.high), hex), {
        x: run.x, y: run.middle, customdata: range, type: "scatter", mode: "lines", name: plain(label), line: { color: hex, width: 3 },
        hovertemplate: "%{y:.3~s} (%{customdata})",
      });
    }
    const layout = axes("samples", measured.map(([run]) => run), { ...logTicks(low, high), range: [Math.log10(low) - 0.15, Math.log10(high) + 0.2] });
    for (const { arm, size } of data.sizes) {
      layout.shapes.push({ type: "line", xref: "paper", x0: 0, x1: 1, y0: size, y1: size, line: { color: colour(arm), width: 2, dash: dash(arm) } });
      layout.annotations.push({
        xref: "paper", x: 1, xanchor: "right", y: Math.log10(size), yanchor: "bottom", text: `B = ${size.toLocaleString("en")}`, showarrow: false,
        font: { color: colour(arm), size: 12 },
      });
    }
    markSwitches(layout);
    return plot("noise", traces, layout);
  }

  function plot(name, traces, layout) {
    // Only these buttons: others would offer to send the data away.
    const config = {
      responsive: true, displaylogo: false, displayModeBar: touch.matches ? false : "hover",
      modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
      toImageButtonOptions: { format: "svg", filename: `rootscale-${name}` },
    };
    const target = element(name);
    if (paper.contains("paper")) Object.assign(layout, { autosize: false, width: target.clientWidth, height: target.clientHeight });
    return Plotly.react(target, traces, layout, config);
  }

  // The horizontal axes of the plots zoom together.
  let following = false;
  async function follow(from, event) {
    if (following) return;
    const range = [event["xaxis.range[0]"], event["xaxis.range[1]"]];
    if (range[0] === undefined) return;
    following = true;
    const others = Object.keys(plots).filter((name) => name !== from && element(name) && element(name).data && !element(name).hidden);
    await Promise.all(others.map((name) => Plotly.relayout(element(name), { "xaxis.range": range })));
    following = false;
  }

  async function draw() {
    const number = chosen();
    for (const table of document.querySelectorAll("#numbers [data-function]")) {
      table.hidden = Number(table.dataset.function) !== number;
    }
    await Promise.all([drawCurves(number), drawGaps(number), drawNoise()]);
    for (const key of Object.keys(plots)) {
      const target = element(key);
      if (!target || !target.on || target.dataset.follows) continue;
      target.dataset.follows = "yes";
      target.on("plotly_relayout", (event) => follow(key, event));
    }
    document.body.dataset.drawn = Number(document.body.dataset.drawn || 0) + 1; // how often; for tests
  }

  form.addEventListener("change", draw);
  for (const button of document.querySelectorAll(".legend button")) {
    button.addEventListener("click", () => {
      const arm = button.dataset.arm === "warm" ? "warm" : Number(button.dataset.arm);
      if (!hidden.delete(arm)) hidden.add(arm);
      button.setAttribute("aria-pressed", String(!hidden.has(arm)));
      draw();
    });
  }
  // The meaning of a term, from the list at the end of the page, below it and within the window.
  const tip = document.getElementById("tip");
  function explain(term) {
    tip.textContent = document.getElementById(term.getAttribute("aria-describedby")).textContent;
    tip.hidden = false;
    const at = term.getBoundingClientRect();
    const below = at.bottom + 6 + tip.offsetHeight <= innerHeight;
    tip.style.top = `${below ? at.bottom + 6 : at.top - 6 - tip.offsetHeight}px`;
    tip.style.left = `${Math.max(8, Math.min(at.left, document.documentElement.clientWidth - 8 - tip.offsetWidth))}px`;
  }
  for (const term of document.querySelectorAll(".term")) {
    for (const event of ["pointerenter", "focus"]) term.addEventListener(event, () => explain(term));
    for (const event of ["pointerleave", "blur"]) term.addEventListener(event, () => { tip.hidden = true; });
  }
  addEventListener("scroll", () => { // which also the keyboard does that comes to a term
    const term = document.activeElement.closest(".term");
    if (term) explain(term);
    else tip.hidden = true;
  }, { passive: true });
  // On paper it is day, the plans are open, and the plots as wide as the paper: at once, as the browser does not wait.
  const closed = [];
  addEventListener("beforeprint", () => {
    paper.add("paper");
    for (const details of document.querySelectorAll(".plans details:not([open])")) { closed.push(details); details.open = true; }
    draw();
  });
  addEventListener("afterprint", () => {
    paper.remove("paper");
    for (const details of closed.splice(0)) details.open = false;
    // Plotly keeps a width that it was given until it is told to look again.
    draw().then(() => Object.keys(plots).map(element).filter((target) => target?.data && !target.hidden).forEach((target) => Plotly.Plots.resize(target)));
  });
  dark.addEventListener("change", draw);
  narrow.addEventListener("change", draw);
  draw();
})();
