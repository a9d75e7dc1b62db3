import itertools
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from inlay.core.errors import ConfigError, DataError
from inlay.core.records import Records
from inlay.models.text import Text
from inlay.models.vocabularies.vocabulary import Vocabulary
from inlay.tune.data.chat_template import ChatTemplateWriter
from inlay.tune.data.conversations import Conversation
from inlay.tune.data.example import NO_LOSS, Example
from inlay.tune.data.templates import TEMPLATES, template_named
from inlay.tune.data.tokens import TokenRules, cut_lengths, questions, tokenize
from inlay.tune.data.writing import TemplateWriter, Writer

SPECIAL = [
    "<s>", "</s>", "<|im_start|>", "<|im_end|>", "<｜User｜>", "<｜Assistant｜>", "<|user|>",
    "<|assistant|>", "<|system|>", "[gMASK]", "<sop>", "<|start|>", "<|message|>", "<|end|>",
    "<|im_user|>", "<|im_middle|>", "<|im_assistant|>", "<|im_system|>", "<|start_header_id|>",
    "<|end_header_id|>", "<|eot_id|>",
]  # fmt: skip

# Writes an empty thought in the last turn alone, and leaves thoughts out of earlier ones.
REASONING = r"""
{%- for m in messages %}
    {%- if m.role == 'assistant' %}
        {%- set parts = m.content.split('</think>') %}
        {{- '<|im_start|>assistant\n' }}
        {%- if loop.last %}
            {{- (parts[0] if parts | length > 1 else '<think>\n\n') + '</think>\n\n' }}
        {%- endif %}
        {{- parts[-1].strip() }}
        {%- for call in m.tool_calls or [] %}{{- '<call>' + call.function.name }}{%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- else %}
        {{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is false %}{{- '<think>\n\n</think>\n\n' }}{%- endif %}
{%- endif %}
""".strip()


@pytest.fixture(scope="module")
def all_marks(text: Text) -> Text:
    """A tokenizer with the special tokens of all templates."""
    tokenizer = tokenizers.Tokenizer.from_str(text.tokenizer_json)
    tokenizer.add_special_tokens([tokenizers.AddedToken(mark, special=True) for mark in SPECIAL])
    return Text(
        Vocabulary.of(tokenizer),
        eos_token_ids=frozenset(),
        templates={"default": REASONING},
        special_tokens={"bos_token": "<s>", "eos_token": "</s>"},
    )


def talk(*messages: str, system: str = "", **more: Any) -> Conversation:
    """User and assistant in turn."""
    roles = itertools.cycle(("user", "assistant"))
    turns = [{"role": role, "content": one} for role, one in zip(roles, messages, strict=False)]
    opening = [{"role": "system", "content": system}] if system else []
    return Conversation((*opening, *turns), (), Records(Path("a.json"), [], [7]), 0)


def row(conversation: Conversation, writer: Writer, text: Text, **rules: Any) -> Example:
    rules = {"cutoff_len": 10_000, **rules}
    return tokenize([conversation], writer, text, TokenRules(**rules)).dataset[0]


def masked(example: Example, text: Text) -> str:
    """The text of a row, what has a loss in brackets."""
    found = ""
    pairs = zip(example.input_ids_N.tolist(), example.labels_N.tolist(), strict=True)
    for has_loss, group in itertools.groupby(pairs, lambda pair: pair[1] != NO_LOSS):
        written = text.decode([token for token, _ in group], skip_special_tokens=False)
        found += f"⟦{written}⟧" if has_loss else written
    return found


