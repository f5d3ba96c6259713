// The progress on the page of `selfcest watch --serve`: the only script that asks a server, which is the page's own.

/** The jobs of a run that a served page follows. It asks for their state again and again. */
function progress() {
  const jobs = make("div", {});
  const state = make("p", { class: "muted small", role: "status" });
  const show = ({ headline, heads, jobs: rows, version, writing, error }) => {
    const text = new Set(["job", "stage", "checkpoint", "now"]);
    const cell = (value, i) => (text.has(heads[i]) ? name(value) : number(value));
    jobs.replaceChildren(table(headline, heads.map(cell), rows.map((row) => row.map(cell))));
    const report = error ? `The report could not be written: ${error}` : version ? "The report below is the newest." : "There is no report yet.";
    state.textContent = writing == null ? report : `${report} A report has been in the making for ${writing} s.`;
  };
  let pause = 1000; // milliseconds until the next request; a silent server is asked less and less often
  let answeredAt = Date.now();
  const ask = async () => {
    let now;
    try {
      const answer = await fetch("progress.json");
      if (!answer.ok) throw new Error(`status ${answer.status}`);
      now = await answer.json();
    } catch {
      const seconds = Math.round((Date.now() - answeredAt) / 1000);
      state.textContent = `The server of this page has given no answer for ${many(seconds, "second")}, so the page shows the last state.`;
      pause = Math.min(60_000, 2 * pause);
      setTimeout(ask, pause);
      return;
    }
    // The choices of the reader survive the reload.
    if (now.version !== live.version) return location.reload();
    show(now);
    answeredAt = Date.now();
    pause = now.writing == null ? 5000 : 1000;
    setTimeout(ask, pause);
  };
  show(live);
  setTimeout(ask, 1000);
  return block("progress", "Progress", jobs, state);
}
