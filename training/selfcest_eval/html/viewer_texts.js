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
  drawTurns(agent);
  drawReplays(agent);
  $("agent").scrollTop = 0;
}

function drawTurns(agent) {
  const colouring = $("colouring").value;
  const scheme = schemes.findIndex(({ name }) => name === colouring);
  const most = scheme < 0 ? UNLIKELY : largest(scheme);
  $("colouring-key").textContent = COLOUR_KEYS[colouring] ?? "strong: large advantages of this episode";
  $("turns").replaceChildren(
    ...agent.turns.map((turn, i) => turnBlock(agent, turn, i, colourTokens(turn, scheme, most))),
    ...(agent.after ? [environment(agent.after, null)] : []),
  );
  if (!agent.turns.length) $("turns").append(make("p", { class: "muted small" }, "This agent took no turn."));
  markWanted();
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

function turnBlock(agent, turn, i, generated) {
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
      generated,
      make(
        "p",
        { class: "after small" },
        schemes.map(({ name }, scheme) => creditChip(agent, turn, name, scheme)),
        (turn.adds ?? []).map(([name, value]) => make("span", { class: "chip" }, `${name} ${difference(value)}`)),
        (turn.children ?? []).slice(0, MOST_CHIPS).map((child) =>
          make("a", { class: "chip", href: here(child) }, `→ ${shortName(child)}`),
        ),
        turn.children?.length > MOST_CHIPS ? `and ${many(turn.children.length - MOST_CHIPS, "more clone")}` : null,
        refused.map((words) => make("span", { class: "chip" }, words)),
      ),
    ),
  );
}

function creditChip(agent, turn, name, scheme) {
  const credit = turn.credit?.[scheme];
  if (credit == null) return null;
  if (credit === "excluded")
    return make("span", { class: "chip", title: whyExcluded(agent, scheme) }, `${name}: excluded`);
  const value = meanOf(credit);
  return make("span", { class: "chip" }, `${name} `, make("span", { class: sign(value) }, difference(value)));
}

// Tokens are coloured by their log-prob, or by the advantage of a scheme.

const PLAIN = "nothing";
const LOGPROB = "log-prob";
const UNLIKELY = 5; // nats below 0 at which a log-prob has its full colour
const COLOUR_KEYS = { [PLAIN]: "", [LOGPROB]: "strong: improbable tokens" };

function startColouring() {
  const names = [PLAIN, ...(read("has_logprobs") ? [LOGPROB] : []), ...schemes.map(({ name }) => name)];
  choices($("colouring"), names);
  $("colouring").value = schemes.find((scheme) => scheme.by_token)?.name ?? PLAIN;
  $("colouring").closest("p").hidden = names.length < 2;
  $("colouring").addEventListener("input", () => drawTurns(agentOf(shown.agent)));
}

/** The text of a turn, with a colour for each token; `scheme` is -1 for log-probs or no colour. */
function colourTokens(turn, scheme, most) {
  const words = text(turn.text).words;
  const credit = turn.credit?.[scheme];
  // One advantage of a turn is that of all its tokens.
  const advantages = typeof credit === "number" ? turn.tokens?.map(() => credit) : credit;
  const values = scheme < 0 && $("colouring").value === LOGPROB ? turn.logprobs : advantages;
  if (!Array.isArray(values)) return make("div", { class: "text" }, words);
  let end = 0;
  const pieces = turn.tokens?.map((length) => words.slice(end, (end += length))) ?? values.map((_, i) => `[${i}] `);
  const tokens = pieces.map((piece, i) => {
    const token = make("span", { class: "token", title: tokenTitle(turn, i) }, piece);
    const share = Math.round(Math.min(1, Math.abs(values[i]) / most) * 45);
    token.style.background = `color-mix(in oklab, var(--${values[i] < 0 ? "negative" : "positive"}) ${share}%, transparent)`;
    return token;
  });
  return make(
    "div",
    {},
    turn.tokens ? null : make("div", { class: "text" }, words),
    make("div", { class: "text tokens" }, tokens),
  );
}

function tokenTitle(turn, i) {
  const logprob = turn.logprobs?.[i];
  const credits = schemes.map(({ name }, scheme) => {
    const credit = turn.credit?.[scheme];
    const advantage = Array.isArray(credit) ? credit[i] : credit;
    return typeof advantage === "number" ? `${name} ${difference(advantage)}` : null;
  });
  const probability = logprob == null ? null : `log-prob ${measure(logprob)}, probability ${measure(Math.exp(logprob))}`;
  return [probability, ...credits].filter(Boolean).join("\n");
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
  const replays = shown.episode.replays
    .map((number) => ({ number, parts: index.name[number].match(REPLAY) }))
    .map(({ number, parts }) => ({
      number,
      sample: parts?.[2],
      change: parts?.[1].split(",").find((part) => part.startsWith(`${agent.id}=`)),
    }))
    .filter(({ change }) => change);
  $("replays").hidden = !replays.length;
  if (!replays.length) return $("replays").replaceChildren(title);
  const factual = index.return[shown.number];
  const counterfactual = average(replays.map(({ number }) => index.return[number]));
  const replyOf = (episode, id) => {
    const reply = episode.agents.find((other) => other.id === id)?.reply;
    return reply == null ? "no reply" : text(reply).words;
  };
  const cells = (episode, number) => [
    make("td", { class: "text" }, replyOf(episode, agent.id)),
    agent.id === "root" ? null : make("td", { class: "text" }, replyOf(episode, "root")),
    make("td", { class: "number" }, measure(index.return[number])),
    make(
      "td",
      { class: `number ${sign(factual - index.return[number])}` },
      number === shown.number ? "" : difference(factual - index.return[number]),
    ),
  ];
  $("replays").replaceChildren(
    title,
    make(
      "p",
      { class: "small" },
      `Return ${measure(factual)}, and ${measure(counterfactual)} on average of ${many(replays.length, "replay")}: `,
      "the difference is ",
      make("strong", { class: sign(factual - counterfactual) }, difference(factual - counterfactual)),
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
          replays.map(({ number, sample, change }) =>
            make(
              "tr",
              {},
              make(
                "th",
                { scope: "row" },
                make(
                  "a",
                  { href: address(index.name[number], agent.id) },
                  `${change.slice(agent.id.length + 1)} ${sample}`,
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
