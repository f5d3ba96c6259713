"""The commands: `selfcest plan | train | warmstart | evaluate | compare | contamination | solve | trace | report |
watch | lab | bench | credit | export`."""

from __future__ import annotations

import json
import os
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Annotated

# Spinning OpenMP threads starve the other job on a machine with few cores; this must come before torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

try:
    import typer
    import yaml  # noqa: F401, of every config
except ModuleNotFoundError:  # a plain install has the packages of the game only
    from selfcest_cli import plain

    raise SystemExit(plain.main(sys.argv[1:])) from None

from selfcest_cli.bench import bench
from selfcest_cli.credit import credit_app
from selfcest_cli.export import export
from selfcest_cli.lab import lab
from selfcest_cli.masking import masked_output
from selfcest_cli.terminal import Terminal
from selfcest_env import __version__
from selfcest_env.errors import ConfigError, signal_name
from selfcest_env.local_modules import search_folder
from selfcest_env.plugin import check_modules
from selfcest_training.faults import Exit, SignalExit, exit_code, line_of, signals_raise

app = typer.Typer(
    name="selfcest",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Train and study a root language model that delegates to clones of itself under a hard token budget.",
)


def _print_version(asked: bool) -> None:
    if asked:
        print(f"selfcest {__version__}")
        raise typer.Exit


@app.callback()
def selfcest(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version, and end.")
    ] = False,
) -> None:
    """What stands before a command."""


app.add_typer(credit_app, name="credit")
app.command()(lab)
app.command()(bench)
app.command()(export)

_CONFIG = Annotated[
    Path | None,
    typer.Option(
        "--config", "-c", help="YAML config (default: the quick run of the embedded model)", show_default=False
    ),
]
_OVERRIDES = Annotated[
    list[str] | None,
    typer.Argument(
        help="Overrides of config keys: variants.deciding.rl.steps=10 seeds=[0,1] name=mine", show_default=False
    ),
]
_RESUME = Annotated[bool, typer.Option("--resume", help="Go on with the run of this name where it stopped.")]
_ADDRESS = Annotated[
    str | None,
    typer.Option(
        help="HOST:PORT of a Ray cluster's head to play rollouts on, as the config's cluster.address.",
        show_default=False,
    ),
]
_TRUST = Annotated[
    list[str] | None,
    typer.Option(
        help="A module or package whose plug-ins a config may name here; may be repeated.",
        show_default=False,
        callback=check_modules,
    ),
]


@app.command()
def plan(
    config: _CONFIG = None,
    overrides: _OVERRIDES = None,
    memory: Annotated[
        float | None,
        typer.Option(help="GiB of one device (default: what torch sees of a GPU here).", show_default=False),
    ] = None,
    episodes: Annotated[
        Path | None,
        typer.Option(
            help="A run's episodes.jsonl, for the lengths (default: the most that limits allow).", show_default=False
        ),
    ] = None,
    curve: Annotated[
        Path | None,
        typer.Option(help="A JSON file of an engine's measured throughput, for the times.", show_default=False),
    ] = None,
    rehearse: Annotated[
        bool,
        typer.Option(
            "--rehearse", help="Also run a small job of this config on a CUDA device that the CPU imitates (minutes)."
        ),
    ] = False,
    trust: _TRUST = None,
) -> None:
    """Print what a run will need before it starts: memory part by part, tokens, pushed bytes, time where it is known.

    No weights are loaded. What does not fit is refused (exit code 2), with what to change.
    """
    from selfcest_cli.plan import print_plan
    from selfcest_env.plugin import only_trusted
    from selfcest_training.config_file import load_config
    from selfcest_training.run.experiment import default_config

    with only_trusted(trust or []):
        spec = load_config(config or default_config(), overrides or [])
        print_plan(spec, Terminal(), memory=memory, episodes=episodes, curve=curve)
        if rehearse:
            from selfcest_cli.rehearse import print_rehearsal

            print_rehearsal(spec, Terminal())


@app.command()
def train(
    config: _CONFIG = None,
    overrides: _OVERRIDES = None,
    resume: _RESUME = False,
    ray_address: _ADDRESS = None,
) -> None:
    """Warm start, RL and evaluation of every variant; writes runs/NAME with a table at the end.

    Without a config: the embedded model, three variants, one seed. The run's folder holds config.yaml, table.md,
    results.csv, plots, and for every variant and seed metrics.jsonl, episodes.jsonl, TensorBoard files, checkpoints,
    and the final model as a folder that transformers loads.
    """
    from selfcest_eval.report.run_report import RunEvaluation
    from selfcest_training.config_file import load_config
    from selfcest_training.run.experiment import default_config, run

    on = [] if ray_address is None else [f"cluster.address={json.dumps(ray_address)}"]
    spec = load_config(config or default_config(), [*(overrides or []), *on])
    run(spec, resume=resume, console=Terminal(), evaluator=RunEvaluation())


