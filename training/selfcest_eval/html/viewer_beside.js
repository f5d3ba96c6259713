// Two episodes side by side: the shown one, and another of the same instance, as before and after training.

const MOST_SAME = 50; // episodes of the instance in the table
const MOST_BESIDE = 60; // agents in a column

function drawBeside() {
  const { number: place, beside } = shown;
  const same = [...index.name.keys()].filter((i) => i !== place && isFactual(i) && index.task[i] === index.task[place]);
  $("beside-card").hidden = !same.length && beside == null;
  const episodes = [place, ...new Set(beside == null ? same : [beside, ...same])].slice(0, 1 + MOST_SAME);
  $("beside").replaceChildren(
    same.length > MOST_SAME
      ? make("p", { class: "muted small" }, `The first ${MOST_SAME} of ${many(same.length, "other episode")}.`)
      : "",
    make(
      "div",
      { class: "scroll", tabindex: 0, role: "region", "aria-labelledby": "beside-title" },
      makeTable({
        heads: ["episode", "side by side", "outcome", ...["return", "difference", "tokens", "clones"].map(number)],
        rows: episodes.map(rowBeside),
      }),
    ),
    beside == null ? "" : make("div", { class: "pair" }, columnOf(place, shown.episode), columnOf(beside, parseEpisode(beside))),
  );
}

/** What tells the episodes of an instance apart: the strategy of a study, or the job and the episode's id. */
const titleOf = (i) => index.played_as[i] || [index.job[i], index.name[i]].filter(Boolean).join(" ");

function rowBeside(i) {
  const isShown = i === shown.number;
  const gap = index.return[i] == null || index.return[shown.number] == null ? null : index.return[i] - index.return[shown.number];
  const other = i === shown.beside ? null : index.name[i];
  return make(
    "tr",
    { class: isShown ? "factual" : null },
    make("th", { scope: "row" }, isShown ? titleOf(i) : make("a", { href: address(index.name[i]) }, titleOf(i))),
    make(
      "td",
      {},
      isShown
        ? "this episode"
        : make(
            "button",
            { type: "button", on: { click: () => go(address(index.name[shown.number], shown.agent, shown.turn, other)) } },
            other == null ? "close" : "open",
          ),
    ),
    make("td", {}, outcomeMark(index.outcome[i])),
    make("td", { class: "number" }, measure(index.return[i])),
    make("td", { class: `number ${sign(gap)}` }, isShown ? "" : difference(gap)),
    make("td", { class: "number" }, count(index.tokens[i])),
    make("td", { class: "number" }, count(index.clones[i])),
  );
}

function columnOf(i, episode) {
  const answer = episode.agents[0].reply;
  return make(
    "section",
    { "aria-label": index.name[i] },
    make("h4", {}, titleOf(i)),
    make(
      "dl",
      { class: "facts" },
      facts([
        ["outcome", outcomeMark(index.outcome[i])],
        ["answer", answer == null ? "none" : text(answer).words, "text"],
        ["return", measure(index.return[i])],
        ["tokens", count(index.tokens[i])],
        ["critical path", count(index.critical[i])],
        ["clones", count(index.clones[i])],
      ]),
    ),
    episode.agents.slice(0, MOST_BESIDE).map(agentBeside),
    episode.agents.length > MOST_BESIDE
      ? make("p", { class: "muted small" }, `and ${many(episode.agents.length - MOST_BESIDE, "more agent")}`)
      : null,
  );
}

/** An agent in a column, below its parent: what it was asked, and all that it wrote. */
function agentBeside(agent) {
  const fold = make(
    "details",
    { open: !agent.parent },
    make("summary", {}, `${mark(agent.status)} ${shortName(agent.id)} · ${many(spentOf(agent), "token")}`),
    agent.parent ? make("p", { class: "text muted small" }, text(agent.objective).words) : null,
    agent.turns.map((turn) => make("div", { class: "text generated" }, text(turn.text).words)),
  );
  fold.style.marginLeft = `${0.8 * agent.depth}rem`;
  return fold;
}
