// The conversation of an agent.

function showAgent() {
  const agent = agentOf(shown.agent);
  $("agent-name").textContent = agent.id;
  $("agent-facts").replaceChildren(
    ...facts([
      ["state", `${mark(agent.status)} ${words(agent.status)}`],
      ["spent", count(spentOf(agent)) + (agent.granted == null ? "" : ` of ${count(agent.granted)}`)],
      ["asked", agent.id === "root" ? null : text(agent.objective).words, "text"],
      [
        agent.status === "absent" ? "its parent was given" : "replied",
        agent.reply == null ? null : text(agent.reply).words,
        "text",
      ],
    ]),
  );
  $("turns").replaceChildren(
    ...agent.turns.map((turn, i) => turnBlock(agent, turn, i)),
    ...(agent.after ? [environment(agent.after, null)] : []),
  );
  if (!agent.turns.length) $("turns").append(make("p", { class: "muted small" }, "This agent took no turn."));
  drawReplays(agent);
  markWanted();
  $("agent").scrollTop = 0;
}

function environment(block, tokens) {
  const exact = shown.episode.exact;
  return make(
    "section",
    { class: "environment" },
    make(
      "h4",
      {},
      "environment",
      tokens == null ? null : make("span", { class: "muted" }, ` · ${many(tokens, "token")}`),
      exact ? null : make("span", { class: "muted" }, " · contents of the messages, not their exact text"),
    ),
    block.map(([role, ...parts]) =>
      make("div", { class: "message" }, make("span", { class: "role" }, role), folded(role, parts.map(text))),
    ),
  );
}

const LONG = 3000;
const MOST_CHIPS = 50; // links to clones below a turn

/** A message. System messages, which all agents share, and long ones are folded. */
function folded(role, parts) {
  const content = make(
    "div",
    { class: "text" },
    parts.map(({ words, own }) => make("span", { class: own ? "own" : "theirs" }, words)),
  );
  const length = parts.reduce((sum, part) => sum + part.words.length, 0);
  if (role !== "system" && length < LONG) return content;
  return make("details", {}, make("summary", {}, many(length, "character")), content);
}

function turnBlock(agent, turn, i) {
  const facts = [
    many(turn.generated, "token"),
    turn.max == null ? null : `of ${count(turn.max)} granted`,
    words(turn.outcome),
    turn.fault && words(turn.fault),
    turn.stop === "length" ? "cut by length" : null,
    turn.temperature === 1 ? null : `temperature ${measure(turn.temperature)}`,
    turn.version ? `weights of step ${count(turn.version)}` : null,
  ];
  const refused = Object.entries(turn.refused ?? {}).map(
    ([position, fault]) => `objective ${position} refused: ${words(fault)}`,
  );
  return make(
    "section",
    { class: "exchange", id: `turn-${i}`, "aria-label": `Turn ${i}` },
    environment(turn.wrote, turn.prompt),
    make(
      "section",
      { class: "generated" },
      make(
        "h4",
        {},
        make("a", { href: here(agent.id, i) }, `turn ${i}`),
        " generated",
        make("span", { class: "muted" }, ` · ${facts.filter(Boolean).join(" · ")}`),
      ),
      generatedText(turn),
      make(
        "p",
        { class: "after small" },
        schemes.map(({ name }, scheme) => creditChip(agent, turn, name, scheme)),
        (turn.adds ?? []).map(([name, value]) => make("span", { class: "chip" }, `${name} ${difference(value)}`)),
        (turn.children ?? []).slice(0, MOST_CHIPS).map((child) =>
          make("a", { class: "chip", href: here(child) }, `→ ${shortName(child)}`),
        ),
        turn.children?.length > MOST_CHIPS ? `and ${many(turn.children.length - MOST_CHIPS, "more clone")}` : null,
        refused.map((said) => make("span", { class: "chip" }, said)),
      ),
    ),
  );
}

