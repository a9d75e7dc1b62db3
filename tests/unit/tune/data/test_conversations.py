import csv
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pytest
from pyarrow import ipc, parquet

from inlay.core.errors import ConfigError, DataError
from inlay.tune import TuneConfig
from inlay.tune.data.conversations import Conversation
from inlay.tune.data.load import load_conversations

Write: TypeAlias = Callable[..., Path]

ROWS = [
    {"instruction": "Define lantern.", "input": "", "output": "A light that hangs."},
    {"instruction": "Define", "input": "bridge", "output": "A way over water, über alles.\nNo?"},
    {"instruction": "Define door.", "input": None, "output": 'It "opens".'},
]


def load(folder: Path, *names: str, **settings: Any) -> list[Conversation]:
    config = TuneConfig(model_name_or_path="m", dataset=names, dataset_dir=str(folder), **settings)
    return load_conversations(config).train


def said(conversations: list[Conversation]) -> list[list[tuple[str, str]]]:
    return [[(one["role"], one["content"]) for one in each.messages] for each in conversations]


def failure(folder: Path, *names: str, **settings: Any) -> str:
    with pytest.raises((DataError, ConfigError)) as caught:
        load(folder, *names, **settings)
    return str(caught.value)


ALPACA = [
    [("user", "Define lantern."), ("assistant", "A light that hangs.")],
    [("user", "Define\nbridge"), ("assistant", "A way over water, über alles.\nNo?")],
    [("user", "Define door."), ("assistant", 'It "opens".')],
]


