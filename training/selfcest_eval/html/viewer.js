// The page of `selfcest trace --html`: a list of episodes, and the tree, texts, times, accounts and credit of the chosen one.
// The address holds the shown place as #episode/agent/turn, and a second episode beside it as #episode/agent/turn/episode.
// Every change of the place is a change of the address.

const index = read("index");
const schemes = read("schemes");
const leftOut = read("left_out");
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

/**
 * The shown place: the address, the number and the values of the episode, the id of the agent, the index of the turn, and
 * the number of the episode beside it.
 */
const shown = { place: null, number: null, episode: null, agent: null, turn: null, beside: null };

const address = (name, agent = "root", turn = 0, beside = null) =>
  `#${[name, agent, turn, ...(beside == null ? [] : [beside])].map(encodeURIComponent).join("/")}`;
const here = (agent, turn = 0) => address(index.name[shown.number], agent, turn, index.name[shown.beside]);
/** Change the address and show its place at once, so that the next key starts there. The event then changes nothing. */
const go = (place) => {
  location.hash = place;
  show();
};

// Colour of a state, an outcome or a share of tokens, and a mark for readers who do not see colours.

const MARKS = { answered: "•", waiting: "…", ready: "›", absent: "∅" };
const mark = (status) => MARKS[status] ?? "✕";
// An episode's outcome has a mark of its own: that the root answered says nothing about its answer.
const OUTCOMES = { right: "✓", "partly right": "◐", wrong: "✕" };
const outcomeClass = (outcome) => ({ right: "good", wrong: "bad" })[outcome] ?? "";
const words = (name) => name.replaceAll("_", " ");
const fillOf = (status) => `var(--status-${status.replaceAll("_", "-")})`;

// The list. Only the rows in view exist, so a list of thousands scrolls as fast as a short one.

const ROW = 44;
const list = $("list");
const sheet = make("div", { class: "sheet", role: "presentation" });
// Rows are numbers of episodes, and lists of them for the heads of groups. `places` are where searched words stand.
const listed = { rows: [], at: 0, count: 0, places: new Map() };
list.append(sheet);

const BY_GROUP = "by group"; // below a line for each group, the unit of GRPO
const ORDERS = {
  "as played": null,
  [BY_GROUP]: null,
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
  select.append(...names.map((name) => make("option", { value: name }, name === "" ? "(none)" : name)));
}

/** The filters by a column with values of its own; one without a choice is hidden. */
const COLUMN_FILTERS = ["outcome", "family", "size", "job", "step", "group"];

function startFilters() {
  const inOrder = (a, b) => (typeof a === "number" ? a - b : String(a).localeCompare(b, "en", { numeric: true }));
  const distinct = (values) => ["any", ...[...new Set(values.filter((value) => value != null))].sort(inOrder)];
  for (const name of COLUMN_FILTERS) {
    const values = distinct(index[name]);
    choices($(name), values);
    $(name).closest("label").hidden = values.length < 3;
  }
  const troubles = distinct(index.troubles.flat());
  $("trouble").append(...troubles.map((name) => make("option", { value: name }, words(name))));
  $("trouble").closest("label").hidden = troubles.length < 2;
  choices($("clones"), Object.keys(CLONES));
  choices($("return"), Object.keys(RETURNS));
  choices($("order"), Object.keys(ORDERS));
  if (index.of.every((of) => of == null)) $("with-replays").closest("label").hidden = true;
  let waiting; // the search that begins when the reader pauses
  const search = () => {
    waiting = clearTimeout(waiting);
    filter();
  };
  $("filters").addEventListener("input", (event) => {
    clearTimeout(waiting);
    if (event.target === $("find")) waiting = setTimeout(search, SEARCH_PAUSE);
    else search();
  });
  // Enter begins it at once. After it, a change of focus must not move the list under the pointer.
  $("find").addEventListener("change", () => waiting && search());
  $("filters").addEventListener("submit", (event) => event.preventDefault());
}

const SEARCH_PAUSE = 150; // milliseconds
const inLowerCase = []; // by number of a text, filled when it is first searched
const textsOf = []; // by episode, the agent, the turn and the number of every text, filled at the first search in turns
// The last query, and whether each text that was searched for it has its words.
const query = { words: "", hits: [] };

