// The accounts after every turn: of the tree as bars, of each agent as a table.

/** The sums over all accounts after every turn. */
function sumAccounts() {
  const now = new Map();
  const sum = { spent: 0, reserved: 0, free: 0 };
  const add = (account, factor) => {
    sum.spent += factor * account.spent;
    sum.reserved += factor * account.reserved;
    sum.free += factor * (freeOf(account) ?? 0);
  };
  return shown.episode.ledger.map(([turn, changes]) => {
    for (const change of changes) {
      if (now.has(change[0])) add(now.get(change[0]), -1);
      const account = accountOf(change);
      now.set(change[0], account);
      add(account, 1);
    }
    return { turn, ...sum };
  });
}

/** All accounts after a turn, by the number of the agent. */
function accountsAfter(event) {
  const now = new Map();
  for (const [, changes] of shown.episode.ledger.slice(0, event + 1)) {
    for (const change of changes) now.set(change[0], accountOf(change));
  }
  return now;
}

const accountOf = ([, granted, spent, reserved, lent]) => ({ granted, spent, reserved, lent });
const freeOf = ({ granted, spent, reserved, lent }) => (granted == null ? null : granted - spent - reserved - lent);

function drawLedger() {
  const { agents, ledger, exact } = shown.episode;
  if (!exact) {
    $("ledger").replaceChildren(
      make(
        "p",
        { class: "muted small" },
        "The rules of this episode are unknown here, so its accounts cannot be computed turn by turn. The tree shows " +
          "the total of each agent. Write the page where the run's folder and its model are, to get all accounts.",
      ),
    );
    return;
  }
  if (shown.event == null) shown.sums = sumAccounts();
  const turned = ledger.findIndex(([turn]) => turn && agents[turn[0]].id === shown.agent && turn[1] === shown.turn);
  shown.event = turned < 0 ? 0 : turned;
  const slider = make("input", {
    type: "range",
    min: 0,
    max: ledger.length - 1,
    value: shown.event,
    "aria-label": "After which turn",
    on: {
      input: () => {
        shown.event = Number(slider.value);
        fillLedger();
      },
    },
  });
  $("ledger").replaceChildren(
    make("div", { id: "money" }),
    make("div", { class: "step screen-only" }, slider),
    make("p", { id: "moment", class: "small" }),
    make(
      "div",
      { class: "scroll", tabindex: 0, role: "region", "aria-label": "Accounts, a row per agent" },
      make("div", { id: "accounts" }),
    ),
  );
  fillLedger();
}

