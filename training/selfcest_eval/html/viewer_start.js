// The keyboard.

list.addEventListener("scroll", drawList, { passive: true });
list.addEventListener("keydown", (event) => {
  const page = Math.max(1, Math.floor(list.clientHeight / ROW) - 1);
  const to = {
    ArrowDown: listed.at + 1,
    ArrowUp: listed.at - 1,
    PageDown: listed.at + page,
    PageUp: listed.at - page,
    Home: 0,
    End: listed.rows.length - 1,
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

for (const [id, drawAgain] of [["tree", drawTree], ["timeline", drawTimeline]]) {
  let waiting = false;
  $(id).addEventListener(
    "scroll",
    () => {
      if (waiting || shown.episode.agents.length <= LARGE) return;
      waiting = true;
      requestAnimationFrame(() => {
        waiting = false;
        drawAgain();
      });
    },
    { passive: true },
  );
}

addEventListener("hashchange", show);
// The address holds the shown place, so the skip link must not replace it.
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  $("episode-name").focus();
});
new ResizeObserver(() => {
  drawList();
  if (shown.episode) {
    drawTimeline();
    if (shown.episode.exact) fillLedger();
  }
}).observe($("main"));

startFilters();
startColouring();
filter();
show();
