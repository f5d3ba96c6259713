// The tree: parents above their clones, and leaves share the width, as in the pictures of the environment.
// A large tree begins with its lower levels folded. Only what is in view is drawn.

// Where many clones stand side by side, boxes are narrower, and only the label has the credit.
const NODE = { height: 50, down: 34 };
const WIDTHS = { wide: { width: 104, across: 12 }, narrow: { width: 58, across: 6 } };
const LARGE = 100; // agents; a larger tree begins folded, and can be zoomed
const LETTERS = 0.45; // zoom below which no letters are drawn
const BORDERED = 6; // width in pixels below which boxes have no border, which would hide their colour
const ZOOM = { least: 0.0001, most: 2, step: 1.5 };
const EDGE = 4; // space around the tree
const MOST_CHARACTERS = 200; // most of an objective or a reply in the label of a node

/** The view of the shown episode's tree: its folded agents, zoom and layout. */
const view = { folded: new Set(), zoom: 1, places: null };

const spentOf = (agent) => agent.turns.reduce((sum, turn) => sum + turn.prompt + turn.generated, 0);

/** Begin with the root's clones and, of a large tree, with as many agents below as make `LARGE`, level by level. */
function startTree() {
  const { agents } = shown.episode;
  const isLarge = agents.length > LARGE;
  view.folded = new Set(isLarge ? agents.filter((agent) => agent.parent && agent.clones.length) : []);
  let open = 1 + agents[0].clones.length;
  const levels = [...view.folded].sort((a, b) => a.depth - b.depth || a.clones.length - b.clones.length);
  for (const agent of levels) {
    if (open + agent.clones.length > LARGE || (agent.parent && view.folded.has(agent.parent))) continue;
    open += agent.clones.length;
    view.folded.delete(agent);
  }
  view.places = null;
  view.zoom = isLarge ? fittingZoom() : 1;
  $("tree").scrollTo(0, 0);
  fillTools();
}

function fillTools() {
  const tool = (name, act) => make("button", { type: "button", on: { click: act } }, name);
  $("tree-tools").hidden = shown.episode.agents.length <= LARGE;
  $("tree-tools").replaceChildren(
    tool("Fit", fitTree),
    tool("Smaller", () => zoomTree(view.zoom / ZOOM.step)),
    tool("Larger", () => zoomTree(view.zoom * ZOOM.step)),
    tool("Unfold all", () => foldTree([])),
    tool("Fold all", () => foldTree(shown.episode.agents.filter((agent) => agent.parent && agent.clones.length))),
    make("span", { class: "muted small" }, "In the tree: + and − zoom, 0 fits, Space folds and unfolds."),
  );
}

function foldTree(agents) {
  view.folded = new Set(agents);
  view.places = null;
  fitTree();
}

function toggleFold(agent) {
  if (!agent.clones.length) return;
  if (!view.folded.delete(agent)) view.folded.add(agent);
  view.places = null;
  // The shown agent stays in view.
  const hiding = ancestorsOf(agentOf(shown.agent)).findLast((above) => view.folded.has(above));
  if (hiding) go(here(hiding.id));
  drawTree();
}

/** Change the size of the tree, around the shown agent. */
function zoomTree(zoom) {
  view.zoom = Math.min(ZOOM.most, Math.max(ZOOM.least, zoom));
  drawTree();
  const middle = layoutTree().at.get(agentOf(shown.agent)) + NODE.width / 2;
  $("tree").scrollLeft = middle * view.zoom - $("tree").clientWidth / 2;
  drawTree();
}

const fittingZoom = () => Math.min(1, $("tree").clientWidth / (layoutTree().width + 2 * EDGE));
const fitTree = () => zoomTree(fittingZoom());
/** Boxes become narrow, but not low, so that levels stay apart. */
const zoomDown = () => Math.max(view.zoom, LETTERS);

/** Place every agent that is not folded away. Rows are sorted from left to right. */
function layoutTree() {
  if (view.places) return view.places;
  const open = [];
  const hidden = new Set();
  for (const agent of shown.episode.agents) {
    if (agent.parent && (hidden.has(agent.parent) || view.folded.has(agent.parent))) hidden.add(agent);
    else open.push(agent);
  }
  const isLeaf = (agent) => !agent.clones.length || view.folded.has(agent);
  const ends = open.filter(isLeaf).length;
  const { wide, narrow } = WIDTHS;
  Object.assign(NODE, ends * (wide.width + wide.across) > $("tree").clientWidth ? narrow : wide);
  const at = new Map();
  let leaves = 0;
  for (const agent of open) if (isLeaf(agent)) at.set(agent, leaves++ * (NODE.width + NODE.across));
  // Clones come after their parents, so from the end every agent's clones have their places.
  for (const agent of open.toReversed())
    if (!isLeaf(agent)) at.set(agent, (at.get(agent.clones[0]) + at.get(agent.clones.at(-1))) / 2);
  const rows = [];
  for (const agent of open) (rows[agent.depth] ??= []).push(agent);
  const folds = shown.episode.agents.length > LARGE || view.folded.size > 0;
  const down = NODE.height + NODE.down;
  view.places = {
    at,
    rows,
    y: (agent) => agent.depth * down,
    width: Math.max(1, leaves) * (NODE.width + NODE.across) - NODE.across,
    height: rows.length * down - NODE.down + (folds ? 20 : 0),
  };
  return view.places;
}