function hasWords(number) {
  inLowerCase[number] ??= text(number).words.toLowerCase();
  return (query.hits[number] ??= inLowerCase[number].includes(query.words));
}

/** The first place of an episode where a text has the words of the query, as [agent, turn], or undefined. */
function placeOf(i) {
  textsOf[i] ??= JSON.parse(stored.episodes[i]).agents.flatMap((agent) => {
    const read = (block) => (block ?? []).flatMap(([, ...parts]) => parts);
    const of = (turn, numbers) => numbers.map((number) => [agent.id, turn, number]);
    return [
      ...agent.turns.flatMap((turn, at) => of(at, [turn.text, ...read(turn.wrote)])),
      ...of(Math.max(0, agent.turns.length - 1), read(agent.after)),
    ];
  });
  return textsOf[i].find(([, , number]) => hasWords(number));
}

function filter() {
  const wanted = $("find").value.toLowerCase();
  const inTurns = $("in-turns").checked;
  const columns = COLUMN_FILTERS.map((name) => [index[name], $(name).value]).filter(([, value]) => value !== "any");
  const trouble = $("trouble").value;
  const [clones, returns] = [CLONES[$("clones").value], RETURNS[$("return").value]];
  const most = $("tokens").value === "" ? Infinity : Number($("tokens").value);
  if (wanted !== query.words) Object.assign(query, { words: wanted, hits: [] });
  const rows = [];
  listed.places = new Map();
  for (let i = 0; i < size; i++) {
    if (index.of[i] != null && !$("with-replays").checked) continue;
    if (columns.some(([column, value]) => String(column[i]) !== value)) continue;
    if (trouble !== "any" && !index.troubles[i].includes(trouble)) continue;
    if (!clones(index.clones[i]) || !returns(index.return[i]) || index.tokens[i] > most) continue;
    const isNamed = (field) => field[i].toLowerCase().includes(wanted);
    if (wanted && !isNamed(index.name) && !isNamed(index.played_as) && !hasWords(index.prompt[i])) {
      const place = inTurns ? placeOf(i) : undefined;
      if (!place) continue;
      listed.places.set(i, place);
    }
    rows.push(i);
  }
  const order = ORDERS[$("order").value];
  listed.rows = $("order").value === BY_GROUP ? inGroups(rows) : order ? rows.sort(order) : rows;
  listed.count = rows.length;
  const all = index.of.reduce((sum, of) => sum + (of == null || $("with-replays").checked), 0);
  const mean = average(rows.map((i) => index.return[i]).filter((value) => value != null));
  $("found").textContent =
    `${count(rows.length)} of ${many(all, "episode")}` + (mean == null ? "" : `, mean return ${measure(mean)}`);
  sheet.style.height = `${listed.rows.length * ROW}px`;
  listed.at = listed.rows.indexOf(shown.number);
  list.scrollTop = 0;
  drawList();
  markWanted();
}

/** The rows of each group, by its name. */
function groupRows(rows) {
  const groups = new Map();
  for (const i of rows) {
    const group = groups.get(index.group[i]);
    if (group) group.push(i);
    else groups.set(index.group[i], [i]);
  }
  return groups;
}

/** The episodes below a head for each group, which is a list of its episodes. */
const inGroups = (rows) => [...groupRows(rows).values()].flatMap((group) => [group, ...group]);

const isFactual = (i) => index.of[i] == null;
// Filters and replays change the rows below a head, but not the result of the group.
const factualGroups = groupRows([...index.name.keys()].filter(isFactual));

/** The line above the episodes of a group. */
function groupHead(rows, at) {
  const group = factualGroups.get(index.group[rows[0]]) ?? [];
  const numShown = rows.filter(isFactual).length;
  const returns = group.map((i) => index.return[i]).filter((value) => value != null);
  const right = group.filter((i) => index.outcome[i] === "right").length;
  const mean = average(returns);
  const spread = returns.length > 1 ? Math.sqrt(returns.reduce((sum, value) => sum + (value - mean) ** 2, 0) / (returns.length - 1)) : null;
  const head = make(
    "div",
    { class: "row group", role: "presentation" },
    make("span", { class: "name" }, index.group[rows[0]]),
    make(
      "span",
      { class: "about muted" },
      [
        (numShown < group.length ? `${count(numShown)} of ` : "") + many(group.length, "episode"),
        `${count(right)} right`,
        mean == null ? null : `return ${measure(mean)}${spread == null ? "" : ` ± ${measure(spread)}`}`,
      ]
        .filter(Boolean)
        .join(" · "),
    ),
  );
  head.style.top = `${at * ROW}px`;
  return head;
}