function creditChip(agent, turn, name, scheme) {
  const said = turn.credit?.[scheme];
  if (said == null) return null;
  if (said === "excluded")
    return make("span", { class: "chip", title: whyExcluded(agent, scheme) }, `${name}: excluded`);
  const value = meanOf(said);
  return make("span", { class: "chip" }, `${name} `, make("span", { class: sign(value) }, difference(value)));
}

/** The text of a turn. With credit per token, each token is coloured by the first scheme that has it. */
function generatedText(turn) {
  const scheme = (turn.credit ?? []).findIndex(Array.isArray);
  if (scheme < 0) return make("div", { class: "text" }, text(turn.text).words);
  const said = turn.credit[scheme];
  const most = Math.max(1e-9, ...said.map(Math.abs));
  const pieces = turn.pieces ?? said.map((_, i) => `[${i}] `);
  const tokens = pieces.map((piece, i) => {
    const token = make("span", { class: "token", title: `${schemes[scheme].name} ${difference(said[i])}` }, piece);
    const share = Math.round((Math.abs(said[i]) / most) * 45);
    const colour = said[i] < 0 ? "negative" : "positive";
    token.style.background = `color-mix(in oklab, var(--${colour}) ${share}%, transparent)`;
    return token;
  });
  return make(
    "div",
    {},
    turn.pieces ? null : make("div", { class: "text" }, text(turn.text).words),
    make("div", { class: "text tokens" }, tokens),
  );
}

const isFramed = window !== window.top;

/** Mark the shown turn and scroll to it, but not to the first turn of a newly shown agent, whose facts are above it. */
function markTurn(turned) {
  for (const block of $("turns").querySelectorAll(".exchange"))
    block.classList.toggle("chosen", block.id === `turn-${shown.turn}`);
  // In a frame the browser would scroll the page around it as well, so its first place is not scrolled to.
  if (isFramed && !shown.moved) return;
  if (shown.turn || !turned) $(`turn-${shown.turn}`)?.scrollIntoView({ block: "nearest" });
}

// Replays: the episode with another action or another reply of this agent.

const REPLAY = /\/([^/]+)\/sample(\d+)(?:~\d+)?$/;

function drawReplays(agent) {
  const title = make("h3", { id: "replays-title" }, "Counterfactual replays");
  const found = shown.episode.replays
    .map((number) => ({ number, what: index.name[number].match(REPLAY) }))
    .map(({ number, what }) => ({
      number,
      sample: what?.[2],
      done: what?.[1].split(",").find((one) => one.startsWith(`${agent.id}=`)),
    }))
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
    make(
      "td",
      { class: `number ${sign(own - index.return[number])}` },
      number === shown.number ? "" : difference(own - index.return[number]),
    ),
  ];
  $("replays").replaceChildren(
    title,
    make(
      "p",
      { class: "small" },
      `Return ${measure(own)}, and ${measure(other)} on average of ${many(found.length, "replay")}: `,
      "the difference is ",
      make("strong", { class: sign(own - other) }, difference(own - other)),
      ".",
    ),
    make(
      "div",
      { class: "scroll", tabindex: 0, role: "region", "aria-labelledby": "replays-title" },
      makeTable({
        heads: [
          "",
          `${shortName(agent.id)} replied`,
          ...(agent.id === "root" ? [] : ["root answered"]),
          ...["return", "difference"].map(number),
        ],
        rows: [
          make(
            "tr",
            { class: "factual" },
            make("th", { scope: "row" }, "as played"),
            cells(shown.episode, shown.number),
          ),
          found.map(({ number, sample, done }) =>
            make(
              "tr",
              {},
              make(
                "th",
                { scope: "row" },
                make(
                  "a",
                  { href: address(index.name[number], agent.id) },
                  `${done.slice(agent.id.length + 1)} ${sample}`,
                ),
              ),
              cells(JSON.parse(stored.episodes[number]), number),
            ),
          ),
        ],
      }),
    ),
  );
}
