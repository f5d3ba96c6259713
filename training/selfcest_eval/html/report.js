// The page of `selfcest report`: a verdict, then its numbers. Texts become text nodes only.

const report = read("report");
const live = read("live"); // of a served page, which follows its run
const MARKS = 6;
const tip = document.getElementById("tip");

// Numbers. An estimate is [mean, low, high]; the ends are null without an interval.

const formatInterval = (value) => (value == null || value[1] == null ? "" : `[${measure(value[1])}, ${measure(value[2])}]`);
const formatEstimate = (value) => (value == null ? "–" : `${measure(value[0])} ${formatInterval(value)}`.trim());
const formatShare = (value) => `${(100 * value).toFixed(value > 0 && value < 0.01 ? 1 : 0)} %`;
const formatTick = (value) => (value && Math.abs(value) < 1e-3 ? value.toExponential(0).replace("-", "−").replace("e-", "e−") : measure(value));
const estimateParts = (value) =>
  value == null ? ["–"] : [measure(value[0]), formatInterval(value) && make("span", { class: "interval" }, formatInterval(value))];
const shareParts = (value) =>
  value == null ? ["–"] : [value[0].toFixed(2), value[1] == null ? null : make("span", { class: "interval" }, `[${value[1].toFixed(2)}, ${value[2].toFixed(2)}]`)];
const formatFixed = (value, digits = 3) => (value == null ? "–" : (Number(value.toFixed(digits)) || 0).toFixed(digits).replace("-", "−"));

// Colour and mark of each strategy on the page. A variant before RL has those of the trained one, dashed and hollow.

function assignLooks(source) {
  const names = [...new Set([...source.final, ...source.rows.map((row) => row.strategy)])];
  const earlier = new Map(Object.entries(source.before).map(([after, before]) => [before, after]));
  const known = new Map();
  for (const name of names) {
    if (earlier.has(name)) continue;
    const i = known.size;
    known.set(name, { colour: (i % 6) + 1, mark: (i + Math.floor(i / 6)) % MARKS, early: false });
  }
  for (const [before, after] of earlier) known.set(before, { ...(known.get(after) ?? { colour: 1, mark: 0 }), early: true });
  return known;
}

function mark(kind, x, y, hollow, size = 4.5) {
  const shapes = [
    () => draw("circle", { cx: x, cy: y, r: size }),
    () => draw("rect", { x: x - size, y: y - size, width: 2 * size, height: 2 * size }),
    () => draw("path", { d: `M${x} ${y - size * 1.2}L${x + size * 1.2} ${y + size}H${x - size * 1.2}Z` }),
    () => draw("path", { d: `M${x} ${y - size * 1.4}L${x + size * 1.4} ${y}L${x} ${y + size * 1.4}L${x - size * 1.4} ${y}Z` }),
    () => draw("path", { d: `M${x} ${y + size * 1.2}L${x + size * 1.2} ${y - size}H${x - size * 1.2}Z` }),
    () => draw("path", { d: `M${x - size} ${y - size * 0.4}H${x - size * 0.4}V${y - size}H${x + size * 0.4}V${y - size * 0.4}H${x + size}V${y + size * 0.4}H${x + size * 0.4}V${y + size}H${x - size * 0.4}V${y + size * 0.4}H${x - size}Z` }),
  ];
  const shape = shapes[kind % MARKS]();
  shape.setAttribute("class", hollow ? "mark hollow" : "mark");
  return shape;
}

function legend(names, look, hidden, redraw) {
  return make(
    "div",
    { class: "legend", role: "group", "aria-label": "Shown in the figure" },
    names.map((name) => {
      const { colour, mark: kind, early } = look.get(name);
      const button = make(
        "button",
        {
          type: "button",
          "aria-pressed": String(!hidden.has(name)),
          on: {
            click: () => {
              if (!hidden.delete(name)) hidden.add(name);
              button.setAttribute("aria-pressed", String(!hidden.has(name)));
              redraw();
            },
          },
        },
        draw(
          "svg",
          { class: `s${colour}`, viewBox: "0 0 26 12", "aria-hidden": "true" },
          draw("line", { x1: 0, x2: 26, y1: 6, y2: 6, stroke: "currentColor", "stroke-width": 2, class: early ? "dashed" : null }),
          mark(kind, 13, 6, early),
        ),
        name,
      );
      return button;
    }),
  );
}

