"""A training run's evaluation: a study of its variants before and after RL, played by its jobs, read as one."""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from rich.console import Console
from test_job import config

from selfcest_cli.report import report_folder
from selfcest_env.errors import ConfigError, RecordError, TaskError
from selfcest_env.plugin import PlugIn
from selfcest_env.tasks import Style
from selfcest_eval.play.results import read_results
from selfcest_eval.report import study_report as report
from selfcest_eval.report.page import LinkedEpisodes, make_source_data
from selfcest_eval.report.run_report import RunEvaluation, report_run
from selfcest_eval.report.sources import read_sources
from selfcest_eval.report.training_run import (
    EvaluatedPolicy,
    EvaluationStage,
    check_evaluation,
    list_evaluated_policies,
    make_run_study,
    read_run_results,
)
from selfcest_eval.report.verdict import report_on
from selfcest_eval.stats.decision_table import find_decisions
from selfcest_training.config import (
    DemonstrationMix,
    EvalSet,
    EvaluationConfig,
    RunConfig,
    VariantConfig,
    WarmStartConfig,
    WarmStartPhase,
)
from selfcest_training.config_file import dump_config
from selfcest_training.run import experiment
from selfcest_training.run.experiment import prepare_folder
from selfcest_training.run.job import JobId

EPISODES = 6


def spec(tmp_path: Path, seeds: tuple[int, ...] = (0, 1)) -> RunConfig:
    """Two variants: one that may delegate, with two steps of RL, and one without clones that only imitates."""
    small = {
        "variants__delegating__rl__steps": 2,
        "variants__delegating__warmstart__phases": [
            {"tokens": 4000, "mix": {"choice": {"share": 1, "styles": {"delegate": 1, "solve": 1}}}}
        ],
        "variants__alone": {
            "limits": {"max_depth": 0},
            "warmstart": {"phases": [{"tokens": 4000, "mix": {"choice": {"share": 1, "styles": {"solve": 1}}}}]},
            "rl": {"steps": 0},
        },
    }
    eval_sets = (EvalSet("choice", "any"), EvalSet("choice", "again", shift="out"))
    evaluation = EvaluationConfig(eval_sets, episodes=EPISODES, temperatures=(0.0, 0.8))
    return replace(config(tmp_path, **small), seeds=seeds, evaluation=evaluation)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    run = spec(tmp_path_factory.mktemp("run"))
    run.folder.mkdir(parents=True)
    prepare_folder(run, resume=False)
    for variant in run.variants:
        for seed in run.seeds:
            experiment._train_and_evaluate(run, JobId(variant, seed), False, RunEvaluation())
    return run


@pytest.fixture(autouse=True)
def _no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "draw_frontiers", lambda *_: None)  # half a second each


def copied(run: RunConfig, tmp_path: Path) -> RunConfig:
    shutil.copytree(run.folder, tmp_path / run.name)
    return replace(run, output=str(tmp_path))


POLICIES = ["delegating, before RL", "delegating, after RL", "delegating, after RL, T 0.8", "alone", "alone, T 0.8"]


def test_a_run_is_a_study_of_its_variants_under_their_own_limits(tmp_path: Path) -> None:
    run = spec(tmp_path)
    study = make_run_study(run)
    assert list(study.strategies) == POLICIES
    assert study.budgets == (None,)
    assert study.limits_at(None, "alone") == run.limits_of("alone")
    assert study.limits_at(None, "delegating, after RL") == run.limits_of("delegating")
    assert study.subject_strategy == "delegating, after RL"
    assert study.policy_of("delegating, before RL").options["folder"].endswith("delegating/seed{seed}/warmstart_model")
    assert study.policy_of("alone").options["folder"].endswith("alone/seed{seed}/warmstart_model")