WRITTEN = {
    "default": "System: S</s>\nHuman: q</s>\nAssistant:⟦a</s>\n⟧Human: r</s>\nAssistant:⟦b</s>\n⟧",
    "empty": "Sq⟦a⟧r⟦b⟧",
    "alpaca": "S### Instruction:\nq\n\n### Response:\n⟦a</s>\n\n⟧"
    "### Instruction:\nr\n\n### Response:\n⟦b</s>\n\n⟧",
    "deepseek": "<s>S\n\nUser: q\n\nAssistant:⟦a</s>⟧User: r\n\nAssistant:⟦b</s>⟧",
    "deepseek3": "<s>S<｜User｜>q<｜Assistant｜>⟦a</s>⟧<｜User｜>r<｜Assistant｜>⟦b</s>⟧",
    "deepseekr1": "<s>S<｜User｜>q<｜Assistant｜>⟦<think>\n\n</think>\n\na</s>⟧"
    "<｜User｜>r<｜Assistant｜>⟦<think>\n\n</think>\n\nb</s>⟧",
    "llama2": "<s>[INST] <<SYS>>\nS\n<</SYS>>\n\nq [/INST]⟦a</s>⟧<s>[INST] r [/INST]⟦b</s>⟧",
    "llama3": "<s><|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\nq<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n⟦a<|eot_id|>⟧"
    "<|start_header_id|>user<|end_header_id|>\n\nr<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n⟦b<|eot_id|>⟧",
    "mistral": "<s>[INST] S\n\nq[/INST]⟦ a</s>⟧[INST] r[/INST]⟦ b</s>⟧",
    "qwen3_nothink": "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nq<|im_end|>\n"
    "<|im_start|>assistant\n⟦a<|im_end|>\n⟧<|im_start|>user\nr<|im_end|>\n"
    "<|im_start|>assistant\n⟦b<|im_end|>\n⟧",
    "moonlight": "<|im_system|>system<|im_middle|>S<|im_end|><|im_user|>user<|im_middle|>q"
    "<|im_end|><|im_assistant|>assistant<|im_middle|>⟦a<|im_end|>⟧<|im_user|>user<|im_middle|>r"
    "<|im_end|><|im_assistant|>assistant<|im_middle|>⟦b<|im_end|>⟧",
    # What ends a turn is what the model is to say in place of the next prompt's first token.
    "glm4": "[gMASK]<sop><|system|>\nS<|user|>\nq<|assistant|>⟦\na<|user|>⟧\nr<|assistant|>"
    "⟦\nb</s>⟧",
}


@pytest.mark.parametrize("name", WRITTEN)
def test_named_templates(name: str, all_marks: Text) -> None:
    writer = TemplateWriter(name, TEMPLATES[name], all_marks)
    example = row(talk("q", "a", "r", "b", system="S"), writer, all_marks)
    assert masked(example, all_marks) == WRITTEN[name]


@pytest.mark.parametrize("name", TEMPLATES)
def test_every_template_learns_the_whole_response_and_only_that(name: str, all_marks: Text) -> None:
    writer = TemplateWriter(name, TEMPLATES[name], all_marks)
    shown = masked(row(talk("the question", "the answer"), writer, all_marks), all_marks)
    before, _, after = shown.partition("⟦")
    assert "the question" in before and "the answer" not in before
    assert "the answer" in after and after.endswith("⟧")
    assert TEMPLATES[name].default_system in before


def test_the_end_of_a_turn_without_a_token_of_its_own(all_marks: Text) -> None:
    writer = TemplateWriter("glm4", TEMPLATES["glm4"], all_marks)
    example = row(talk("q", "a", "r", "b"), writer, all_marks)
    ids, labels = example.input_ids_N.tolist(), example.labels_N.tolist()
    user, end = all_marks.token_id("<|user|>"), all_marks.token_id("</s>")
    second = [at for at, token in enumerate(ids) if token == user][1]
    assert labels[second] == end


