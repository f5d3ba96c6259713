// The tree: parents above their clones, and leaves share the width, as in the pictures of the environment.

// Where many clones stand side by side, boxes are narrower, and only the label has the credit.
const NODE = { height: 50, down: 34 };
const WIDTHS = { wide: { width: 104, across: 12 }, narrow: { width: 58, across: 6 } };

function layout(agents) {
  const places = new Map();
  const ends = agents.filter((agent) => !childrenOf(agent).length).length;
  const { wide, narrow } = WIDTHS;
  Object.assign(NODE, ends * (wide.width + wide.across) > $("tree").clientWidth ? narrow : wide);
  let leaves = 0;
  const put = (agent, depth) => {
    const below = childrenOf(agent).map((child) => put(child, depth + 1));
    const x = below.length ? (below[0] + below.at(-1)) / 2 : leaves++ * (NODE.width + NODE.across);
    places.set(agent.id, { x, y: depth * (NODE.height + NODE.down) });
    return x;
  };
  put(agents[0], 0);
  const depth = Math.max(...[...places.values()].map((place) => place.y)) + NODE.height;
  return { places, width: Math.max(1, leaves) * (NODE.width + NODE.across) - NODE.across, height: depth };
}

const SAID = 200; // most characters of an objective or a reply in the label of a node

const spentOf = (agent) => agent.turns.reduce((sum, turn) => sum + turn.prompt + turn.generated, 0);

function drawTree() {
  const { agents } = shown.episode;
  const { places, width, height } = layout(agents);
  const edges = agents.flatMap((agent) =>
    childrenOf(agent).map((child) => {
      const [from, to] = [places.get(agent.id), places.get(child.id)];
      const [x1, y1, x2, y2] = [from.x + NODE.width / 2, from.y + NODE.height, to.x + NODE.width / 2, to.y];
      const critical = child.turns.some((turn) => turn.critical);
      const middle = (y1 + y2) / 2;
      return draw("path", {
        class: critical ? "edge critical" : "edge",
        d: `M${x1} ${y1}C${x1} ${middle} ${x2} ${middle} ${x2} ${y2}`,
      });
    }),
  );
  const tree = draw(
    "svg",
    {
      role: "tree",
      "aria-label": "Agents",
      viewBox: `-4 -4 ${width + 8} ${height + 8}`,
      width: width + 8,
      height: height + 8,
      on: { keydown: treeKey },
    },
    draw("g", { "aria-hidden": "true" }, edges),
    agents.map((agent) => node(agent, places.get(agent.id))),
  );
  const had = $("tree").contains(document.activeElement);
  const scrolled = $("tree").scrollLeft;
  $("tree").replaceChildren(tree);
  $("tree").scrollLeft = scrolled;
  const chosen = tree.querySelector('[aria-selected="true"]');
  if (had) chosen.focus();
  const left = places.get(shown.agent).x;
  if (left < scrolled || left + NODE.width > scrolled + $("tree").clientWidth) {
    $("tree").scrollLeft = left - $("tree").clientWidth / 2 + NODE.width / 2;
  }
  const used = [...new Set(agents.map((agent) => agent.status))];
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
  const box = { width: NODE.width, height: NODE.height, rx: agent.id === "root" ? 12 : 5 };
  const said = [
    agent.id === "root" ? null : `asked: ${text(agent.objective).words}`,
    agent.reply == null ? null : `replied: ${text(agent.reply).words}`,
  ]
    .filter(Boolean)
    .map((part) => (part.length > SAID ? `${part.slice(0, SAID)}…` : part));
  return draw(
    "g",
    {
      class: agent.id === "root" ? "node root" : "node",
      role: "treeitem",
      tabindex: chosen ? 0 : -1,
      "data-agent": agent.id,
      "aria-level": agent.id.split(".").length,
      "aria-selected": String(chosen),
      "aria-label":
        `${agent.id}, ${words(agent.status)}, ${count(spent)}${granted} tokens, ${many(agent.turns.length, "turn")}` +
        (credit == null ? "" : `, credit ${typeof credit === "number" ? difference(credit) : credit}`) +
        said.map((part) => `, ${part}`).join(""),
      transform: `translate(${x} ${y})`,
      on: { click: () => go(here(agent.id)) },
    },
    said.length ? draw("title", {}, said.join("\n")) : null,
    draw("rect", { class: "box", ...box, fill: fillOf(agent.status) }),
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
  );
}

function treeKey(event) {
  const agent = agentOf(shown.agent);
  const parent = agent.id.includes(".") ? agentOf(agent.id.slice(0, agent.id.lastIndexOf("."))) : null;
  const siblings = parent ? childrenOf(parent) : [agent];
  const at = siblings.indexOf(agent);
  const to = {
    ArrowUp: parent,
    ArrowDown: childrenOf(agent)[0],
    ArrowLeft: siblings[at - 1],
    ArrowRight: siblings[at + 1],
    Home: shown.episode.agents[0],
    End: shown.episode.agents.at(-1),
  }[event.key];
  if (event.key === "Enter" || event.key === " ") $("agent-name").focus();
  else if (!to) return;
  event.preventDefault();
  if (to) go(here(to.id));
}

// The timeline: a lane per agent, generated tokens to the right.

const LANE = { label: 76 };
const HEIGHTS = { few: { height: 20, gap: 6 }, many: { height: 11, gap: 3 } };

function drawTimeline() {
  const { agents, cost } = shown.episode;
  const total = Math.max(1, cost.critical_path_tokens);
  const width = Math.max(320, $("timeline").clientWidth - 24);
  const scale = (width - LANE.label - 8) / total;
  const played = agents.filter((agent) => agent.turns.length);
  Object.assign(LANE, played.length > 12 ? HEIGHTS.many : HEIGHTS.few);
  const lane = (agent, at) => {
    const y = 2 + at * (LANE.height + LANE.gap);
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
  const height = played.length * (LANE.height + LANE.gap);
  const ticks = [0, 0.25, 0.5, 0.75, 1].map((share) => {
    const x = LANE.label + share * total * scale;
    const anchor = share === 0 ? "start" : share === 1 ? "end" : "middle";
    return [
      draw("line", { class: "tick", x1: x, x2: x, y1: 0, y2: height }),
      draw("text", { class: "axis", x, y: height + 14, "text-anchor": anchor }, count(Math.round(share * total))),
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
      { role: "img", "aria-label": $("timeline-words").textContent, width, height: height + 18 },
      ticks,
      played.map(lane),
    ),
  );
}

function turnFill(turn) {
  if (turn.outcome === "answered") return "var(--status-answered)";
  if (turn.outcome === "malformed" || turn.outcome === "refused") return "var(--status-out-of-turns)";
  return "var(--status-waiting)";
}