const MOST_MARKS = 10_000; // more make a page of long texts slow

/** Mark the searched words in the texts of the shown agent. */
function markWanted() {
  if (!CSS.highlights) return;
  const highlight = new Highlight();
  CSS.highlights.set("wanted", highlight);
  // The folds that the last search opened.
  for (const fold of $("turns").querySelectorAll("details[data-hit]")) {
    fold.open = false;
    delete fold.dataset.hit;
  }
  const wanted = $("find").value;
  if (!wanted) return;
  // Some texts are longer in lower case, so places in them are found without a change of case.
  const pattern = new RegExp(wanted.replace(/[\^$\\.*+?()[\]{}|/]/g, "\\$&"), "giu");
  const walker = document.createTreeWalker($("turns"), NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    for (const match of node.data.matchAll(pattern)) {
      // A closed fold would hide the hit.
      const fold = node.parentElement.closest("details:not([open])");
      if (fold) Object.assign(fold, { open: true }).dataset.hit = "";
      if (highlight.size === MOST_MARKS) return;
      const range = new Range();
      range.setStart(node, match.index);
      range.setEnd(node, match.index + match[0].length);
      highlight.add(range);
    }
  }
}

const average = (values) => (values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : null);

function drawList() {
  const first = Math.max(0, Math.floor(list.scrollTop / ROW) - 4);
  const last = Math.min(listed.rows.length, Math.ceil((list.scrollTop + list.clientHeight) / ROW) + 4);
  const rows = [];
  for (let at = first; at < last; at++) {
    const entry = listed.rows[at];
    rows.push(Array.isArray(entry) ? groupHead(entry, at) : row(at));
  }
  sheet.replaceChildren(...rows);
  const chosen = listed.rows[listed.at];
  if (chosen != null && listed.at >= first && listed.at < last)
    list.setAttribute("aria-activedescendant", `row-${chosen}`);
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
      "aria-setsize": listed.count,
      "aria-posinset": at + 1 - listed.rows.slice(0, at).filter(Array.isArray).length,
      on: { click: () => openEpisode(i) },
    },
    make(
      "span",
      { class: `mark ${outcomeClass(outcome)}`, "aria-hidden": "true" },
      OUTCOMES[outcome] ?? mark(outcome),
    ),
    make("span", { class: "name" }, index.name[i], make("span", { class: "hidden-label" }, `, ${outcome}, return `)),
    make("span", { class: `number ${sign(index.return[i] ?? 0)}` }, measure(index.return[i])),
    make(
      "span",
      { class: "about muted" },
      [
        outcome in OUTCOMES ? null : outcome,
        [index.family[i], index.size[i]].filter(Boolean).join(" "),
        many(index.clones[i], "clone"),
        many(index.tokens[i], "token"),
      ]
        .filter(Boolean)
        .join(" · "),
    ),
  );
  option.style.top = `${at * ROW}px`;
  return option;
}

/** Show an episode, at the place of the searched words if it was found by them. */
function openEpisode(i) {
  const [agent, turn] = listed.places.get(i) ?? [];
  go(address(index.name[i], agent, turn));
}

