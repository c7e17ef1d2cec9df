"""Drives a run: `train(...)` and `evaluate(...)` from Python, and what the command line calls. Reports at the end.

The loop itself is loop.py; what it is made of, build.py; what is read back, runs.py.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from longtail import loop
from longtail.build import Problem, SystemClock, open_evaluation, open_run, prepare
from longtail.config import Config, changed, load_config
from longtail.history import History
from longtail.journal import read_history, standing
from longtail.observe.intervals import wilson
from longtail.observe.observer import Observer
from longtail.observe.progress import Progress, open_progress
from longtail.ports import RolloutFn
from longtail.runs import live_metrics, renderer_or_reason, write_report
from longtail.types import Group, Json, Sampling, Tally, Task

RESULT = "result.json"


def train(rollout: RolloutFn, tasks: Sequence[Task], config: Config | str | Path | None = None, **changes: Any) -> Path:
    """Train on tasks with a rollout function; returns the run directory. `changes` are fields of the config, those of
    its sections as dicts. What the config says of [env] does not count.

    The same call again resumes the run. Raises UserError for bad input, before anything starts.
    """
    base = load_config([Path(config)]) if isinstance(config, str | Path) else config or Config()
    problem = prepare(changed(base, {**changes, "env": None}), rollout, tasks)
    progress = open_progress(as_json=False)
    try:
        asyncio.run(train_run(problem, progress))
    finally:
        progress.close()
    return problem.config.directory


async def train_run(problem: Problem, progress: Progress) -> dict[str, Json]:
    """Run the loop to its last step, then write the result and the report. Raises LongtailError for how it failed."""
    config, began = problem.config, False
    result: dict[str, Json] = {}
    observer = Observer(config.directory, num_steps=config.num_steps, progress=progress, now=SystemClock().now)
    try:
        async with open_run(problem, observer) as run:
            began = True
            stands = standing(config.directory)
            progress.tell(
                "begin",
                {
                    "name": config.name,
                    "directory": str(config.directory),
                    "num_steps": config.num_steps,
                    "step": stands.step,
                    "redone": list(stands.rolled_back),
                },
            )
            await loop.train(run)
    except asyncio.CancelledError:
        if began:
            progress.tell("message", {"text": f"stopped; it goes on after step {standing(config.directory).step}"})
        raise
    finally:
        observer.close()
        if began:  # a stopped or failed run has its report too; its directory is free by now, so it says how it ended
            result = finish(config, progress)
    return result


def finish(config: Config, progress: Progress) -> dict[str, Json]:
    """Write result.json, report.html and reward.png from what the run left; returns the result."""
    result = read_result(config)
    (config.directory / RESULT).write_text(json.dumps(result, indent=1) + "\n")
    renderer, _ = renderer_or_reason(config.directory)
    for line in write_report(config.directory, renderer):
        progress.tell("message", {"text": line})
    progress.tell("trained", result)
    return result


def read_result(config: Config) -> dict[str, Json]:
    """Success before and after on the evaluation splits, the first as the headline; None where not measured."""
    past = read_history(config.directory)
    headline, *others = config.eval.splits or ("",)
    lines = live_metrics(config.directory, past)
    return {
        "name": config.name,
        "seed": config.seed,
        "split": headline,
        "steps": past.step,
        **_before_and_after(past, headline),
        "train_seconds": round(sum(line["seconds"] - line.get("eval_s", 0.0) for line in lines), 1),
        "other_splits": {split: _before_and_after(past, split) for split in others},
    }


def _before_and_after(past: History, split: str) -> dict[str, Json]:
    """Shares of the tasks that were solved, with 95 % Wilson intervals."""
    steps = sorted(step for step, name in past.evaluations if name == split)
    result: dict[str, Json] = {}
    for name, step in (("before", steps[0] if steps else None), ("after", steps[-1] if len(steps) > 1 else None)):
        found = past.evaluations[step, split] if step is not None else {"successes": 0, "scored": 0}
        success, n = found["successes"], found["scored"]
        result[f"success_{name}"] = success / n if n else None
        result[f"interval_{name}"] = list(wilson(success, n)) if n else None
        result[f"tasks_{name}"] = n
    return result


async def evaluate_run(
    problem: Problem, model: str, progress: Progress, *, temperature: float | None = None
) -> dict[str, Json]:
    """Success of a model directory on the evaluation splits of a problem; nothing is journaled."""
    config = problem.config
    sampling = Sampling(
        max_tokens=config.sampling.max_tokens,
        temperature=config.eval.temperature if temperature is None else temperature,
    )
    results: dict[str, Json] = {"model": model}
    async with open_evaluation(problem, model) as rollouts:
        for split, tasks in problem.evaluations.items():
            groups = await rollouts.once(tasks, name=f"eval-{split}", sampling=sampling)
            results[split] = found = summary(groups)
            progress.tell("evaluation", {"split": split, **found})
    return results


def summary(groups: Sequence[Group]) -> Mapping[str, Json]:
    """Success of single attempts, whole and by family."""
    tally = Tally.of(groups)
    low, high = wilson(tally.successes, tally.scored)
    turns = [len(t.model_calls) for group in groups for t in group.usable]
    families: dict[str, list[bool]] = {}
    for group in groups:
        families.setdefault(group.task.family, []).extend(t.solved for t in group.usable)
    return {
        "success": tally.successes / tally.scored if tally.scored else None,
        "successes": tally.successes,
        "low": low,
        "high": high,
        "scored": tally.scored,
        "unscored": tally.unscored,
        "reward": tally.reward,
        "turns": sum(turns) / len(turns) if turns else None,
        "families": {name: sum(flags) / len(flags) for name, flags in sorted(families.items()) if flags},
    }
