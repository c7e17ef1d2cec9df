"""Reading runs back: their status, their episodes, their report. Torch-free; the counterpart of build.py.

Everything is derived from journal.db and metrics.jsonl, so it works on running, stopped and crashed runs alike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from longtail import events as ev
from longtail.config import Config, validate_config
from longtail.errors import LongtailError, UserError
from longtail.history import HISTORY_KINDS, History, TrajectorySummary, history
from longtail.journal import FILE_NAME, is_live, list_trajectories, load_trajectory, read_events, read_history
from longtail.observe import metrics
from longtail.observe.episode import Episode
from longtail.observe.picture import draw_reward
from longtail.observe.report import ReportData, evaluations, render_report
from longtail.observe.text import percent, printable
from longtail.ports import Renderer
from longtail.types import Json, Task

REPORT, PICTURE = "report.html", "reward.png"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    directory: Path
    name: str
    status: str  # running | finished | stopped | crashed
    step: int
    num_steps: int | None
    success: float | None  # of the last evaluation, else of the last training step
    success_of: str  # "test, step 40" or "training, step 40"
    started_at_s: float | None  # seconds since the epoch


def find_runs(root: Path) -> list[Path]:
    """Run directories at or right below `root`, sorted."""
    candidates = [root, *sorted(root.iterdir())] if root.is_dir() else []
    return [path for path in candidates if (path / FILE_NAME).is_file()]


def status_of(directory: Path, past: History) -> str:
    if is_live(directory):
        return "running"
    return {ev.RUN_FINISHED: "finished", ev.RUN_STOPPED: "stopped"}.get(past.ended, "crashed")


def read_status(directory: Path) -> RunStatus:
    past = read_history(directory)
    config = past.started.get("config", {})
    success, success_of = _success(directory, past)
    return RunStatus(
        directory=directory,
        name=config.get("name", directory.name),
        status=status_of(directory, past),
        step=past.step,
        num_steps=config.get("num_steps"),
        success=success,
        success_of=success_of,
        started_at_s=past.started_at_s,
    )


def status_lines(found: Sequence[RunStatus]) -> Iterator[str]:
    """A heading and one line per run."""
    rows = [("run", "status", "step", "success", "of", "started"), *(_status_row(one) for one in found)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _status_row(one: RunStatus) -> tuple[str, ...]:
    steps = f"{one.step}/{one.num_steps}" if one.num_steps is not None else str(one.step)
    started = datetime.fromtimestamp(one.started_at_s).strftime("%Y-%m-%d %H:%M") if one.started_at_s else "-"
    return printable(str(one.directory)), one.status, steps, percent(one.success), one.success_of or "-", started


def _success(directory: Path, past: History) -> tuple[float | None, str]:
    if past.evaluations:
        (step, split), data = max(past.evaluations.items(), key=lambda item: item[0][0])
        return (data["successes"] / data["scored"] if data["scored"] else None), f"{split}, step {step}"
    lines = live_metrics(directory, past)
    return (lines[-1].get("success"), f"training, step {lines[-1]['step']}") if lines else (None, "")


def live_metrics(directory: Path, past: History) -> list[dict[str, Json]]:
    """The lines of metrics.jsonl, without those of steps that were rolled back."""
    return [line for line in metrics.read_metrics(directory / metrics.FILE_NAME) if line["step"] <= past.step]


def read_config(directory: Path) -> Config:
    """The configuration that the run was started with. Raises UserError."""
    started = read_history(directory).started
    if not started:
        raise UserError(f"{directory} holds no configuration: its run did not start")
    return validate_config(started["config"])


def read_episode(directory: Path, trajectory_id: str) -> Episode:
    """Raises UserError for an unknown id."""
    trajectory = load_trajectory(directory, trajectory_id)
    lines = list_trajectories(directory, superseded=True)
    summary = next(line for line in lines if line.id == trajectory_id)
    return _episode(directory, summary, _tasks(directory, {trajectory.group_id}))


def _episode(directory: Path, summary: TrajectorySummary, tasks: dict[str, Task]) -> Episode:
    return Episode(
        trajectory=load_trajectory(directory, summary.id),
        summary=summary,
        task=tasks.get(summary.group_id),
        notes=tuple(read_events(directory, kinds=[ev.NOTE], trajectory=summary.id)),
    )


def _tasks(directory: Path, groups: set[str]) -> dict[str, Task]:
    """Group id -> its task."""
    admitted = read_events(directory, kinds=[ev.GROUP_ADMITTED])
    return {e.data["group"]: ev.task_from(e.data["task"]) for e in admitted if e.data["group"] in groups}


def write_report(directory: Path, renderer: Renderer | None = None) -> list[str]:
    """Make report.html and reward.png anew; returns what a person should be told about them."""
    data = gather(directory, renderer)
    page = directory / REPORT
    page.write_text(render_report(data), encoding="utf-8")
    missing = draw_reward(directory / PICTURE, data.name, data.metrics, evaluations(data.history))
    return [f"report: {page}", missing or f"picture: {directory / PICTURE}"]


def gather(directory: Path, renderer: Renderer | None = None) -> ReportData:
    """Everything that the report shows."""
    past = history(read_events(directory, kinds=HISTORY_KINDS))
    trajectories = list_trajectories(directory)
    samples = list(_samples(past, trajectories))
    tasks = _tasks(directory, {line.group_id for line in samples})
    return ReportData(
        name=past.started.get("config", {}).get("name", directory.name),
        directory=str(directory),
        status=status_of(directory, past),
        history=past,
        metrics=live_metrics(directory, past),
        trajectories=trajectories,
        dropped=_dropped(directory, past),
        episodes=[_episode(directory, line, tasks) for line in samples],
        renderer=renderer,
    )


def _dropped(directory: Path, past: History) -> Counter[str]:
    live = {group for step in past.steps for group in step.dropped} | set(past.dropped)
    reasons = {e.data["group"]: e.data["reason"] for e in read_events(directory, kinds=[ev.GROUP_DROPPED])}
    return Counter(reason for group, reason in reasons.items() if group in live)


def _samples(past: History, trajectories: Sequence[TrajectorySummary]) -> Iterator[TrajectorySummary]:
    """A solved and a failed episode of the first and of the last live step, where there are such."""
    for step in sorted({s.step for s in (past.steps[:1] + past.steps[-1:])}):
        lines = [line for line in trajectories if line.step == step]
        for wanted in (True, False):
            yield from [line for line in lines if line.usable and line.solved is wanted][:1]


def renderer_or_reason(directory: Path) -> tuple[Renderer | None, str]:
    """The run's tokenizer as a Renderer; without it, why episodes show ids."""
    try:
        from longtail.engines.renderer import HFRenderer

        return HFRenderer(read_config(directory).model.path), ""
    except (ImportError, LongtailError, OSError) as error:
        return None, f"token ids are shown, since the run's tokenizer cannot be loaded: {error}"