/** A legend without buttons, for figures that show every strategy. */
function staticLegend(names, look) {
  const pressed = legend(names, look, new Set(), () => {});
  pressed.replaceChildren(...[...pressed.children].map((button) => make("span", { class: "key" }, ...button.childNodes)));
  pressed.setAttribute("aria-label", "Marks of the figures");
  return pressed;
}

// Charts

function ticks(low, high, wanted = 5) {
  const rough = (high - low) / wanted || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * ([1, 2, 5, 10].find((factor) => power * factor >= rough * 0.999) ?? 10);
  const places = [];
  for (let at = Math.ceil(low / step - 1e-9) * step; at <= high + step * 1e-6; at += step) places.push(Math.abs(at) < step * 1e-6 ? 0 : at);
  return places;
}

/** The range of the values with some room. Ends of intervals widen it by at most half of its width on each side. */
function paddedRange(values, ends = [], atLeast = 0) {
  const numbers = (all) => all.filter((value) => value != null && Number.isFinite(value));
  const finite = numbers(values);
  if (!finite.length) return [0, 1];
  let [low, high] = [Math.min(...finite), Math.max(...finite)];
  if (low === 0 && high === 0) return [0, 1];
  if (high - low <= atLeast) [low, high] = [low - (Math.abs(low) * 0.1 || 0.5), high + (Math.abs(high) * 0.1 || 0.5)];
  const [low0, high0, room] = [low, high, (high - low) * 0.5];
  for (const end of numbers(ends)) [low, high] = [Math.min(low, Math.max(end, low0 - room)), Math.max(high, Math.min(end, high0 + room))];
  const pad = (high - low) * 0.06;
  return [low >= 0 && low - pad < 0 ? 0 : low - pad, high + pad];
}

/**
 * A chart. `lines` are {name, look, points: [{x, y, low, high, xlow, xhigh, tip}], thin: [[[x, y]...]...], band, marks}.
 * `xs` are names of categories, if x is a position among them. Points with marks take the focus and show their tip.
 */
function chart({ lines, label, x, y, xs = null, width = 640, height = 380, small = false }) {
  // In a narrow window the drawing is narrow as well; scaling it down would make its letters too small.
  width = Math.min(width, Math.max(320, document.documentElement.clientWidth - 80));
  const few = small || width < 480;
  const left = small ? 44 : 54;
  const [right, top, bottom] = [12, 8, x ? (small ? 34 : 46) : 22];
  const points = lines.flatMap((line) => line.points);
  const thin = lines.flatMap((line) => line.thin ?? []).flat();
  const [x0, x1] = xs ? [-0.35, xs.length - 0.65] : paddedRange([...points.map((p) => p.x), ...thin.map((p) => p[0])], points.flatMap((p) => [p.xlow, p.xhigh]));
  const [y0, y1] = y?.range ?? paddedRange([...points.map((p) => p.y), ...thin.map((p) => p[1])], points.flatMap((p) => [p.low, p.high]));
  const px = (value) => left + ((Math.min(Math.max(value, x0), x1) - x0) / (x1 - x0)) * (width - left - right);
  const py = (value) => height - bottom - ((Math.min(Math.max(value, y0), y1) - y0) / (y1 - y0)) * (height - bottom - top);
  const path = (places) => places.map(([a, b], i) => `${i ? "L" : "M"}${px(a).toFixed(1)} ${py(b).toFixed(1)}`).join("");
  const svg = draw("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": label });
  for (const at of ticks(y0, y1, small ? 3 : 5)) {
    svg.append(
      draw("line", { class: "grid", x1: left, x2: width - right, y1: py(at), y2: py(at) }),
      draw("text", { x: left - 7, y: py(at) + 4, "text-anchor": "end" }, formatTick(at)),
    );
  }
  const across = xs ? xs.map((name, i) => [i, name]) : ticks(x0, x1, few ? 4 : 6).map((at) => [at, count(Number(at.toPrecision(6)))]);
  for (const [at, name] of across) {
    svg.append(draw("text", { x: px(at), y: height - bottom + 16, "text-anchor": "middle" }, name));
  }
  svg.append(draw("line", { class: "base", x1: left, x2: width - right, y1: height - bottom, y2: height - bottom }));
  if (x) svg.append(draw("text", { class: "axis-name", x: (left + width - right) / 2, y: height - 4, "text-anchor": "middle" }, x));
  if (y?.name) svg.append(draw("text", { class: "axis-name", x: 12, y: (height - bottom + top) / 2, "text-anchor": "middle", transform: `rotate(-90 12 ${(height - bottom + top) / 2})` }, y.name));
  for (const line of lines) {
    const { colour, mark: kind, early } = line.look;
    const group = draw("g", { class: `s${colour}` });
    const banded = line.band ? line.points.filter((p) => p.low != null) : [];
    if (banded.length > 1) {
      const edge = [...banded.map((p) => [p.x, p.high]), ...[...banded].reverse().map((p) => [p.x, p.low])];
      group.append(draw("path", { class: "band", d: `${path(edge)}Z` }));
    }
    for (const one of line.thin ?? []) group.append(draw("path", { class: "thin", d: path(one) }));
    group.append(draw("path", { class: early ? "curve dashed" : "curve", d: path(line.points.map((p) => [p.x, p.y])) }));
    if (line.marks) {
      for (const p of line.points) {
        // A point leads to one of its episodes.
        const attributes = p.href ? { href: p.href } : { tabindex: 0, role: "img" };
        const spot = draw(p.href ? "a" : "g", { class: "point", "aria-label": p.tip, ...attributes });
        if (p.low != null) spot.append(draw("line", { class: "whisker", x1: px(p.x), x2: px(p.x), y1: py(p.low), y2: py(p.high) }));
        if (p.xlow != null) spot.append(draw("line", { class: "whisker", x1: px(p.xlow), x2: px(p.xhigh), y1: py(p.y), y2: py(p.y) }));
        spot.append(mark(kind, px(p.x), py(p.y), early), draw("circle", { class: "hit", cx: px(p.x), cy: py(p.y), r: 12 }));
        attachTip(spot, p.tip);
        group.append(spot);
      }
    }
    svg.append(group);
  }
  return { svg, px, width, left, right, top, height, bottom };
}