@app.command()
def warmstart(config: _CONFIG = None, overrides: _OVERRIDES = None, resume: _RESUME = False) -> None:
    """The warm start alone, and its table: every variant ends as the folder warmstart_model of its job.

    `selfcest train --resume` with the same config goes on from there.
    """
    from selfcest_eval.report.run_report import RunEvaluation
    from selfcest_training.config_file import load_config
    from selfcest_training.run.experiment import default_config, run

    spec = load_config(config or default_config(), overrides or [])
    run(spec, resume=resume, only_warm_start=True, console=Terminal(), evaluator=RunEvaluation())


@app.command()
def evaluate(
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            "-c",
            help="YAML config of a study (default: cpu/frontier.yaml, by the policies that come with the package)",
            show_default=False,
        ),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="Overrides of config keys: episodes=20 budgets=[120,480] name=mine", show_default=False),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Play only what the study of this name lacks.")] = False,
    page: Annotated[
        Path | None,
        typer.Option(help="Also write a page of documentation, with its plots beside it.", show_default=False),
    ] = None,
) -> None:
    """Play strategies at matched budget on the same instances; writes studies/NAME with table, CSV, plots and verdicts.

    Without a config: the policies that come with the package, over a range of budgets; nothing need be trained.
    """
    from selfcest_cli.study import command_line, default_study, run_study
    from selfcest_eval.play.config import load_study

    spec = load_study(config or default_study(), overrides or [])
    typed = command_line(config, page, overrides or [])
    run_study(spec, resume=resume, page=page, command=typed, console=Terminal())


@app.command()
def compare(
    first: Annotated[Path, typer.Argument(help="The folder of a finished study, as studies/frontier")],
    second: Annotated[Path, typer.Argument(help="The folder that it is compared with")],
    trust: _TRUST = None,
) -> None:
    """Compare two finished studies strategy by strategy, paired on the instances that they share."""
    from selfcest_eval.report.comparison import compare_studies

    compare_studies(first, second, Terminal(), trust or [])


@app.command()
def contamination(
    configs: Annotated[
        list[Path], typer.Argument(help="Configs of runs or studies, also those that their folders hold.")
    ],
    trust: _TRUST = None,
) -> None:
    """Print how many questions each two data files of these configs share. Training and test sets should share none."""
    from selfcest_eval.play.contamination import report_contamination

    report_contamination(configs, Terminal(), trust or [])


@app.command(
    hidden=True,
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def leaks() -> None:
    raise ConfigError("the command `leaks` was renamed; use `selfcest contamination`")


@app.command()
def solve(
    question: Annotated[str, typer.Argument(help="What the root is asked.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            help="Overrides of limits and policy: limits.total_tokens=4000 limits.max_depth=1", show_default=False
        ),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            help="Who plays: delegating, reading or deciding, which come with the package; a run's model, as "
            "runs/NAME/VARIANT/seed0/model; a chat model's folder, .gguf file or hub:OWNER/NAME, or smollm2; "
            "package.module:Class.",
            show_default=False,
        ),
    ] = None,
    server: Annotated[
        str | None,
        typer.Option(help="Or an OpenAI-compatible server, as http://127.0.0.1:8000/v1.", show_default=False),
    ] = None,
    name: Annotated[str | None, typer.Option(help="The server's name for its model.", show_default=False)] = None,
    documents: Annotated[
        Path | None,
        typer.Option(help="A JSON file of texts by key, or a folder of text files.", show_default=False),
    ] = None,
    answer: Annotated[str | None, typer.Option(help="The truth, to be graded by.", show_default=False)] = None,
    temperature: Annotated[float, typer.Option(help="Of sampling; 0 is greedy.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Of sampling.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="A file to add the episode to, for `selfcest trace`.", show_default=False)
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(help="Also write the episode as a page for a browser, as trace --html does.", show_default=False),
    ] = None,
) -> None:
    """Play one question of your own, and print the tree, the answer and what it cost.

    While agents work, the tree grows in the terminal; where there is none, every turn is a line on the standard error.
    Limits are those of the variant that the model was trained in; any other policy has the defaults of the game.
    """
    from selfcest_cli.solve import play_question, read_documents, solve_config, task_of

    play_question(
        task_of(question, read_documents(documents), answer),
        solve_config(policy, server, name, overrides or []),
        temperature=temperature,
        seed=seed,
        out=out,
        html=html,
        console=Terminal(),
        progress=Terminal(stderr=True),
    )


@app.command()
def report(
    folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="FOLDER...",
            help="Folders of runs, as runs/quick, or of studies; of a run what is there so far. With --html runs that "
            "differ in their seeds alone count as one",
            show_default=False,
        ),
    ],
    html: Annotated[
        Path | None,
        typer.Option(
            help="Write one page instead, as report.html: a verdict, curves, frontiers, decisions, pathologies, costs; "
            "figures (PNG, SVG) and numbers (CSV) beside it. The folders are read alone, also while a run goes on.",
            show_default=False,
        ),
    ] = None,
    trust: _TRUST = None,
) -> None:
    """Print the verdict of runs or studies again, and rewrite table.md, results.csv and plots from stored results."""
    from selfcest_cli.report import report_folder, report_page
    from selfcest_env.plugin import only_trusted

    with only_trusted(trust or []):
        if html is not None:
            report_page(folders, html, Terminal())
            return
        for folder in folders:
            report_folder(folder, Terminal())