function moveTo(at) {
  if (!listed.rows.length) return;
  const step = at < listed.at ? -1 : 1;
  let to = Math.min(listed.rows.length - 1, Math.max(0, at));
  // The head of a group is no episode, and the first row may be one.
  if (Array.isArray(listed.rows[to])) to += step;
  if (to < 0) to = 1;
  listed.at = to;
  openEpisode(listed.rows[to]);
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
  if (shown.place === location.hash) return;
  shown.place = location.hash;
  const [name, agentId, turn, besideName] = location.hash.slice(1).split("/").map(decoded);
  const number = numberOf.get(name) ?? listed.rows.find((entry) => !Array.isArray(entry)) ?? 0;
  const isNew = number !== shown.number;
  const beside = numberOf.get(besideName) ?? null;
  const isBesideNew = isNew || beside !== shown.beside;
  shown.beside = beside;
  if (isNew) {
    shown.number = number;
    shown.episode = parseEpisode(number);
    shown.agent = null;
    shown.event = null;
    listed.at = listed.rows.indexOf(number);
    reveal();
    showEpisode();
    drawList();
  }
  const agent = agentOf(agentId) ?? shown.episode.agents[0];
  const last = Math.max(0, agent.turns.length - 1);
  const turned = shown.agent !== agent.id;
  shown.agent = agent.id;
  shown.turn = Math.min(last, Math.max(0, Math.trunc(Number(turn)) || 0));
  correctAddress(name, agentId, turn, besideName);
  if (isBesideNew) drawBeside();
  if (turned) {
    showAgent();
    if (isNew || shown.episode.agents.length > MOST_ROWS) drawCredit();
  }
  markTurn(turned);
  if (shown.moved) announcePlace();
  shown.moved = true;
  drawTree();
  drawTimeline();
  drawLedger();
}

/** Tell a screen reader the new place, unless the focus is in the list or the tree, which tell it. */
function announcePlace() {
  if ([list, $("tree")].some((box) => box.contains(document.activeElement))) return;
  const { turns } = agentOf(shown.agent);
  const turn = turns.length ? `, turn ${shown.turn} of ${count(turns.length)}` : "";
  $("announced").textContent = `${index.name[shown.number]}, ${shown.agent}${turn}`;
}

/** Say which part of the address does not exist, and change the address to the place that is shown. */
function correctAddress(name, agentId, turn, besideName) {
  const [episode, agent] = [index.name[shown.number], shown.agent];
  const missing = [
    name && name !== episode && `no episode ${name} here; this is ${episode}`,
    agentId && agentId !== agent && `no agent ${agentId} in this episode; this is ${agent}`,
    turn && turn !== String(shown.turn) && `no turn ${turn} of ${agent}; this is turn ${shown.turn}`,
    besideName && shown.beside == null && `no episode ${besideName} here to show beside this one`,
  ].find(Boolean);
  $("missing").textContent = missing ? `There is ${missing}.` : "";
  if (!missing) return;
  const place = here(agent, shown.turn);
  // The frame of a notebook has no address that could be replaced.
  if (isInNotebook) location.hash = place;
  else history.replaceState(null, "", place);
  shown.place = location.hash;
}

/** An episode whose agents have their parents, clones, numbers and depths. Agents are in tree order. */
function parseEpisode(number) {
  const episode = JSON.parse(stored.episodes[number]);
  episode.byId = new Map(episode.agents.map((agent) => [agent.id, agent]));
  for (const [number, agent] of episode.agents.entries()) {
    agent.number = number;
    agent.clones = agent.turns.flatMap((turn) => turn.children ?? []).map((id) => episode.byId.get(id));
    agent.clones.forEach((clone, place) => Object.assign(clone, { parent: agent, place }));
    agent.depth = agent.parent ? agent.parent.depth + 1 : 0;
  }
  return episode;
}

const agentOf = (id) => shown.episode.byId.get(id);
const shortName = (id) => (id === "root" ? "root" : id.slice(4));

/** The agents above an agent, the nearest first. */
function ancestorsOf(agent) {
  const above = [];
  for (let { parent } = agent; parent; { parent } = parent) above.push(parent);
  return above;
}

const MOST_ROWS = 150; // of a table about all agents; a longer one shows those around the shown agent

/** The agents around the shown one: those above it, itself and its clones. */
function neighbours() {
  const agent = agentOf(shown.agent);
  return [...ancestorsOf(agent).reverse(), agent, ...agent.clones.slice(0, MOST_ROWS)];
}

/** An outcome as its mark and its word. */
const outcomeMark = (outcome) =>
  make("span", { class: `mark ${outcomeClass(outcome)}` }, `${OUTCOMES[outcome] ?? mark(outcome)} ${outcome}`);

function facts(pairs) {
  return pairs
    .filter(([, value]) => value != null && value !== "")
    .map(([name, value, kind]) =>
      make("div", {}, make("dt", {}, name), make("dd", { class: kind }, value)),
    );
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
      ["outcome", outcomeMark(index.outcome[number])],
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
  startTree();
}