function attachTip(element, text) {
  const show = () => {
    const box = element.getBoundingClientRect();
    showTip(text, box.left + box.width / 2, box.top);
  };
  for (const event of ["pointerenter", "focus"]) element.addEventListener(event, show);
  for (const event of ["pointerleave", "blur"]) element.addEventListener(event, hideTip);
}

function showTip(text, x, y) {
  tip.textContent = text;
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(8, Math.min(x - box.width / 2, innerWidth - box.width - 8))}px`;
  tip.style.top = `${y - box.height - 10 < 8 ? y + 18 : y - box.height - 10}px`;
}

const hideTip = () => {
  tip.hidden = true;
};
addEventListener("keydown", (event) => event.key === "Escape" && hideTip());
addEventListener("scroll", hideTip, { passive: true });

/** Add a line to a chart that follows the pointer and shows every value at its position. */
function withCursor(drawn, lines, unit) {
  const { svg, px, width, left, right, top, height, bottom } = drawn;
  const cross = draw("line", { class: "cross", y1: top, y2: height - bottom, visibility: "hidden" });
  svg.append(cross);
  const xs = [...new Set(lines.flatMap((line) => line.points.map((p) => p.x)))].sort((a, b) => a - b);
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const at = ((event.clientX - box.left) / box.width) * width;
    if (!xs.length || at < left - 6 || at > width - right + 6) return;
    const near = xs.reduce((best, value) => (Math.abs(px(value) - at) < Math.abs(px(best) - at) ? value : best));
    cross.setAttribute("x1", px(near));
    cross.setAttribute("x2", px(near));
    cross.setAttribute("visibility", "visible");
    const values = lines.flatMap((line) => line.points.filter((p) => p.x === near).map((p) => `${line.name}: ${formatEstimate([p.y, p.low, p.high])}`));
    showTip([`${unit} ${measure(near)}`, ...values].join("\n"), event.clientX, box.top);
  });
  svg.addEventListener("pointerleave", () => {
    cross.setAttribute("visibility", "hidden");
    hideTip();
  });
  return svg;
}

// Pieces

function table(caption, heads, rows) {
  const cell = ({ text, ...attributes }) => make("td", attributes, text);
  return make(
    "div",
    { class: "wide", tabindex: 0, role: "region", "aria-label": caption },
    makeTable({ caption, heads, rows: rows.map((row) => make("tr", {}, row.map(cell))) }),
  );
}

const name = (text) => ({ class: "name", text });

function picker(label, options, chosen, change) {
  return make(
    "label",
    {},
    label,
    make(
      "select",
      { on: { change: (event) => change(event.target.value) } },
      options.map(([value, text]) => make("option", { value, selected: value === chosen }, text)),
    ),
  );
}

const block = (id, title, ...children) => make("section", { class: "card block", id }, make("h3", {}, title), ...children);
const fold = (summary, ...children) => make("details", {}, make("summary", {}, summary), ...children);

const SECTIONS = {
  verdict: "Verdict",
  failures: "What failed",
  results: "Results",
  frontier: "Accuracy against cost",
  decisions: "When it delegates",
  learning: "Learning curves",
  pathologies: "Pathologies",
  cost: "Cost and origin",
};

/** The accuracy of a row, which leads to one of its episodes: a wrong one if there is any. */
const linkedShare = (row) =>
  row.href ? make("a", { href: row.href, title: "an episode, a wrong one if there is any" }, shareParts(row.accuracy)) : shareParts(row.accuracy);

// Sections

function verdict(source, id) {
  const link = (section) => make("a", { href: `#${id(section)}` }, SECTIONS[section].toLowerCase());
  const sizes = { failures: source.failures.length, results: source.rows.length, frontier: source.rows.length, decisions: source.delegation.length, learning: source.learning.series.length + source.warmstart.series.length, pathologies: source.pathologies.length };
  const see = (sections) => sections.filter((section) => sizes[section]).flatMap((section, i) => [i ? ", " : "", link(section)]);
  return block(
    id("verdict"),
    SECTIONS.verdict,
    source.headline && make("p", { class: "headline" }, source.headline),
    make(
      "dl",
      { class: "verdict" },
      source.findings.map((one) =>
        make("div", {}, make("dt", {}, one.question), make("dd", {}, one.text, " ", make("span", { class: "see" }, "see ", ...see(one.see)))),
      ),
    ),
  );
}

