"""Reading the grammar: what is taken, and every mistake with its rule and line."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inlay.core.errors import ConfigError
from inlay.experts import parse_rules, read_rules

FULL = """
# a comment
- match:
    name: "^model\\\\.layers\\\\.0\\\\."
    class: torch.nn.Linear
  replace:
    class: ktransformers.operators.linear.KTransformersLinear
    kwargs:
      generate_device: "cuda:0"
      generate_op: "KLinearMarlin"
      prefill_op: None
  recursive: False
- match: {class: DeepseekV3RMSNorm}
  replace: {}
"""


def test_a_rule_and_its_defaults() -> None:
    full, short = parse_rules(FULL)
    assert (full.number, full.line, str(full)) == (1, 3, "rule 1 (line 3)")
    assert full.name is not None and full.name.search("model.layers.0.mlp")
    assert full.of_class == "torch.nn.Linear"
    assert full.to_class.endswith("KTransformersLinear")
    assert full.kwargs == {
        "generate_device": "cuda:0",
        "generate_op": "KLinearMarlin",
        "prefill_op": None,
    }
    assert not full.recursive
    assert (short.line, short.name, short.to_class, short.kwargs) == (13, None, "default", {})
    assert short.recursive


def test_a_rule_may_stand_for_another_by_an_anchor() -> None:
    first, second = parse_rules(
        "- match: {name: a}\n  replace: &same {kwargs: {generate_device: cpu}}\n"
        "- match: {name: b}\n  replace: *same\n"
    )
    assert first.kwargs == second.kwargs == {"generate_device": "cpu"}


def one(match: str = "{name: a}", replace: str = "{}", more: str = "") -> str:
    return f"- match: {match}\n  replace: {replace}\n{more}"


def kwargs(text: str) -> str:
    return one(replace=f"{{kwargs: {text}}}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must be a list of rules"),
        ("match: {}", "must be a list of rules"),
        ("- match: {name: [\n", r"not YAML: line 2, column 1: "),
        ("- match: {name: *nobody}", "not YAML: line 1, column 17: found undefined alias"),
        ("- match: {name: a}\n--- 1", "not YAML: line 2, column 1: but found another document"),
        ("- 12", r"rule 1 \(line 1\): a rule must be a table of match, replace, recursive"),
        ("- replace: {}", r"rule 1 \(line 1\): match needs a name, a class, or both"),
        (one() + "- match: {name: b}", r"rule 2 \(line 3\): replace is missing"),
        (one("{naming: a}"), r"rule 1 \(line 1\): match has no key 'naming'; did you mean name\?"),
        (one("{name: a, name: b}"), r"match has name twice"),
        (one("{name: 7}"), "name is 7, not a text"),
        (one('{name: "layers.(0|1"}'), r"name 'layers.\(0\|1' is no regular expression: missing"),
        (one(replace="{device: cpu}"), "replace has no key 'device'; there are class, kwargs"),
        (one(more='  recursive: "no"'), r"\(line 3\): recursive is 'no', not True or False"),
        (kwargs("{generat_device: cpu}"), "no key 'generat_device'; did you mean generate_device"),
        (kwargs("{per_layer_prefill_input_threshold: 0}"), "per_layer_prefill_intput_threshold"),
        (kwargs("{generate_device: null}"), "generate_device is None, not a text"),
        (kwargs("{generate_op: KExpertCPU}"), "does not know; did you mean KExpertsCPU"),
        (kwargs("{backend: AMXINT8}"), "backend is 'AMXINT8'.*did you mean AMXInt8"),
        (kwargs("{transfer_map: {a: cpu}}"), r"transfer_map must give devices by layer"),
        (kwargs("{absorb_for_prefill: 1}"), "absorb_for_prefill is 1, not True or False"),
        (kwargs("{per_layer_prefill_intput_threshold: -1}"), "-1, not a whole number from 0"),
        (kwargs("{backend: [AMXInt8]}"), "backend is a list or a table, not one value"),
        (kwargs("{? [a] : cpu}"), "a key is a list or a table"),
        ("- &a {match: {name: *a}, replace: {}}", "name is a list or a table"),
        (kwargs("7"), "kwargs must be a table of generate_device"),
        ("- " + "[" * 3000, "not YAML"),
        (one("{name: 2026-99-99}"), "not YAML: line 1, .*2026-99-99.*month must be in 1..12"),
        ("- match: {name: a}\n  replace: !!int\n", "not YAML: line 2, column 12: int '' cannot"),
        (one("{name: !!bool maybe}"), "not YAML: line 1, column .*: bool 'maybe' cannot be read"),
        (one("{name: !!timestamp now}"), "not YAML: line 1, column .*: timestamp 'now' cannot"),
    ],
)
def test_mistakes_name_the_rule_and_the_line(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_rules(text)


WORDS = st.sampled_from(
    ["match", "replace", "kwargs", "recursive", "name", "class", "backend", "generate_device",
     "transfer_map", "prefill_op", "absorb_for_prefill", "cpu", "a(", "None", "&a", "*a", "0", "~",
     "true", "- ", "{", "}", "[", "]", ": ", ", ", "\n", "  ", '"', "'", "#", "!!int "]
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(words=st.lists(WORDS, max_size=40), whole=st.booleans())
def test_any_text_is_rules_or_a_config_error(words: list[str], whole: bool) -> None:
    text = "".join(words)
    try:
        rules = parse_rules(text if whole else f"- match: {{name: a}}\n  replace: {text}\n")
    except ConfigError:
        return
    assert all(rule.name is not None or rule.of_class for rule in rules)


def test_a_file(tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text(FULL)
    assert len(read_rules(file)) == 2
    file.write_text("- 12")
    with pytest.raises(ConfigError, match=rf"^rules {file}: rule 1 \(line 1\)"):
        read_rules(file)
    file.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="not UTF-8"):
        read_rules(file)
    with pytest.raises(ConfigError, match="No such file"):
        read_rules(tmp_path / "none.yaml")