/** The agents of a row that are in view. Where several share a pixel, the first that failed is drawn, or the first. */
function inView(row, from, to) {
  const { at } = view.places;
  let [low, high] = [0, row.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (at.get(row[middle]) + NODE.width < from) low = middle + 1;
    else high = middle;
  }
  const drawn = new Map();
  const failed = (agent) => mark(agent.status) === "✕";
  for (let i = low; i < row.length && at.get(row[i]) <= to; i++) {
    const pixel = view.zoom < LETTERS ? Math.floor((at.get(row[i]) * view.zoom) / 2) : i;
    const other = drawn.get(pixel);
    if (!other || (failed(row[i]) && !failed(other))) drawn.set(pixel, row[i]);
  }
  return drawn.values();
}

function drawTree() {
  const chosen = agentOf(shown.agent);
  for (const agent of ancestorsOf(chosen)) if (view.folded.delete(agent)) view.places = null;
  const { at, rows, y, width, height } = layoutTree();
  const box = $("tree");
  const { zoom } = view;
  const zoomY = zoomDown();
  // A small tree is drawn as a whole.
  const whole = shown.episode.agents.length <= LARGE;
  const reveal = shown.revealed !== chosen;
  shown.revealed = chosen;
  const revealed = (scrolled, start, size, room) =>
    reveal && (start < scrolled || start + size > scrolled + room) ? Math.max(0, start - room / 2 + size / 2) : scrolled;
  const left = revealed(box.scrollLeft, at.get(chosen) * zoom, NODE.width * zoom, box.clientWidth);
  const top = revealed(box.scrollTop, y(chosen) * zoomY, NODE.height * zoomY, box.clientHeight || Infinity);
  const high = Math.max(box.clientHeight, 600); // before the first drawing the box has no height
  const isNear = (row) => whole || (y(row[0]) >= (top - high) / zoomY && y(row[0]) <= (top + 2 * high) / zoomY);
  const drawn = new Set([chosen]);
  const [from, to] = whole ? [-Infinity, Infinity] : [(left - box.clientWidth) / zoom, (left + 2 * box.clientWidth) / zoom];
  for (const row of rows.filter(isNear)) for (const agent of inView(row, from, to)) drawn.add(agent);
  // A screen reader takes the parent of an item from the levels of those before it, so items are in tree order.
  const agents = [...drawn].sort((a, b) => a.number - b.number);
  const middle = NODE.width / 2;
  const edges = agents
    .filter((agent) => agent.parent)
    .map((agent) => {
      const [x1, y1, x2, y2] = [at.get(agent.parent) + middle, y(agent.parent) + NODE.height, at.get(agent) + middle, y(agent)];
      const half = (y1 + y2) / 2;
      return draw("path", {
        class: agent.turns.some((turn) => turn.critical) ? "edge critical" : "edge",
        d: `M${x1} ${y1}C${x1} ${half} ${x2} ${half} ${x2} ${y2}`,
      });
    });
  const tree = draw(
    "svg",
    {
      role: "tree",
      "aria-label": "Agents",
      viewBox: `${-EDGE} ${-EDGE} ${width + 2 * EDGE} ${height + 2 * EDGE}`,
      width: (width + 2 * EDGE) * zoom,
      height: (height + 2 * EDGE) * zoomY,
      preserveAspectRatio: "none",
      on: { keydown: treeKey },
    },
    draw("g", { "aria-hidden": "true" }, edges),
    agents.map((agent) => node(agent, { x: at.get(agent), y: y(agent) })),
  );
  const had = box.contains(document.activeElement);
  box.replaceChildren(tree);
  box.scrollTo(left, top);
  if (had) tree.querySelector('[aria-selected="true"]').focus({ preventScroll: !reveal });
  drawLegend();
}

function drawLegend() {
  const used = [...new Set(shown.episode.agents.map((agent) => agent.status))];
  $("legend").replaceChildren(
    ...used.map((status) => swatch(fillOf(status), `${mark(status)} ${words(status)}`)),
    swatch("var(--spent)", "share of its grant that it has spent"),
    make("span", { class: "key" }, make("i", { class: "line" }), "critical path"),
  );
}