function warnings(source, id) {
  if (!source.failures.length) return null;
  return make(
    "section",
    { class: "notice", id: id("failures") },
    make("strong", {}, "Read this before any comparison:"),
    make("ul", {}, source.failures.map((line) => make("li", {}, line))),
  );
}

function results(source, id) {
  if (!source.rows.length) return null;
  const largest = new Map();
  for (const row of source.rows) largest.set(row.family, Math.max(largest.get(row.family) ?? 0, row.budget ?? Infinity));
  const shown = source.rows.filter((row) => row.pooled && (row.budget ?? Infinity) === largest.get(row.family));
  const families = [...new Set(shown.map((row) => row.family))];
  const wanted = source.costs.filter((cost) => ["total_tokens", "critical_path_tokens", "peak_context", "kv_token_steps", "clones", "money"].includes(cost.name));
  const ordered = families.flatMap((family) =>
    shown.filter((row) => row.family === family && row.final).sort((a, b) => b.accuracy[0] - a.accuracy[0] || cost(a) - cost(b)),
  );
  function cost(row) {
    return row.costs.total_tokens?.[0] ?? Infinity;
  }
  const heads = [name("family"), name("strategy"), number("accuracy"), ...wanted.map((one) => number(one.title)), number("instances"), number("seeds")];
  const line = (row) => [
    name(row.family),
    name([row.strategy, row.baseline ? make("span", { class: "tag" }, "no clones") : null]),
    number(linkedShare(row)),
    ...wanted.map((one) => number(estimateParts(row.costs[one.name]))),
    number(count(row.instances)),
    number(count(row.seeds)),
  ];
  const cells = source.rows.filter((row) => !row.pooled);
  return block(
    id("results"),
    SECTIONS.results,
    make("p", { class: "muted small lead" }, `${source.intervals}`),
    table("All sizes of a family together, best first; costs are means per instance", heads, ordered.map(line)),
    fold(
      `Every cell and budget (${many(cells.length, "row")})`,
      table(
        "Every cell, budget and strategy",
        [name("family"), name("size"), name("budget"), ...heads.slice(1)],
        cells.map((row) => [name(row.family), name([row.size, row.out ? make("span", { class: "tag" }, "out of distribution") : null]), name(row.limit), ...line(row).slice(1)]),
      ),
    ),
  );
}