def test_thoughts(all_marks: Text) -> None:
    thought = "<think>\nhm\n</think>\n\n"
    empty = "<think>\n\n</think>\n\n"
    two = talk("q", thought + "a", "r", thought + "b")

    def shown(conversation: Conversation, **settings: Any) -> str:
        history = settings.get("last_thought_only", False)
        writer = TemplateWriter("deepseekr1", TEMPLATES["deepseekr1"], all_marks, **settings)
        example = row(conversation, writer, all_marks, mask_history=history)
        return masked(example, all_marks).replace("｜", "|")

    user, assistant = "<|User|>", "<|Assistant|>"
    assert shown(two) == (
        f"<s>{user}q{assistant}⟦{thought}a</s>⟧{user}r{assistant}⟦{thought}b</s>⟧"
    )
    assert shown(two, enable_thinking=False) == (
        f"<s>{user}q{assistant}{empty}⟦a</s>⟧{user}r{assistant}{empty}⟦b</s>⟧"
    )
    assert shown(two, last_thought_only=True) == (
        f"<s>{user}q{assistant}a</s>{user}r{assistant}⟦{thought}b</s>⟧"
    )


def test_a_template_that_does_not_fit_the_model(text: Text, all_marks: Text) -> None:
    with pytest.raises(ConfigError, match=r"qwen3 does not fit.* lacks .*<\|im_start\|>"):
        bare = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, "a"))
        nothing = Text(
            Vocabulary.of(bare), eos_token_ids=frozenset(), templates={}, special_tokens={}
        )
        TemplateWriter("qwen3", TEMPLATES["qwen3"], nothing)
    with pytest.raises(ConfigError, match="names none"):
        TemplateWriter("deepseek", TEMPLATES["deepseek"], nothing)
    with pytest.raises(ConfigError, match="no chat template of its own"):
        ChatTemplateWriter(nothing)
    with pytest.raises(ConfigError, match="did you mean qwen3"):
        template_named("qwn3")
    with pytest.raises(ConfigError, match="this family are not supported"):
        template_named("gemma3")
    call = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f"}}]}
    tools = Conversation(
        ({"role": "user", "content": "q"}, call), (), Records(Path("a.json"), [], [7]), 0
    )
    with pytest.raises(DataError, match="a.json, line 7: has tools, .* leave template out"):
        TemplateWriter("qwen", TEMPLATES["qwen"], all_marks).write(tools)


@pytest.mark.parametrize("turns", [1, 2, 3])
@pytest.mark.parametrize("system", ["", "Be short."])
def test_the_chat_template_is_divided_without_changing_a_token(
    turns: int, system: str, text: Text
) -> None:
    said = [f"{word} the lantern {n}" for n in range(turns) for word in ("Define", "Here is")]
    conversation = talk(*said, system=system)
    example = row(conversation, ChatTemplateWriter(text), text)
    whole = text.encode_chat(conversation.messages, add_generation_prompt=False)
    assert example.input_ids_N.tolist() == whole
    # A response begins where generation would, and ends with the token that ends generation.
    ids = example.input_ids_N.tolist()
    for number, message in enumerate(conversation.messages):
        if message["role"] == "assistant":
            prompt = text.encode_chat(conversation.messages[:number])
            assert ids[: len(prompt)] == prompt
            assert example.labels_N[len(prompt) - 1] == NO_LOSS
            assert example.labels_N[len(prompt)] == ids[len(prompt)]
    assert masked(example, text).count("<|im_end|>\n⟧") == turns


def test_a_chat_template_that_writes_earlier_turns_otherwise(all_marks: Text) -> None:
    start, end = "<|im_start|>", "<|im_end|>\n"
    conversation = talk("q", "<think>\nx\n</think>\n\na", "r", "<think>\ny\n</think>\n\nb")
    thinking = ChatTemplateWriter(all_marks)
    assert masked(row(conversation, thinking, all_marks), all_marks) == (
        f"{start}user\nq{end}{start}assistant\n⟦a{end}⟧{start}user\nr{end}{start}assistant\n"
        f"⟦<think>\ny\n</think>\n\nb{end}⟧"
    )
    plain = ChatTemplateWriter(all_marks, enable_thinking=False)
    assert masked(row(conversation, plain, all_marks), all_marks) == (
        f"{start}user\nq{end}{start}assistant\n⟦a{end}⟧{start}user\nr{end}{start}assistant\n"
        f"<think>\n\n</think>\n\n⟦b{end}⟧"
    )
    call = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "fetch"}}]}
    messages = (*conversation.messages[:1], call, *conversation.messages[2:3])
    tools = Conversation(
        (*messages, {"role": "assistant", "content": "b"}), (), Records(Path("a"), [], [1]), 0
    )
    for writer in (thinking, plain):
        shown = masked(row(tools, writer, all_marks), all_marks)
        assert f"assistant\n⟦<call>fetch{end}⟧" in shown


