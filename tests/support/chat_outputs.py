"""Outputs of chat models as their documentation describes them, and what they mean.

Each recording is the raw text of one assistant turn, special tokens included where the model's
notation consists of them.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Recording:
    """One output and its meaning; `template` is the part of the chat template that tells."""

    name: str
    template: str
    text: str
    thinking: bool = False
    tools: bool = True
    content: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    call_ids: list[str] | None = None


QWEN = (
    "{%- if tools %}For each function call, return a json object within <tool_call></tool_call>"
    "{{ tool_call.arguments | tojson }}{%- endif %} enable_thinking <think>\n\n</think>\n\n"
)
DEEPSEEK_V3 = (
    "{% for tool in tools %}{{'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + tool['type'] + "
    "'<｜tool▁sep｜>' + tool['function']['name'] + '\\n```json\\n' + "
    "tool['function']['arguments'] + "
    "'\\n```<｜tool▁call▁end｜>'}}{% endfor %}<｜Assistant｜>"
)
DEEPSEEK_V31 = (
    "{% if tools %}<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>"
    "{{ tool['function']['arguments']|tojson }}{% endif %}<｜Assistant｜><think></think>"
)
KIMI = (
    "{%- if tools -%}<|im_system|>tool_declare<|im_middle|>{{ tools | tojson }}{%- endif -%}"
    "<|tool_calls_section_begin|><|tool_call_begin|>{{ formatted_id }}"
    "<|tool_call_argument_begin|>{% if a is string %}{{ a }}{% else %}{{ arguments | tojson }}"
)
HARMONY = (
    "{%- if tools %}namespace functions{%- endif %}<|start|>assistant<|channel|>analysis<|message|>"
    "{{ tool_call.arguments|tojson }} developer"
)
LLAMA = (
    '{%- if tools is not none %}{"name": function name, "parameters": dictionary}'
    "{{- tool_call.arguments | tojson }}{%- endif %}<|python_tag|>"
)

QWEN_CODER = (
    "{%- if tools %}<tool_call>\n<function=example_function_name>\n<parameter=example_parameter_1>"
    "\nvalue_1\n</parameter>\n</function>\n</tool_call>{%- endif %}"
    "{%- for args_name, args_value in tool_call.arguments|items %}"
)

RECORDINGS = [
    Recording(
        name="qwen3 coder speaks and calls twice",
        template=QWEN_CODER,
        text=(
            "I'll write it.\n\n<tool_call>\n<function=write_file>\n<parameter=path>\na.py\n"
            '</parameter>\n<parameter=text>\ndef f(a):\n    return "<tool_call>" < a\n\n'
            "</parameter>\n<parameter=mode>\n420\n</parameter>\n<parameter=options>\n"
            '{"sync": true}\n</parameter>'
            "\n</function>\n</tool_call>\n<tool_call>\n<function=get_time>\n</function>\n</tool_call>"
        ),
        content="I'll write it.",
        calls=[
            (
                "write_file",
                '{"path": "a.py", "text": "def f(a):\\n    return \\"<tool_call>\\" < a\\n", '
                '"mode": 420, "options": {"sync": true}}',
            ),
            ("get_time", "{}"),
        ],
    ),
    Recording(
        name="qwen3 coder without the outer tag, and a number that is none",
        template=QWEN_CODER,
        text=(
            "<function=write_file>\n<parameter=mode>\nrw\n</parameter>\n</function>\n</tool_call>"
        ),
        calls=[("write_file", '{"mode": "rw"}')],
    ),
    Recording(
        name="qwen3 thinks, speaks and calls twice",
        template=QWEN,
        text=(
            "<think>\nThe user wants the weather in two cities.\n</think>\n\n"
            "Let me look that up.\n<tool_call>\n"
            '{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}\n</tool_call>\n'
            "<tool_call>\n"
            '{"name": "get_weather", "arguments": {"city": "K\\u00f6ln \\"am Rhein\\"", '
            '"days": 1}}\n</tool_call>'
        ),
        reasoning="The user wants the weather in two cities.",
        content="Let me look that up.",
        calls=[
            ("get_weather", '{"city": "Paris", "days": 3}'),
            ("get_weather", '{"city": "K\\u00f6ln \\"am Rhein\\"", "days": 1}'),
        ],
    ),
    Recording(
        name="qwen3 with an empty thought and only an answer",
        template=QWEN,
        text="<think>\n\n</think>\n\nParis < London, and 2 <t 3.\n\nDone <",
        content="Paris < London, and 2 <t 3.\n\nDone <",
    ),
    Recording(
        name="qwen3 thinking model whose prompt opens the thought",
        template=QWEN,
        text="Hmm, <b>bold</b>?\nYes.\n</think>\n\nYes, it is.",
        thinking=True,
        reasoning="Hmm, <b>bold</b>?\nYes.",
        content="Yes, it is.",
    ),
    Recording(
        name="a thought that is cut off",
        template=QWEN,
        text="<think>\nI have to consider",
        reasoning="I have to consider",
    ),
    Recording(
        name="hermes with the arguments first and tags inside a text",
        template=QWEN,
        text=(
            '<tool_call>{"arguments": {"html": "<tool_call>x</tool_call>", "n": [1, {"a": "}"}]}, '
            '"name": "render"}</tool_call>'
        ),
        calls=[("render", '{"html": "<tool_call>x</tool_call>", "n": [1, {"a": "}"}]}')],
    ),
    Recording(
        name="hermes with arguments as text, as null and left out",
        template=QWEN,
        text=(
            '<tool_call>{"name": "a", "arguments": "{\\"x\\": 1}"}</tool_call>'
            '<tool_call>{"name": "b", "arguments": null}</tool_call>'
            '<tool_call>{"name": "c"}</tool_call>'
        ),
        calls=[("a", '{"x": 1}'), ("b", "{}"), ("c", "{}")],
    ),
    Recording(
        name="hermes with something that is no call",
        template=QWEN,
        text="See <tool_call>\nnot json\n</tool_call> there",
        content="See <tool_call>\nnot json\n</tool_call> there",
    ),
    Recording(
        name="hermes cut off inside a call",
        template=QWEN,
        text='<tool_call>\n{"name": "get_weather", "arguments": {"city": "Pa',
        calls=[("get_weather", '{"city": "Pa')],
    ),
    Recording(
        name="hermes without tools: tags are text",
        template=QWEN,
        text='Write <tool_call>{"name": "a", "arguments": {}}</tool_call>.\n',
        tools=False,
        content='Write <tool_call>{"name": "a", "arguments": {}}</tool_call>.\n',
    ),
    Recording(
        name="deepseek v3 with fenced arguments",
        template=DEEPSEEK_V3,
        text=(
            "I will check.\n\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>"
            'get_weather\n```json\n{"city": "Paris", "note": "```"}\n```<｜tool▁call▁end｜>\n'
            "<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_time\n```json\n{}\n```"
            "<｜tool▁call▁end｜><｜tool▁calls▁end｜><｜end▁of▁sentence｜>"
        ),
        content="I will check.",
        calls=[("get_weather", '{"city": "Paris", "note": "```"}'), ("get_time", "{}")],
    ),
    Recording(
        name="deepseek r1 thinks inside the prompt's tag",
        template=DEEPSEEK_V3,
        text=("Okay, so 9.11 and 9.9.\n</think>\n\n9.9 is larger.<｜end▁of▁sentence｜>"),
        thinking=True,
        tools=False,
        reasoning="Okay, so 9.11 and 9.9.",
        content="9.9 is larger.",
    ),
    Recording(
        name="deepseek v3.1",
        template=DEEPSEEK_V31,
        text=(
            "</think><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>"
            '{"city": "Paris"}<｜tool▁call▁end｜><｜tool▁call▁begin｜>get_time<｜tool▁sep｜>'
            "{}<｜tool▁call▁end｜><｜tool▁calls▁end｜><｜end▁of▁sentence｜>"
        ),
        thinking=True,
        calls=[("get_weather", '{"city": "Paris"}'), ("get_time", "{}")],
    ),
    Recording(
        name="kimi k2",
        template=KIMI,
        text=(
            "Checking both.<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0"
            '<|tool_call_argument_begin|>{"city": "Beijing"}<|tool_call_end|><|tool_call_begin|>'
            'functions.math.add:1<|tool_call_argument_begin|> {"a": 1, "b": [2]} <|tool_call_end|>'
            "<|tool_calls_section_end|><|im_end|>"
        ),
        content="Checking both.",
        calls=[("get_weather", '{"city": "Beijing"}'), ("math.add", '{"a": 1, "b": [2]}')],
        call_ids=["functions.get_weather:0", "functions.math.add:1"],
    ),
    Recording(
        name="kimi k2 answers",
        template=KIMI,
        text="Just <|text|>, no call.<|im_end|>",
        content="Just <|text|>, no call.",
    ),
    Recording(
        name="gpt-oss thinks, announces and calls",
        template=HARMONY,
        text=(
            "<|channel|>analysis<|message|>Need the weather tool.<|end|><|start|>assistant"
            "<|channel|>commentary<|message|>Let me check the weather.<|end|><|start|>assistant"
            "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
            '{"city":"Paris"}<|call|>'
        ),
        reasoning="Need the weather tool.",
        content="Let me check the weather.",
        calls=[("get_weather", '{"city":"Paris"}')],
    ),
    Recording(
        name="gpt-oss with the recipient before the channel",
        template=HARMONY,
        text=(
            "<|channel|>analysis<|message|>First thought.<|end|><|start|>assistant<|channel|>"
            "analysis<|message|>Second thought.<|end|><|start|>assistant to=functions.get_time"
            "<|channel|>commentary json<|message|><|call|>"
        ),
        reasoning="First thought.\n\nSecond thought.",
        calls=[("get_time", "{}")],
    ),
    Recording(
        name="gpt-oss answers without tools",
        template=HARMONY,
        text=(
            "<|channel|>analysis<|message|>Simple question.<|end|><|start|>assistant<|channel|>"
            "final<|message|>2 < 3 <| yes.\n\nReally.<|return|>"
        ),
        tools=False,
        reasoning="Simple question.",
        content="2 < 3 <| yes.\n\nReally.",
    ),
    Recording(
        name="gpt-oss forgets its notation",
        template=HARMONY,
        text="Just words.",
        content="Just words.",
    ),
    Recording(
        name="llama 3 calls",
        template=LLAMA,
        text='{"name": "get_weather", "parameters": {"city": "Paris"}}',
        calls=[("get_weather", '{"city": "Paris"}')],
    ),
    Recording(
        name="llama 3 calls twice after its tag",
        template=LLAMA,
        text=(
            '<|python_tag|>{"name": "get_weather", "parameters": {"city": "Paris"}}; '
            '{"name": "get_time", "parameters": {}}'
        ),
        calls=[("get_weather", '{"city": "Paris"}'), ("get_time", "{}")],
    ),
    Recording(
        name="llama 3 writes JSON that is no call",
        template=LLAMA,
        text='{"name": "Paris", "parameters": {"a": 1}}',
        content='{"name": "Paris", "parameters": {"a": 1}}',
    ),
    Recording(
        name="llama 3 answers",
        template=LLAMA,
        text="It is {sunny}.",
        content="It is {sunny}.",
    ),
]
