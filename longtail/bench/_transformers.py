"""The baseline of bench generate, in a process of its own that knows nothing of longtail and its settings.

Run as a script with the model's path. Each line of stdin is {"jobs": [[prompt ids, reply tokens], ...], "batch": n};
the answer is a line with the seconds taken.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch
from transformers import AutoModelForCausalLM


def generate_seconds(model: Any, jobs: list[tuple[list[int], int]], batch: int) -> float:
    started = time.perf_counter()
    for first in range(0, len(jobs), batch):
        part = jobs[first : first + batch]
        width, reply = max(len(prompt) for prompt, _ in part), max(tokens for _, tokens in part)
        model.generate(
            input_ids=torch.tensor([[0] * (width - len(prompt)) + prompt for prompt, _ in part]),
            attention_mask=torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt, _ in part]),
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            min_new_tokens=reply,
            max_new_tokens=reply,
            pad_token_id=0,
        )
    return time.perf_counter() - started


def main() -> None:
    auto: Any = AutoModelForCausalLM
    model = auto.from_pretrained(sys.argv[1], dtype=torch.float32).eval()
    for line in sys.stdin:
        print(generate_seconds(model, **json.loads(line)), flush=True)


if __name__ == "__main__":
    main()
