import json
from pathlib import Path

import pytest

from inlay.core.errors import ConfigError
from inlay.serve.bench.workload import (
    WorkloadConfig,
    make_prompts,
    parse_lengths,
    read_dataset,
)


class Words:
    """A tokenizer whose tokens are words."""

    source = "words"

    def __init__(self) -> None:
        self.known: list[str] = []

    async def encode(self, text: str) -> list[int]:
        ids = []
        for word in text.split():
            if word not in self.known:
                self.known.append(word)
            ids.append(self.known.index(word))
        return ids

    async def decode(self, token_ids: list[int]) -> str:
        return " ".join(self.known[token] for token in token_ids)


async def test_random_prompts_have_exact_lengths_and_share_their_prefix() -> None:
    config = WorkloadConfig(num_prompts=6, input_len=(5, 9), output_len=3, shared_prefix=4)
    prompts = await make_prompts(config, Words(), chat=False)
    lists = [prompt.token_ids or [] for prompt in prompts]
    assert all(4 + 5 <= len(ids) <= 4 + 9 for ids in lists)
    assert len({tuple(ids[:4]) for ids in lists}) == 1
    assert len({tuple(ids[4:]) for ids in lists}) == 6
    assert [prompt.body(chat=False)["prompt"] for prompt in prompts] == lists
    assert prompts[0].max_tokens == 3


async def test_the_seed_decides() -> None:
    async def texts(seed: int, dataset: str) -> list[str]:
        config = WorkloadConfig(dataset=dataset, num_prompts=3, seed=seed)
        return [prompt.text for prompt in await make_prompts(config, None, chat=True)]

    for dataset in ("random", "sharegpt"):
        assert await texts(1, dataset) == await texts(1, dataset) != await texts(2, dataset)


async def test_without_a_tokenizer_lengths_are_estimated() -> None:
    config = WorkloadConfig(num_prompts=1, input_len=(130, 130))
    (prompt,) = await make_prompts(config, None, chat=False)
    assert prompt.token_ids is None and len(prompt.text.split()) == 100


async def test_chat_prompts_are_messages() -> None:
    config = WorkloadConfig(dataset="sharegpt", num_prompts=2, shared_prefix=13)
    for prompt in await make_prompts(config, None, chat=True):
        system, user = prompt.body(chat=True)["messages"]
        assert system["role"] == "system" and len(system["content"].split()) == 10
        assert user["role"] == "user" and user["content"]


async def test_sharegpt_lengths_vary_and_obey_limits() -> None:
    config = WorkloadConfig(dataset="sharegpt", num_prompts=200)
    prompts = await make_prompts(config, None, chat=True)
    lengths = [len(prompt.text.split()) for prompt in prompts]
    assert min(lengths) < 30 and 200 < max(lengths) < 1000
    assert len({prompt.max_tokens for prompt in prompts}) > 50
    assert "not the ShareGPT data" in config.description


async def test_files(tmp_path: Path) -> None:
    sharegpt = tmp_path / "share.json"
    turns = [{"from": "human", "value": "Why?"}, {"from": "gpt", "value": "Because of it."}]
    sharegpt.write_text(json.dumps([{"conversations": turns}, {"conversations": turns[:1]}]))
    config = WorkloadConfig(dataset=str(sharegpt), num_prompts=3)
    prompts = await make_prompts(config, Words(), chat=True)
    assert [prompt.max_tokens for prompt in prompts] == [3, 3, 3]
    assert prompts[0].body(chat=True)["messages"] == [{"role": "user", "content": "Why?"}]

    lines = tmp_path / "lines.jsonl"
    lines.write_text(
        '{"prompt": "a"}\n{"other": 1}\n{"messages": [{"role": "user", "content": "b"}]}\n'
    )
    assert [messages[0]["content"] for messages, _ in read_dataset(lines)] == ["a", "b"]


def test_bad_files_say_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file or directory; give random, sharegpt"):
        read_dataset(tmp_path / "missing")
    empty = tmp_path / "empty.json"
    empty.write_text("[]")
    with pytest.raises(ConfigError, match="no entry with"):
        read_dataset(empty)
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"prompt": "a"}\nnonsense\n')
    with pytest.raises(ConfigError, match=r"broken.jsonl, line 2: is no JSON .*: correct it"):
        read_dataset(broken)


def test_lengths() -> None:
    assert parse_lengths("7") == (7, 7)
    assert parse_lengths("3-9") == (3, 9)
    for wrong in ("0", "9-3", "x", "-3"):
        with pytest.raises(ConfigError, match="--input-len"):
            parse_lengths(wrong)


@pytest.mark.parametrize("fields", [{"num_prompts": 0}, {"output_len": 0}, {"shared_prefix": -1}])
def test_limits(fields: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="must be"):
        WorkloadConfig(**fields)  # type: ignore[arg-type]