function frontier(source, id, look) {
  const rows = source.rows;
  if (!rows.length) return null;
  const families = [...new Set(rows.map((row) => row.family))];
  const chosen = { family: families[0], size: "", cost: source.first_cost };
  const plain = new Set([...source.final, ...Object.values(source.before)]);
  const hidden = new Set(rows.map((row) => row.strategy).filter((one) => !plain.has(one))); // forced choices are shown on demand
  const place = make("div", { class: "beside" });
  const sizePlace = make("span", {});
  const legendPlace = make("div", {});
  const swept = () => new Set(rows.filter((row) => row.family === chosen.family).map((row) => row.budget)).size > 1;

  function sizes() {
    const here = [...new Set(rows.filter((row) => row.family === chosen.family && !row.pooled).map((row) => row.size))];
    sizePlace.replaceChildren();
    chosen.size = "";
    if (swept()) sizePlace.append(picker("Size", [["", "all sizes together"], ...here.map((size) => [size, size])], "", (value) => { chosen.size = value; show(); }));
  }

  function show() {
    const cost = source.costs.find((one) => one.name === chosen.cost);
    const bySize = !swept();
    const here = rows.filter(
      (row) =>
        row.family === chosen.family &&
        (bySize ? !row.pooled : chosen.size ? !row.pooled && row.size === chosen.size : row.pooled) &&
        row.costs[chosen.cost],
    );
    const names = [...new Set(here.map((row) => row.strategy))];
    const lines = names
      .filter((one) => !hidden.has(one))
      .map((one) => ({
        name: one,
        look: look.get(one),
        marks: true,
        points: here
          .filter((row) => row.strategy === one)
          .map((row) => {
            const [x, xlow, xhigh] = row.costs[chosen.cost];
            const [y, low, high] = row.accuracy;
            const where = `${one}, ${row.size}${row.out ? " (out of distribution)" : ""}, ${row.limit}`;
            return { x, xlow, xhigh, y, low, high, href: row.href, tip: `${where}\naccuracy ${formatEstimate(row.accuracy)}\n${cost.title} ${formatEstimate(row.costs[chosen.cost])}` };
          })
          .sort((a, b) => (bySize ? 0 : a.x - b.x)),
      }));
    const drawn = chart({
      lines,
      label: `Accuracy against ${cost.title} on ${chosen.family}. The table beside it has every number.`,
      x: `${cost.title}, mean per instance`,
      y: { name: "accuracy", range: [0, 1.04] },
    });
    if (legendPlace.dataset.names !== names.join("\n")) {
      legendPlace.dataset.names = names.join("\n"); // unchanged buttons stay, so that a pressed one keeps the focus
      legendPlace.replaceChildren(legend(names, look, hidden, show));
    }
    place.replaceChildren(
      make("div", {}, drawn.svg),
      table(
        bySize ? `${chosen.family}: a point a size` : `${chosen.family}: a point a budget`,
        [name("strategy"), name(bySize ? "size" : "budget"), number("accuracy"), number(cost.title)],
        here
          .filter((row) => !hidden.has(row.strategy))
          .map((row) => [name(row.strategy), name(bySize ? row.size : row.limit), number(linkedShare(row)), number(estimateParts(row.costs[chosen.cost]))]),
      ),
    );
  }
  const controls = make(
    "div",
    { class: "controls" },
    families.length > 1
      ? picker("Family", families.map((one) => [one, one]), chosen.family, (value) => { chosen.family = value; sizes(); show(); })
      : null,
    sizePlace,
    picker("Cost", source.costs.map((cost) => [cost.name, cost.title]), chosen.cost, (value) => { chosen.cost = value; show(); }),
  );
  sizes();
  show();
  return block(
    id("frontier"),
    SECTIONS.frontier,
    make("p", { class: "muted small lead" }, "Better is up and to the left. Whiskers are intervals. Point at a mark, or reach it with the tab key, to read its numbers; it leads to an episode. Dashed lines and hollow marks: before RL."),
    controls,
    legendPlace,
    place,
  );
}

