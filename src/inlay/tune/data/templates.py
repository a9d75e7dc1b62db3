"""Templates by LLaMA-Factory's names, as data: how a conversation is written for a model.

A template is a few pieces of text with slots: `{content}`, and the tokens `{bos}` and `{eos}` of
the model. Pieces are tokenized one by one, so where a prompt ends and a response begins is exact.
Those of families that Inlay has are here; any other model has its tokenizer's own chat template
(`inlay.tune.data.chat_template`).

Source: the names and what they write are LLaMA-Factory's.
"""

import difflib
from dataclasses import dataclass, replace

from inlay.core.errors import ConfigError

BOS, EOS, CONTENT = "{bos}", "{eos}", "{content}"


@dataclass(frozen=True, kw_only=True)
class Template:
    """How a conversation is written.

    Attributes:
        user: a user's message, and what opens the response.
        assistant: a response.
        system: the system prompt.
        prefix: in front of all.
        default_system: system prompt of conversations that have none.
        system_in_user: the system prompt is a part of the first user message.
        eos_at_end: EOS ends the conversation, and is what a model is to say in place of the
            first token of each next prompt.
        thought: what stands around a chain of thought; None: the template knows none.
    """

    user: str
    assistant: str = CONTENT + EOS
    system: str = CONTENT
    prefix: str = ""
    default_system: str = ""
    system_in_user: bool = False
    eos_at_end: bool = False
    thought: tuple[str, str] | None = None


_THINK = ("<think>\n", "\n</think>\n\n")

_CHATML = Template(
    user="<|im_start|>user\n{content}<|im_end|>\n<|im_start|>assistant\n",
    assistant="{content}<|im_end|>\n",
    system="<|im_start|>system\n{content}<|im_end|>\n",
)
_GLM4 = Template(
    prefix="[gMASK]<sop>",
    user="<|user|>\n{content}<|assistant|>",
    assistant="\n{content}",
    system="<|system|>\n{content}",
)
_KIMI = Template(
    user="<|im_user|>user<|im_middle|>{content}<|im_end|><|im_assistant|>assistant<|im_middle|>",
    assistant="{content}<|im_end|>",
    system="<|im_system|>system<|im_middle|>{content}<|im_end|>",
)

TEMPLATES: dict[str, Template] = {
    "default": Template(
        user="Human: {content}{eos}\nAssistant:",
        assistant="{content}{eos}\n",
        system="System: {content}{eos}\n",
    ),
    "empty": Template(user=CONTENT, assistant=CONTENT),
    "alpaca": Template(
        user="### Instruction:\n{content}\n\n### Response:\n",
        assistant="{content}{eos}\n\n",
        default_system="Below is an instruction that describes a task. "
        "Write a response that appropriately completes the request.\n\n",
    ),
    "chatml": _CHATML,
    "deepseek": Template(
        prefix=BOS, user="User: {content}\n\nAssistant:", system="{content}\n\n"
    ),
    "deepseek3": Template(prefix=BOS, user="<｜User｜>{content}<｜Assistant｜>"),
    "deepseekr1": Template(
        prefix=BOS, user="<｜User｜>{content}<｜Assistant｜>", thought=_THINK
    ),
    "glm4": replace(_GLM4, eos_at_end=True),
    "glm4_moe": replace(_GLM4, eos_at_end=True, thought=_THINK),
    "gpt_oss": Template(
        user="<|start|>user<|message|>{content}<|end|><|start|>assistant",
        assistant=CONTENT,
        system="<|start|>system<|message|>{content}<|end|>",
        default_system="You are ChatGPT, a large language model trained by OpenAI.",
        eos_at_end=True,
        thought=(
            "<|channel|>analysis<|message|>",
            "<|end|><|start|>assistant<|channel|>final<|message|>",
        ),
    ),
    "kimi_vl": replace(
        _KIMI, default_system="You are a helpful assistant", thought=("◁think▷", "◁/think▷")
    ),
    "moonlight": replace(
        _KIMI, default_system="You are a helpful assistant provided by Moonshot-AI."
    ),
    "llama2": Template(
        user="{bos}[INST] {content} [/INST]",
        system="<<SYS>>\n{content}\n<</SYS>>\n\n",
        system_in_user=True,
    ),
    "llama3": Template(
        prefix=BOS,
        user="<|start_header_id|>user<|end_header_id|>\n\n{content}<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
        assistant="{content}<|eot_id|>",
        system="<|start_header_id|>system<|end_header_id|>\n\n{content}<|eot_id|>",
    ),
    "mistral": Template(
        prefix=BOS,
        user="[INST] {content}[/INST]",
        assistant=" {content}{eos}",
        system="{content}\n\n",
        system_in_user=True,
    ),
    "qwen": replace(
        _CHATML,
        default_system="You are Qwen, created by Alibaba Cloud. You are a helpful assistant.",
    ),
    "qwen3": replace(_CHATML, thought=_THINK),
    "qwen3_nothink": _CHATML,
}  # fmt: skip

# Templates of families that Inlay has no models of: a clearer message than a near name.
_OTHER_FAMILIES = (
    "baichuan", "bailing", "chatglm", "command", "cohere", "cpm", "ernie", "exaone", "falcon",
    "gemma", "granite", "hunyuan", "intern", "llava", "mimo", "minimax", "minicpm", "phi",
    "pixtral", "qwen2_", "qwen3_5", "qwen3_omni", "qwen3_vl", "seed", "yi", "yuan", "zephyr",
)  # fmt: skip


def template_named(name: str) -> Template:
    """A template.

    Raises:
        ConfigError: there is none of this name; with near ones.
    """
    if name in TEMPLATES:
        return TEMPLATES[name]
    if name.startswith(_OTHER_FAMILIES):
        hint = "models of this family are not supported"
    else:
        near = difflib.get_close_matches(name, TEMPLATES, n=3, cutoff=0.6)
        known = (
            f"did you mean {' or '.join(near)}?" if near else f"known are {', '.join(TEMPLATES)}."
        )
        hint = f"{known} Without template, the tokenizer's own chat template is taken"
    raise ConfigError(f"template={name}: there is no such template: {hint}")
