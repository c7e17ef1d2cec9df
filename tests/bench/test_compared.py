"""The benches against others: what a record says, and that both sides run. The figures themselves are no test."""

import pytest

from longtail.bench import compared, generate, train


def test_a_record_has_the_median_ratio_and_its_spread():
    record = compared("x", 600, "other", [(2.0, 8.0), (3.0, 9.0), (6.0, 6.0)])
    assert (record["value"], record["ratio"], record["n"]) == (200.0, 3.0, 3)
    assert record["spread"] == [1.0, 4.0]


def test_engine_and_transformers_answer_the_same_requests(tmp_path, monkeypatch):
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        vocab_size=64,
        max_position_embeddings=256,
    )
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    monkeypatch.setattr(generate, "BATCHES", (2,))
    setting = generate.Setting(name="toy", model=str(tmp_path), longest=8, rounds=2, repeats=2)
    (record,) = generate._measure(setting)
    assert record["name"] == "toy.b2"
    assert record["n"] == 2
    assert record["value"] > 0 < record["ratio"]


@pytest.mark.parametrize("shared", [0.0, 0.9])
def test_episodes_of_a_group_share_a_prefix_of_the_wanted_length(shared):
    group = train.episodes(1, shared)
    assert len(group) == train.GROUP
    length = sum(len(sample.ids) for sample in group) / len(group)
    first, *others = (sample.ids for sample in group)
    common = next(i for i in range(len(first)) if any(ids[i] != first[i] for ids in others))
    assert common / length == pytest.approx(shared, abs=0.1)


def test_the_step_and_the_bare_pass_run_on_the_same_samples(tmp_path):
    samples = train.episodes(1, 0.5)
    model = train._model(tmp_path)
    with train._step(model, samples) as ours:
        pairs = train._in_turns("toy", ours, train._bare(model, samples), 1)
    assert len(pairs) == 1
    assert min(pairs[0]) > 0