function decisions(source, id, look) {
  if (!source.delegation.length) return null;
  const families = [...new Set(source.delegation.map((row) => row.family))];
  const parts = families.flatMap((family) => {
    const here = source.delegation.filter((row) => row.family === family);
    // Budgets rise, so these are links of the largest one.
    const hrefs = new Map(source.rows.filter((row) => row.family === family && !row.pooled).map((row) => [`${row.size}\n${row.strategy}`, row.href]));
    const sizes = [...new Set(here.map((row) => row.size))];
    const names = [...new Set(here.map((row) => row.strategy))];
    const lines = (key, what) =>
      names.map((one) => ({
        name: one,
        look: look.get(one),
        marks: true,
        points: here
          .filter((row) => row.strategy === one && row[key])
          .map((row) => ({
            x: sizes.indexOf(row.size),
            y: row[key][0],
            low: row[key][1],
            high: row[key][2],
            href: hrefs.get(`${row.size}\n${one}`),
            tip: `${one}, ${family} ${row.size}\n${what} ${formatEstimate(row[key])}`,
          })),
      }));
    const view = (key, what, span) => {
      const drawn = chart({ lines: lines(key, what), label: `${what} by size on ${family}; numbers are in the table below`, xs: sizes, x: "size of the task", y: { name: what, range: span }, width: 520, height: 290 });
      return make("div", {}, drawn.svg);
    };
    const highest = Math.max(...here.map((row) => row.clones?.[2] ?? row.clones?.[0] ?? 0));
    return [
      families.length > 1 ? make("h4", {}, family) : null,
      staticLegend(names, look),
      make("div", { class: "halves" }, view("share", "share delegated", [0, 1.04]), view("clones", "clones", [0, highest * 1.08 || 1])),
      fold(
        "Numbers by size",
        table(
          `${family}: share delegated and clones, by size`,
          [name("size"), ...names.flatMap((one) => [number(`share, ${one}`), number(`clones, ${one}`)])],
          sizes.map((size) => [name(size), ...names.flatMap((one) => {
            const row = here.find((other) => other.size === size && other.strategy === one);
            return [number(shareParts(row?.share)), number(estimateParts(row?.clones))];
          })]),
        ),
      ),
    ];
  });
  const judged = source.decisions.flatMap((one) =>
    one.seeds.map((seed) => [
      name(one.family),
      name(one.strategy),
      number(count(seed.seed)),
      number(formatFixed(seed.reward)),
      number(formatFixed(seed.always)),
      number(formatFixed(seed.never)),
      number(seed.threshold == null ? "never" : measure(seed.threshold)),
      number(formatFixed(seed.regret)),
      number(formatFixed(seed.precision, 2)),
      number(formatFixed(seed.recall, 2)),
      number(formatFixed(seed.f1, 2)),
    ]),
  );
  return block(
    id("decisions"),
    SECTIONS.decisions,
    ...parts,
    judged.length ? make("p", { class: "muted small lead" }, source.decisions_meaning) : null,
    judged.length
      ? table(
          "Rewards of its own choices, and of both choices forced on the same weights",
          [name("family"), name("policy"), number("seed"), ...["reward", "always", "never", "best threshold", "regret", "precision", "recall", "F1"].map(number)],
          judged,
        )
      : make("p", { class: "muted small lead" }, "Regret, best threshold and F1 need tasks whose size is a number, and both choices forced on the same weights: forced: true for a variant of a run, always_delegates and never_delegates in a study."),
  );
}

