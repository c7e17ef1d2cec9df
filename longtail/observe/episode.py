"""An episode as blocks that a person reads from top to bottom; the terminal and the report print the same blocks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from longtail.history import TrajectorySummary
from longtail.observe.text import duration, number
from longtail.ports import Renderer
from longtail.types import Event, Json, ModelCall, Score, Task, ToolCall, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """All that is known of one attempt."""

    trajectory: Trajectory
    summary: TrajectorySummary
    task: Task | None = None
    notes: Sequence[Event] = ()  # free events of the environment


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    speaker: str  # environment | model | tool | note
    title: str
    text: str


def blocks(episode: Episode, renderer: Renderer | None) -> list[Block]:
    """Without a renderer the ids stand for the text that nobody can decode."""
    return [
        *(_prompt(episode.task) if renderer is None else ()),
        *_calls(episode.trajectory, renderer),
        *(_note(event) for event in episode.notes),
    ]


def facts(episode: Episode) -> list[tuple[str, str]]:
    """What is said of the episode as a whole: (name, value) in reading order."""
    trajectory, summary, task = episode.trajectory, episode.summary, episode.task
    trained = f"trained in step {summary.step}" if summary.step is not None else "not trained"
    cost = f"{summary.turns} turns, {summary.tokens} sampled tokens, {duration(summary.seconds)}"
    rows = [
        ("trajectory", trajectory.id),
        ("task", trajectory.task_id + (f" (family {task.family})" if task and task.family else "")),
        ("use", "rolled back by a resumed run" if summary.superseded else f"{summary.split}, {trained}"),
        ("outcome", outcome_of(summary)),
        ("reward", reward_line(trajectory.reward, trajectory.score)),
        ("cost", cost),
    ]
    if summary.advantages:
        rows.insert(5, ("advantage", advantage_line(summary.advantages)))
    return rows


def outcome_of(summary: TrajectorySummary) -> str:
    """One phrase: the class, whether it is solved, and why it ended."""
    if summary.outcome is None:
        return summary.reason
    solved = ", solved" if summary.solved else ", not solved" if summary.usable else ", not scored"
    return f"{summary.outcome.value}{solved}" + (f": {summary.reason}" if summary.reason else "")


def reward_line(reward: float | None, score: Score) -> str:
    if reward is None:
        return "none"
    parts = ", ".join(f"{name} {number(value)}" for name, value in score.items()) if isinstance(score, Mapping) else ""
    return number(reward) + (f" ({parts})" if parts else "")


def advantage_line(advantages: Sequence[float]) -> str:
    """One number where all turns have the same."""
    shown = [f"{advantage:+.4g}" for advantage in advantages]
    return shown[0] if len(set(shown)) == 1 else "by turn " + " ".join(shown)


def _prompt(task: Task | None) -> Iterator[Block]:
    for message in task.prompt if task else ():
        yield Block(speaker="environment", title=f"prompt, {message.role}", text=message.content)


def _calls(trajectory: Trajectory, renderer: Renderer | None) -> Iterator[Block]:
    turn = 0
    for place, call in enumerate(trajectory.calls):
        if isinstance(call, ModelCall):
            turn += 1
            yield from _turn(turn, call, renderer)
        else:
            following = next((c for c in trajectory.calls[place + 1 :] if isinstance(c, ModelCall)), None)
            shown = _text(following.delta_ids, renderer) if following else ""
            yield _tool(call, shown)


def _turn(turn: int, call: ModelCall, renderer: Renderer | None) -> Iterator[Block]:
    done = call.completion
    rewritten = ", history rewritten" if turn > 1 and call.parent is None else ""
    yield Block(
        speaker="environment",
        title=f"turn {turn}: {len(call.delta_ids)} new tokens{rewritten}",
        text=_text(call.delta_ids, renderer),
    )
    versions = sorted(set(done.versions))
    facts = [
        f"{len(done.ids)} tokens",
        f"mean logprob {sum(done.logprobs) / len(done.logprobs):.3f}" if done.logprobs else "",
        f"version {versions[0]}"
        if len(versions) == 1
        else f"versions {versions[0]} to {versions[-1]}"
        if versions
        else "",
        f"ended by {done.finish.value}",
        f"{done.cached_tokens} cached" if done.cached_tokens else "",
        f"waited {duration(done.queue_s)}, ran {duration(done.run_s)}",
    ]
    yield Block(
        speaker="model", title=f"turn {turn}: " + ", ".join(f for f in facts if f), text=_text(done.ids, renderer)
    )


def _tool(call: ToolCall, shown: str) -> Block:
    """The result is left out where the environment shows it to the model word for word."""
    lines = [_arguments(call.arguments)]
    if call.error:
        lines.append(f"error: {call.error}")
    if call.result and call.result.strip() not in shown:
        lines.append(call.result)
    elif call.result:
        lines.append("(result: shown to the model below)")
    return Block(
        speaker="tool",
        title=f"{call.name}, {duration(call.ended_s - call.started_s)}",
        text="\n".join(line for line in lines if line),
    )


def _arguments(arguments: Mapping[str, Json]) -> str:
    """One argument a line; text of several lines is set below its name."""
    lines: list[str] = []
    for name, value in arguments.items():
        text = value if isinstance(value, str) else json.dumps(value)
        lines.append(f"{name}:\n{text}" if "\n" in text else f"{name}: {text}")
    return "\n".join(lines)


def _note(event: Event) -> Block:
    data = event.data
    text = ", ".join(f"{name}: {json.dumps(value)}" for name, value in data["data"].items())
    return Block(speaker="note", title=str(data["kind"]), text=text)


def _text(ids: Sequence[int], renderer: Renderer | None) -> str:
    return renderer.transcript(ids) if renderer else " ".join(map(str, ids))
