"""The demo model's tokenizer and chat template.

Four special tokens mark a conversation; everything else is byte-level BPE. The template puts a
space before what the user says, so that a word has the same tokens at the start as in a sentence.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

SPECIAL_TOKENS = ("<|end|>", "<|system|>", "<|user|>", "<|assistant|>")
END, SYSTEM, USER, ASSISTANT = range(4)  # their token ids

CHAT_TEMPLATE = """\
{%- if tools %}
    {{- '<|system|>' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- '# Tools\\n\\nYou may call functions. Their signatures are in <tools></tools>:\\n<tools>' }}
    {%- for tool in tools %}
        {{- '\\n' + (tool | tojson) }}
    {%- endfor %}
    {{- '\\n</tools>\\n\\nTo call one, answer with a JSON object in <tool_call></tool_call>:\\n' }}
    {{- '<tool_call>\\n{"name": <name>, "arguments": <arguments object>}\\n</tool_call>' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|system|>' + messages[0].content }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'system' and loop.first %}
    {%- elif message.role == 'system' %}
        {{- '<|system|>' + message.content }}
    {%- elif message.role == 'user' %}
        {{- '<|user|> ' + message.content }}
    {%- elif message.role == 'assistant' %}
        {{- '<|assistant|>' }}
        {%- if message.content %}
            {{- message.content }}
        {%- endif %}
        {%- for call in message.tool_calls or [] %}
            {%- if call.function %}
                {%- set call = call.function %}
            {%- endif %}
            {{- '\\n' if message.content or not loop.first else '' }}
            {{- '<tool_call>\\n{"name": "' + call.name + '", "arguments": ' }}
            {{- call.arguments if call.arguments is string else call.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|end|>' }}
    {%- elif message.role == 'tool' %}
        {{- '<|user|> ' if loop.first or loop.previtem.role != 'tool' else '\\n' }}
        {{- '<tool_response>\\n' + message.content + '\\n</tool_response>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|assistant|>' }}
{%- endif %}
"""


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Learn byte-level BPE merges from the training texts."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, directory: Path, max_tokens: int) -> None:
    """Write tokenizer.json, tokenizer_config.json and chat_template.jinja."""
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_tokens,
        "bos_token": None,
        "eos_token": SPECIAL_TOKENS[END],
        "pad_token": SPECIAL_TOKENS[END],
        "unk_token": None,
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    (directory / "chat_template.jinja").write_text(CHAT_TEMPLATE)
