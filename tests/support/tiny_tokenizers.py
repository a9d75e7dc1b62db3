"""Small tokenizers with the parts that published ones have, and a chat template."""

import json
from functools import lru_cache
from pathlib import Path

import tokenizers

_CORPUS = [
    "The lantern hangs above the narrow door and throws a warm light over the stairs.",
    "A carpenter sets small pieces of coloured wood into a larger panel, one by one.",
    "Every morning the ferry carries letters, bread and news to the other shore.",
    "What does lantern mean? Define harbour. Give me an example sentence for bridge.",
    "You are a helpful assistant. Call the function with the right arguments.",
    '{"name": "get_weather", "arguments": {"city": "Paris", "unit": "celsius", "days": 3}}',
    "one two three four five six seven eight nine ten 0 1 2 3 4 5 6 7 8 9 10 100 2024",
    "def add(a, b):\n    return a + b\n\nprint(add(1, 2))\n",
    "Grüße aus Köln, voilà, señor, привет, 你好, こんにちは 🙂🚀",
]

IM_END = "<|im_end|>"
_SPECIAL = ["<|endoftext|>", "<|im_start|>", IM_END, "<|begin_of_text|>"]
_ADDED = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
_THINK = ["<think>", "</think>"]

CHAT_TEMPLATE = r"""
{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\n\n' }}
    {%- endif %}
    {{- '# Tools\n\nFunction signatures within <tools></tools> XML tags:\n<tools>' }}
    {%- for tool in tools %}
        {{- '\n' + (tool | tojson) }}
    {%- endfor %}
    {{- '\n</tools>\n\nFor each call return a json object within <tool_call></tool_call> tags:\n' }}
    {{- '<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>' }}
    {{- '<|im_end|>\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant\n' }}
        {%- if message.reasoning_content is string and message.reasoning_content %}
            {{- '<think>\n' + message.reasoning_content.strip() + '\n</think>\n\n' }}
        {%- endif %}
        {%- if message.content is string %}
            {{- message.content }}
        {%- endif %}
        {%- for tool_call in message.tool_calls or [] %}
            {%- set call = tool_call.function or tool_call %}
            {{- '\n<tool_call>\n{"name": "' + call.name + '", "arguments": ' }}
            {{- call.arguments if call.arguments is string else call.arguments | tojson }}
            {{- '}\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == 'tool' %}
        {{- '<|im_start|>user\n<tool_response>\n' + message.content }}
        {{- '\n</tool_response><|im_end|>\n' }}
    {%- elif message.role != 'system' %}
        {{- raise_exception('Unexpected message role: ' + message.role) }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %}
""".strip()


def write_tokenizer(
    directory: Path, kind: str = "byte_level", vocab_size: int = 512, *, bos: bool = False
) -> None:
    """Write tokenizer.json, tokenizer_config.json and chat_template.jinja.

    Args:
        kind: `byte_level` (Qwen, Llama 3) or `sentencepiece` (Llama 2: byte fallback, a leading
            space, BOS).
    """
    (directory / "tokenizer.json").write_text(_tokenizer_json(kind, vocab_size, bos), "utf-8")
    bos_token, eos_token = ("<s>", "</s>") if kind == "sentencepiece" else (_SPECIAL[3], IM_END)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": bos_token if bos or kind == "sentencepiece" else None,
        "eos_token": eos_token,
        "pad_token": "<unk>" if kind == "sentencepiece" else _SPECIAL[0],
        "clean_up_tokenization_spaces": False,
        "model_max_length": 512,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=2), "utf-8")
    (directory / "chat_template.jinja").write_text(CHAT_TEMPLATE, "utf-8")


@lru_cache
def _tokenizer_json(kind: str, vocab_size: int, bos: bool) -> str:
    from tokenizers import decoders, normalizers, pre_tokenizers, processors

    if kind == "sentencepiece":
        return _sentencepiece_json(vocab_size)
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab_size - len(_ADDED) - len(_THINK),
        special_tokens=_SPECIAL,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS * 3, trainer)
    tokenizer.add_tokens(
        [tokenizers.AddedToken(text, normalized=False) for text in (*_ADDED, *_THINK)]
    )
    if bos:
        token = _SPECIAL[3]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{token} $A",
            pair=f"{token} $A {token} $B",
            special_tokens=[(token, tokenizer.token_to_id(token))],
        )
    else:
        tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return str(tokenizer.to_str())


def _sentencepiece_json(vocab_size: int) -> str:
    """A tokenizer with the parts that converted Llama 2 tokenizers have."""
    from tokenizers import decoders, normalizers, processors

    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    special = ["<|im_start|>", IM_END]
    trained = tokenizers.Tokenizer(tokenizers.models.BPE())
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab_size - len(pieces) - len(special), show_progress=False
    )
    text = ["▁" + line.replace(" ", "▁") for line in _CORPUS if line.isascii()]
    trained.train_from_iterator(text * 3, trainer)
    model = json.loads(trained.to_str())["model"]
    learned = sorted(model["vocab"], key=model["vocab"].get)
    vocab = {piece: i for i, piece in enumerate([*pieces, *learned])}
    merges = [tuple(merge) for merge in model["merges"]]
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>", *special])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)]
    )
    return str(tokenizer.to_str())
