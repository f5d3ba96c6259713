// The progress on the page of `selfcest watch --serve`: the only script that asks a server, which is the page's own.

/** The jobs of a run that a served page follows. It asks for their state again and again, until the server ends. */
function progress() {
  const jobs = make("div", {});
  const state = make("p", { class: "muted small", role: "status" });
  const show = ({ headline, heads, jobs: rows, version, writing, error }) => {
    const text = new Set(["job", "stage", "checkpoint", "now"]);
    const cell = (value, i) => (text.has(heads[i]) ? name(value) : number(value));
    jobs.replaceChildren(table(headline, heads.map(cell), rows.map((row) => row.map(cell))));
    const said = error ? `The report could not be written: ${error}` : version ? "The report below is the newest." : "There is no report yet.";
    state.textContent = writing == null ? said : `${said} A report has been in the making for ${writing} s.`;
  };
  const ask = async () => {
    try {
      const now = await (await fetch("progress.json")).json();
      // The choices of the reader survive the reload.
      if (now.version !== live.version) return location.reload();
      show(now);
      setTimeout(ask, now.writing == null ? 5000 : 1000);
    } catch {
      state.textContent = "The server of this page has ended, so it shows the last state.";
    }
  };
  show(live);
  setTimeout(ask, 1000);
  return block("progress", "Progress", jobs, state);
}