def test_every_kind_of_file_gives_the_same(data: Write) -> None:
    kinds = ("json", "jsonl", "csv", "parquet", "arrow")
    folder = data({kind: {"file_name": f"rows.{kind}"} for kind in kinds})
    (folder / "rows.json").write_text(json.dumps(ROWS), encoding="utf-8")
    lines = "\n\n".join(json.dumps(row, ensure_ascii=False) for row in ROWS)
    (folder / "rows.jsonl").write_text("\ufeff" + lines, encoding="utf-8")
    with (folder / "rows.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, ["instruction", "input", "output"])
        writer.writeheader()
        writer.writerows(ROWS)
    table = pa.Table.from_pylist(ROWS)
    parquet.write_table(table, folder / "rows.parquet")
    with ipc.new_stream(str(folder / "rows.arrow"), table.schema) as stream:
        stream.write_table(table)
    for kind in kinds:
        found = load(folder, kind)
        assert said(found) == ALPACA, kind
    assert load(folder, "jsonl")[2].place.endswith("rows.jsonl, line 5")
    assert load(folder, "csv")[2].place.endswith("rows.csv, line 5")  # row 2 has a line end
    assert load(folder, "parquet")[2].place.endswith("rows.parquet, row 3")
    assert load(folder, "json")[2].place.endswith("rows.json, line 1, record 3")


def test_alpaca_with_system_history_and_other_columns(data: Write) -> None:
    rows = [{"q": "Why?", "a": "So.", "sys": "Be short.", "old": [["Hi", "Hello"]], "input": "x"}]
    columns = {"prompt": "q", "response": "a", "system": "sys", "history": "old"}
    folder = data({"mine": {"file_name": "a.json", "columns": columns}}, a_json=rows)
    assert said(load(folder, "mine")) == [
        [
            ("system", "Be short."),
            ("user", "Hi"),
            ("assistant", "Hello"),
            ("user", "Why?"),
            ("assistant", "So."),
        ]
    ]


def test_sharegpt_with_tools(data: Write) -> None:
    call = json.dumps({"name": "weather", "arguments": {"city": "Rome"}})
    turns = [
        {"from": "human", "value": "Weather?"},
        {"from": "function_call", "value": call},
        {"from": "observation", "value": "sunny"},
        {"from": "gpt", "value": "Sunny."},
    ]
    rows = [{"conversations": turns, "tools": json.dumps([{"name": "weather"}])}]
    entry = {
        "file_name": "a.json",
        "formatting": "sharegpt",
        "columns": {"messages": "conversations", "tools": "tools"},
    }
    (found,) = load(data({"mine": entry}, a_json=rows), "mine")
    assert [one["role"] for one in found.messages] == ["user", "assistant", "tool", "assistant"]
    assert found.messages[1]["tool_calls"] == [
        {
            "type": "function",
            "function": {"name": "weather", "arguments": {"city": "Rome"}},
            "id": "call00000",
        }
    ]
    assert found.messages[2]["tool_call_id"] == "call00000"
    assert found.tools == ({"type": "function", "function": {"name": "weather"}},)


def test_openai_messages(data: Write) -> None:
    parts = [{"type": "text", "text": "Hi "}, {"type": "text", "text": "there"}]
    call = {"function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
    messages = [
        {"role": "system", "content": "S"},
        {"role": "user", "content": parts},
        {"role": "assistant", "content": None, "tool_calls": [call, call]},
        {"role": "tool", "content": "1"},
        {"role": "tool", "content": "2"},
        {"role": "assistant", "content": "Done."},
    ]
    folder = data(
        {"mine": {"file_name": "a.json", "formatting": "openai"}}, a_json=[{"messages": messages}]
    )
    (found,) = load(folder, "mine")
    assert found.system == "S"
    assert found.turns[0]["content"] == "Hi there"
    assert [one.get("tool_call_id") for one in found.turns[2:4]] == ["call00000", "call00001"]


def test_tags_of_a_file_of_its_own(data: Write) -> None:
    rows = [{"talk": [{"who": "me", "text": "a"}, {"who": "it", "text": "b"}]}]
    entry = {
        "file_name": "a.json",
        "formatting": "sharegpt",
        "columns": {"messages": "talk"},
        "tags": {"role_tag": "who", "content_tag": "text", "user_tag": "me", "assistant_tag": "it"},
    }
    found = load(data({"mine": entry}, a_json=rows), "mine")
    assert said(found) == [[("user", "a"), ("assistant", "b")]]


def test_several_datasets_a_folder_and_how_many_of_each(data: Write) -> None:
    folder = data({"one": {"file_name": "a.json"}, "all": {"file_name": "parts"}}, a_json=ROWS)
    (folder / "parts").mkdir()
    for part in range(3):
        (folder / "parts" / f"{part}.json").write_text(json.dumps(ROWS), encoding="utf-8")
    assert len(load(folder, "one", "all")) == 12
    assert len(load(folder, "one", "all", max_samples=2)) == 4
    many = {"mine": {"file_name": "a.json", "num_samples": 8}}
    folder = data(many, a_json=ROWS)
    drawn = said(load(folder, "mine"))
    assert len(drawn) == 8
    assert all(one in drawn for one in ALPACA)  # each once, before any comes again


def test_samples_held_out_are_no_others_and_follow_the_seed(data: Write) -> None:
    rows = [{"instruction": f"q{n}", "output": f"a{n}"} for n in range(20)]
    folder = data({"mine": {"file_name": "a.json"}}, a_json=rows)

    def split(seed: int, val_size: float) -> tuple[list[int], list[int]]:
        found = load_conversations(
            TuneConfig(
                model_name_or_path="m",
                dataset=("mine",),
                dataset_dir=str(folder),
                val_size=val_size,
                seed=seed,
            )
        )
        return [one.row for one in found.train], [one.row for one in found.evaluation]

    train, held = split(1, 0.2)
    assert len(held) == 4 and sorted(train + held) == list(range(20)) and train == sorted(train)
    assert split(1, 0.2) == (train, held) != split(2, 0.2)
    assert len(split(1, 5)[1]) == 5
    assert "holds out 20 of 20" in failure(folder, "mine", val_size=20)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([{"instruction": "a", "output": ""}], ["line 2", "column output: is empty"]),
        ([*ROWS, {"instruction": "a"}], ["line 17", "column output is missing", "instruction"]),
        ([{"instruction": " ", "output": "x"}], ["column instruction: is empty", "prompt"]),
        ([{"instruction": "a", "output": 3}], ["column output: is 3: must be text"]),
        (
            [{"instruction": "a", "output": " "}] * 3,
            ["; 2 more records have errors; skip_bad_records=true leaves such out"],
        ),
        ([3], ["line 2", "is a number", "object"]),
        ({"a": 1}, ["a single object", "list of objects"]),
        ([], ["no records"]),
    ],
)
def test_bad_records_are_named_by_line_and_column(rows: Any, words: list[str], data: Write) -> None:
    message = failure(data({"mine": {"file_name": "a.json"}}, a_json=rows), "mine")
    assert all(word in message for word in [*words, "a.json"]), message


def test_bad_records_are_left_out_if_that_is_asked_for(data: Write) -> None:
    rows = [{"instruction": f"q{n}", "output": f"a{n}" * (n != 40)} for n in range(81)]
    folder = data({"mine": {"file_name": "a.json"}})
    (folder / "a.json").write_text(json.dumps(rows), encoding="utf-8")  # all in one line
    message = failure(folder, "mine")
    bad = "a.json, line 1, record 41: column output: is empty: a sample needs a response to learn"
    shown = 'it begins {"instruction": "q40", "output": ""}'
    assert f"{bad} ({shown}); skip_bad_records=true leaves such out" in message
    config = TuneConfig(
        model_name_or_path="m",
        dataset=("mine",),
        dataset_dir=str(folder),
        skip_bad_records=True,
    )
    found = load_conversations(config)
    assert [one.row for one in found.train] == [n for n in range(81) if n != 40]
    (note,) = found.notes
    assert (
        note.startswith("1 of 81 records of ") and f"left out, the first is {folder}/{bad}" in note
    )
    held_out = load_conversations(replace(config, val_size=0.5))
    assert held_out.notes == (note,)
    only = data({"mine": {"file_name": "a.json"}}, a_json=rows[40:41])
    message = failure(only, "mine", skip_bad_records=True)
    assert "column output: is empty" in message and "skip_bad_records" not in message