function fillLedger() {
  const { agents } = shown.episode;
  const { sums } = shown;
  const width = Math.max(320, $("ledger").clientWidth);
  const [height, step] = [72, width / sums.length];
  const most = sums.reduce((highest, sum) => Math.max(highest, sum.spent + sum.reserved + sum.free), 1);
  const thinned = Math.ceil(sums.length / width); // of so many turns one is drawn, so that bars are not below a pixel
  const bars = sums.map((sum, i) => {
    if (i % thinned) return null;
    let y = height;
    return ["spent", "reserved", "free"].map((kind) => {
      const part = (sum[kind] / most) * height;
      y -= part;
      return draw("rect", {
        class: kind,
        x: i * step,
        y,
        width: Math.max(0.5, thinned * step - Math.min(1, step / 4)),
        height: part,
      });
    });
  });
  const { turn, ...sum } = sums[shown.event];
  const accounts = accountsAfter(shown.event);
  const unlimited = accounts.get(0).granted == null;
  $("money").replaceChildren(
    draw(
      "svg",
      {
        role: "img",
        "aria-label": "Spent, reserved and free tokens of the whole tree after every turn",
        width,
        height: height + 4,
      },
      bars,
      draw("rect", { class: "cursor", x: shown.event * step, y: 1, width: Math.max(2, step), height: height + 2 }),
    ),
    make(
      "p",
      { class: "legend small" },
      swatch("var(--spent)", "spent"),
      swatch("var(--reserved)", "reserved"),
      swatch("var(--lent)", "lent to clones, in their accounts"),
      unlimited ? null : swatch("var(--free)", "free"),
    ),
  );
  const moment =
    (turn ? `After turn ${turn[1]} of ${agents[turn[0]].id}: ` : "Before the first turn: ") +
    `${count(sum.spent)} spent, ${count(sum.reserved)} reserved` +
    (unlimited ? "." : `, ${count(sum.free)} free.`);
  $("moment").textContent = moment;
  $("ledger").querySelector("input").setAttribute("aria-valuetext", moment); // read while the slider moves
  const cells = ["granted", "spent", "reserved", "lent", "free"];
  const rows = [...accounts.keys()].sort((a, b) => a - b);
  const numbers = new Map(agents.map((agent, i) => [agent.id, i]));
  const near = neighbours().map((agent) => numbers.get(agent.id));
  const changed = shown.episode.ledger[shown.event][1].map(([agent]) => agent);
  const listed = rows.length <= MOST_ROWS ? rows : [...new Set([...near, ...changed])].filter((i) => accounts.has(i));
  $("accounts").replaceChildren(
    listed === rows
      ? ""
      : make(
          "p",
          { class: "muted small" },
          `Of ${count(rows.length)} accounts: those of ${shown.agent}, of the agents above it and of its clones, and ` +
            "those that this turn changed.",
        ),
    makeTable({
      heads: ["account", "where it is", ...cells.map(number)],
      rows: listed
        .slice(0, MOST_ROWS)
        .map((agent) => {
          const account = accounts.get(agent);
          const values = { ...account, free: freeOf(account) };
          return make(
            "tr",
            {},
            make("th", { scope: "row" }, make("a", { href: here(agents[agent].id) }, agents[agent].id)),
            make("td", {}, purse(values)),
            cells.map((name) =>
              make("td", { class: "number" }, values[name] == null ? "unlimited" : count(values[name])),
            ),
          );
        }),
    }),
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
  const sum = index.return[shown.number];
  $("reward").replaceChildren(
    makeTable({
      heads: ["term", ...["value", "weight", "adds"].map(number)],
      rows: terms.map(([name, value, weight]) =>
        make(
          "tr",
          {},
          make("th", { scope: "row" }, name),
          make("td", { class: "number" }, measure(value)),
          make("td", { class: "number" }, measure(weight)),
          make("td", { class: `number ${sign(value * weight)}` }, difference(value * weight)),
        ),
      ),
      foot: make(
        "tr",
        {},
        make("th", { scope: "row", colspan: 3 }, "team return"),
        make("td", { class: `number ${sign(sum)}` }, measure(sum)),
      ),
    }),
    Object.keys(parts).length
      ? make(
          "details",
          {},
          make("summary", {}, `by ${many(Object.keys(parts).length, "part")} of the answer`),
          make(
            "ul",
            { class: "small" },
            Object.entries(parts).map(([key, value]) => make("li", {}, `${key}: ${difference(value)}`)),
          ),
        )
      : "",
  );
}

// Credit: of every turn under every scheme, as a bar from the middle and as a number.

const meanOf = (credit) => (Array.isArray(credit) ? average(credit) : credit);

function creditOfAgent(agent, scheme) {
  const credits = agent.turns.map((turn) => turn.credit?.[scheme]);
  const numbers = credits.map(meanOf).filter((value) => typeof value === "number");
  return numbers.length ? average(numbers) : credits.includes("excluded") ? "excluded" : null;
}

function largest(scheme) {
  const sizes = shown.episode.agents.flatMap((agent) =>
    agent.turns
      .flatMap((turn) => turn.credit?.[scheme])
      .filter((value) => typeof value === "number")
      .map(Math.abs),
  );
  return sizes.reduce((highest, size) => Math.max(highest, size), 1e-9);
}

function whyExcluded(agent, scheme) {
  const failed = agent.status !== "answered" ? `the agent ended ${words(agent.status)}` : "the agent answered";
  return `${failed}; ${schemes[scheme].formula}`;
}

function creditCell(agent, turn, scheme, most) {
  const credit = turn.credit?.[scheme];
  if (credit === "excluded") {
    return make(
      "td",
      { class: "muted", title: whyExcluded(agent, scheme) },
      "excluded: ",
      make("span", { class: "small" }, whyExcluded(agent, scheme)),
    );
  }
  const value = meanOf(credit);
  if (value == null) return make("td", { class: "muted" }, "–");
  const half = 48;
  const length = (Math.abs(value) / most) * half;
  const weight = turn.weight?.[scheme];
  return make(
    "td",
    {},
    draw(
      "svg",
      { class: "credit-bar", "aria-hidden": "true", width: 2 * half, height: 12 },
      draw("rect", {
        class: value < 0 ? "minus" : "plus",
        x: value < 0 ? half - length : half,
        y: 1,
        width: length,
        height: 10,
      }),
      draw("line", { class: "zero", x1: half, x2: half, y1: 0, y2: 12 }),
    ),
    make("span", { class: `advantage ${sign(value)}` }, difference(value)),
    Array.isArray(credit) ? make("span", { class: "muted small" }, ` mean of ${many(credit.length, "token")}`) : null,
    weight == null ? null : make("span", { class: "muted small" }, ` × ${measure(weight)}`),
  );
}

function drawCredit() {
  if (!schemes.length) {
    $("credit").replaceChildren(
      make(
        "p",
        { class: "muted small" },
        "No credit scheme was requested. selfcest trace FILE --html OUT --credit rloo --credit coma shows two side by " +
          "side. A scheme that needs replays, such as coma, is left out where the file has none.",
      ),
    );
    return;
  }
  const most = schemes.map((_, scheme) => largest(scheme));
  const { agents } = shown.episode;
  const listed = agents.length > MOST_ROWS ? neighbours() : agents;
  $("credit").replaceChildren(
    ...leftOut.map((line) => make("p", { class: "small left-out" }, `Left out: ${line}`)),
    listed === agents
      ? ""
      : make("p", { class: "muted small" }, `Of ${count(agents.length)} agents: ${shown.agent}, those above it and its clones.`),
    makeTable({
      heads: ["turn", ...schemes.map(({ name, formula }) => [name, make("span", { class: "formula" }, formula)])],
      rows: listed.flatMap((agent) =>
        agent.turns.map((turn, i) =>
          make(
            "tr",
            {},
            make("th", { scope: "row" }, make("a", { href: here(agent.id, i) }, `${agent.id}/turn${i}`)),
            schemes.map((_, scheme) => creditCell(agent, turn, scheme, most[scheme])),
          ),
        ),
      ),
    }),
  );
}
