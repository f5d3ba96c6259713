"""The commands: `selfcest solve | trace | config | plan | train | warmstart | watch | report | evaluate | compare |
contamination | bench | credit | lab | export`."""

from __future__ import annotations

import json
import os
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

# Spinning OpenMP threads starve the other job on a machine with few cores; this must come before torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

try:
    import typer
    import yaml  # noqa: F401, every config needs it
    from typer.core import TyperGroup
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
from selfcest_training.faults import ExitCode, SignalExit, format_error_line, get_exit_code, raise_on_signals
from selfcest_training.printing import print_text

if TYPE_CHECKING:
    from selfcest_training.config import RunConfig

# The commands by what a reader wants to do, in the order of the help.
PANELS = {
    "Play": ("solve", "trace"),
    "Train": ("config", "plan", "train", "warmstart", "watch", "report"),
    "Evaluate": ("evaluate", "compare", "contamination", "bench"),
    "Credit": ("credit", "lab"),
    "Integrate": ("export",),
}


class PanelGroup(TyperGroup):
    """A group that lists its commands by `PANELS`. Typer's own panels need tables of Rich, which cut words."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        longest = max(map(len, self.commands))
        for panel, names in PANELS.items():
            rows = []
            for name in names:
                rows.append((name, self.commands[name].get_short_help_str(formatter.width - longest - 6)))
            with formatter.section(panel):
                formatter.write_dl(rows, col_max=longest + 2, col_spacing=2)


app = typer.Typer(
    name="selfcest",
    cls=PanelGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    # The tables that Rich draws cut long option names and break words at 80 columns.
    rich_markup_mode=None,
)


def _print_version(is_requested: bool) -> None:
    if is_requested:
        print(f"selfcest {__version__}")
        raise typer.Exit


@app.callback()
def selfcest(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Train and study a root language model that delegates to clones of itself under a hard token budget."""


_CONFIG = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        help="YAML config of a run (default: the quick run of the embedded model).",
        show_default=False,
    ),
]
_OVERRIDES = Annotated[
    list[str] | None,
    typer.Argument(
        help='Config keys with new values, as in variants.deciding.rl.steps=10 "seeds=[0,1]" name=mine.',
        show_default=False,
    ),
]
_RESUME = Annotated[bool, typer.Option("--resume", help="Resume the run from its last checkpoint.")]
_DRY_RUN = Annotated[
    bool,
    typer.Option(
        "--dry-run", help="Check the config, as far as this needs no model, print it with all defaults, and exit."
    ),
]
_ADDRESS = Annotated[
    str | None,
    typer.Option(
        help="HOST:PORT of the head of a Ray cluster that plays the rollouts, like the config key cluster.address.",
        show_default=False,
    ),
]
_TRUST = Annotated[
    list[str] | None,
    typer.Option(
        help="Module or package whose plug-ins a config may name; may be repeated.",
        show_default=False,
        callback=check_modules,
    ),
]


@app.command(epilog="Example: selfcest config > mine.yaml")
def config(
    study: Annotated[
        bool, typer.Option("--study", help="Print the config of a study for `selfcest evaluate` instead.")
    ] = False,
) -> None:
    """Print a config with comments to start from.

    Write it into a file and run `selfcest train -c FILE`.
    """
    from selfcest_cli.study import default_study
    from selfcest_training.config_file import find_shipped_config

    path = default_study() if study else find_shipped_config("template.yaml")
    print(path.read_text("utf-8"), end="")


