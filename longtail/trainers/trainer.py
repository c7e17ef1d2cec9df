"""The torch trainer: packed micro-batches in, one optimizer step out. One device: a CPU, or the GPU where there is one.

    micro-batch -> packed forward -> hidden states of the M source tokens -> head -> loss -> backward
    ... summed over the micro-batches ... -> clip -> optimizer -> step

All torch work happens on one worker thread, so that the event loop is never blocked and order is program order.
The same inputs give the same bits: no random numbers, one thread count, fixed order of sums.
"""

from __future__ import annotations

import asyncio
import ctypes
import hashlib
import json
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from safetensors import SafetensorError
from torch import Tensor

from longtail.config import TrainerConfig
from longtail.errors import UserError
from longtail.models.load import load_model, load_tokenizer
from longtail.ports import Loss
from longtail.trainers.checkpoint import read_tensors, write_directory, write_tensors
from longtail.trainers.forward import Forward
from longtail.trainers.optimizers import Optimizers
from longtail.trainers.schedule import factor
from longtail.types import LossInputs, MicroBatch, StepResult

T = TypeVar("T")

_log = logging.getLogger(__name__)

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h


class TorchTrainer:
    """Owns the weights and the optimizer (the Trainer port)."""

    def __init__(
        self,
        model: str,
        config: TrainerConfig,
        *,
        num_steps: int,
        threads: int = 0,
        seed: int = 0,
        reference: bool = False,
    ) -> None:
        """`model`: a directory, registered name or id. `threads` 0: all cores. `reference`: keep the first weights."""
        self._config = config
        self._num_steps = num_steps
        self._worker = ThreadPoolExecutor(1, "trainer", initializer=_prepare_thread, initargs=(threads,))
        cast("Any", torch).manual_seed(seed)  # for weights that a checkpoint lacks and the model makes up
        self._forward = Forward(model, load_model(model))
        self._reference = Forward(model, load_model(model).requires_grad_(False)) if reference else None
        self._tokenizer = load_tokenizer(model)
        self._parameters: dict[str, Tensor] = dict(self._forward.model.named_parameters())  # tied weights stand once
        self._optimizer = Optimizers(self._forward.model, config)
        self._step_number = 0

    @property
    def steps(self) -> int:
        """Optimizer steps of the run so far: the version of the weights."""
        return self._step_number

    async def step(self, microbatches: Sequence[MicroBatch], loss: Loss) -> StepResult:
        return await self._run(lambda: self._step(microbatches, loss))

    async def evaluate(self, microbatches: Sequence[MicroBatch]) -> dict[str, float]:
        """Mean negative log-likelihood and accuracy of the target tokens, weighted; nothing is learnt."""
        return await self._run(lambda: self._evaluate(microbatches))

    async def export(self, path: Path) -> None:
        await self._run(lambda: write_tensors(path, self._parameters))

    async def save(self, path: Path) -> None:
        await self._run(lambda: write_directory(path, self._write))

    async def load(self, path: Path) -> None:
        await self._run(lambda: self._read(path))

    async def close(self) -> None:
        self._worker.shutdown(wait=False, cancel_futures=True)

    async def _run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._worker, work)

    # --- one step -------------------------------------------------------------------------------------------------

    def _step(self, microbatches: Sequence[MicroBatch], loss: Loss) -> StepResult:
        started = time.perf_counter()
        sums = MetricSums()
        self._optimizer.zero_grad()
        for batch in microbatches:
            sums.add(self._learn(batch, loss))
        share = factor(self._config, self._step_number, self._num_steps)
        norm, applied = self._apply(share) if microbatches else (0.0, False)
        if microbatches and not applied:
            _log.warning("step %d was skipped: the norm of its gradient is %s", self._step_number, norm)
        self._step_number += 1
        seconds = time.perf_counter() - started
        row_tokens = sum(batch.row_tokens for batch in microbatches)
        metrics = {
            **sums.means(),
            "grad_norm": norm,
            "lr": self._config.lr * share,
            **self._optimizer.metrics(),
            "skipped": float(not applied),
            "tokens": float(row_tokens),
            "computed_tokens": float(sum(len(batch.ids) for batch in microbatches)),
            "trained_tokens": sums.count,
            "tokens_per_second": row_tokens / seconds,
        }
        return StepResult(metrics=metrics, seconds=seconds)

    def _learn(self, batch: MicroBatch, loss: Loss) -> tuple[int, dict[str, float]]:
        """Add the gradient of one micro-batch; its number of trained tokens, and metric sums."""
        logprobs_M, entropy_M, _ = self._forward.logprobs(batch)
        value, metrics = loss(logprobs_M, self._inputs(batch))
        value.backward()
        tensors = {**metrics, "entropy": entropy_M.sum()}
        numbers = {name: float(tensor) for name, tensor in tensors.items()}
        return len(batch.sources), {**numbers, "loss_total": float(value.detach())}

    def _inputs(self, batch: MicroBatch) -> LossInputs:
        reference_M = None
        if self._reference is not None:
            with torch.no_grad():
                reference_M = self._reference.logprobs(batch)[0]
        tensor = self._forward.tensor
        return LossInputs(
            logprobs_M=tensor(batch.logprobs),
            advantages_M=tensor(batch.advantages),
            weights_M=tensor(batch.weights),
            staleness_M=self._step_number - tensor(batch.versions),
            sequences_M=tensor(batch.sequences),
            reference_M=reference_M,
        )

    def _apply(self, share: float) -> tuple[float, bool]:
        """Clip and step; a gradient that is not finite is never applied."""
        norm = float(torch.nn.utils.clip_grad_norm_(self._parameters.values(), self._config.clip_norm))
        if not math.isfinite(norm):
            return norm, False
        self._optimizer.step(share)
        return norm, True

    def _evaluate(self, microbatches: Sequence[MicroBatch]) -> dict[str, float]:
        total = nll = right = 0.0
        with torch.no_grad():
            for batch in microbatches:
                logprobs_M, _, best_M = self._forward.logprobs(batch)
                weights_M = self._forward.tensor(batch.weights)
                total += float(weights_M.sum())
                nll -= float((weights_M * logprobs_M).sum())
                right += float((weights_M * best_M).sum())
        return {"nll": nll / total, "accuracy": right / total}

    # --- checkpoints ----------------------------------------------------------------------------------------------

    def _write(self, directory: Path) -> None:
        """A model directory that transformers can load, and beside it what resuming needs."""
        moments, optimizer_steps = self._optimizer.state()
        write_tensors(directory / "optimizer.safetensors", {"rng": torch.get_rng_state(), **moments})
        write_tensors(directory / "model.safetensors", self._parameters)
        state = {
            "step": self._step_number,
            "optimizer_steps": optimizer_steps,
            **_fingerprints(self._tokenizer),
        }
        (directory / "state.json").write_text(json.dumps(state, indent=1))
        self._forward.model.config.save_pretrained(directory)
        self._tokenizer.save_pretrained(directory)

    def _read(self, directory: Path) -> None:
        try:
            state = json.loads((directory / "state.json").read_text())
            weights = read_tensors(directory / "model.safetensors")
            moments = read_tensors(directory / "optimizer.safetensors")
        except (OSError, ValueError, SafetensorError) as error:
            raise UserError(f"{directory}: not a readable checkpoint: {error}") from error
        _check_fit(directory, state, self._tokenizer, weights, self._parameters)
        torch.set_rng_state(moments.pop("rng"))
        self._optimizer.load(moments, state["optimizer_steps"])
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                parameter.copy_(weights[name])
        self._step_number = state["step"]


