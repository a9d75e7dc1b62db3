"""More outputs of chat models, of the families that came after those in `chat_outputs`."""

from tests.support.chat_outputs import HARMONY, LLAMA, Recording

GLM = (
    "{% if tools %}<tool_call>{name}<arg_key>{key}</arg_key><arg_value>{value}</arg_value>"
    "</tool_call>{% endif %}<think></think>"
)
MISTRAL = "[AVAILABLE_TOOLS]{{ tools }}[/AVAILABLE_TOOLS][TOOL_CALLS]"
MAGISTRAL = "[SYSTEM_PROMPT][THINK][/THINK][/SYSTEM_PROMPT][TOOL_CALLS]"
MINIMAX = "{% set start = '<minimax:tool_call>' %}<invoke name=\"x\"><think></think>"
DSML = "{% set dsml = '｜DSML｜' %}<｜Assistant｜><think></think>"
GEMMA = "{{ '<|tool_call>call:' + name }}<|channel>thought\n<channel|>"
FUNCTION_GEMMA = "<start_function_call>call:"
LFM2 = "List of tools: <|tool_list_start|>[{{ tools }}]<|tool_list_end|>"
NEMOTRON = "<TOOLCALL>[{{ calls }}]</TOOLCALL><think></think>"
HUNYUAN = "{% set H = ':opensource' %}{{ '<arg_key{}>'.format(H) }}{{ reasoning_content }}"
HUNYUAN_LIST = "<tool_calls>[{{ calls }}]</tool_calls><think></think>"
GRANITE = "respond with <|tool_call|> and a list <think></think><response></response>"

