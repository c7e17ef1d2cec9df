"""What stands of a run, from its events: live steps, data position, evaluations, one line per trajectory. Pure.

A resumed run repeats what came after its last checkpoint. Everything here is about what is live: what a later
run.resumed rolled back is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from longtail import events as ev
from longtail.types import Event, Json, Outcome, Score

# The kinds that history() and summaries() read. None of them carries arrays.
HISTORY_KINDS = (
    ev.RUN_STARTED,
    ev.RUN_RESUMED,
    ev.RUN_STOPPED,
    ev.RUN_FINISHED,
    ev.EVAL_FINISHED,
    ev.CHECKPOINT_SAVED,
    ev.GROUP_DROPPED,
    ev.STEP_COMMITTED,
)
SUMMARY_KINDS = (*HISTORY_KINDS, ev.ATTEMPT_STARTED, ev.ATTEMPT_ENDED)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedStep:
    step: int
    groups: tuple[str, ...]  # trained
    indices: tuple[int, ...]  # admission numbers of the trained groups
    dropped: Mapping[str, int]  # group id -> admission number, dropped since the step before
    advantages: Mapping[str, Sequence[float]]  # by trajectory id, one a turn; without the groups that were left out
    metrics: Mapping[str, float | None]
    seconds: float
    checkpoint: str  # relative to the run directory; "" when it has none
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Where the data stands. The scheduler admits `redo` in order, then `next_index`, next_index + 1, ..."""

    next_index: int = 0
    redo: tuple[int, ...] = ()  # below next_index, neither trained nor dropped: in flight at the cut; () when max_lag=0


@dataclass(slots=True, kw_only=True)
class History:
    """Filled by history(); a reader's copy, not shared."""

    steps: list[CommittedStep] = field(default_factory=list[CommittedStep])  # live, ascending
    evaluations: dict[tuple[int, str], Mapping[str, Json]] = field(  # (step, split) -> data of the last eval.finished
        default_factory=dict[tuple[int, str], Mapping[str, Json]]
    )
    started: Mapping[str, Json] = field(default_factory=dict[str, Json])  # data of the last run.started
    started_at_s: float | None = None  # of the first
    ended: str = ""  # kind of the run event that says that the run ended, "" while it goes on
    ended_reason: str = ""
    resumes: int = 0
    dropped: dict[str, int] = field(default_factory=dict[str, int])  # after the last live step: not yet settled

    @property
    def step(self) -> int:
        return self.steps[-1].step if self.steps else 0

    def position(self) -> Position:
        """The cut after the last live step: what the live steps trained, and what was dropped before their commits."""
        consumed = {index for s in self.steps for index in (*s.indices, *s.dropped.values())}
        next_index = max(consumed, default=-1) + 1
        return Position(next_index=next_index, redo=tuple(i for i in range(next_index) if i not in consumed))

    def settled_groups(self) -> set[str]:
        """Groups that a live step trained, or that were dropped before its commit."""
        return {group for s in self.steps for group in (*s.groups, *s.dropped)}

    def roll_back(self, step: int) -> list[int]:
        """Take back what came after the commit of `step`; returns the steps taken back."""
        gone = [s.step for s in self.steps if s.step > step]
        self.steps = [s for s in self.steps if s.step <= step]
        self.evaluations = {key: data for key, data in self.evaluations.items() if key[0] <= step}
        self.dropped = {}
        return gone

    def add(self, event: Event) -> None:
        """Take the next event; kinds outside HISTORY_KINDS change nothing."""
        data = event.data
        match event.kind:
            case ev.STEP_COMMITTED:
                self._commit(event)
            case ev.CHECKPOINT_SAVED:
                at = data["step"]
                self.steps = [replace(s, checkpoint=data["checkpoint"]) if s.step == at else s for s in self.steps]
            case ev.GROUP_DROPPED if data["index"] >= 0:
                self.dropped[data["group"]] = data["index"]
            case ev.EVAL_FINISHED:
                self.evaluations[data["step"], data["split"]] = data
            case ev.RUN_STARTED | ev.RUN_RESUMED | ev.RUN_STOPPED | ev.RUN_FINISHED:
                self._run_event(event)
            case _:
                pass

    def _commit(self, event: Event) -> None:
        data = event.data
        if data["step"] <= self.step:  # a driver that did not resume; the later commit stands
            self.roll_back(data["step"] - 1)
        committed = CommittedStep(
            step=data["step"],
            groups=tuple(data["groups"]),
            indices=tuple(data["indices"]),
            dropped=self.dropped,
            advantages=data["advantages"],
            metrics=data["metrics"],
            seconds=data["seconds"],
            checkpoint=data["checkpoint"],
            at_s=event.at_s,
        )
        self.steps.append(committed)
        self.dropped = {}

    def _run_event(self, event: Event) -> None:
        over = event.kind in (ev.RUN_STOPPED, ev.RUN_FINISHED)
        self.ended = event.kind if over else ""
        self.ended_reason = event.data.get("reason", "") if over else ""
        if event.kind == ev.RUN_RESUMED:
            self.roll_back(event.data["step"])
            self.resumes += 1
        if event.kind == ev.RUN_STARTED:
            self.started = event.data
            self.started_at_s = event.at_s if self.started_at_s is None else self.started_at_s


