"""report.html: one self-contained file about a run, made from its journal and metrics.jsonl alone.

Every text that comes from a run is escaped; the page has no script and loads nothing.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from longtail.history import History, TrajectorySummary
from longtail.observe.episode import Episode, blocks, facts, outcome_of
from longtail.observe.intervals import wilson
from longtail.observe.metrics import declared, reduce_steps
from longtail.observe.style import CSS
from longtail.observe.svg import Series, chart
from longtail.observe.text import duration, number, percent, printable
from longtail.ports import Renderer
from longtail.types import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportData:
    name: str
    directory: str
    status: str  # running | finished | stopped | crashed
    history: History
    metrics: Sequence[Mapping[str, Json]]  # of live steps
    trajectories: Sequence[TrajectorySummary]  # live
    dropped: Mapping[str, int]  # reason -> groups
    episodes: Sequence[Episode]  # samples of the first and the last step
    renderer: Renderer | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Success on one split at one step, with its 95 % interval."""

    step: int
    successes: int
    scored: int
    unscored: int
    low: float
    high: float

    @property
    def share(self) -> float | None:
        return self.successes / self.scored if self.scored else None


def evaluations(history: History) -> dict[str, list[Measured]]:
    """By split, by step."""
    splits: dict[str, list[Measured]] = {}
    for (step, split), data in sorted(history.evaluations.items()):
        low, high = wilson(data["successes"], data["scored"])
        measured = Measured(
            step=step,
            successes=data["successes"],
            scored=data["scored"],
            unscored=data["unscored"],
            low=low,
            high=high,
        )
        splits.setdefault(split, []).append(measured)
    return splits


def render_report(data: ReportData) -> str:
    """The page."""
    sections = (
        _head(data),
        _section("Evaluation", _evaluation_table(data)),
        _section("Curves", _charts(data)),
        _section("Score parts", _parts_table(data)),
        _section("Where time went", _idle_table(data)),
        _section("How attempts ended", _outcomes_table(data)),
        _section("Groups that were not trained", _dropped_table(data)),
        _section("Episodes of the first and the last step", "".join(_episode(e, data.renderer) for e in data.episodes)),
        _section("All metrics", _totals_table(data)),
        _section("Versions and configuration", _setup(data)),
    )
    title = escape(printable(data.name))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{title}: longtail report</title><style>{CSS}</style></head><body>{''.join(sections)}</body></html>\n"
    )


def _section(title: str, body: str) -> str:
    return f"<section><h2>{title}</h2>{body}</section>" if body else ""


