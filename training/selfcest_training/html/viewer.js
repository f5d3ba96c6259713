// The page of `selfcest trace --html`: a list of episodes, and of the chosen one its tree, texts, time, money, credit.
// The place that is shown stands in the address as #episode/agent/turn, and every change of it goes through there.

const index = read("index");
const schemes = read("schemes");
const limits = read("limits");
const stored = { episodes: lines("episodes"), tasks: lines("tasks"), texts: lines("texts") };
const size = index.name.length;
const numberOf = new Map(index.name.map((name, number) => [name, number]));
const $ = (id) => document.getElementById(id);

/** A text that models, tasks or the environment wrote; `own` is the project's own wording. */
function text(number) {
  const [words, own] = JSON.parse(stored.texts[number]);
  return { words, own: Boolean(own) };
}

/** What is shown: numbers of an episode and a turn, name of an agent. */
const shown = { number: null, episode: null, agent: null, turn: null };

const address = (name, agent = "root", turn = 0) => `#${[name, agent, turn].map(encodeURIComponent).join("/")}`;
const here = (agent, turn = 0) => address(index.name[shown.number], agent, turn);
const go = (place) => {
  location.hash = place;
};

// What a state, an outcome or a share of money looks like: a colour, and a mark for those who do not see it.

const MARKS = { answered: "✓", waiting: "…", ready: "›", absent: "∅" };
const mark = (status) => MARKS[status] ?? "✕";
const RIGHT = { right: "✓", wrong: "✕", answered: "·", "partly right": "◐" };
const words = (name) => name.replaceAll("_", " ");
const fillOf = (status) => `var(--status-${status.replaceAll("_", "-")})`;

// The list. Only the rows in view exist, so that five thousand scroll as ten do.

const ROW = 44;
const list = $("list");
const sheet = make("div", { class: "sheet", role: "presentation" });
const listed = { rows: [], at: 0 };
list.append(sheet);

const ORDERS = {
  "as played": null,
  "return, high first": (a, b) => (index.return[b] ?? -Infinity) - (index.return[a] ?? -Infinity),
  "return, low first": (a, b) => (index.return[a] ?? Infinity) - (index.return[b] ?? Infinity),
  "tokens, many first": (a, b) => index.tokens[b] - index.tokens[a],
  "clones, many first": (a, b) => index.clones[b] - index.clones[a],
  "critical path, long first": (a, b) => index.critical[b] - index.critical[a],
};
const CLONES = { any: () => true, none: (n) => n === 0, some: (n) => n > 0, "4 or more": (n) => n >= 4 };
const RETURNS = {
  any: () => true,
  "above 0": (r) => r > 0,
  "0 or less": (r) => r != null && r <= 0,
  "not scored": (r) => r == null,
};

function choices(select, names) {
  select.append(...names.map((name) => make("option", { value: name }, name || "(none)")));
}

function startFilters() {
  const distinct = (values) => ["any", ...[...new Set(values)].sort()];
  choices($("outcome"), distinct(index.outcome));
  choices($("family"), distinct(index.family));
  choices($("clones"), Object.keys(CLONES));
  choices($("return"), Object.keys(RETURNS));
  choices($("order"), Object.keys(ORDERS));
  if (index.of.every((of) => of == null)) $("with-replays").closest("label").hidden = true;
  $("filters").addEventListener("input", filter);
  $("filters").addEventListener("submit", (event) => event.preventDefault());
}

let questions = null; // in small letters, read when somebody looks for one

function filter() {
  const wanted = $("find").value.toLowerCase();
  const [outcome, family] = [$("outcome").value, $("family").value];
  const [clones, returns] = [CLONES[$("clones").value], RETURNS[$("return").value]];
  const most = $("tokens").value === "" ? Infinity : Number($("tokens").value);
  if (wanted) questions ??= index.prompt.map((number) => text(number).words.toLowerCase());
  const rows = [];
  for (let i = 0; i < size; i++) {
    if (index.of[i] != null && !$("with-replays").checked) continue;
    if (outcome !== "any" && index.outcome[i] !== outcome) continue;
    if (family !== "any" && index.family[i] !== family) continue;
    if (!clones(index.clones[i]) || !returns(index.return[i]) || index.tokens[i] > most) continue;
    const fields = wanted && [index.name[i].toLowerCase(), questions[i], index.played_as[i].toLowerCase()];
    if (wanted && !fields.some((field) => field.includes(wanted))) continue;
    rows.push(i);
  }
  const order = ORDERS[$("order").value];
  listed.rows = order ? rows.sort(order) : rows;
  const all = index.of.reduce((sum, of) => sum + (of == null || $("with-replays").checked), 0);
  const mean = average(rows.map((i) => index.return[i]).filter((value) => value != null));
  $("found").textContent =
    `${count(rows.length)} of ${many(all, "episode")}` + (mean == null ? "" : `, mean return ${measure(mean)}`);
  sheet.style.height = `${rows.length * ROW}px`;
  listed.at = listed.rows.indexOf(shown.number);
  list.scrollTop = 0;
  drawList();
}