function swatch(colour, name) {
  const dot = make("i", { class: "dot" });
  dot.style.background = colour;
  return make("span", { class: "key" }, dot, name);
}

function node(agent, { x, y }) {
  const spent = spentOf(agent);
  const share = agent.granted ? Math.min(1, spent / agent.granted) : 0;
  const chosen = agent.id === shown.agent;
  const granted = agent.granted == null ? "" : ` of ${count(agent.granted)}`;
  const credit = schemes.length ? creditOfAgent(agent, 0) : null;
  // A box is at least two pixels wide, however small the tree is drawn.
  const box = { width: Math.max(NODE.width, 2 / view.zoom), height: NODE.height, rx: agent.id === "root" ? 12 : 5 };
  const siblings = agent.parent?.clones ?? [agent];
  const outcome = outcomeOf(agent);
  const texts = [
    agent.id === "root" ? null : `asked: ${text(agent.objective).words}`,
    agent.reply == null ? null : `replied: ${text(agent.reply).words}`,
  ]
    .filter(Boolean)
    .map((part) => (part.length > MOST_CHARACTERS ? `${part.slice(0, MOST_CHARACTERS)}…` : part));
  return draw(
    "g",
    {
      class: `node${agent.parent ? "" : " root"}${NODE.width * view.zoom < BORDERED ? " tiny" : ""}`,
      role: "treeitem",
      tabindex: chosen ? 0 : -1,
      "data-agent": agent.id,
      "aria-level": agent.depth + 1,
      "aria-setsize": siblings.length,
      "aria-posinset": (agent.place ?? 0) + 1,
      "aria-expanded": agent.clones.length ? String(!view.folded.has(agent)) : null,
      "aria-selected": String(chosen),
      "aria-label":
        `${agent.id}, ${words(agent.status)}, ${outcome ? `${outcome}, ` : ""}${count(spent)}${granted} tokens, ${many(agent.turns.length, "turn")}` +
        (credit == null ? "" : `, credit ${typeof credit === "number" ? difference(credit) : credit}`) +
        texts.map((part) => `, ${part}`).join(""),
      transform: `translate(${x} ${y})`,
      on: { click: () => go(here(agent.id)) },
    },
    texts.length ? draw("title", {}, texts.join("\n")) : null,
    draw("rect", { class: "box", ...box, fill: fillOf(agent.status) }),
    ...(view.zoom < LETTERS ? [] : details(agent, spent, share, credit)),
  );
}

/** What a box shows if it is large enough for letters. */
function details(agent, spent, share, credit) {
  return [
    draw("rect", { class: "purse", x: 8, y: NODE.height - 9, width: NODE.width - 16, height: 4, rx: 2 }),
    draw("rect", {
      class: "purse spent",
      x: 8,
      y: NODE.height - 9,
      width: share * (NODE.width - 16),
      height: 4,
      rx: 2,
    }),
    draw("text", { class: "who", x: 8, y: 18 }, shortName(agent.id)),
    draw("text", { class: "state", x: NODE.width - 8, y: 18, "text-anchor": "end" }, mark(agent.status)),
    draw("text", { class: "money", x: 8, y: 34 }, count(spent)),
    credit == null || NODE.width < WIDTHS.wide.width
      ? null
      : draw(
          "text",
          { class: "money", x: NODE.width - 8, y: 34, "text-anchor": "end" },
          typeof credit === "number" ? difference(credit) : credit.slice(0, 4),
        ),
    outcomeOf(agent) ? outcomeBadge(outcomeOf(agent)) : null,
    // A small tree has marks only where Space has folded clones away.
    agent.clones.length && (shown.episode.agents.length > LARGE || view.folded.has(agent)) ? foldMark(agent) : null,
  ];
}

/** The outcome of the episode, at its root. */
function outcomeOf(agent) {
  const outcome = index.outcome[shown.number];
  return !agent.parent && outcome in OUTCOMES ? outcome : null;
}

/** The mark of the outcome beside that of the status, or below it in a narrow box. */
function outcomeBadge(outcome) {
  const [x, y] = NODE.width < WIDTHS.wide.width ? [NODE.width - 15, 29] : [NODE.width - 34, 14];
  return draw(
    "g",
    { class: `outcome ${outcomeClass(outcome)}`, transform: `translate(${x} ${y})` },
    draw("circle", { r: 9 }),
    draw("text", { y: 4.5 }, OUTCOMES[outcome]),
  );
}

/** The mark below a box that folds and unfolds its clones. */
function foldMark(agent) {
  const text = view.folded.has(agent) ? `+${count(agent.clones.length)}` : "−";
  const width = 12 + 7 * text.length;
  const toggle = (event) => {
    event.stopPropagation();
    toggleFold(agent);
  };
  return draw(
    "g",
    { class: "fold", transform: `translate(${NODE.width / 2} ${NODE.height})`, on: { click: toggle } },
    draw("rect", { x: -width / 2, y: 1, width, height: 16, rx: 8 }),
    draw("text", { y: 13 }, text),
  );
}