def test_a_chat_template_that_cannot_be_divided(text: Text) -> None:
    template = "{% for m in messages %}{{ (messages | length) ~ m.content }}{% endfor %}"
    odd = Text(
        Vocabulary.of(tokenizers.Tokenizer.from_str(text.tokenizer_json)),
        eos_token_ids=frozenset(),
        templates={"default": template},
        special_tokens={},
    )
    with pytest.raises(DataError, match="a.json, line 7: where message 2 .* name a template"):
        ChatTemplateWriter(odd).write(talk("q", "a"))


def test_train_on_prompt_and_mask_history(text: Text) -> None:
    conversation = talk("q", "a", "r", "b")
    writer = ChatTemplateWriter(text)
    whole = row(conversation, writer, text, train_on_prompt=True)
    assert whole.labels_N.tolist() == whole.input_ids_N.tolist()
    last = masked(row(conversation, writer, text, mask_history=True), text)
    assert last.count("⟦") == 1
    assert last.endswith("⟦b<|im_end|>\n⟧")


@pytest.mark.parametrize(
    ("prompt", "response", "room", "kept"),
    [
        (10, 10, 20, (10, 10)),
        (100, 10, 50, (40, 10)),  # a short response stays whole
        (10, 100, 50, (10, 40)),  # so does a short prompt
        (100, 300, 50, (13, 37)),  # two long ones in proportion
        (300, 100, 50, (38, 12)),
    ],
)
def test_what_is_kept_of_long_samples(
    prompt: int, response: int, room: int, kept: tuple[int, int]
) -> None:
    assert cut_lengths(prompt, response, room) == kept


def test_long_samples_are_cut_and_counted(text: Text) -> None:
    writer = ChatTemplateWriter(text)
    conversations = [talk("q", "a"), talk("lantern " * 50, "bridge " * 50, "r", "b")]
    found = tokenize(conversations, writer, text, TokenRules(cutoff_len=40))
    assert found.num_cut == 1
    assert found.dataset.row_lengths_R.max() == 40
    assert found.lengths[1] > 100
    kept = row(conversations[1], writer, text, cutoff_len=40, mask_history=True)
    assert masked(kept, text).endswith("⟦b<|im_end|>\n⟧")  # the last turn is kept first
    assert len(kept.input_ids_N) == 40


def test_batches_make_no_difference(text: Text) -> None:
    conversations = [talk(f"question {n}", f"answer {n * 37}") for n in range(25)]
    writer = ChatTemplateWriter(text)
    rules = [TokenRules(cutoff_len=99, batch_size=size) for size in (1, 7, 1000)]
    found = [tokenize(conversations, writer, text, one).dataset for one in rules]
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            assert a.input_ids_N.tolist() == b.input_ids_N.tolist()
            assert a.labels_N.tolist() == b.labels_N.tolist()


def test_a_question_is_all_before_the_last_response(text: Text) -> None:
    conversation = talk("q", "a", "r", "b", system="S")
    (found,) = questions([conversation], ChatTemplateWriter(text), text, cutoff_len=1000)
    assert found.prompt == text.encode_chat(conversation.messages[:-1])
    assert text.decode(found.answer).strip() == "b"
    (short,) = questions([conversation], ChatTemplateWriter(text), text, cutoff_len=5)
    assert short.prompt == found.prompt[-5:]
    assert short.answer == found.answer
