"""A model and its packed forward pass: micro-batches in, log-probabilities of the trained tokens out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from longtail.models import packed_llama
from longtail.models.attention import TreePlan, check_supported, packed_hidden
from longtail.models.staircase import Staircase
from longtail.trainers.head import head_weight, target_logprobs
from longtail.types import MicroBatch


class Forward:
    """A causal LM on its device. Raises UserError for one that the packed pass would compute wrongly."""

    def __init__(self, name: str, model: Any) -> None:
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.model = model.to(self._device)
        self._head = head_weight(model)
        self._fused = self._device.type == "cpu" and packed_llama.supports(model)
        if not self._fused:
            check_supported(name, self.model)

    def logprobs(self, batch: MicroBatch) -> tuple[Tensor, Tensor, Tensor]:
        """Of the trained tokens: log-probability (differentiable), entropy, whether it was the likeliest; each (M,)."""
        hidden_MC = self._hidden(batch)
        return target_logprobs(hidden_MC, self._head, self.tensor(batch.target_ids), self.tensor(batch.temperatures))

    def tensor(self, numbers: Sequence[int] | Sequence[float]) -> Tensor:
        return torch.tensor(numbers, device=self._device)

    def _hidden(self, batch: MicroBatch) -> Tensor:
        ids_N, positions_N, sources_M = (self.tensor(x) for x in (batch.ids, batch.positions, batch.sources))
        if self._fused:
            plan = Staircase(batch.segments, self._head.dtype)
            return packed_llama.source_hidden(self.model, ids_N, positions_N, plan, sources_M)
        return packed_hidden(self.model, ids_N, positions_N, TreePlan(batch.segments)).index_select(0, sources_M)