@app.command(epilog="Example: selfcest plan -c training/configs/smollm2.yaml --memory 80")
def plan(
    config: _CONFIG = None,
    overrides: _OVERRIDES = None,
    memory: Annotated[
        float | None,
        typer.Option(
            help="Memory of one device in GiB (default: the memory of this machine's GPU).", show_default=False
        ),
    ] = None,
    episodes: Annotated[
        Path | None,
        typer.Option(
            help="File episodes.jsonl of a similar run, for the lengths of episodes (default: the longest that the "
            "limits allow).",
            show_default=False,
        ),
    ] = None,
    curve: Annotated[
        Path | None,
        typer.Option(
            help="JSON file with the measured throughput of an engine, for the estimates of time.",
            show_default=False,
        ),
    ] = None,
    rehearse: Annotated[
        bool,
        typer.Option(
            "--rehearse",
            help="Also run a small job of this config on a CUDA device that the CPU imitates. It takes minutes.",
        ),
    ] = False,
    calibrate: Annotated[
        Path | None,
        typer.Option(
            help="File of timings to write or continue. The engine and model of this config are timed, and the length "
            "of a text from which on delegation costs less is printed.",
            show_default=False,
        ),
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(help="Minutes of all timings of --calibrate (default: 10).", show_default=False)
    ] = None,
    part_tokens: Annotated[
        int | None,
        typer.Option(
            help="Tokens of a text that a clone gets, for --calibrate (default: those of --episodes, else 512).",
            show_default=False,
        ),
    ] = None,
    measure: Annotated[
        bool,
        typer.Option(
            "--measure", help="Also play delegation and a full reader near the length that --calibrate finds."
        ),
    ] = False,
    trust: _TRUST = None,
) -> None:
    """Print the memory, tokens and time that a run will need.

    The command lists the memory of every part and the bytes of each weight sync. It loads no weights. If the run does
    not fit, the exit code is 2, and the message lists changes that would make it fit.

    With --calibrate the command loads the model, and tells from which length of a text on clones cost less than one
    context or a memory: in seconds, FLOPs and tokens.
    """
    if calibrate is None and (measure or part_tokens is not None or minutes is not None):
        raise ConfigError("--measure, --minutes and --part-tokens belong to --calibrate FILE; add it, or omit them")
    from selfcest_cli.plan import print_plan
    from selfcest_env.plugin import only_trusted
    from selfcest_training.config_file import load_config
    from selfcest_training.run.experiment import default_config

    with only_trusted(trust or []):
        run_config = load_config(config or default_config(), overrides or [])
        print_plan(run_config, Terminal(), memory=memory, episodes=episodes, curve=curve)
        if rehearse:
            from selfcest_cli.rehearse import print_rehearsal

            print_rehearsal(run_config, Terminal())
        if calibrate is not None:
            from selfcest_cli.calibrate import CalibrationOptions, run_calibration

            minutes = 10.0 if minutes is None else minutes
            options = CalibrationOptions(calibrate, minutes, part_tokens, episodes, measure)
            run_calibration(run_config, options, Terminal())


@app.command(epilog='Example: selfcest train "seeds=[0,1]" name=mine')
def train(
    config: _CONFIG = None,
    overrides: _OVERRIDES = None,
    resume: _RESUME = False,
    dry_run: _DRY_RUN = False,
    ray_address: _ADDRESS = None,
) -> None:
    """Train and evaluate every variant of a run.

    Each variant has a warm start, then reinforcement learning. The default config trains three variants of the
    embedded model with one seed. The folder runs/NAME gets config.yaml, table.md, results.csv and plots. For every
    variant and seed it gets metrics.jsonl, episodes.jsonl, TensorBoard files, checkpoints, and the final model as a
    folder that transformers loads.
    """
    from selfcest_eval.report.run_report import RunEvaluation
    from selfcest_training.config_file import load_config
    from selfcest_training.run.experiment import default_config, run

    changes = list(overrides or [])
    if ray_address is not None:
        changes.append(f"cluster.address={json.dumps(ray_address)}")
    run_config = load_config(config or default_config(), changes)
    if dry_run:
        _print_checked_run(run_config)
        return
    run(run_config, resume=resume, console=Terminal(), evaluator=RunEvaluation())


def _print_checked_run(run_config: RunConfig) -> None:
    from selfcest_agents.samplers import make_sampler
    from selfcest_eval.report.run_report import RunEvaluation
    from selfcest_training.config_file import dump_config
    from selfcest_training.run.job import check_options, check_stages, make_parts

    sampler = make_sampler(run_config.sampler.name, run_config.sampler.options)
    for variant in run_config.variants:
        check_options(run_config, variant, sampler)
        check_stages(run_config, variant, make_parts(run_config, variant).stages)
    RunEvaluation().check(run_config)
    print(dump_config(run_config), end="")