FAMILY_RECORDINGS = [
    Recording(
        name="glm thinks, speaks and calls twice",
        template=GLM,
        text=(
            "<think>The file first.</think>\nI write it now.\n<tool_call>write_file\n"
            "<arg_key>path</arg_key>\n<arg_value>日志/a.txt</arg_value>\n<arg_key>text</arg_key>\n"
            "<arg_value>\n1 < 2 </tool_call> & so on\n</arg_value>\n<arg_key>mode</arg_key>\n"
            "<arg_value>420</arg_value>\n<arg_key>options</arg_key>\n"
            '<arg_value>{"sync": [true]}</arg_value>\n</tool_call>\n'
            "<tool_call>get_time\n</tool_call>"
        ),
        reasoning="The file first.",
        content="I write it now.",
        calls=[
            (
                "write_file",
                '{"path": "日志/a.txt", "text": "\\n1 < 2 </tool_call> & so on\\n", "mode": 420, '
                '"options": {"sync": [true]}}',
            ),
            ("get_time", "{}"),
        ],
    ),
    Recording(
        name="glm without line breaks",
        template=GLM,
        text=(
            "Ready.</think><tool_call>write_file<arg_key>mode</arg_key><arg_value>rw</arg_value>"
            "<arg_key>options</arg_key><arg_value>None</arg_value></tool_call>"
            "<tool_call>get_time</tool_call>"
        ),
        thinking=True,
        reasoning="Ready.",
        calls=[("write_file", '{"mode": "rw", "options": null}'), ("get_time", "{}")],
    ),
    Recording(
        name="glm speaks of its tags",
        template=GLM,
        text="A <tool_call> opens a call, </arg_key> ends a key.\nTry <tool_call>a b</tool_call>!",
        content=(
            "A <tool_call> opens a call, </arg_key> ends a key.\nTry <tool_call>a b</tool_call>!"
        ),
    ),
    Recording(
        name="glm cut off inside a value",
        template=GLM,
        text=(
            "<tool_call>write_file\n<arg_key>path</arg_key>\n<arg_value>a</arg_value>\n"
            "<arg_key>text</arg_key>\n<arg_value>half of"
        ),
        calls=[("write_file", '{"path": "a"}')],
    ),
    Recording(
        name="mistral with a list",
        template=MISTRAL,
        text=(
            '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "[TOOL_CALLS]"}, '
            '"id": "abcdefghi"},\n {"arguments": {"zone": [1, 2]}, "name": "get_time"}]'
        ),
        calls=[("get_weather", '{"city": "[TOOL_CALLS]"}'), ("get_time", '{"zone": [1, 2]}')],
    ),
    Recording(
        name="mistral with names and ids",
        template=MISTRAL,
        text=(
            'One moment.\n[TOOL_CALLS]get_weather[CALL_ID]Ab3dE6gH9[ARGS]{"city": "[ARGS] {}"}'
            "[TOOL_CALLS]get_time[CALL_ID]000000001[ARGS] {}"
        ),
        content="One moment.",
        calls=[("get_weather", '{"city": "[ARGS] {}"}'), ("get_time", "{}")],
        call_ids=["Ab3dE6gH9", "000000001"],
    ),
    Recording(
        name="mistral thinks, then names without ids",
        template=MAGISTRAL,
        text=(
            "[THINK]Two steps: first\nthe weather.[/THINK]Let me look."
            '[TOOL_CALLS]get_weather[ARGS]{"city": "Brest"}[TOOL_CALLS]get_time{"zone": null}'
        ),
        reasoning="Two steps: first\nthe weather.",
        content="Let me look.",
        calls=[("get_weather", '{"city": "Brest"}'), ("get_time", '{"zone": null}')],
    ),
    Recording(
        name="mistral thinks without tools",
        template=MAGISTRAL,
        text="[THINK]Easy.[/THINK]\nIt is [TOOL_CALLS]4.",
        tools=False,
        reasoning="Easy.",
        content="It is [TOOL_CALLS]4.",
    ),
    Recording(
        name="mistral opens a call and says something else",
        template=MISTRAL,
        text="The marker is [TOOL_CALLS] [ARGS], as you know",
        content="The marker is [TOOL_CALLS] [ARGS], as you know",
    ),
    Recording(
        name="minimax m2 calls twice in one section",
        template=MINIMAX,
        text=(
            "Both files.\n</think>\n\nHere they come.\n<minimax:tool_call>\n"
            '<invoke name="write_file">\n<parameter name="path">a "b".txt</parameter>\n'
            '<parameter name="text"><invoke name="x"> & </invoke></parameter>\n'
            '<parameter name="mode">7</parameter>\n</invoke>\n<invoke name="get_time">\n</invoke>\n'
            "</minimax:tool_call>"
        ),
        thinking=True,
        reasoning="Both files.",
        content="Here they come.",
        calls=[
            (
                "write_file",
                '{"path": "a \\"b\\".txt", "text": "<invoke name=\\"x\\"> & </invoke>", "mode": 7}',
            ),
            ("get_time", "{}"),
        ],
    ),
    Recording(
        name="deepseek v3.2 says which values are text",
        template=DSML,
        text=(
            "Both.</think>I look it up.\n\n<｜DSML｜function_calls>\n"
            '<｜DSML｜invoke name="get_weather">\n'
            '<｜DSML｜parameter name="city" string="true">12</｜DSML｜parameter>\n'
            '<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>\n'
            '<｜DSML｜parameter name="parts" string="false">[{"a": "x"}]</｜DSML｜parameter>\n'
            '</｜DSML｜invoke>\n<｜DSML｜invoke name="get_time">\n{"zone": "UTC"}\n'
            '</｜DSML｜invoke>\n<｜DSML｜invoke name="render"/>\n'
            "</｜DSML｜function_calls><｜end▁of▁sentence｜>"
        ),
        thinking=True,
        reasoning="Both.",
        content="I look it up.",
        calls=[
            ("get_weather", '{"city": "12", "days": 3, "parts": [{"a": "x"}]}'),
            ("get_time", '{"zone": "UTC"}'),
            ("render", "{}"),
        ],
    ),
    Recording(
        name="deepseek v4 names the section otherwise",
        template=DSML,
        text=(
            '\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name="get_weather">\n'
            '<｜DSML｜parameter name="city" string="true">\nYork\n</｜DSML｜parameter>\n'
            "</｜DSML｜invoke>\n</｜DSML｜tool_calls>"
        ),
        calls=[("get_weather", '{"city": "\\nYork\\n"}')],
    ),
    Recording(
        name="gemma thinks, speaks and calls twice",
        template=GEMMA,
        text=(
            "<|channel>thought\nA form to fill.\n<channel|>Just a second.<|tool_call>call:render{"
            'title:<|"|>Say "hi", {x}\n<|"|>,tags:[<|"|>a<|"|>,<|"|>b: c<|"|>,[]],'
            'size:{w:-3,h:1.5e2,<|"|>odd key<|"|>:{}},draft:true,after:null,mood:calm}<tool_call|>'
            "<|tool_call>call:get_time{}<tool_call|><|tool_response>"
        ),
        reasoning="A form to fill.",
        content="Just a second.",
        calls=[
            (
                "render",
                '{"title": "Say \\"hi\\", {x}\\n", "tags": ["a", "b: c", []], "size": {"w": -3, '
                '"h": 1.5e2, "odd key": {}}, "draft": true, "after": null, "mood": "calm"}',
            ),
            ("get_time", "{}"),
        ],
    ),
    Recording(
        name="gemma answers without tools",
        template=GEMMA,
        text="<|channel>thought\n<channel|>A <|tool_call> is a call.<turn|>",
        tools=False,
        content="A <|tool_call> is a call.",
    ),
    Recording(
        name="gemma cut off inside a text",
        template=GEMMA,
        text='<|tool_call>call:get_weather{city:<|"|>Le Hav',
        calls=[("get_weather", '{"city": "Le Hav')],
    ),
    Recording(
        name="gemma forgets the last bracket",
        template=GEMMA,
        text='<|tool_call>call:get_weather{city:<|"|>Rome<|"|>,days:[1,2<tool_call|>',
        calls=[("get_weather", '{"city": "Rome", "days": [1, 2]}')],
    ),
    Recording(
        name="function gemma",
        template=FUNCTION_GEMMA,
        text=(
            "Of course. <start_function_call>call:get_weather{city:<escape>São Paulo<escape>,"
            "days:2}<end_function_call><start_function_call>call:get_time{}<end_function_call>"
        ),
        content="Of course.",
        calls=[("get_weather", '{"city": "São Paulo", "days": 2}'), ("get_time", "{}")],
    ),
    Recording(
        name="lfm2 writes python",
        template=LFM2,
        text=(
            "Both at once.<|tool_call_start|>[get_weather(city='Val d\\'Isère', days=3), "
            'math.add(a=-1, b=[2.5, "x, y"], exact=True, note=None, opts={"k": (1, 2), \'s\': "\\n'
            '\\u00e9\\x41"}), get_time()]<|tool_call_end|>\nDone.'
        ),
        content="Both at once.Done.",
        calls=[
            ("get_weather", '{"city": "Val d\'Isère", "days": 3}'),
            (
                "math.add",
                '{"a": -1, "b": [2.5, "x, y"], "exact": true, "note": null, '
                '"opts": {"k": [1, 2], "s": "\\n\\u00e9\\u0041"}}',
            ),
            ("get_time", "{}"),
        ],
    ),
    Recording(
        name="lfm2 forgets to escape a quote",
        template=LFM2,
        text="<|tool_call_start|>[get_weather(city='L'Aquila, the old town')]<|tool_call_end|>",
        calls=[("get_weather", '{"city": "L\'Aquila, the old town"}')],
    ),
    Recording(
        name="lfm2 writes json",
        template=LFM2,
        text=(
            '<|tool_call_start|>[{"name": "get_time", "arguments": {"zone": "(UTC)"}}]'
            "<|tool_call_end|>"
        ),
        calls=[("get_time", '{"zone": "(UTC)"}')],
    ),
    Recording(
        name="nemotron nano",
        template=NEMOTRON,
        text=(
            'Sure.\n</think>\n\n<TOOLCALL>[{"name": "get_weather", "arguments": {"city": "]["}}, '
            '{"name": "get_time", "arguments": {}}]</TOOLCALL>\n'
        ),
        thinking=True,
        reasoning="Sure.",
        calls=[("get_weather", '{"city": "]["}'), ("get_time", "{}")],
    ),
    Recording(
        name="hunyuan 3",
        template=HUNYUAN,
        text=(
            "Look outside.</think:opensource>I look.<tool_calls:opensource>\n"
            "<tool_call:opensource>write_file<tool_sep:opensource>\n"
            "<arg_key:opensource>path</arg_key:opensource>\n"
            "<arg_value:opensource>1</arg_value:opensource>\n"
            "<arg_key:opensource>mode</arg_key:opensource>\n"
            "<arg_value:opensource>1</arg_value:opensource>\n</tool_call:opensource>\n"
            "<tool_call:opensource>get_time<tool_sep:opensource>\n</tool_call:opensource>\n"
            "</tool_calls:opensource>"
        ),
        thinking=True,
        reasoning="Look outside.",
        content="I look.",
        calls=[("write_file", '{"path": "1", "mode": 1}'), ("get_time", "{}")],
    ),
    Recording(
        name="hunyuan a13b puts its answer into tags",
        template=HUNYUAN_LIST,
        text=(
            '<think>\nTwo.\n</think>\n<answer>\nWait.<tool_calls>[{"name": "get_weather", '
            '"arguments": {"city": "东京"}}, {"name": "get_time", "arguments": {}}]</tool_calls>\n'
            "</answer>"
        ),
        reasoning="Two.",
        content="Wait.",
        calls=[("get_weather", '{"city": "东京"}'), ("get_time", "{}")],
    ),
    Recording(
        name="granite 3 with a list",
        template=GRANITE,
        text=(
            '<|tool_call|> [\n  {"name": "get_weather", "arguments": {"city": "Bern"}},\n'
            '  {"arguments": {}, "name": "get_time"}\n]'
        ),
        calls=[("get_weather", '{"city": "Bern"}'), ("get_time", "{}")],
    ),
    Recording(
        name="granite 3 puts its answer into tags",
        template=GRANITE,
        text="<think>Tags.</think>\n<response>Write <response> and </response",
        tools=False,
        reasoning="Tags.",
        content="Write <response> and </response",
    ),
    Recording(
        name="gpt-oss runs code with a tool that it was not offered",
        template=HARMONY,
        text=(
            "<|channel|>analysis<|message|>I compute it.<|end|><|start|>assistant"
            "<|channel|>analysis to=python code<|message|>print(1)<|call|>"
        ),
        reasoning="I compute it.\n\nprint(1)",
    ),
    Recording(
        name="gpt-oss runs code although a function of the name is offered",
        template=HARMONY,
        text=(
            "<|channel|>analysis to=get_time<|constrain|>code<|message|>now()<|call|><|start|>"
            "assistant to=browser.search<|channel|>commentary json<|message|>[]<|call|>"
        ),
        reasoning="now()",
        content="[]",
    ),
    Recording(
        name="gpt-oss names an offered function without its namespace",
        template=HARMONY,
        text='<|channel|>commentary to=get_time <|constrain|>json<|message|>{"a": 1}<|call|>',
        calls=[("get_time", '{"a": 1}')],
    ),
    Recording(
        name="llama 3.1 calls a tool that it was trained with",
        template=LLAMA,
        text='<|python_tag|>get_weather.call(city="Nice, \\"old\\" town", days=2)',
        calls=[("get_weather", '{"city": "Nice, \\"old\\" town", "days": 2}')],
    ),
    Recording(
        name="llama 3.1 calls a tool that was not offered",
        template=LLAMA,
        text='<|python_tag|>wolfram_alpha.call(query="2+2")',
        content='<|python_tag|>wolfram_alpha.call(query="2+2")',
    ),
]
