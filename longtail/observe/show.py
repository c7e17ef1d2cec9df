"""`longtail show`: trajectories as a table of text, an episode as a page of text. Returns rich Text, prints nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.text import Text

from longtail.history import TrajectorySummary
from longtail.observe.episode import Block, Episode, blocks, facts
from longtail.observe.text import duration, number, printable
from longtail.ports import Renderer

_STYLES = {"environment": "cyan", "model": "bold", "tool": "magenta", "note": "dim"}
_COLUMNS = ("trajectory", "task", "split", "step", "outcome", "solved", "reward", "turns", "tokens", "time", "reason")
_RIGHT = {"step", "reward", "turns", "tokens", "time"}
_REASON = 60  # characters


def select(
    lines: Sequence[TrajectorySummary], *, failed: bool = False, solved: bool = False, limit: int = 0
) -> list[TrajectorySummary]:
    """The last `limit` of those wanted (0: all); `failed` and `solved` together want every ended one."""
    wanted = [line for line in lines if not (failed or solved) or (failed and line.failed) or (solved and line.solved)]
    return wanted[-limit:] if limit else wanted


def table(lines: Sequence[TrajectorySummary]) -> Iterator[Text]:
    """A heading and one line per trajectory."""
    rows = [_COLUMNS, *(_row(line) for line in lines)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(_COLUMNS))]
    for place, row in enumerate(rows):
        cells = (
            cell.rjust(width) if name in _RIGHT else cell.ljust(width)
            for cell, width, name in zip(row, widths, _COLUMNS, strict=True)
        )
        style = "bold" if place == 0 else "green" if lines[place - 1].solved else ""
        yield Text("  ".join(cells).rstrip(), style=style)


def _row(line: TrajectorySummary) -> tuple[str, ...]:
    reason = printable(line.reason).replace("\n", " ")
    return (
        line.id,
        printable(line.task_id),
        line.split,
        "-" if line.step is None else str(line.step),
        line.outcome.value if line.outcome else "-",
        ("yes" if line.solved else "no") if line.usable else "-",
        number(line.reward),
        str(line.turns),
        str(line.tokens),
        duration(line.seconds),
        reason if len(reason) <= _REASON else reason[: _REASON - 1] + "…",
    )


def page(episode: Episode, renderer: Renderer | None) -> Iterator[Text]:
    """The whole episode."""
    rows = facts(episode)
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        yield Text.assemble((name.ljust(width + 2), "dim"), printable(value))
    for block in blocks(episode, renderer):
        yield from _block(block)
    outcome = dict(rows)["outcome"]
    yield Text("")
    yield Text(f"end: {printable(outcome)}", style="bold")


def _block(block: Block) -> Iterator[Text]:
    style = _STYLES[block.speaker]
    yield Text("")
    yield Text(f"── {block.speaker} · {printable(block.title)}", style=style)
    if block.text:
        yield Text(printable(block.text).rstrip("\n"))