@app.command(epilog="Example: selfcest warmstart name=mine")
def warmstart(
    config: _CONFIG = None, overrides: _OVERRIDES = None, resume: _RESUME = False, dry_run: _DRY_RUN = False
) -> None:
    """Run only the warm start of every variant.

    The model after the warm start is in the folder warmstart_model of each variant and seed. `selfcest train --resume`
    with the same config continues the run with reinforcement learning.
    """
    from selfcest_eval.report.run_report import RunEvaluation
    from selfcest_training.config_file import load_config
    from selfcest_training.run.experiment import default_config, run

    run_config = load_config(config or default_config(), overrides or [])
    if dry_run:
        _print_checked_run(run_config)
        return
    run(run_config, resume=resume, only_warm_start=True, console=Terminal(), evaluator=RunEvaluation())


@app.command(epilog="Example: selfcest evaluate episodes=20 name=mine")
def evaluate(
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            "-c",
            help="YAML config of a study (default: cpu/frontier.yaml, which plays the policies of the package).",
            show_default=False,
        ),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            help='Config keys with new values, as in episodes=20 "budgets=[120,480]" name=mine.', show_default=False
        ),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Play only the results that the study lacks.")] = False,
    page: Annotated[
        Path | None,
        typer.Option(help="Markdown page to write with the report, its plots beside it.", show_default=False),
    ] = None,
    dry_run: _DRY_RUN = False,
) -> None:
    """Play strategies at matched budget on the same instances.

    The folder studies/NAME gets a table, a CSV file, plots and verdicts. The default config plays the policies that
    come with the package over a range of budgets, so no training is needed.
    """
    from selfcest_cli.study import default_study, format_command, run_study
    from selfcest_eval.play.config import load_study
    from selfcest_eval.play.study import Study
    from selfcest_training.config_file import dump_config

    study_config = load_study(config or default_study(), overrides or [])
    if dry_run:
        print(dump_config(Study(study_config).config), end="")
        return
    command = format_command(config, page, overrides or [])
    run_study(study_config, resume=resume, page=page, command=command, console=Terminal())


@app.command(epilog="Example: selfcest compare studies/first studies/second")
def compare(
    first: Annotated[Path, typer.Argument(help="Folder of a finished study, as in studies/frontier.")],
    second: Annotated[Path, typer.Argument(help="Folder of the finished study that the first is compared with.")],
    trust: _TRUST = None,
) -> None:
    """Compare two finished studies strategy by strategy.

    The comparison is paired: it uses the instances that both studies played.
    """
    from selfcest_eval.report.comparison import compare_studies

    compare_studies(first, second, Terminal(), trust or [])


@app.command(epilog="Example: selfcest contamination training/configs/paper/mixed.yaml")
def contamination(
    configs: Annotated[list[Path], typer.Argument(help="Configs of runs or studies, or folders that hold one.")],
    trust: _TRUST = None,
) -> None:
    """Count the questions that data files share.

    The command compares every pair of data files in the configs. Training and test sets should share no question.
    """
    from selfcest_eval.play.contamination import report_contamination

    report_contamination(configs, Terminal(), trust or [])