const average = (values) => (values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : null);

function drawList() {
  const first = Math.max(0, Math.floor(list.scrollTop / ROW) - 4);
  const last = Math.min(listed.rows.length, Math.ceil((list.scrollTop + list.clientHeight) / ROW) + 4);
  const rows = [];
  for (let at = first; at < last; at++) rows.push(row(at));
  sheet.replaceChildren(...rows);
  const chosen = listed.rows[listed.at];
  if (chosen != null && listed.at >= first && listed.at < last) list.setAttribute("aria-activedescendant", `row-${chosen}`);
  else list.removeAttribute("aria-activedescendant");
}

function row(at) {
  const i = listed.rows[at];
  const outcome = index.outcome[i];
  const option = make(
    "div",
    {
      id: `row-${i}`,
      class: "row",
      role: "option",
      "aria-selected": String(i === shown.number),
      "aria-setsize": listed.rows.length,
      "aria-posinset": at + 1,
      on: { click: () => go(address(index.name[i])) },
    },
    make("span", { class: `mark ${outcome === "right" ? "good" : outcome === "wrong" ? "bad" : ""}`, "aria-hidden": "true" },
      RIGHT[outcome] ?? "✕"),
    make("span", { class: "name" }, index.name[i], make("span", { class: "hidden-label" }, `, ${outcome}, return `)),
    make("span", { class: `number ${sign(index.return[i] ?? 0)}` }, measure(index.return[i])),
    make("span", { class: "about muted" },
      [outcome in RIGHT ? null : outcome, [index.family[i], index.size[i]].filter(Boolean).join(" "),
        many(index.clones[i], "clone"), many(index.tokens[i], "token")].filter(Boolean).join(" · ")),
  );
  option.style.top = `${at * ROW}px`;
  return option;
}

function moveTo(at) {
  if (!listed.rows.length) return;
  listed.at = Math.min(listed.rows.length - 1, Math.max(0, at));
  go(address(index.name[listed.rows[listed.at]]));
}

/** Scroll the list as far as it takes to show the chosen row. */
function reveal() {
  const top = listed.at * ROW;
  if (listed.at < 0) return;
  if (top < list.scrollTop) list.scrollTop = top;
  if (top + ROW > list.scrollTop + list.clientHeight) list.scrollTop = top + ROW - list.clientHeight;
}

// The place.

