"""What is asked: prompts with their output lengths, the same for the same seed.

`random`: common words in random order, cut to exact token counts where a tokenizer is known.
`sharegpt`: conversation-like text written here from patterns, with lengths spread as in real
chats; it is *not* the ShareGPT data. FILE: a ShareGPT JSON, or JSONL with `prompt` or `messages`.
A shared prefix is the same text in front of every prompt, on top of the input length.
"""

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inlay.core.errors import ConfigError
from inlay.core.records import Record, read_json_lines, read_json_records
from inlay.serve.bench.phrases import WORDS, question
from inlay.serve.bench.tokens import TokenCounter

# Tokens per English word of common vocabularies; used only where no tokenizer can be asked.
_TOKENS_PER_WORD = 1.3
_LONGEST_ANSWER = 1024


@dataclass(frozen=True, kw_only=True)
class WorkloadConfig:
    """Which prompts, and how long.

    Attributes:
        dataset: `random`, `sharegpt`, or a file.
        input_len: tokens of a random prompt as (low, high); the limit for other datasets.
        output_len: tokens to generate; None leaves it to the dataset (random: 128).
        shared_prefix: tokens of text that all prompts begin with.
    """

    dataset: str = "random"
    num_prompts: int = 100
    input_len: tuple[int, int] | None = None
    output_len: int | None = None
    shared_prefix: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.num_prompts < 1:
            raise ConfigError(f"--num-prompts must be at least 1, got {self.num_prompts}")
        if self.output_len is not None and self.output_len < 1:
            raise ConfigError(f"--output-len must be at least 1, got {self.output_len}")
        if self.shared_prefix < 0:
            raise ConfigError(f"--shared-prefix must be 0 or more, got {self.shared_prefix}")

    @property
    def description(self) -> str:
        """What the prompts are, in words, for the report."""
        if self.dataset == "random":
            return "random words"
        if self.dataset == "sharegpt":
            return f"conversation-like text made from seed {self.seed} (not the ShareGPT data)"
        return f"prompts of {Path(self.dataset).name}"


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """One prompt: a text, token ids, or messages."""

    text: str = ""
    token_ids: list[int] | None = None
    messages: list[dict[str, Any]] | None = None
    max_tokens: int

    def body(self, *, chat: bool) -> dict[str, Any]:
        """The prompt's part of a request to /v1/chat/completions or /v1/completions."""
        if chat:
            prompt: dict[str, Any] = {
                "messages": self.messages or [{"role": "user", "content": self.text}]
            }
        else:
            prompt = {"prompt": self.token_ids if self.token_ids is not None else self.text}
        return prompt | {"max_tokens": self.max_tokens}


def parse_lengths(text: str) -> tuple[int, int]:
    """Read `128` or `64-256`.

    Raises:
        ConfigError: something else, or an empty range.
    """
    low, _, high = text.partition("-")
    try:
        bounds = int(low), int(high or low)
    except ValueError:
        bounds = (0, 0)
    if not 1 <= bounds[0] <= bounds[1]:
        raise ConfigError(f"--input-len {text}: write a number of tokens or a range, as 64-256")
    return bounds


async def make_prompts(
    config: WorkloadConfig, counter: TokenCounter | None, *, chat: bool
) -> list[Prompt]:
    """All prompts of a run.

    Args:
        chat: they go to the chat endpoint, so they must be text; otherwise exact token ids are
            sent where a tokenizer is known.

    Raises:
        ConfigError: the dataset is unknown or its file unusable.
    """
    if config.dataset == "random":
        return await _random_prompts(config, counter, chat=chat)
    if config.dataset == "sharegpt":
        prompts = _written_prompts(config)
    else:
        prompts = await _file_prompts(config, counter)
    if not config.shared_prefix:
        return prompts
    ids, prefix = await _words(counter, config.shared_prefix, _generator(config, "prefix"))
    return [_prefixed(prompt, prefix) for prompt in prompts]


def _generator(config: WorkloadConfig, name: object) -> random.Random:
    """An independent stream of draws per name."""
    return random.Random(f"{config.seed}/{name}")


async def _random_prompts(
    config: WorkloadConfig, counter: TokenCounter | None, *, chat: bool
) -> list[Prompt]:
    prefix_ids, prefix = await _words(counter, config.shared_prefix, _generator(config, "prefix"))
    low, high = config.input_len or (512, 512)
    prompts = []
    for index in range(config.num_prompts):
        draw = _generator(config, index)
        ids, text = await _words(counter, draw.randint(low, high), draw)
        both = None if chat or ids is None or prefix_ids is None else prefix_ids + ids
        if chat and counter is not None and ids is not None:
            text = await counter.decode(ids)
        prompts.append(
            Prompt(
                text=f"{prefix} {text}".strip(),
                token_ids=both,
                max_tokens=config.output_len or 128,
            )
        )
    return prompts