function learning(source, id, look) {
  if (!source.learning.series.length && !source.warmstart.series.length) return null;
  const lookOf = (variant) => look.get(source.variants[variant]) ?? { colour: 1, mark: 0, early: false };
  const variantLook = new Map(Object.keys(source.variants).map((variant) => [variant, { ...lookOf(variant), early: false }]));
  let axis = "step";
  const place = make("div", { class: "source" });
  const hidden = new Set();

  function panel(data, { metric, title }) {
    const lines = data.series
      .filter((one) => one.metric === metric && !hidden.has(one.variant))
      .map((one) => {
        const at = (bin) => (axis === "step" ? bin[0] : bin[1]);
        return {
          name: one.variant,
          look: variantLook.get(one.variant),
          band: true,
          marks: false,
          points: one.bins.filter((bin) => bin[2]).map((bin) => ({ x: at(bin), y: bin[2][0], low: bin[2][1], high: bin[2][2] })),
          thin: one.seeds.length > 1 ? one.seeds.map((_, i) => one.bins.filter((bin) => bin[3][i] != null).map((bin) => [at(bin), bin[3][i]])) : [],
        };
      });
    const ends = lines.filter((line) => line.points.length).map((line) => `${line.name} from ${measure(line.points[0].y)} to ${measure(line.points.at(-1).y)}`);
    const drawn = chart({ lines, label: `${title}: ${ends.join("; ")}`, width: 320, height: 190, small: true });
    return make("div", { class: "panel" }, make("p", {}, title), withCursor(drawn, lines, axis === "step" ? "step" : "sampled tokens"));
  }

  /** The value of a metric that is the same in every bin, variant and seed, else null. It is written and not drawn. */
  function constant(data, { metric }) {
    const values = new Set(data.series.filter((one) => one.metric === metric).flatMap((one) => one.bins.flatMap((bin) => bin[3])));
    return values.size === 1 ? [...values][0] : null;
  }

  function numbers(data, panels) {
    const rows = panels.flatMap(({ metric, title }) =>
      data.series
        .filter((one) => one.metric === metric)
        .map((one) => [name(title), name(one.variant), number(estimateParts(one.bins[0][2])), number(estimateParts(one.bins.at(-1)[2])), number(count(one.seeds.length))]),
    );
    return fold("Numbers: first and last bin", table("First and last bin of every curve, mean over seeds", [name("metric"), name("variant"), number("first"), number("last"), number("seeds")], rows));
  }

  function show() {
    const group = (data, one) => {
      const still = one.panels.filter((panels) => constant(data, panels) != null);
      const moving = one.panels.filter((panels) => !still.includes(panels));
      return [
        make("h4", {}, one.name),
        moving.length ? make("div", { class: "panels" }, moving.map((panels) => panel(data, panels))) : null,
        still.length
          ? make("p", { class: "muted small" }, `Constant: ${still.map((panels) => `${panels.title} ${measure(constant(data, panels))}`).join("; ")}.`)
          : null,
        moving.length ? numbers(data, moving) : null,
      ];
    };
    const rl = source.learning.groups.flatMap((one) =>
      one.name === "Everything else" ? [fold(`Everything else (${many(one.panels.length, "curve")})`, ...group(source.learning, one))] : group(source.learning, one),
    );
    const warm = source.warmstart.groups.flatMap((one) => group(source.warmstart, { ...one, name: one.name === "Everything else" ? "Probes" : "Loss" }));
    place.replaceChildren(...rl.filter(Boolean), ...(warm.length ? [fold("The warm start", ...warm)] : []));
  }
  show();
  const episodes = Object.entries(source.training_episodes).map(([variant, steps]) =>
    make("p", { class: "small" }, `Episodes of ${variant} at step `, steps.flatMap(([step, href], i) => [i ? ", " : "", make("a", { href }, count(step))])),
  );
  const variants = [...new Set([...source.learning.variants, ...source.warmstart.variants])];
  return block(
    id("learning"),
    SECTIONS.learning,
    make("p", { class: "muted small lead" }, "Training episodes, at the temperature of training. A line is the mean over seeds, a band its interval, and a thin line a single seed."),
    make(
      "div",
      { class: "controls" },
      picker("Across", [["step", "steps"], ["sampled", "sampled tokens"]], axis, (value) => { axis = value; show(); }),
      legend(variants, variantLook, hidden, show),
    ),
    place,
    ...episodes,
  );
}

