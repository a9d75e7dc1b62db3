"""Tiny random models as ordinary Hugging Face directories, made without `transformers`.

    from tests.support.tiny_models import make_tiny_model
    directory = make_tiny_model(tmp_path / "tiny", "qwen3_moe", num_hidden_layers=3)

A directory holds config.json, generation_config.json, safetensors shards, tokenizer.json,
tokenizer_config.json and chat_template.jinja. The weights are random but wide enough
(`initializer_range` 0.2) that greedy text does not fall into a loop of one token.
"""

import json
import math
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import tokenizers
import torch
from safetensors.torch import save_file

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

_LATENT: dict[str, Any] = {
    "attention_bias": False,
    "rope_theta": 10000.0,
    "num_key_value_heads": 4,
    "head_dim": ...,
    "q_lora_rank": 24,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 32,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 3,
}
_CONFIGS: dict[str, dict[str, Any]] = {
    "deepseek_v2": _LATENT
    | {
        "architectures": ["DeepseekV2ForCausalLM"],
        "n_shared_experts": 2,
        "topk_method": "greedy",
        "q_lora_rank": None,
    },
    "deepseek_v3": _LATENT
    | {
        "architectures": ["DeepseekV3ForCausalLM"],
        "n_group": 4,
        "topk_group": 2,
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
    },
    "glm4_moe": {
        "architectures": ["Glm4MoeForCausalLM"],
        "attention_bias": True,
        "partial_rotary_factor": 0.5,
        "rope_theta": 10000.0,
        "first_k_dense_replace": 1,
        "moe_intermediate_size": 32,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "num_experts_per_tok": 3,
        "use_qk_norm": True,
        "rms_norm_eps": 1e-5,
    },
    "gpt_oss": {
        "architectures": ["GptOssForCausalLM"],
        "attention_bias": True,
        "num_local_experts": 8,
        "num_experts_per_tok": 3,
        "sliding_window": 12,
        "rope_theta": 150000.0,
        "rms_norm_eps": 1e-5,
    },
    "llama": {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "mlp_bias": False,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
    },
    "mistral": {
        "architectures": ["MistralForCausalLM"],
        "rope_theta": 10000.0,
        "sliding_window": None,
    },
    "mixtral": {
        "architectures": ["MixtralForCausalLM"],
        "num_local_experts": 6,
        "num_experts_per_tok": 2,
        "rope_theta": 1000000.0,
        "sliding_window": None,
        "rms_norm_eps": 1e-5,
    },
    "qwen3": {
        "architectures": ["Qwen3ForCausalLM"],
        "attention_bias": False,
        "rope_theta": 1000000.0,
        "use_sliding_window": False,
    },
    "qwen3_moe": {
        "architectures": ["Qwen3MoeForCausalLM"],
        "attention_bias": False,
        "rope_theta": 1000000.0,
        "use_sliding_window": False,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "moe_intermediate_size": 32,
        "norm_topk_prob": True,
        "num_experts": 8,
        "num_experts_per_tok": 3,
    },
}
# Where files have other names than the rest: pieces of names, and what they are there.
_RENAMED: dict[str, dict[str, str]] = {
    "mixtral": {
        ".mlp.": ".block_sparse_moe.",
        "gate_proj": "w1",
        "up_proj": "w3",
        "down_proj": "w2",
    }
}
_COMMON: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "hidden_act": "silu",
    "vocab_size": 512,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
    "rms_norm_eps": 1e-6,
    "rope_scaling": None,
    "tie_word_embeddings": True,
    "use_cache": True,
}