def _e(text: object) -> str:
    return escape(printable(str(text)))


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Cells are plain text; a column is right-aligned when its heading begins with ">"."""
    right = [name.startswith(">") for name in head]

    def row(cells: Sequence[str], tag: str) -> str:
        inner = "".join(
            f"<{tag}{' class=n' * number_like}>{_e(cell)}</{tag}>"
            for cell, number_like in zip(cells, right, strict=True)
        )
        return f"<tr>{inner}</tr>"

    body = "".join(row(cells, "td") for cells in rows)
    heading = f"<thead>{row([name.removeprefix('>') for name in head], 'th')}</thead>" if any(head) else ""
    return f'<div class="scroll"><table>{heading}<tbody>{body}</tbody></table></div>' if body else ""


# --- sections -------------------------------------------------------------------------------------------------------


def _head(data: ReportData) -> str:
    past = data.history
    reason = f": {past.ended_reason}" if past.ended_reason else ""
    resumed = f", resumed {past.resumes} times" if past.resumes else ""
    tiles = [(number(past.step), "steps committed")]
    for split, measured in evaluations(past).items():
        first, last = measured[0], measured[-1]
        change = percent(last.share) if first is last else f"{percent(first.share)} → {percent(last.share)}"
        tiles.append((change, f"success, {split}"))
    if data.metrics:
        first, last = data.metrics[0].get("reward"), data.metrics[-1].get("reward")
        totals = reduce_steps(data.metrics)
        tiles.append((f"{number(first)} → {number(last)}", "training reward, first and last step"))
        tiles.append((number(totals.get("tokens")), "tokens sampled"))
        tiles.append((duration(totals.get("seconds")), "in steps"))
    boxes = "".join(f'<div class="tile"><b>{_e(value)}</b>{_e(label)}</div>' for value, label in tiles)
    return (
        f"<h1>{_e(data.name)}</h1><p class=dim>{_e(data.directory)}: {_e(data.status + reason + resumed)}</p>"
        f'<div class="tiles">{boxes}</div>'
    )


def _evaluation_table(data: ReportData) -> str:
    rows: list[tuple[str, ...]] = []
    notes = ""
    for split, measured in evaluations(data.history).items():
        for m in measured if len(measured) <= 6 else [*measured[:3], *measured[-3:]]:
            interval = f"{percent(m.low)} to {percent(m.high)}"
            counted = f"{m.successes} of {m.scored}"
            rows.append((split, str(m.step), percent(m.share), interval, counted, str(m.unscored)))
        notes += _change(split, measured[0], measured[-1])
    head = ("split", ">step", ">success", ">95 % interval", ">solved", ">not scored")
    return _table(head, rows) + notes


def _change(split: str, before: Measured, after: Measured) -> str:
    if before is after or before.share is None or after.share is None:
        return ""
    apart = after.low > before.high or after.high < before.low
    kind = ("good" if after.share > before.share else "bad") if apart else "dim"
    overlap = "the intervals do not overlap" if apart else "the intervals overlap"
    points = f"{100 * (after.share - before.share):+.1f} points"
    return f"<p class={kind}>{_e(split)}: {points} from step {before.step} to step {after.step}; {overlap}.</p>"


def _charts(data: ReportData) -> str:
    lines = data.metrics
    success = [_series(lines, "success", "training")]
    for split, measured in evaluations(data.history).items():
        points = [(float(m.step), m.share) for m in measured]
        bars = [(float(m.step), m.low, m.high) for m in measured if m.scored]
        success.append(Series(name=split, points=points, bars=bars))
    staleness = [_series(lines, f"staleness_{name}", name) for name in ("mean", "max")]
    figures = [
        ("Success, share", chart(success, low=0.0, high=1.0)),
        ("Reward", chart([_series(lines, "reward", "reward"), *_family(lines, "reward/")])),
        ("Tokens per second", chart([_series(lines, "tokens_per_s", "sampled")], low=0.0)),
        ("Idle, share of the step", chart(_family(lines, "idle/"), low=0.0, high=1.0)),
        ("Turns", chart([_series(lines, "turns", "per attempt")], low=0.0)),
        ("Sampled tokens", chart([_series(lines, "reply_tokens", "per attempt")], low=0.0)),
        ("Staleness, versions", chart(staleness, low=0.0)),
        *((f"Trainer, {one.name}", chart([one])) for one in _family(lines, "train/")),
    ]
    return _grid(figures)


def _grid(figures: Sequence[tuple[str, str]]) -> str:
    drawn = "".join(f"<figure><h3>{_e(title)}</h3>{svg}</figure>" for title, svg in figures if svg)
    return f'<div class="charts">{drawn}</div>' if drawn else ""


def _series(lines: Sequence[Mapping[str, Json]], name: str, label: str) -> Series:
    return Series(name=label, points=[(float(line["step"]), line.get(name)) for line in lines])


def _family(lines: Sequence[Mapping[str, Json]], prefix: str) -> list[Series]:
    """Every series that begins with `prefix`."""
    members = sorted({key for line in lines for key in line if key.startswith(prefix)})
    return [_series(lines, key, key.removeprefix(prefix)) for key in members]


def _parts_table(data: ReportData) -> str:
    lines = data.metrics
    names = sorted({key for line in lines for key in line if key.startswith("reward/")})
    if not lines:
        return ""
    totals = reduce_steps(lines)
    rows = [
        (
            name.removeprefix("reward/"),
            *(number(v) for v in (lines[0].get(name), lines[-1].get(name), totals.get(name))),
        )
        for name in ("reward", *names)
    ]
    return _table(("part", ">first step", ">last step", ">mean of steps"), rows)


def _idle_table(data: ReportData) -> str:
    """Idle seconds by wall seconds, summed first: a mean of shares would count short steps too much."""
    lines = [line for line in data.metrics if line.get("seconds")]
    lanes = sorted({key for line in lines for key in line if key.startswith("idle/")})
    wall = sum(line["seconds"] for line in lines)
    rows: list[tuple[str, ...]] = []
    for lane in lanes:
        idle = sum(line.get(lane, 1.0) * line["seconds"] for line in lines)
        rows.append((lane.removeprefix("idle/"), duration(wall - idle), duration(idle), percent(idle / wall)))
    return _table(("lane", ">busy", ">idle", ">idle share"), rows)


def _outcomes_table(data: ReportData) -> str:
    counts = Counter(
        ("training" if line.split == "train" else "evaluation", outcome_of(line)) for line in data.trajectories
    )
    rows = [(where, what, str(count)) for (where, what), count in sorted(counts.items(), key=lambda item: -item[1])]
    more = f"<p class=dim>and {len(rows) - 30} rarer ones</p>" if len(rows) > 30 else ""
    return _table(("in", "outcome", ">attempts"), rows[:30]) + more


def _dropped_table(data: ReportData) -> str:
    rows = sorted(((reason, str(count)) for reason, count in data.dropped.items()), key=lambda row: -int(row[1]))
    return _table(("reason", ">groups"), rows[:30])


def _episode(episode: Episode, renderer: Renderer | None) -> str:
    rows = facts(episode)
    title = f"step {episode.summary.step}, {episode.trajectory.id}: {dict(rows)['outcome']}"
    body = _table(("", ""), rows)
    for block in blocks(episode, renderer):
        body += f'<div class="who">{_e(block.speaker)} · {_e(block.title)}</div>'
        body += f'<pre class="{_e(block.speaker)}">{_e(block.text)}</pre>' if block.text else ""
    return f"<details><summary>{_e(title)}</summary>{body}</details>"


def _totals_table(data: ReportData) -> str:
    totals = reduce_steps(data.metrics)
    rows = [
        (name, number(value), declared(name).unit, declared(name).reduction, declared(name).about)
        for name, value in totals.items()
    ]
    table = _table(("metric", ">value", "unit", "over steps", "is"), rows)
    return (
        f"<details><summary>{len(rows)} metrics over {len(data.metrics)} steps</summary>{table}</details>"
        if rows
        else ""
    )


def _setup(data: ReportData) -> str:
    started = data.history.started
    if not started:
        return ""
    versions = _table(("", ""), [(str(k), str(v)) for k, v in started["manifest"].items()])
    config = _e(json.dumps(started["config"], indent=2))
    return f"{versions}<details><summary>configuration</summary><pre>{config}</pre></details>"