function pathologies(source, id) {
  if (!source.pathologies.length) return null;
  const bar = (value) =>
    draw("svg", { class: "share", viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" }, draw("rect", { width: 100 * value, height: 10 }));
  const meanings = new Map(source.pathologies.map((one) => [one.name, one.meaning]));
  return block(
    id("pathologies"),
    SECTIONS.pathologies,
    make("p", { class: "muted small lead" }, "Counted in the evaluated episodes of every policy, and in the stored training groups. The worst episode links to its tree."),
    table(
      "Episodes or groups with each pathology, of those that could have it",
      [name("pathology"), name("of"), number("found"), number("of"), name("share"), name("worst episode")],
      source.pathologies.map((one) => [
        { class: "name", text: one.name, title: one.meaning },
        name(one.owner),
        number(count(one.found)),
        number(count(one.possible)),
        name([bar(one.found / one.possible), " ", formatShare(one.found / one.possible)]),
        name(one.worst ? [one.worst.href ? make("a", { href: one.worst.href }, one.worst.episode) : make("code", {}, one.worst.episode), make("span", { class: "interval" }, one.worst.place)] : "–"),
      ]),
    ),
    fold("Definitions", make("dl", { class: "verdict" }, [...meanings].map(([what, meaning]) => make("div", {}, make("dt", {}, what), make("dd", {}, meaning))))),
  );
}

function costAndOrigin(source, id) {
  const total = source.jobs.reduce((sum, job) => sum + job.cpu_seconds, 0);
  const hours = (seconds) => (seconds >= 3600 ? `${measure(seconds / 3600)} h` : seconds >= 60 ? `${measure(seconds / 60)} min` : `${measure(seconds)} s`);
  const last = source.sessions.at(-1);
  const gpu = source.gpu_seconds == null ? "not known" : source.gpu_seconds ? hours(source.gpu_seconds) : "none";
  const sentences = [source.jobs.length ? `Training took ${hours(total)} of CPU time` : null, `GPU time held: ${gpu}`].filter(Boolean);
  return block(
    id("cost"),
    SECTIONS.cost,
    make("p", { class: "small" }, `${sentences.join(". ")}.`),
    source.jobs.length
      ? table(
          "Compute of every job: sampled + scored for credit + 3 × trained tokens",
          [name("variant"), ...["seed", "RL steps", "sampled", "scored", "trained", "compute tokens", "CPU time"].map(number)],
          source.jobs.map((job) => [name(job.variant), ...[job.seed, job.steps, job.sampled, job.scored, job.trained, job.compute].map((value) => number(count(value))), number(hours(job.cpu_seconds))]),
        )
      : null,
    last
      ? table(
          "Commands that wrote it",
          [name("started"), { class: "long", text: "command" }, number("took"), name("versions"), name("machine")],
          source.sessions.map((one) => [
            name(one.started),
            { class: "long", text: make("code", {}, one.command) },
            number(one.seconds == null ? "not ended" : hours(one.seconds)),
            { class: "long", text: Object.entries(one.versions).map(([what, value]) => `${what} ${value}`).join(", ") },
            { class: "long", text: `${one.system}, ${many(one.cores, "core")}${one.gpus.length ? `, ${one.gpus.join(", ")}` : ", no GPU"}` },
          ]),
        )
      : make("p", { class: "muted small" }, "Written by a version of selfcest that stored neither its commands nor the versions of packages."),
    fold("Configuration, defaults written out", make("pre", { class: "text", tabindex: 0 }, source.config)),
    source.files.length
      ? fold(`Files beside this page (${count(source.files.length)})`, make("ul", {}, source.files.map((file) => make("li", {}, make("a", { href: file.split("/").map(encodeURIComponent).join("/") }, file)))))
      : null,
  );
}

// The page

const main = document.getElementById("main");
if (live) main.append(progress());
for (const [index, source] of report.sources.entries()) {
  const id = (section) => (report.sources.length > 1 ? `${section}-${index + 1}` : section);
  const look = assignLooks(source);
  const sections = [warnings(source, id), verdict(source, id), results(source, id), frontier(source, id, look), decisions(source, id, look), learning(source, id, look), pathologies(source, id), costAndOrigin(source, id)].filter(Boolean);
  const known = new Set(sections.map((section) => section.id));
  const links = Object.entries(SECTIONS).filter(([section]) => known.has(id(section)));
  const contents = make("nav", { class: "contents", "aria-label": `Sections of ${source.name}` }, report.sources.length > 1 ? make("strong", {}, source.name) : null, links.map(([section, title]) => make("a", { href: `#${id(section)}` }, title)));
  main.append(
    make(
      "div",
      { class: "source" },
      contents,
      make("h2", {}, source.name, make("span", { class: "tag" }, source.kind)),
      ...sections,
    ),
  );
}
if (report.sources.length) main.append(make("p", { class: "muted small" }, `Written ${report.made}.`));
// The browser looked for the section of the address before this script built it.
if (location.hash) document.getElementById(decoded(location.hash.slice(1)))?.scrollIntoView();

// A page that follows a run reloads itself, and the choices of its reader must survive that.
if (live) {
  const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  const all = (block, selector) => [...block.querySelectorAll(selector)];
  const pressed = (button) => button.getAttribute("aria-pressed") === "true";
  addEventListener("pagehide", () => {
    const blocks = all(main, ".block").map((block) => [
      block.id,
      {
        picked: all(block, "select").map((one) => one.value),
        shown: all(block, "[aria-pressed]").filter(pressed).map((one) => one.textContent),
        open: all(block, "details").map((one) => one.open),
      },
    ]);
    const { scheme = system } = document.documentElement.dataset;
    sessionStorage.setItem("chosen", JSON.stringify({ scheme, blocks, top: scrollY }));
  });
  const { scheme = system, blocks = [], top = 0 } = JSON.parse(sessionStorage.getItem("chosen")) ?? {};
  if (scheme !== system) document.getElementById("scheme").click();
  for (const [id, { picked, shown, open }] of blocks) {
    const block = document.getElementById(id);
    if (!block) continue;
    for (const [i, value] of picked.entries()) {
      const select = all(block, "select")[i]; // choosing in one select may add the next
      if (!select || !all(select, "option").some((option) => option.value === value)) continue;
      select.value = value;
      select.dispatchEvent(new Event("change"));
    }
    for (const button of all(block, "[aria-pressed]")) if (pressed(button) !== shown.includes(button.textContent)) button.click();
    for (const [i, fold] of all(block, "details").entries()) fold.open = open[i] ?? false;
  }
  scrollTo({ top, behavior: "instant" });
}