@app.command(epilog="Example: selfcest solve '?[1]C[2]E' --policy delegating --documents ledgers.json")
def solve(
    question: Annotated[str, typer.Argument(help="Question for the root.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            help="Keys of limits and policy with new values, as in limits.total_tokens=4000 limits.max_depth=1.",
            show_default=False,
        ),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            help="Policy that plays: delegating, reading or deciding, which come with the package; the model of a run, "
            "as in runs/NAME/VARIANT/seed0/model; a chat model as smollm2, a folder, a .gguf file or hub:OWNER/NAME; "
            "or package.module:Class.",
            show_default=False,
        ),
    ] = None,
    server: Annotated[
        str | None,
        typer.Option(
            help="URL of an OpenAI-compatible server that plays instead of --policy, as in http://127.0.0.1:8000/v1.",
            show_default=False,
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the model on the server; needed with --server.", show_default=False)
    ] = None,
    documents: Annotated[
        Path | None,
        typer.Option(
            help="Documents of the question: a JSON file of texts by key, or a folder of text files.",
            show_default=False,
        ),
    ] = None,
    answer: Annotated[
        str | None, typer.Option(help="Right answer, by which the episode is graded.", show_default=False)
    ] = None,
    temperature: Annotated[float, typer.Option(help="Sampling temperature; 0 is greedy.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Random seed of sampling.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="JSON-lines file that the episode is appended to.", show_default=False)
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(help="HTML page of the episode to write.", show_default=False),
    ] = None,
) -> None:
    """Play one question and print the tree, answer and cost.

    The tree grows in the terminal while agents work. If standard error is not a terminal, it gets one line per turn.
    The model of a run plays under the limits of its variant. Any other policy plays under the default limits.
    """
    from selfcest_cli.solve import make_solve_config, make_task, play_question, read_documents

    play_question(
        make_task(question, read_documents(documents), answer),
        make_solve_config(policy, server, name, overrides or []),
        temperature=temperature,
        seed=seed,
        out=out,
        html=html,
        console=Terminal(),
        progress=Terminal(stderr=True),
    )


@app.command(epilog="Example: selfcest report runs/quick --html report.html")
def report(
    folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="FOLDER",
            help="Folders of runs, as in runs/quick, or of studies. A run may be unfinished. With --html, runs that "
            "differ only in their seeds are reported as one run.",
            show_default=False,
        ),
    ],
    html: Annotated[
        Path | None,
        typer.Option(
            help="HTML page to write, as in report.html, instead of files in the folders. It has a verdict, curves, "
            "frontiers, decisions, pathologies and costs. Figures (PNG, SVG) and numbers (CSV) are written beside it.",
            show_default=False,
        ),
    ] = None,
    trust: _TRUST = None,
) -> None:
    """Print the verdict of runs or studies from stored results.

    The command rewrites table.md, results.csv and the plots in each folder. With --html it only reads the folders.
    """
    from selfcest_cli.report import report_folder, report_page
    from selfcest_env.plugin import only_trusted

    with only_trusted(trust or []):
        if html is not None:
            report_page(folders, html, Terminal())
            return
        for folder in folders:
            report_folder(folder, Terminal())


@app.command(epilog="Example: selfcest watch runs/quick --serve")
def watch(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Folder of a run, as in runs/quick; it is only read.")
    ],
    once: Annotated[bool, typer.Option("--once", help="Print the progress once and exit.")] = False,
    serve: Annotated[
        bool, typer.Option("--serve", help="Also serve a live page with progress and report on 127.0.0.1.")
    ] = False,
    port: Annotated[
        int | None, typer.Option(help="Port for --serve (default: any free port).", show_default=False)
    ] = None,
    trust: _TRUST = None,
) -> None:
    """Show the progress of the jobs of a run.

    The display is that of `selfcest train`. It works during the run and after it. Ctrl-C ends it.
    """
    with suppress(KeyboardInterrupt):  # around the imports too, which take seconds
        from selfcest_cli.watch import watch_run
        from selfcest_env.plugin import only_trusted

        with only_trusted(trust or []):
            watch_run(folder, Terminal(), once=once, serve=serve, port=port)