def test_the_table_has_every_variant_before_and_after_over_all_seeds(trained: RunConfig) -> None:
    shown = report_run(trained)
    rows = list(csv.DictReader((trained.folder / "results.csv").read_text(encoding="utf-8").splitlines()))
    assert [row["strategy"] for row in rows] == POLICIES * 2
    assert {row["budget"] for row in rows} == {""}
    for row in rows:
        results = [
            result
            for path in trained.folder.glob("*/seed*/*/results.jsonl")
            for result in read_results(path)
            if (result.place.strategy, result.place.size) == (row["strategy"], row["size"])
        ]
        assert len(results) == EPISODES * 2
        assert float(row["accuracy"]) == pytest.approx(sum(r.grade.correct for r in results) / len(results), abs=1e-5)
        costs = [(r.costs or {})["billed_tokens"] for r in results]
        assert float(row["billed_tokens"]) == pytest.approx(sum(costs) / len(costs), rel=1e-4)
    text = (trained.folder / "table.md").read_text(encoding="utf-8")
    assert "over instances and over 2 seeds of the weights" in text
    assert 'choice again (out of distribution), "delegating, after RL" against alone' in text
    for line in ("delegating: return ", "compute of alone/seed1: ", "largest difference of compute"):
        assert line in text
        assert line not in shown, "of single jobs a terminal says nothing"
    mean = {(row["strategy"], row["shift"]): f"{float(row['accuracy']):.2f}" for row in rows}
    shown_names = {'"delegating, after RL"': "delegating, after RL", "alone": "alone"}
    said = [f"{shown} {mean[name, 'in']}, {mean[name, 'out']}" for shown, name in shown_names.items()]
    warned = [line.startswith("warning: ") for line in shown.splitlines()]
    first = warned.index(False)
    assert not any(warned[first:]), "what must be known first comes first"
    verdict = f"choice, accuracy in and out of distribution: {'; '.join(said)}"
    assert shown.splitlines()[first].startswith('"delegating, after RL" is ahead at equal ')
    assert verdict in shown.splitlines()[first + 1 : first + 3]
    lines = [line for line in shown.splitlines() if line.startswith("choice ")]
    assert [line.split("  ")[1] for line in lines] == sorted(
        ("delegating, after RL", "alone"), key=lambda variant: -float(mean[variant, "in"]) - float(mean[variant, "out"])
    ), "a line a variant, the best first"


def test_a_run_stands_beside_perfect_execution_of_the_styles_that_its_variants_were_shown(trained: RunConfig) -> None:
    report_run(trained)
    rows = list(csv.DictReader((trained.folder / "results.csv").read_text(encoding="utf-8").splitlines()))
    for row in rows:
        delegates = row["strategy"].startswith("delegating")
        assert row["perfect_execution_style"] == ("delegate" if delegates else "solve")
        assert row["perfect_execution_instances"] == str(EPISODES)
        # <ans>1<end>; before it <call>x</call> and a clone's answer.
        assert row["perfect_execution_generated_tokens"] == ("9" if delegates else "3")
        assert row["perfect_execution_solve_generated_tokens"] == ("3" if delegates else ""), "it was shown both"
    of_seeds = [
        [r for r in read_results(path, experts=True) if r.place.style]
        for path in sorted(trained.folder.glob("alone/seed*/*/results.jsonl"))
    ]
    costs = [{(r.place.strategy, r.place.eval_set, r.place.task_id): r.costs for r in found} for found in of_seeds]
    assert len(costs) == 2
    assert costs[0] == costs[1], "whatever the seed"


def test_episodes_of_an_evaluation_are_whole_and_keep_the_variants_limits(trained: RunConfig) -> None:
    path = trained.folder / "alone" / "seed0" / EvaluationStage.AFTER / "results.jsonl"
    results = list(read_results(path, whole=True))
    assert all(r.episodes[0].cost.clones == 0 and r.episodes[0].limits.max_depth == 0 for r in results)
    assert all(turn.generation.token_ids for r in results for _, turn in r.episodes[0].turns())
    instances = {r.place.task_id for r in results}
    for other in trained.folder.glob("*/seed*/*/results.jsonl"):
        assert {r.place.task_id for r in read_results(other)} == instances, "the same for all variants and seeds"


def test_what_has_been_evaluated_is_not_played_again(trained: RunConfig, tmp_path: Path) -> None:
    run = copied(trained, tmp_path)
    before = {path: path.read_bytes() for path in run.folder.rglob("results.jsonl")}
    experiment._train_and_evaluate(run, JobId("delegating", 0), False, RunEvaluation())
    assert {path: path.read_bytes() for path in run.folder.rglob("results.jsonl")} == before