function show() {
  const [name, agentId, turn] = location.hash.slice(1).split("/").map(decoded);
  const number = numberOf.get(name) ?? listed.rows[0] ?? 0;
  if (number !== shown.number) {
    shown.number = number;
    shown.episode = JSON.parse(stored.episodes[number]);
    shown.agent = null;
    shown.event = null;
    listed.at = listed.rows.indexOf(number);
    reveal();
    showEpisode();
    drawList();
  }
  const known = shown.episode.agents.some((agent) => agent.id === agentId);
  const agent = known ? agentId : "root";
  const turned = shown.agent !== agent;
  shown.agent = agent;
  shown.turn = Number(turn) || 0;
  if (turned) showAgent();
  markTurn();
  drawTree();
  drawTimeline();
  drawLedger();
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

const agentOf = (id) => shown.episode.agents.find((agent) => agent.id === id);
const shortName = (id) => (id === "root" ? "root" : id.slice(4));
const childrenOf = (agent) => agent.turns.flatMap((turn) => turn.children ?? []).map(agentOf);

function facts(pairs) {
  return pairs
    .filter(([, value]) => value != null && value !== "")
    .map(([name, value, said]) => make("div", {}, make("dt", {}, name), make("dd", { class: said && "text" }, value)));
}

function showEpisode() {
  const { number, episode } = shown;
  const task = JSON.parse(stored.tasks[episode.task]);
  const answer = episode.agents[0].reply;
  document.title = `${index.name[number]} – ${document.querySelector("h1").textContent}`;
  $("episode-name").textContent = index.name[number];
  $("played-as").textContent = index.played_as[number];
  $("question").textContent = text(task.prompt).words;
  $("facts").replaceChildren(
    ...facts([
      ["outcome", index.outcome[number]],
      ["answer", answer == null ? "none" : text(answer).words, "text"],
      ["truth", task.answer, "text"],
      ["return", measure(index.return[number])],
      ["tokens", count(episode.cost.total_tokens)],
      ["generated", count(episode.cost.generated_tokens)],
      ["critical path", count(episode.cost.critical_path_tokens)],
      ["longest context", count(episode.cost.peak_context)],
      ["clones", count(episode.cost.clones)],
      ["depth", count(episode.cost.depth)],
      ["task", task.id],
      ["source", task.source],
      ["note", episode.note],
    ]),
  );
  drawReward();
  drawCredit();
}

// The tree: parents above their clones, leaves share the width, as the environment's own pictures have it.

const NODE = { width: 104, height: 50, across: 12, down: 34 };

function layout(agents) {
  const places = new Map();
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
        (credit == null ? "" : `, credit ${typeof credit === "number" ? difference(credit) : credit}`),
      transform: `translate(${x} ${y})`,
      on: { click: () => go(here(agent.id)) },
    },
    draw("rect", { class: "box", ...box, fill: fillOf(agent.status) }),
    draw("rect", { class: "purse", x: 8, y: NODE.height - 9, width: NODE.width - 16, height: 4, rx: 2 }),
    draw("rect", { class: "purse spent", x: 8, y: NODE.height - 9, width: share * (NODE.width - 16), height: 4, rx: 2 }),
    draw("text", { class: "who", x: 8, y: 18 }, shortName(agent.id)),
    draw("text", { class: "state", x: NODE.width - 8, y: 18, "text-anchor": "end" }, mark(agent.status)),
    draw("text", { class: "money", x: 8, y: 34 }, count(spent)),
    typeof credit === "number"
      ? draw("text", { class: "money", x: NODE.width - 8, y: 34, "text-anchor": "end" }, difference(credit))
      : null,
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

const LANE = { height: 20, gap: 6, label: 76 };

function drawTimeline() {
  const { agents, cost } = shown.episode;
  const total = Math.max(1, cost.critical_path_tokens);
  const width = Math.max(320, $("timeline").clientWidth - 24);
  const scale = (width - LANE.label - 8) / total;
  const played = agents.filter((agent) => agent.turns.length);
  const lane = (agent, at) => {
    const y = 2 + at * (LANE.height + LANE.gap);
    const last = agent.turns.at(-1);
    const [from, to] = [agent.turns[0].at, last.at + last.generated].map((time) => LANE.label + time * scale);
    const middle = y + LANE.height / 2;
    return draw(
      "g",
      {},
      draw("text", { class: agent.id === shown.agent ? "lane chosen" : "lane", x: 0, y: middle + 4 }, shortName(agent.id)),
      draw("line", { class: "wait", x1: from, x2: to, y1: middle, y2: middle }),
      agent.turns.map((turn, i) =>
        draw(
          "rect",
          {
            class: ["turn", turn.critical ? "critical" : "", agent.id === shown.agent && i === shown.turn ? "chosen" : ""]
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
    `${count(serial)} generated tokens, of which ${count(cost.critical_path_tokens)} had to wait for each other${saved}.` +
    " Outlined turns are the critical path. Time runs in generated tokens.";
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

// The accounts after every turn: of the tree as bars, of each agent as a table.

function balances() {
  const now = new Map();
  return shown.episode.ledger.map(([turn, changes]) => {
    for (const [agent, granted, spent, reserved, lent] of changes) now.set(agent, { granted, spent, reserved, lent });
    return { turn, accounts: new Map(now) };
  });
}

const freeOf = ({ granted, spent, reserved, lent }) => (granted == null ? null : granted - spent - reserved - lent);

function drawLedger() {
  const { agents, ledger, exact } = shown.episode;
  if (!exact) {
    $("ledger").replaceChildren(make("p", { class: "muted small" },
      "Its rules are not known here, so that only what each agent spent in all is: it stands in the tree. " +
        "A page made where the run's folder and its model are shows every account after every turn."));
    return;
  }
  shown.balances = shown.event == null ? balances() : shown.balances;
  const turned = ledger.findIndex(([turn]) => turn && agents[turn[0]].id === shown.agent && turn[1] === shown.turn);
  shown.event = turned < 0 ? 0 : turned;
  const slider = make("input", {
    type: "range", min: 0, max: ledger.length - 1, value: shown.event, "aria-label": "After which turn",
    on: { input: () => { shown.event = Number(slider.value); fillLedger(); } },
  });
  $("ledger").replaceChildren(
    make("div", { id: "money" }),
    make("div", { class: "step screen-only" }, slider),
    make("p", { id: "moment", class: "small", "aria-live": "polite" }),
    make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Accounts, a row per agent" }, make("table", { id: "accounts" })),
  );
  fillLedger();
}

function fillLedger() {
  const { agents } = shown.episode;
  const sums = shown.balances.map(({ accounts }) => {
    const sum = { spent: 0, reserved: 0, free: 0 };
    for (const account of accounts.values()) {
      sum.spent += account.spent;
      sum.reserved += account.reserved;
      sum.free += freeOf(account) ?? 0;
    }
    return sum;
  });
  const width = Math.max(320, $("ledger").clientWidth);
  const [height, step] = [72, width / sums.length];
  const most = Math.max(1, ...sums.map((sum) => sum.spent + sum.reserved + sum.free));
  const bars = sums.map((sum, i) => {
    let y = height;
    return ["spent", "reserved", "free"].map((kind) => {
      const part = (sum[kind] / most) * height;
      y -= part;
      return draw("rect", { class: kind, x: i * step, y, width: Math.max(0.5, step - Math.min(1, step / 4)), height: part });
    });
  });
  const { turn, accounts } = shown.balances[shown.event];
  const unlimited = accounts.get(0).granted == null;
  $("money").replaceChildren(
    draw(
      "svg",
      { role: "img", "aria-label": "Spent, reserved and free tokens of the whole tree after every turn", width, height: height + 4 },
      bars,
      draw("rect", { class: "cursor", x: shown.event * step, y: 1, width: Math.max(2, step), height: height + 2 }),
    ),
    make("p", { class: "legend small" }, swatch("var(--spent)", "spent"), swatch("var(--reserved)", "reserved"),
      swatch("var(--lent)", "lent to clones, in their accounts"),
      unlimited ? null : swatch("var(--free)", "free")),
  );
  const sum = sums[shown.event];
  $("moment").textContent =
    (turn ? `After turn ${turn[1]} of ${agents[turn[0]].id}: ` : "Before the first turn: ") +
    `${count(sum.spent)} spent, ${count(sum.reserved)} reserved` + (unlimited ? "." : `, ${count(sum.free)} free.`);
  const cells = ["granted", "spent", "reserved", "lent", "free"];
  $("accounts").replaceChildren(
    make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "account"), make("th", { scope: "col" }, "where it is"),
      cells.map((name) => make("th", { class: "number", scope: "col" }, name)))),
    make("tbody", {}, [...accounts].sort(([a], [b]) => a - b).map(([agent, account]) => {
      const values = { ...account, free: freeOf(account) };
      return make("tr", {},
        make("th", { scope: "row" }, make("a", { href: here(agents[agent].id) }, agents[agent].id)),
        make("td", {}, purse(values)),
        cells.map((name) => make("td", { class: "number" }, values[name] == null ? "unlimited" : count(values[name]))));
    })),
  );
}

function purse(account) {
  const whole = Math.max(1, account.granted ?? account.spent + account.reserved + account.lent);
  let x = 0;
  const parts = ["spent", "lent", "reserved", "free"].map((kind) => {
    const width = ((account[kind] ?? 0) / whole) * 96;
    x += width;
    return draw("rect", { class: kind, x: x - width, y: 0, width, height: 8 });
  });
  return draw("svg", { class: "purse-bar", "aria-hidden": "true", width: 96, height: 8 }, parts);
}

// The reward.

function drawReward() {
  const { terms, parts } = shown.episode;
  if (!terms) {
    $("reward").replaceChildren(make("p", { class: "muted small" }, "This episode has not been scored."));
    return;
  }
  const heads = ["term", "value", "weight", "adds"];
  const sum = index.return[shown.number];
  $("reward").replaceChildren(
    make("table", {},
      make("thead", {}, make("tr", {}, heads.map((name, i) => make("th", { class: i ? "number" : "", scope: "col" }, name)))),
      make("tbody", {}, terms.map(([name, value, weight]) =>
        make("tr", {}, make("th", { scope: "row" }, name), make("td", { class: "number" }, measure(value)),
          make("td", { class: "number" }, measure(weight)),
          make("td", { class: `number ${sign(value * weight)}` }, difference(value * weight))))),
      make("tfoot", {}, make("tr", {}, make("th", { scope: "row", colspan: 3 }, "team return"),
        make("td", { class: `number ${sign(sum)}` }, measure(sum))))),
    Object.keys(parts).length
      ? make("details", {}, make("summary", {}, `by ${many(Object.keys(parts).length, "part")} of the answer`),
          make("ul", { class: "small" }, Object.entries(parts).map(([key, value]) => make("li", {}, `${key}: ${difference(value)}`))))
      : "",
  );
}

// Credit: of every turn under every scheme, as a bar from the middle and as a number.

const meanOf = (said) => (Array.isArray(said) ? average(said) : said);

function creditOfAgent(agent, scheme) {
  const said = agent.turns.map((turn) => turn.credit?.[scheme]);
  const numbers = said.map(meanOf).filter((value) => typeof value === "number");
  return numbers.length ? average(numbers) : said.includes("excluded") ? "excluded" : null;
}

function largest(scheme) {
  const sizes = shown.episode.agents.flatMap((agent) =>
    agent.turns.flatMap((turn) => turn.credit?.[scheme]).filter((value) => typeof value === "number").map(Math.abs));
  return Math.max(1e-9, ...sizes);
}

function whyExcluded(agent, scheme) {
  const failed = agent.status !== "answered" ? `the agent ended ${words(agent.status)}` : "the agent answered";
  return `${failed}; ${schemes[scheme].formula}`;
}

function creditCell(agent, turn, scheme, most) {
  const said = turn.credit?.[scheme];
  if (said === "excluded") {
    return make("td", { class: "muted", title: whyExcluded(agent, scheme) }, "excluded: ", make("span", { class: "small" }, whyExcluded(agent, scheme)));
  }
  const value = meanOf(said);
  if (value == null) return make("td", { class: "muted" }, "–");
  const half = 48;
  const length = (Math.abs(value) / most) * half;
  const weight = turn.weight?.[scheme];
  return make("td", {},
    draw("svg", { class: "credit-bar", "aria-hidden": "true", width: 2 * half, height: 12 },
      draw("rect", { class: value < 0 ? "minus" : "plus", x: value < 0 ? half - length : half, y: 1, width: length, height: 10 }),
      draw("line", { class: "zero", x1: half, x2: half, y1: 0, y2: 12 })),
    make("span", { class: `advantage ${sign(value)}` }, difference(value)),
    Array.isArray(said) ? make("span", { class: "muted small" }, ` mean of ${many(said.length, "token")}`) : null,
    weight == null ? null : make("span", { class: "muted small" }, ` × ${measure(weight)}`));
}

function drawCredit() {
  if (!schemes.length) {
    $("credit").replaceChildren(make("p", { class: "muted small" },
      "No scheme was asked for. selfcest trace FILE --html OUT --credit rloo --credit coma shows two side by side."));
    return;
  }
  const most = schemes.map((_, scheme) => largest(scheme));
  $("credit").replaceChildren(
    make("table", {},
      make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "turn"),
        schemes.map(({ name, formula }) => make("th", { scope: "col" }, name, make("span", { class: "formula" }, formula))))),
      make("tbody", {}, shown.episode.agents.flatMap((agent) =>
        agent.turns.map((turn, i) =>
          make("tr", {}, make("th", { scope: "row" }, make("a", { href: here(agent.id, i) }, `${agent.id}/turn${i}`)),
            schemes.map((_, scheme) => creditCell(agent, turn, scheme, most[scheme]))))))),
  );
}

// The conversation of an agent.

function showAgent() {
  const agent = agentOf(shown.agent);
  $("agent-name").textContent = agent.id;
  $("agent-facts").replaceChildren(
    ...facts([
      ["state", `${mark(agent.status)} ${words(agent.status)}`],
      ["spent", count(spentOf(agent)) + (agent.granted == null ? "" : ` of ${count(agent.granted)}`)],
      ["asked", agent.id === "root" ? null : text(agent.objective).words, "text"],
      [agent.status === "absent" ? "its parent was given" : "replied", agent.reply == null ? null : text(agent.reply).words, "text"],
    ]),
  );
  $("turns").replaceChildren(
    ...agent.turns.map((turn, i) => turnBlock(agent, turn, i)),
    ...(agent.after ? [environment(agent.after, null)] : []),
  );
  if (!agent.turns.length) $("turns").append(make("p", { class: "muted small" }, "It took no turn."));
  drawReplays(agent);
  $("agent").scrollTop = 0;
}

function environment(block, tokens) {
  const exact = shown.episode.exact;
  return make("section", { class: "environment" },
    make("h4", {}, "environment", tokens == null ? null : make("span", { class: "muted" }, ` · ${many(tokens, "token")}`),
      exact ? null : make("span", { class: "muted" }, " · what it said, in other words")),
    block.map(([role, ...parts]) => make("div", { class: "message" },
      make("span", { class: "role" }, role),
      folded(role, parts.map(text)))));
}

const LONG = 3000;

/** A message; one that says the same to everybody, or very much, is folded. */
function folded(role, parts) {
  const said = make("div", { class: "text" }, parts.map(({ words, own }) => make("span", { class: own ? "own" : "theirs" }, words)));
  const length = parts.reduce((sum, part) => sum + part.words.length, 0);
  if (role !== "system" && length < LONG) return said;
  return make("details", {}, make("summary", {}, many(length, "character")), said);
}

function turnBlock(agent, turn, i) {
  const facts = [many(turn.generated, "token"), turn.max == null ? null : `of ${count(turn.max)} granted`, words(turn.outcome),
    turn.fault && words(turn.fault), turn.stop === "length" ? "cut by length" : null,
    turn.temperature === 1 ? null : `temperature ${measure(turn.temperature)}`, turn.version ? `weights of step ${count(turn.version)}` : null];
  const refused = Object.entries(turn.refused ?? {}).map(([position, fault]) => `objective ${position} refused: ${words(fault)}`);
  return make("section", { class: "exchange", id: `turn-${i}`, "aria-label": `Turn ${i}` },
    environment(turn.wrote, turn.prompt),
    make("section", { class: "generated" },
      make("h4", {}, make("a", { href: here(agent.id, i) }, `turn ${i}`), " generated",
        make("span", { class: "muted" }, ` · ${facts.filter(Boolean).join(" · ")}`)),
      generatedText(turn),
      make("p", { class: "after small" },
        schemes.map(({ name }, scheme) => creditChip(agent, turn, name, scheme)),
        (turn.adds ?? []).map(([name, value]) => make("span", { class: "chip" }, `${name} ${difference(value)}`)),
        (turn.children ?? []).map((child) => make("a", { class: "chip", href: here(child) }, `→ ${shortName(child)}`)),
        refused.map((said) => make("span", { class: "chip" }, said)))));
}

function creditChip(agent, turn, name, scheme) {
  const said = turn.credit?.[scheme];
  if (said == null) return null;
  if (said === "excluded") return make("span", { class: "chip", title: whyExcluded(agent, scheme) }, `${name}: excluded`);
  const value = meanOf(said);
  return make("span", { class: "chip" }, `${name} `, make("span", { class: sign(value) }, difference(value)));
}

/** What an agent wrote; where credit is by token, each token with its colour, under the first such scheme. */
function generatedText(turn) {
  const scheme = (turn.credit ?? []).findIndex(Array.isArray);
  if (scheme < 0) return make("div", { class: "text" }, text(turn.text).words);
  const said = turn.credit[scheme];
  const most = Math.max(1e-9, ...said.map(Math.abs));
  const pieces = turn.pieces ?? said.map((_, i) => `[${i}] `);
  const tokens = pieces.map((piece, i) => {
    const token = make("span", { class: "token", title: `${schemes[scheme].name} ${difference(said[i])}` }, piece);
    const share = Math.round((Math.abs(said[i]) / most) * 45);
    token.style.background = `color-mix(in oklab, var(--${said[i] < 0 ? "negative" : "positive"}) ${share}%, transparent)`;
    return token;
  });
  return make("div", {}, turn.pieces ? null : make("div", { class: "text" }, text(turn.text).words),
    make("div", { class: "text tokens" }, tokens));
}

function markTurn() {
  for (const block of $("turns").querySelectorAll(".exchange")) block.classList.toggle("chosen", block.id === `turn-${shown.turn}`);
  if (shown.turn) $(`turn-${shown.turn}`)?.scrollIntoView({ block: "nearest" });
}

// Replays: what would have come of it, had this agent done something else.

const REPLAY = /\/([^/]+)\/sample(\d+)(?:~\d+)?$/;

function drawReplays(agent) {
  const title = make("h3", { id: "replays-title" }, "Had it done something else");
  const found = shown.episode.replays
    .map((number) => ({ number, what: index.name[number].match(REPLAY) }))
    .map(({ number, what }) => ({ number, sample: what?.[2], done: what?.[1].split(",").find((one) => one.startsWith(`${agent.id}=`)) }))
    .filter(({ done }) => done);
  $("replays").hidden = !found.length;
  if (!found.length) return $("replays").replaceChildren(title);
  const [own, other] = [index.return[shown.number], average(found.map(({ number }) => index.return[number]))];
  const said = (episode, id) => {
    const reply = episode.agents.find((one) => one.id === id)?.reply;
    return reply == null ? "no reply" : text(reply).words;
  };
  const cells = (episode, number) => [
    make("td", { class: "text" }, said(episode, agent.id)),
    agent.id === "root" ? null : make("td", { class: "text" }, said(episode, "root")),
    make("td", { class: "number" }, measure(index.return[number])),
    make("td", { class: `number ${sign(own - index.return[number])}` }, number === shown.number ? "" : difference(own - index.return[number])),
  ];
  $("replays").replaceChildren(
    title,
    make("p", { class: "small" }, `Return ${measure(own)}, and ${measure(other)} on average of ${many(found.length, "replay")}: what it did made a difference of `,
      make("strong", { class: sign(own - other) }, difference(own - other)), "."),
    make("div", { class: "scroll", tabindex: 0, role: "region", "aria-labelledby": "replays-title" },
      make("table", {},
        make("thead", {}, make("tr", {}, ["", `${shortName(agent.id)} replied`, agent.id === "root" ? null : "root answered", "return", "difference"]
          .filter((name) => name != null)
          .map((name) => (name ? make("th", { scope: "col" }, name) : make("td", {}))))),
        make("tbody", {},
          make("tr", { class: "factual" }, make("th", { scope: "row" }, "as played"), cells(shown.episode, shown.number)),
          found.map(({ number, sample, done }) =>
            make("tr", {},
              make("th", { scope: "row" }, make("a", { href: address(index.name[number], agent.id) },
                `${done.slice(agent.id.length + 1)} ${sample}`)),
              cells(JSON.parse(stored.episodes[number]), number)))))));
}

// The keyboard.

list.addEventListener("scroll", drawList, { passive: true });
list.addEventListener("keydown", (event) => {
  const page = Math.max(1, Math.floor(list.clientHeight / ROW) - 1);
  const to = {
    ArrowDown: listed.at + 1, ArrowUp: listed.at - 1, PageDown: listed.at + page, PageUp: listed.at - page,
    Home: 0, End: listed.rows.length - 1,
  }[event.key];
  if (event.key === "Enter") $("episode-name").focus();
  else if (to == null) return;
  else moveTo(to);
  event.preventDefault();
});

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, select, textarea")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const turns = agentOf(shown.agent)?.turns.length ?? 0;
  const step = { n: 1, p: -1 }[event.key];
  if (event.key === "/") $("find").focus();
  else if (event.key === "j") moveTo(listed.at + 1);
  else if (event.key === "k") moveTo(listed.at - 1);
  else if (step && turns) go(here(shown.agent, Math.min(turns - 1, Math.max(0, shown.turn + step))));
  else return;
  event.preventDefault();
});

addEventListener("hashchange", show);
addEventListener("beforeprint", () => {
  for (const fold of document.querySelectorAll("details")) fold.open = true;
});
new ResizeObserver(() => {
  drawList();
  if (shown.episode) {
    drawTimeline();
    if (shown.episode.exact) fillLedger();
  }
}).observe($("main"));

startFilters();
filter();
show();