class MetricSums:
    """Sums over the trained tokens of a step, from one sum per micro-batch."""

    def __init__(self) -> None:
        self.count = 0.0
        self._sums: dict[str, float] = {}

    def add(self, part: tuple[int, Mapping[str, float]]) -> None:
        self.count += part[0]
        for name, value in part[1].items():
            if name.endswith("_max"):
                self._sums[name] = max(self._sums.get(name, -math.inf), value)
            else:
                self._sums[name] = self._sums.get(name, 0.0) + value

    def means(self) -> dict[str, float]:
        """`loss_total` is already weighted over the step and becomes `loss`; the rest are means over tokens."""
        whole = {name: value for name, value in self._sums.items() if name.endswith("_max")}
        means = {
            name: value / self.count for name, value in self._sums.items() if name not in whole and name != "loss_total"
        }
        return {"loss": self._sums.get("loss_total", 0.0), **means, **whole}


def _prepare_thread(threads: int) -> None:
    """Settings of the thread that computes."""
    if threads:
        torch.set_num_threads(threads)
    with suppress(OSError, AttributeError):  # another libc: slower, not wrong
        # glibc gives large blocks back to the kernel at each free; their page faults cost a fifth of a step.
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, 1 << 30)
        libc.mallopt(_M_TRIM_THRESHOLD, (1 << 31) - 1)


def _fingerprints(tokenizer: Any) -> dict[str, str]:
    texts = {"tokenizer": tokenizer.backend_tokenizer.to_str(), "chat_template": tokenizer.chat_template or ""}
    return {f"{name}_sha256": hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()}


def _check_fit(
    directory: Path,
    state: Mapping[str, Any],
    tokenizer: Any,
    weights: Mapping[str, Tensor],
    parameters: Mapping[str, Tensor],
) -> None:
    """Refuse a checkpoint of another model, tokenizer or template: it would not fail later, only be wrong."""
    different = sorted(name for name, value in _fingerprints(tokenizer).items() if state.get(name) != value)
    if different:
        raise UserError(f"{directory}: its {different[0].removesuffix('_sha256')} is not the one of this run's model")
    shapes = {name: tensor.shape for name, tensor in weights.items()}
    if shapes != {name: tensor.shape for name, tensor in parameters.items()}:
        raise UserError(f"{directory}: its weights do not have the names and shapes of this run's model")