async def _words(
    counter: TokenCounter | None, num_tokens: int, draw: random.Random
) -> tuple[list[int] | None, str]:
    """Random words of `num_tokens` tokens: the ids (None without a tokenizer) and the text."""
    if num_tokens == 0:
        return ([] if counter is not None else None), ""
    if counter is None:
        count = max(1, round(num_tokens / _TOKENS_PER_WORD))
        return None, " ".join(draw.choices(WORDS, k=count))
    words = draw.choices(WORDS, k=num_tokens)
    # A word is at least one token, so `num_tokens` words always reach far enough.
    ids = (await counter.encode(" " + " ".join(words)))[:num_tokens]
    return ids, await counter.decode(ids) if len(ids) == num_tokens else " ".join(words)


def _written_prompts(config: WorkloadConfig) -> list[Prompt]:
    """Questions with lengths spread as in chats: many short ones, a long tail."""
    limit = config.input_len[1] if config.input_len else 1024
    prompts = []
    for index in range(config.num_prompts):
        draw = _generator(config, index)
        words = min(draw.lognormvariate(4.2, 1.1) + 8, limit / _TOKENS_PER_WORD)
        answer = min(int(draw.lognormvariate(4.9, 0.8)) + 4, _LONGEST_ANSWER)
        prompts.append(
            Prompt(text=question(draw, int(words)), max_tokens=config.output_len or answer)
        )
    return prompts


async def _file_prompts(config: WorkloadConfig, counter: TokenCounter | None) -> list[Prompt]:
    """Prompts of a file, shuffled by the seed; again from the start if there are too few."""
    found = read_dataset(Path(config.dataset))
    _generator(config, "order").shuffle(found)
    prompts = []
    for index in range(config.num_prompts):
        messages, reply = found[index % len(found)]
        length = config.output_len
        if length is None and reply:
            ids = await counter.encode(reply) if counter is not None else None
            length = len(ids) if ids is not None else round(len(reply.split()) * _TOKENS_PER_WORD)
        length = min(max(length or 128, 1), _LONGEST_ANSWER)
        text = messages[-1]["content"] if len(messages) == 1 else ""
        prompts.append(
            Prompt(
                text=text if isinstance(text, str) and text else _flat(messages),
                messages=messages,
                max_tokens=length,
            )
        )
    return prompts


def read_dataset(file: Path) -> list[tuple[list[dict[str, Any]], str]]:
    """(messages, reference reply or "") of each usable entry.

    Raises:
        ConfigError: no such file, a line that is no JSON, or nothing usable in it.
    """
    try:
        read = read_json_lines if file.suffix == ".jsonl" else read_json_records
        entries = read(file).rows
    except OSError as error:
        raise ConfigError(
            f"--dataset {file}: {error.strerror}; give random, sharegpt or a file"
        ) from None
    found = [entry for entry in map(_entry, entries) if entry is not None]
    if not found:
        raise ConfigError(
            f"--dataset {file}: no entry with `conversations`, `messages` or `prompt` in it"
        )
    return found


def _entry(entry: Record) -> tuple[list[dict[str, Any]], str] | None:
    """One entry of a dataset; None if it holds no prompt."""
    if isinstance(entry.get("prompt"), str):
        return [{"role": "user", "content": entry["prompt"]}], str(entry.get("completion") or "")
    if isinstance(entry.get("messages"), list) and entry["messages"]:
        return entry["messages"], ""
    turns = entry.get("conversations", entry.get("conversation"))
    if not isinstance(turns, list) or len(turns) < 2:
        return None
    texts = [str(turn.get("value", turn.get("content", ""))) for turn in turns[:2]]
    return ([{"role": "user", "content": texts[0]}], texts[1]) if all(texts) else None


def _flat(messages: list[dict[str, Any]]) -> str:
    """Messages as one text, for the completions endpoint."""
    return "\n".join(f"{message.get('role')}: {message.get('content')}" for message in messages)


def _prefixed(prompt: Prompt, prefix: str) -> Prompt:
    """The prompt with the shared text in front: of its text, and as a first system message."""
    messages = prompt.messages or [{"role": "user", "content": prompt.text}]
    return Prompt(
        text=f"{prefix}\n\n{prompt.text}",
        messages=[{"role": "system", "content": prefix}, *messages],
        max_tokens=prompt.max_tokens,
    )
