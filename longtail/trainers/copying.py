"""A fresh model learns to copy from its context before it sees a text.

An agent repeats what it has read: names, numbers, whole lines. A network can do so once two heads of different layers
have found each other (induction heads: Olsson et al. 2022, "In-context Learning and Induction Heads"). On the text
itself that takes a model of a few million parameters millions of tokens. Here it takes a few hundred thousand: the
heads are placed by hand, then drilled on ids where nothing but copying helps.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, cast

import torch

from longtail.trainers.tiny import ROLES

_LR = 2e-3
_WARMUP = 30  # steps
_TOKENS = 3840  # per step
_CONTROL = 3 + len(ROLES)  # the first ids are control tokens
_SHORT, _LONG = 40, 200  # tokens of the longest span, in the first half of the drill and in the second


def place_induction_heads(model: Any) -> None:
    """Set weights in the first two layers of a fresh Llama, all of them to be trained further.

    Layer 0: the query heads of the first key-value group look 1, 2, 3, ... tokens back. A constant coordinate of the
    embedding gives every token the same key and, through the rotary phases, each head a query that is largest at its
    distance. Layer 1: the heads of its first group compare a token with what layer 0 wrote of the token before each
    position, and read what stands there. (Structured initialisation of attention: Trockman and Kolter 2023, "Mimetic
    Initialization of Self-Attention Layers".)

    The model needs two layers, no attention bias and hidden_size >= head_dim.
    """
    config = model.config
    head, hidden = config.head_dim, config.hidden_size
    heads, half = config.num_attention_heads // config.num_key_value_heads, config.head_dim // 2
    frequencies = config.rope_parameters["rope_theta"] ** (-torch.arange(half) / half)

    def projection() -> torch.Tensor:  # (head, hidden), orthonormal rows
        return _orthonormal(hidden, head).T

    with torch.no_grad():
        embedding = model.model.embed_tokens.weight
        embedding[:, 0] = 3 * embedding.std()
        rms = embedding.pow(2).mean(-1).sqrt().mean()
        constant = embedding[0, 0] / rms  # as layer 0 sees it

        back = model.model.layers[0].self_attn
        sharpness = 6 * math.sqrt(head) * torch.exp(-0.15 * torch.arange(half))
        key = sharpness.sqrt() / constant
        back.k_proj.weight[:head] = 0
        back.k_proj.weight[:half, 0] = key
        back.q_proj.weight[: heads * head] = 0
        for index in range(heads):
            phase, row = frequencies * (index + 1), index * head
            back.q_proj.weight[row : row + half, 0] = key * torch.cos(phase)
            back.q_proj.weight[row + half : row + head, 0] = -key * torch.sin(phase)
        read = projection()
        read[:, 0] = 0
        back.v_proj.weight[:head] = read
        written = [projection() for _ in range(heads)]
        back.o_proj.weight[:, : heads * head] = torch.cat(written).T * rms

        match = model.model.layers[1].self_attn
        slow = torch.zeros(half)
        slow[frequencies < 0.03] = 2.0  # coordinates that turn little between a token and its repetition
        mixed = torch.cat([slow, slow])[:, None] * _orthonormal(head, head)
        match.k_proj.weight[:head] = mixed @ written[0]
        match.q_proj.weight[: heads * head] = torch.cat([mixed @ read] * heads)
        copied = projection()
        match.v_proj.weight[:head] = copied
        match.o_proj.weight[:, :head] = copied.T * rms


def _orthonormal(rows: int, columns: int) -> torch.Tensor:
    """Random orthonormal columns."""
    return cast("Any", torch.linalg).qr(torch.randn(rows, columns))[0]


def drill_copying(model: Any, steps: int, *, seed: int = 0) -> Iterator[float]:
    """Train on spans of uniform random ids that repeat; yields the loss of each step, nats per repeated token."""
    generator = torch.Generator().manual_seed(seed)
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=_LR, betas=(0.9, 0.95), weight_decay=0.1)
    model.train()
    for step in range(steps):
        longest = _SHORT if step < steps // 2 else _LONG
        span = int(torch.randint(8, longest, (1,), generator=generator))
        times = max(2, 160 // span)
        shape = (_TOKENS // (span * times), span)
        ids = torch.randint(_CONTROL, model.config.vocab_size, shape, generator=generator).repeat(1, times)
        optimizer.param_groups[0]["lr"] = _LR * min(1.0, (step + 1) / _WARMUP)
        logits = model(ids).logits[:, span:-1].flatten(0, 1)
        loss = torch.nn.functional.cross_entropy(logits, ids[:, span + 1 :].flatten())
        cast("Any", loss).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        yield loss.item()
    model.eval()