@app.command(epilog="Example: selfcest trace runs/quick --html trace.html")
def trace(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE",
            help="JSON-lines file of episodes, as in runs/NAME/VARIANT/seed0/episodes.jsonl, or folder of a run or a "
            "study. Of a run, the page of --html has all episodes, and the tree is the last one of the newest file. "
            "Several files need --html.",
            show_default=False,
        ),
    ],
    episode: Annotated[
        str | None, typer.Option(help="Id of the episode (default: the last episode).", show_default=False)
    ] = None,
    texts: Annotated[
        bool,
        typer.Option("--texts", help="Print the full texts: task, documents, messages of all agents, right answer."),
    ] = False,
    strategy: Annotated[
        str | None,
        typer.Option(help="Strategy of the study whose episodes are shown (default: all).", show_default=False),
    ] = None,
    wrong: Annotated[
        bool, typer.Option("--wrong", help="Show only the episodes of the study with a wrong answer or none.")
    ] = False,
    html: Annotated[
        Path | None,
        typer.Option(help="HTML page to write with all episodes, instead of printing one.", show_default=False),
    ] = None,
    credit: Annotated[
        list[str] | None,
        typer.Option(
            help="Credit scheme whose advantages the page of --html shows; may be repeated. A scheme whose replays are "
            "not in the file is left out with a warning.",
            show_default=False,
        ),
    ] = None,
    svg: Annotated[
        Path | None,
        typer.Option(help="SVG figure to write with the episode's tree, instead of printing it.", show_default=False),
    ] = None,
    png: Annotated[
        Path | None, typer.Option(help="PNG figure to write with the episode's tree.", show_default=False)
    ] = None,
    gif: Annotated[
        Path | None,
        typer.Option(
            help="GIF figure to write with the growing tree: a frame before the first turn and one after each turn.",
            show_default=False,
        ),
    ] = None,
    trust: _TRUST = None,
) -> None:
    """Print the tree, texts, cost and reward of an episode.

    With --html the command writes a page of all episodes, with trees, texts, timeline, accounts and credit. Episodes of
    the same instance can be seen side by side: for those before and after RL, give the folders evaluation_before_rl and
    evaluation of a job. With --svg, --png or --gif the command draws a figure of one episode.
    """
    from selfcest_cli.trace import find_file_of, find_runs_files, print_trace, write_figures, write_page

    figures = [option for option, out in (("--svg", svg), ("--png", png), ("--gif", gif)) if out is not None]
    if figures and html is not None:
        raise ConfigError(
            f"--html and {figures[0]} cannot be combined; give --html for a page, or {figures[0]} for a figure"
        )
    if html is not None:
        write_page(
            find_runs_files(files),
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
        subject = "--credit needs" if credit else f"{len(files)} files need"
        raise ConfigError(f"{subject} a page; add --html PAGE")
    file = find_file_of(find_runs_files(files), episode)
    if file not in files:
        # All jobs of a run have episodes of the same ids.
        print_text(Terminal(), str(file))
    if figures:
        write_figures(file, episode, Terminal(), svg=svg, png=png, gif=gif, strategy=strategy, wrong=wrong)
        return
    print_trace(file, episode, Terminal(), texts=texts, strategy=strategy, wrong=wrong)


# The help lists commands in the order of registration, so these come last.
app.command(epilog="Example: selfcest export episodes.jsonl --format verl --credit grpo --out rows.safetensors")(export)
app.command(epilog="Example: selfcest lab --scheme rloo --out runs/lab")(lab)
app.command(epilog="Example: selfcest bench chain-8m5-v1 --learner coma --seeds 1 --seconds 20")(bench)
app.add_typer(credit_app, name="credit")


@masked_output()
def main() -> None:
    """Run the command line: an exception becomes one line and an exit code, see `faults`.

    A defect that no log holds is printed with its traceback.
    """
    try:
        # Plug-ins may lie in the working directory. It is searched last, so its files shadow no installed module.
        search_folder(os.getcwd())
        with raise_on_signals():
            # In standalone mode click would print errors and end the process itself.
            code = app(standalone_mode=False)
        raise SystemExit(code or int(ExitCode.DONE))
    except SignalExit as error:
        _print_error(f"ended by {signal_name(error.signal_number)}", *getattr(error, "__notes__", ()))
        raise
    except Exception as error:
        # A usage error of click. Typer brings its own copy of click, so there is no one class to name.
        if hasattr(error, "show") and hasattr(error, "exit_code"):
            error.show()
            raise SystemExit(error.exit_code) from error
        # `log_faults` adds a note with the path of the log that holds the traceback.
        if get_exit_code(error) is ExitCode.DEFECT and not hasattr(error, "__notes__"):
            traceback.print_exc()
        _print_error(format_error_line(error))
        raise SystemExit(int(get_exit_code(error))) from error


def _print_error(*parts: str) -> None:
    with suppress(OSError):  # after SIGHUP there may be no terminal
        print(f"selfcest: {'; '.join(parts)}", file=sys.stderr)
