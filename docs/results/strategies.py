"""What the attempts of a repair run did, command by command: `python docs/results/strategies.py runs/repair0`.

Prints JSON: for the first three and the last three steps, the attempts, those that ran the tests before their first
edit, and each sequence of commands with how many attempts it has and how many of them solved their task.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from longtail.journal import list_trajectories, load_trajectory
from longtail.types import ToolCall

STEPS = 3
COMMON = 12  # sequences that are listed


def main(run: Path) -> dict[str, Any]:
    trained = [line for line in list_trajectories(run) if line.step]
    last = max(line.step for line in trained if line.step)
    spans = {"first": range(1, STEPS + 1), "last": range(last - STEPS + 1, last + 1)}
    return {name: strategies(run, [line.id for line in trained if line.step in steps]) for name, steps in spans.items()}


def strategies(run: Path, attempts: list[str]) -> dict[str, Any]:
    tried, solved, tested_first = Counter[str](), Counter[str](), 0
    for attempt in attempts:
        trajectory = load_trajectory(run, attempt)
        names = [call.name for call in trajectory.calls if isinstance(call, ToolCall)]
        before = names[: names.index("edit")] if "edit" in names else names
        tested_first += "test" in before
        tried[" ".join(names)] += 1
        solved[" ".join(names)] += trajectory.solved
    return {
        "attempts": len(attempts),
        "tested before the first edit": tested_first,
        "sequences": [{"commands": c, "attempts": n, "solved": solved[c]} for c, n in tried.most_common(COMMON)],
    }


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1])), indent=1))