@app.command()
def watch(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of a run, as runs/quick; only read.")],
    once: Annotated[bool, typer.Option("--once", help="Print how far it is, and end.")] = False,
    html: Annotated[
        bool, typer.Option("--html", help="Also serve the page of `selfcest report`, which renews itself.")
    ] = False,
    port: Annotated[
        int | None, typer.Option(help="For --html, of 127.0.0.1 (default: any that is free).", show_default=False)
    ] = None,
    trust: _TRUST = None,
) -> None:
    """Show how far the jobs of a run are, while it goes on or after, as `selfcest train` does. Ctrl-C ends it."""
    with suppress(KeyboardInterrupt):  # imports take seconds, and are a time to end it too
        from selfcest_cli.watch import watch_run
        from selfcest_env.plugin import only_trusted

        with only_trusted(trust or []):
            watch_run(folder, Terminal(), once=once, html=html, port=port)


@app.command()
def trace(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            help="A JSON-lines file of episodes, as in runs/NAME/VARIANT/seed0/episodes.jsonl, or the folder of a "
            "study; several for --html",
            show_default=False,
        ),
    ],
    episode: Annotated[
        str | None, typer.Option(help="Id of the episode (default: the last one).", show_default=False)
    ] = None,
    texts: Annotated[
        bool, typer.Option("--texts", help="Show texts whole: what was asked and given, what agents wrote, the truth.")
    ] = False,
    strategy: Annotated[
        str | None, typer.Option(help="Of a study: only episodes of this strategy.", show_default=False)
    ] = None,
    wrong: Annotated[bool, typer.Option("--wrong", help="Of a study: only episodes without a right answer.")] = False,
    html: Annotated[
        Path | None,
        typer.Option(help="Write all episodes as one page for a browser, instead.", show_default=False),
    ] = None,
    credit: Annotated[
        list[str] | None,
        typer.Option(
            help="A scheme whose advantages the page shows; may be repeated. "
            "One whose replays are not in the file is left out.",
            show_default=False,
        ),
    ] = None,
    svg: Annotated[
        Path | None, typer.Option(help="Draw the episode's tree as an SVG, instead.", show_default=False)
    ] = None,
    gif: Annotated[
        Path | None,
        typer.Option(
            help="Draw it growing, as a GIF: a frame before the first turn and one after each.", show_default=False
        ),
    ] = None,
    trust: _TRUST = None,
) -> None:
    """Print an episode's tree: who asked what of whom, what came back, what it cost, what it earned.

    With --html: a page of all episodes, with trees, texts, timeline, accounts and credit. With --svg or --gif:
    a figure.
    """
    from selfcest_cli.trace import print_trace, write_figures, write_page

    figures = [option for option, out in (("--svg", svg), ("--gif", gif)) if out is not None]
    if figures and html is not None:
        raise ConfigError(f"--html is a page of many episodes and {figures[0]} a figure of one; ask for one of them")
    if html is not None:
        write_page(
            files,
            html,
            Terminal(),
            episode_id=episode,
            schemes=credit or [],
            strategy=strategy,
            wrong=wrong,
            trusted=trust or [],
        )
        return
    if len(files) > 1 or credit:
        what = "--credit is" if credit else f"{len(files)} files are"
        raise ConfigError(f"{what} for a page; name one with --html OUT")
    if figures:
        write_figures(files[0], episode, Terminal(), svg=svg, gif=gif, strategy=strategy, wrong=wrong)
        return
    print_trace(files[0], episode, Terminal(), texts=texts, strategy=strategy, wrong=wrong)


@masked_output()
def main() -> None:
    """Entry point: an exception is one line and an exit code, see `faults`; a defect in no log shows its trace."""
    try:
        search_folder(os.getcwd())
        with signals_raise():
            code = app(standalone_mode=False)
        raise SystemExit(code or int(Exit.DONE))
    except SignalExit as error:
        _print_error(f"ended by {signal_name(error.signal_number)}", *getattr(error, "__notes__", ()))
        raise
    except Exception as error:
        if hasattr(error, "show") and hasattr(error, "exit_code"):  # wrong usage, by click or by typer's copy of it
            error.show()
            raise SystemExit(error.exit_code) from error
        if exit_code(error) is Exit.DEFECT and not hasattr(error, "__notes__"):
            traceback.print_exc()
        _print_error(line_of(error))
        raise SystemExit(int(exit_code(error))) from error


def _print_error(*parts: str) -> None:
    with suppress(OSError):  # after SIGHUP there may be no terminal
        print(f"selfcest: {'; '.join(parts)}", file=sys.stderr)