def test_a_report_of_a_part_says_what_is_missing(trained: RunConfig, tmp_path: Path) -> None:
    run = copied(trained, tmp_path)
    shutil.rmtree(run.folder / "alone" / "seed1" / EvaluationStage.AFTER)
    results, notes = read_run_results(run)
    assert {result.place.seed for result in results} == {0}
    assert notes == ["not everything has been evaluated yet: this is of the seeds 0"]
    shutil.rmtree(run.folder / "alone" / "seed0" / EvaluationStage.AFTER)
    results, (note,) = read_run_results(run)
    assert {result.place.seed for result in results} == {0, 1}
    assert note.endswith('of the seeds 0, 1; without alone, "alone, T 0.8"')
    assert note in report_run(run)
    for path in run.folder.glob("*/seed*/evaluation*"):
        shutil.rmtree(path)
    with pytest.raises(ConfigError, match="holds no evaluation yet; train first"):
        report_run(run)
    (run.folder / "alone" / "seed0" / "evaluation.jsonl").write_text("{}", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"evaluation.jsonl is of an earlier version; train again under another name"):
        report_run(run)


@pytest.mark.slow
def test_warm_starts_that_began_again_or_have_not_learned_are_in_terminal_and_table(
    trained: RunConfig, tmp_path: Path
) -> None:
    run = copied(trained, tmp_path)
    path = run.folder / "alone" / "seed0" / "metrics.jsonl"
    row = {"stage": "probe", "step": 0, "phase": 1, "threshold": 0.9, "passed": False, "accuracy/b": 0.9}
    used = [{"compute_tokens": (i + 1) * 1_250_000, "sampled_tokens": 0, "cpu_seconds": 1.0} for i in range(3)]
    probes = [{**row, **used[i], "attempt": i, "accuracy/a": 0.25 + i / 10} for i in range(3)]
    path.write_text("".join(json.dumps(probe) + "\n" for probe in probes) + path.read_text(encoding="utf-8"))
    shown = report_run(run)
    kept = "warning: alone/seed0: the warm start has not learned in 3 attempts, and was kept (a 0.45 after phase 2)"
    began = (
        "warning: alone/seed0: the warm start began 3 times (a 0.25 after phase 2, a 0.35 after phase 2); the "
        "discarded attempts cost 2.50 M tokens of compute"
    )
    assert shown.startswith(kept)
    assert began in shown.splitlines()
    text = (run.folder / "table.md").read_text(encoding="utf-8").splitlines()
    assert {line.replace("warning: ", "- ") for line in (kept, began)} <= set(text)
    assert kept in report_run(replace(run, evaluation=EvaluationConfig()))


def test_a_stored_cell_that_the_config_lacks_is_a_mistake_and_no_defect(trained: RunConfig, tmp_path: Path) -> None:
    run = copied(trained, tmp_path)
    fewer = replace(run, evaluation=replace(run.evaluation, eval_sets=run.evaluation.eval_sets[:1]))
    words = r"results\.jsonl has a result of the eval set 'choice again', which the config of its folder lacks"
    with pytest.raises(RecordError, match=words):
        report_run(fewer)
    (run.folder / "config.yaml").write_text(dump_config(fewer), encoding="utf-8")
    with pytest.raises(RecordError, match=words):
        read_sources([run.folder])


def test_report_reads_a_folder_wherever_it_is(trained: RunConfig, tmp_path: Path) -> None:
    run = copied(trained, tmp_path)
    file = run.folder / "results.csv"
    file.unlink(missing_ok=True)
    report_folder(run.folder, Console(quiet=True))
    assert file.exists()
    with pytest.raises(ConfigError, match=r"holds no config.yaml of a run and no study.yaml"):
        report_folder(tmp_path, Console(quiet=True))


def test_a_run_without_cells_has_curves_and_no_table(trained: RunConfig) -> None:
    shown = report_run(replace(trained, evaluation=EvaluationConfig()))
    assert shown.startswith("warning: evaluation.eval_sets is empty, so nothing was evaluated\n")


def test_a_cell_that_cannot_be_played_is_an_error_before_any_work(tmp_path: Path) -> None:
    run = spec(tmp_path)
    check_evaluation(run)
    with pytest.raises(TaskError, match="eval set choice any has about .* distinct test instances, and episodes is 60"):
        check_evaluation(replace(run, evaluation=replace(run.evaluation, episodes=60)))


def test_a_cost_and_a_strategy_that_cannot_be_are_found_before_the_warm_start(tmp_path: Path) -> None:
    run = spec(tmp_path)
    costs = {"work": PlugIn("flops", {"model": str(tmp_path / "nothing")})}
    with pytest.raises(ConfigError, match=r"^evaluation\.costs\.work\.options: there is no folder .*nothing"):
        check_evaluation(replace(run, evaluation=replace(run.evaluation, costs=costs)))
    tasks = {**run.tasks, "bare": PlugIn("test_study_perfect_execution:Nobody")}
    variants = {"delegating": replace(run.variants["delegating"], forced=True)}
    evaluation = EvaluationConfig((EvalSet("bare", "any"),), episodes=2)
    words = r"^evaluation of delegating, .*always delegates, eval set bare any: Nobody has no expert"
    with pytest.raises(ConfigError, match=words):
        check_evaluation(replace(run, tasks=tasks, variants=variants, evaluation=evaluation))


