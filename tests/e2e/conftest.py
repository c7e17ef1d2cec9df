"""A random policy small enough to train in a second."""

from pathlib import Path

import pytest

from longtail.trainers.tiny import new_model, new_tokenizer
from longtail_repair.warm import warm_chats


@pytest.fixture(scope="session")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("policy")
    texts = [message.content for chat in warm_chats(20, 0, sums=0.3) for message in chat]
    tokenizer = new_tokenizer(texts, 400)
    tokenizer.save_pretrained(directory)
    shape = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
    }
    new_model(tokenizer, seed=0, **shape).save_pretrained(directory)
    return directory