@pytest.mark.parametrize(
    ("turns", "words"),
    [
        ([["human", "a"]], "no response"),
        ([["human", "a"], ["human", "b"]], "turn 2 is of user and follows user"),
        ([["gpt", "a"], ["human", "b"]], "turn 1 is of assistant and follows nothing"),
        ([["human", "a"], ["bot", "b"]], "message 2: from is 'bot': must be one of human"),
        ([["human", "a"], ["gpt", ""]], "message 2: value is empty"),
        ([["human", "a"], ["function_call", "{"]], "message 2, value: is no JSON"),
        ([["human", "a"], ["function_call", "{}"]], "message 2: a call must have name"),
        ([], "must be a list of messages"),
    ],
)
def test_bad_conversations(turns: list[list[str]], words: str, data: Write) -> None:
    rows = [{"conversations": [{"from": role, "value": value} for role, value in turns]}]
    entry = {"mine": {"file_name": "a.json", "formatting": "sharegpt"}}
    assert words in failure(data(entry, a_json=rows), "mine")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        (
            "a_json",
            b'[{"instruction": "a",\n "output": "\xe4"}]',
            "line 2: is not UTF-8 (byte 0xe4",
        ),
        ("a_json", "[]".encode("utf-16"), "UTF-16"),
        ("a_json", b'[{"instruction": "a",\n "output": }]', "line 2: is no JSON"),
        ("a_jsonl", b'{"instruction": "a", "output": "b"}\n\n{"x"}', "line 3: is no JSON"),
        ("a_csv", b"instruction,output\na,b\nc,d,e\n", "line 3: has 3 values"),
        ("a_csv", b'instruction,output\na,"b\n', "is no CSV"),
    ],
)
def test_files_that_cannot_be_read(name: str, content: bytes, words: str, data: Write) -> None:
    file = name.replace("_", ".")
    folder = data({"mine": {"file_name": file}}, **{name: content})
    assert words in failure(folder, "mine")


@pytest.mark.parametrize("kind", ["json", "jsonl", "csv", "parquet", "arrow"])
def test_a_pointer_of_git_lfs_is_named(kind: str, data: Write) -> None:
    folder = data({"mine": {"file_name": f"a.{kind}"}})
    (folder / f"a.{kind}").write_text("version https://git-lfs.github.com/spec/v1\nsize 123456\n")
    assert f"a.{kind} is a pointer of Git LFS" in failure(folder, "mine")


def test_a_file_that_is_no_parquet(data: Write) -> None:
    folder = data({"mine": {"file_name": "a.parquet"}})
    (folder / "a.parquet").write_bytes(b"no")
    assert "is no parquet file" in failure(folder, "mine")


@pytest.mark.parametrize(
    ("info", "words"),
    [
        ({"mina": {"file_name": "a.json"}}, "no dataset 'mine': did you mean mina?"),
        ({"mine": {"file_name": "b.json"}}, "there is no file"),
        ({"mine": {"hf_hub_url": "x/y"}}, "has hf_hub_url alone"),
        ({"mine": {"file_name": "a.json", "format": "alpaca"}}, "did you mean formatting"),
        ({"mine": {"file_name": "a.json", "formatting": "x"}}, "must be alpaca, sharegpt, openai"),
        ({"mine": {"file_name": "a.json", "columns": {"prompts": "x"}}}, "did you mean prompt"),
        ({"mine": {"file_name": "a.json", "ranking": True}}, "has ranking"),
        ({"mine": {"file_name": "a.json", "num_samples": 0}}, "num_samples is 0"),
        (
            {"mine": {"file_name": "a.json", "columns": {"prompt": "ask", "response": "output"}}},
            "no record has the column ask, which dataset_info.json names for mine",
        ),
    ],
)
def test_entries_that_are_wrong(info: dict[str, Any], words: str, data: Write) -> None:
    message = failure(data(info, a_json=ROWS), "mine")
    assert words in message, message


def test_a_folder_without_dataset_info(tmp_path: Path) -> None:
    assert "dataset_info.json cannot be read" in failure(tmp_path, "mine")