def history(events: Iterable[Event]) -> History:
    """The live history from the events of a run, in order."""
    past = History()
    for event in events:
        past.add(event)
    return past


# --- one line per attempt -------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class TrajectorySummary:
    """One line of a list of trajectories."""

    id: str
    task_id: str
    group_id: str
    split: str
    outcome: Outcome | None = None  # None: unfinished
    reason: str = ev.UNFINISHED
    score: Score = None
    reward: float | None = None
    turns: int = 0
    tokens: int = 0  # sampled
    seconds: float = 0.0
    step: int | None = None  # the live step that trained it
    advantages: Sequence[float] = ()  # one a turn; () when it was not trained
    superseded: bool = False  # a resumed run rolled its group back
    at_s: float = 0.0  # start, seconds since the epoch

    @property
    def usable(self) -> bool:
        return self.reward is not None and self.outcome in (Outcome.DONE, Outcome.POLICY)

    @property
    def solved(self) -> bool:
        """As Trajectory.solved."""
        parts: Mapping[str, float] = self.score if isinstance(self.score, Mapping) else {}
        return self.usable and parts.get("solved", self.reward or 0.0) >= 1.0

    @property
    def failed(self) -> bool:
        """It ended and is not solved."""
        return self.outcome is not None and not self.solved


def summaries(events: Iterable[Event]) -> list[TrajectorySummary]:
    """One per trajectory id in order of their (last) start, from events of SUMMARY_KINDS in order.

    Turns and tokens of an unfinished attempt stay 0: they are not among these events.
    """
    past = History()
    lines: dict[str, TrajectorySummary] = {}
    for event in events:
        past.add(event)
        if event.kind == ev.ATTEMPT_STARTED:
            lines.pop(event.trajectory, None)
            lines[event.trajectory] = _begun(event)
        elif event.kind == ev.ATTEMPT_ENDED and event.trajectory in lines:
            _end(lines[event.trajectory], event.data)
        elif event.kind == ev.RUN_RESUMED:
            settled = past.settled_groups()
            for line in lines.values():
                line.superseded |= line.split == "train" and line.group_id not in settled
    trained = {group: s.step for s in past.steps for group in s.groups}
    advantages = {id_: of_turns for s in past.steps for id_, of_turns in s.advantages.items()}
    for line in lines.values():
        line.step = trained.get(line.group_id)
        line.advantages = advantages.get(line.id, ())
    return list(lines.values())


def _begun(event: Event) -> TrajectorySummary:
    data = event.data
    return TrajectorySummary(
        id=event.trajectory, task_id=data["task"], group_id=data["group"], split=data["split"], at_s=event.at_s
    )


def _end(line: TrajectorySummary, data: Mapping[str, Json]) -> None:
    line.outcome, line.reason = Outcome(data["outcome"]), data["reason"]
    line.score, line.reward = data["score"], data["reward"]
    line.turns, line.tokens = data["turns"], data["tokens"]
    line.seconds = data["ended_s"] - data["started_s"]