def make_tiny_model(
    directory: Path | str,
    architecture: str = "qwen3_moe",
    *,
    seed: int = 0,
    dtype: str = "float32",
    tokenizer: str = "byte_level",
    expert_names: str = "per_expert",
    shards: int = 1,
    **config: Any,
) -> Path:
    """Write a random model directory and return its path.

    Args:
        directory: made if missing.
        architecture: a key of `_CONFIGS`, such as `qwen3_moe`.
        seed: of the weights.
        dtype: of the weights: `float32`, `bfloat16` or `float16`.
        tokenizer: `byte_level` (Qwen, Llama 3), `sentencepiece` (Llama 2: byte fallback, a
            leading space, BOS), or `none` to leave tokenizer and template out.
        expert_names: `per_expert` (as published) or `fused` (`experts.gate_up_proj`).
        shards: number of safetensors files; above 1 with an index.
        config: overrides and additions to config.json; a value of `...` drops the key.
    """
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    settings = _COMMON | _CONFIGS[architecture] | {"model_type": architecture, "torch_dtype": dtype}
    settings |= {"bos_token_id": 0, "eos_token_id": 2} | config
    settings = {key: value for key, value in settings.items() if value is not ...}
    _write_json(directory / "config.json", settings)
    _write_json(
        directory / "generation_config.json",
        {"bos_token_id": 0, "eos_token_id": [2, 0], "do_sample": True, "temperature": 0.7},
    )
    if tokenizer != "none":
        write_tokenizer(directory, tokenizer, settings["vocab_size"], bos=architecture == "llama")
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in tensor_shapes(settings, expert_names):
        tensor = torch.randn(shape, generator=generator) * settings["initializer_range"]
        if name.endswith(("norm.weight", "layernorm.weight")):
            # Wide q and k norms make attention sharp enough that text depends on its past.
            wide = name.endswith(("q_norm.weight", "k_norm.weight"))
            tensor = (2 if wide else 1) + 0.5 * tensor
        tensors[name] = tensor.to(getattr(torch, dtype))
    write_shards(directory, tensors, shards)
    return directory