def test_a_file_is_evaluated_on_what_training_never_draws(tmp_path: Path) -> None:
    rows = [{"question": f"what is {i} and 0?", "answer": str(i)} for i in range(100)]
    (tmp_path / "own.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    run = spec(tmp_path)
    tasks = {
        **run.tasks,
        "own": replace(run.tasks["choice"], name="questions", options={"path": str(tmp_path / "own.jsonl")}),
    }
    run = replace(run, tasks=tasks, evaluation=EvaluationConfig((EvalSet("own", "all"),), episodes=15))
    check_evaluation(run)  # a fifth of 100, by a hash
    with pytest.raises(TaskError, match="episodes is 40, but eval set own all has .* tasks that are held out"):
        check_evaluation(replace(run, evaluation=replace(run.evaluation, episodes=40)))


def test_variants_without_rl_are_evaluated_once(tmp_path: Path) -> None:
    run = spec(tmp_path)
    variants: dict[str, VariantConfig] = {
        name: replace(variant, rl=replace(variant.rl, steps=0)) for name, variant in run.variants.items()
    }
    label = partial(EvaluatedPolicy.label, config=replace(run, variants=variants))
    assert list(map(label, list_evaluated_policies(replace(run, variants=variants)))) == [
        "delegating",
        "delegating, T 0.8",
        *POLICIES[3:],
    ]


# Variants that play some families, and both choices


def deciding(tmp_path: Path) -> RunConfig:
    """A variant that plays sums by itself and by both forced choices, and one that plays the choice alone."""
    run = spec(tmp_path, seeds=(0,))
    sums = PlugIn("range_sum", {"min_length": 2, "max_length": 4, "pieces": [2], "size_step": 2})
    shown = {"sums": DemonstrationMix(1.0, {Style.DELEGATE: 0.5, Style.SOLVE: 0.5})}
    variant = replace(
        run.variants["delegating"],
        warmstart=WarmStartConfig((WarmStartPhase(3000, shown),)),
        rl=replace(run.variants["delegating"].rl, steps=1, tasks={"sums": 1.0}),
        evaluated_on=("sums",),
        forced=True,
    )
    variants = {"delegating": variant, "alone": replace(run.variants["alone"], evaluated_on=("choice",))}
    eval_sets = (EvalSet("sums", "any"), EvalSet("choice", "any"))
    limits = replace(run.limits, total_tokens=96, turn_tokens=40, reply_tokens=2, answer_reserve=12, max_clones=2)
    evaluation = EvaluationConfig(eval_sets, episodes=EPISODES)
    return replace(run, tasks={**run.tasks, "sums": sums}, variants=variants, evaluation=evaluation, limits=limits)


@pytest.mark.slow
def test_both_choices_of_an_variant_are_played_and_judged(tmp_path: Path) -> None:
    run = deciding(tmp_path)
    run.folder.mkdir(parents=True)
    prepare_folder(run, resume=False)
    for variant in run.variants:
        experiment._train_and_evaluate(run, JobId(variant, 0), False, RunEvaluation())
    report_run(run)
    (results, missing), study = read_run_results(run), make_run_study(run)
    assert missing == []
    stages = ("delegating, before RL", "delegating, after RL")
    ways = ("", ", always delegates", ", never delegates")
    assert list(study.strategies) == [f"{stage}{way}" for stage in stages for way in ways] + ["alone"]
    assert study.subject == "delegating, after RL"
    played = {(r.place.family, r.place.strategy) for r in results}
    assert played == {("sums", f"{stage}{way}") for stage in stages for way in ways} | {("choice", "alone")}
    before, after = find_decisions(study, results)
    assert (before.triple.free, after.triple.free) == stages
    for item in (before, after):
        assert [len(choices) for choices in item.sizes.values()] == [EPISODES]
        assert item.shares == [item.seeds[0].free.delegated]
    table = (run.folder / "table.md").read_text(encoding="utf-8")
    said = table[table.index("## Verdict") :].splitlines()[3:]
    first, second = (f"{item.shares[0]:.2f}" for item in (before, after))
    # Models of this size have not learned the sums, and the verdict says so after its headline.
    assert said[0].startswith('"delegating, after RL" is ahead at equal total tokens in 0 of 1 comparisons')
    assert said[1].startswith('not learned: "delegating, after RL" ')
    assert said[2].startswith('sums, accuracy: "delegating, after RL" ')
    assert said[3].startswith("choice, accuracy: alone ")
    assert said[4] == f"sums, share delegated at any: {first} -> {second}"
    assert said[5].startswith(f"sums, reward {before.seeds[0].free.reward:.3f} -> {after.seeds[0].free.reward:.3f} (")
    assert table.count("## When it delegates") == 1
    assert "**sums: delegating, after RL.**" in table


def test_what_an_variant_cannot_play_is_refused(tmp_path: Path) -> None:
    run = deciding(tmp_path)
    with pytest.raises(ConfigError, match=r"variants.alone.forced is true, but its limits allow no delegation"):
        replace(run, variants={**run.variants, "alone": replace(run.variants["alone"], forced=True)})
    with pytest.raises(ConfigError, match=r"variants.alone.evaluated_on names the family 'sum'.*Did you mean 'sums'"):
        replace(run, variants={**run.variants, "alone": replace(run.variants["alone"], evaluated_on=("sum",))})


def test_runs_that_differ_in_their_seeds_alone_are_one_source_of_a_page(trained: RunConfig, tmp_path: Path) -> None:
    folders = []
    for seed in trained.seeds:
        part = replace(trained, output=str(tmp_path), name=f"s{seed}", seeds=(seed,))
        shutil.copytree(trained.folder, part.folder)
        (part.folder / "config.yaml").write_text(dump_config(part), encoding="utf-8")
        folders.append(part.folder)
    [whole], [both] = read_sources([trained.folder]), read_sources(folders)
    assert both.name == "s0 + s1"
    first, second = (make_source_data(report_on(source), LinkedEpisodes("t.html")) for source in (whole, both))
    for part in ("rows", "delegation", "learning", "warmstart", "findings", "failures", "jobs"):
        assert first[part] == second[part], part
    found = {one["metric"]: one for one in first["learning"]["series"]}
    assert {"return", "term/correct", "entropy", "equal_groups", "excluded_share", "clones"} <= found.keys()
    logged = [json.loads(line) for line in (folders[1] / "delegating/seed1/metrics.jsonl").read_text().splitlines()]
    last = [row for row in logged if row["stage"] == "rl"][-1]
    assert found["return"]["bins"][-1][3][1] == pytest.approx(last["return"], rel=1e-5)
    assert first["final"] == ["delegating, after RL", "alone"]
    assert first["before"] == {"delegating, after RL": "delegating, before RL"}
    assert ("equal groups", "delegating") in whole.pathologies
    metrics = folders[0] / "delegating/seed0/metrics.jsonl"
    metrics.write_text("{\n" + metrics.read_text(encoding="utf-8"), encoding="utf-8")
    with pytest.raises(RecordError, match=r"metrics\.jsonl, line 1"):
        read_sources(folders)


WITHOUT_A_MODEL = """
import sys
from selfcest_cli.main import main
try:
    main()
finally:
    print("imported:", *sorted({"torch", "transformers"} & set(sys.modules)))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        ["--help"],
        ["trace", "{episodes}"],
        ["trace", "{results}", "--wrong"],
        ["trace", "{episodes}", "--html", "{out}", "--credit", "grpo"],
        ["trace", "{episodes}", "--svg", "{out}"],
        ["report", "{run}"],
        ["report", "{run}", "--html", "{out}"],
        ["watch", "{run}", "--once"],
        ["credit", "list"],
        ["credit", "apply", "{episodes}", "--name", "gated", "--out", "{out}"],
    ],
    ids=" ".join,
)
def test_commands_that_play_nothing_import_neither_torch_nor_transformers(
    trained: RunConfig, tmp_path: Path, command: list[str]
) -> None:
    run = copied(trained, tmp_path)
    job = run.folder / "delegating" / "seed0"
    places = {
        "run": run.folder,
        "episodes": job / "episodes.jsonl",
        "results": job / "evaluation" / "results.jsonl",
        "out": tmp_path / "out.html",
    }
    arguments = [word.format(**places) for word in command]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_A_MODEL, *arguments], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == "imported:"
    assert places["out"].is_file() == ("{out}" in command)