function treeKey(event) {
  const agent = agentOf(shown.agent);
  const siblings = agent.parent?.clones ?? [agent];
  const at = agent.place ?? 0;
  const to = {
    ArrowUp: agent.parent,
    ArrowDown: agent.clones[0],
    ArrowLeft: siblings[at - 1],
    ArrowRight: siblings[at + 1],
    Home: shown.episode.agents[0],
    End: shown.episode.agents.at(-1),
  }[event.key];
  const act = {
    Enter: () => $("agent-name").focus(),
    " ": () => toggleFold(agent),
    "+": () => zoomTree(view.zoom * ZOOM.step),
    "-": () => zoomTree(view.zoom / ZOOM.step),
    0: fitTree,
  }[event.key];
  if (to) go(here(to.id));
  else if (act) act();
  else return;
  event.preventDefault();
}

// The timeline: a lane per agent, generated tokens to the right.
// The boxes of tree and timeline scroll, and what comes into view is drawn then.

const LANE = { label: 76, top: 18 };
const LANES = 60; // lanes that fit into the view, or more
const HEIGHTS = { few: { height: 20, gap: 6 }, many: { height: 11, gap: 3 } };

function drawTimeline() {
  const { agents, cost } = shown.episode;
  const total = Math.max(1, cost.critical_path_tokens);
  const width = Math.max(320, $("timeline").clientWidth - 24);
  const scale = (width - LANE.label - 8) / total;
  const played = agents.filter((agent) => agent.turns.length);
  Object.assign(LANE, played.length > 12 ? HEIGHTS.many : HEIGHTS.few);
  const lane = (agent) => {
    const y = LANE.top + 2 + rows.get(agent) * (LANE.height + LANE.gap);
    const last = agent.turns.at(-1);
    const [from, to] = [agent.turns[0].at, last.at + last.generated].map((time) => LANE.label + time * scale);
    const middle = y + LANE.height / 2;
    return draw(
      "g",
      {},
      draw(
        "text",
        { class: agent.id === shown.agent ? "lane chosen" : "lane", x: 0, y: middle + 4 },
        shortName(agent.id),
      ),
      draw("line", { class: "wait", x1: from, x2: to, y1: middle, y2: middle }),
      agent.turns.map((turn, i) =>
        draw(
          "rect",
          {
            class: [
              "turn",
              turn.critical ? "critical" : "",
              agent.id === shown.agent && i === shown.turn ? "chosen" : "",
            ]
              .join(" ")
              .trim(),
            x: LANE.label + turn.at * scale,
            y,
            width: Math.max(2, turn.generated * scale),
            height: LANE.height,
            rx: 2,
            fill: turnFill(turn),
            on: { click: () => go(here(agent.id, i)) },
          },
          draw("title", {}, `${agent.id}, turn ${i}: ${count(turn.generated)} tokens, ${words(turn.outcome)}`),
        ),
      ),
    );
  };
  const rows = new Map(played.map((agent, at) => [agent, at]));
  const height = LANE.top + played.length * (LANE.height + LANE.gap);
  const first = Math.floor($("timeline").scrollTop / (LANE.height + LANE.gap)) - LANES;
  // Only the lanes in view are drawn.
  const lanes = played.slice(Math.max(0, first), Math.max(0, first) + 3 * LANES);
  const ticks = [0, 0.25, 0.5, 0.75, 1].map((share) => {
    const x = LANE.label + share * total * scale;
    const anchor = share === 0 ? "start" : share === 1 ? "end" : "middle";
    return [
      draw("line", { class: "tick", x1: x, x2: x, y1: LANE.top, y2: height }),
      draw("text", { class: "axis", x, y: 12, "text-anchor": anchor }, count(Math.round(share * total))),
    ];
  });
  const serial = cost.generated_tokens;
  const saved = total < serial ? `, ${measure(serial / total)} times less than one after the other` : "";
  $("timeline-words").textContent =
    `${count(serial)} generated tokens, ` +
    `${count(cost.critical_path_tokens)} of them on the critical path${saved}.` +
    " Outlined turns are the critical path. Time is in generated tokens.";
  $("timeline").replaceChildren(
    draw(
      "svg",
      { role: "img", "aria-label": $("timeline-words").textContent, width, height: height + 2 },
      ticks,
      lanes.map(lane),
    ),
  );
}

function turnFill(turn) {
  if (turn.outcome === "answered") return "var(--status-answered)";
  if (turn.outcome === "malformed" || turn.outcome === "refused") return "var(--status-out-of-turns)";
  return "var(--status-waiting)";
}