def tensor_shapes(
    config: dict[str, Any], expert_names: str = "per_expert"
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of all tensors that a checkpoint of this config holds."""
    hidden, vocab = config["hidden_size"], config["vocab_size"]
    yield "model.embed_tokens.weight", (vocab, hidden)
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}"
        yield f"{layer}.input_layernorm.weight", (hidden,)
        attention = _latent_attention if "kv_lora_rank" in config else _attention
        for name, shape in attention(config):
            yield f"{layer}.self_attn.{name}", shape
        yield f"{layer}.post_attention_layernorm.weight", (hidden,)
        mixture = _mixture(config, expert_names) if _is_sparse(config, i) else _mlp(config)
        for name, shape in mixture:
            yield _renamed(f"{layer}.mlp.{name}", config["model_type"]), shape
    yield "model.norm.weight", (hidden,)
    if not config.get("tie_word_embeddings"):
        yield "lm_head.weight", (vocab, hidden)


def _renamed(name: str, architecture: str) -> str:
    for old, new in _RENAMED.get(architecture, {}).items():
        name = name.replace(old, new)
    return name


def _attention(config: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    head_dim = config.get("head_dim") or hidden // heads
    q_rows, kv_rows = heads * head_dim, config["num_key_value_heads"] * head_dim
    for part, shape in {
        "q": (q_rows, hidden),
        "k": (kv_rows, hidden),
        "v": (kv_rows, hidden),
        "o": (hidden, q_rows),
    }.items():
        yield f"{part}_proj.weight", shape
        if config.get("attention_bias") and not (
            part == "o" and config["model_type"] == "glm4_moe"
        ):
            yield f"{part}_proj.bias", shape[:1]
    if config["model_type"].startswith("qwen3") or config.get("use_qk_norm"):
        yield "q_norm.weight", (head_dim,)
        yield "k_norm.weight", (head_dim,)
    if config["model_type"] == "gpt_oss":
        yield "sinks", (heads,)


def _latent_attention(config: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, heads, bias = (
        config[key] for key in ("hidden_size", "num_attention_heads", "attention_bias")
    )
    nope, rope, value = (
        config[key] for key in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    )
    q_rank, kv_rank = config["q_lora_rank"], config["kv_lora_rank"]
    q_rows = heads * (nope + rope)
    if q_rank is None:
        yield "q_proj.weight", (q_rows, hidden)
    else:
        yield "q_a_proj.weight", (q_rank, hidden)
        if bias:
            yield "q_a_proj.bias", (q_rank,)
        yield "q_a_layernorm.weight", (q_rank,)
        yield "q_b_proj.weight", (q_rows, q_rank)
    yield "kv_a_proj_with_mqa.weight", (kv_rank + rope, hidden)
    if bias:
        yield "kv_a_proj_with_mqa.bias", (kv_rank + rope,)
    yield "kv_a_layernorm.weight", (kv_rank,)
    yield "kv_b_proj.weight", (heads * (nope + value), kv_rank)
    yield "o_proj.weight", (hidden, heads * value)
    if bias:
        yield "o_proj.bias", (hidden,)


def _is_sparse(config: dict[str, Any], layer: int) -> bool:
    if config["model_type"] == "qwen3_moe":
        step = config.get("decoder_sparse_step", 1)
        return layer not in (config.get("mlp_only_layers") or []) and (layer + 1) % step == 0
    if "num_local_experts" in config:
        return True
    return layer >= config.get("first_k_dense_replace", config["num_hidden_layers"])


def _mlp(
    config: dict[str, Any], name: str = "", width: int = 0
) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, width = config["hidden_size"], width or config["intermediate_size"]
    for part, shape in {
        "gate": (width, hidden),
        "up": (width, hidden),
        "down": (hidden, width),
    }.items():
        yield f"{name}{part}_proj.weight", shape
        if config.get("mlp_bias"):
            yield f"{name}{part}_proj.bias", shape[:1]


def _mixture(config: dict[str, Any], expert_names: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden = config["hidden_size"]
    if config["model_type"] == "gpt_oss":
        experts, width = config["num_local_experts"], config["intermediate_size"]
        yield "router.weight", (experts, hidden)
        yield "router.bias", (experts,)
        yield "experts.gate_up_proj", (experts, hidden, 2 * width)
        yield "experts.gate_up_proj_bias", (experts, 2 * width)
        yield "experts.down_proj", (experts, width, hidden)
        yield "experts.down_proj_bias", (experts, hidden)
        return
    keys = ("n_routed_experts", "num_local_experts", "num_experts")
    experts = next(config[key] for key in keys if key in config)
    width = config.get("moe_intermediate_size") or config["intermediate_size"]
    yield "gate.weight", (experts, hidden)
    if config["model_type"] in ("deepseek_v3", "glm4_moe"):
        yield "gate.e_score_correction_bias", (experts,)
    if config.get("n_shared_experts"):
        yield from _mlp(config, "shared_experts.", config["n_shared_experts"] * width)
    if expert_names == "fused":
        yield "experts.gate_up_proj", (experts, 2 * width, hidden)
        yield "experts.down_proj", (experts, hidden, width)
        return
    for e in range(experts):
        yield from _mlp(config, f"experts.{e}.", width)


def write_shards(directory: Path, tensors: dict[str, torch.Tensor], shards: int = 1) -> None:
    """Write `model.safetensors`, or that many shards and their index."""
    if shards == 1:
        save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
        return
    names = list(tensors)
    step = math.ceil(len(names) / shards)
    weight_map = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        part = names[shard * step : (shard + 1) * step]
        save_file({name: tensors[name] for name in part}, directory / file)
        weight_map.update(dict.fromkeys(part, file))
    total = sum(tensor.nbytes for tensor in tensors.values())
    _write_json(
        directory / "model.safetensors.index.json",
        {"metadata": {"total_size": total}, "weight_map": weight_map},
    )


def write_tokenizer(
    directory: Path, kind: str = "byte_level", vocab_size: int = 512, *, bos: bool = False
) -> None:
    """Write tokenizer.json, tokenizer_config.json and chat_template.jinja."""
    (directory / "tokenizer.json").write_text(_tokenizer_json(kind, vocab_size, bos), "utf-8")
    bos_token, eos_token = ("<s>", "</s>") if kind == "sentencepiece" else (_SPECIAL[3], IM_END)
    _write_json(
        directory / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": bos_token if bos or kind == "sentencepiece" else None,
            "eos_token": eos_token,
            "pad_token": "<unk>" if kind == "sentencepiece" else _SPECIAL[0],
            "clean_up_tokenization_spaces": False,
            "model_max_length": 512,
        },
    )
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


def _write_json(file: Path, value: Any) -> None:
    file.write_text(json.dumps(value, indent=2), "utf-8")
