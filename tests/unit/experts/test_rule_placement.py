"""What rules come to: devices of layers and experts, in both phases, and what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inlay.core.errors import ConfigError
from inlay.core.known_models import known_config
from inlay.core.model_config import shape_of
from inlay.core.model_shape import ModelShape
from inlay.core.placement import LayerPlacement, Placement, Stage
from inlay.experts import ModulePlacement, RulePlacement, Run, parse_rules, place_by_rules
from inlay.experts.operators import BACKENDS, CLASSES, OPERATORS
from tests.support.talk_rules import TALK
from tests.support.tree import ROOT

TWO_GPUS = ("cpu", "cuda:0", "cuda:1")
LAYERS = r"^model\\.layers\\."


def shape(name: str = "deepseek-v3") -> ModelShape:
    config = known_config(name)
    assert config is not None
    return shape_of(config)


def place(
    text: str, model: str = "deepseek-v3", devices: tuple[str, ...] = TWO_GPUS
) -> RulePlacement:
    return place_by_rules(shape(model), parse_rules(text), devices)


def rule(
    name: str, kwargs: str = "", *, to: str = "default", of: str = "", recursive: bool = True
) -> str:
    of_class = f", class: {of}" if of else ""
    return (
        f'- match: {{name: "{name}"{of_class}}}\n'
        f"  replace: {{class: {to}, kwargs: {{{kwargs}}}}}\n  recursive: {recursive}\n"
    )


def both(device: str) -> str:
    return f'generate_device: "{device}", prefill_device: "{device}"'


def experts(kwargs: str, layers: str = ".*", op: str = "KTransformersExperts") -> str:
    return rule(rf"{LAYERS}{layers}\\.mlp\\.experts$", kwargs, to=op)


def modules(placed: RulePlacement) -> dict[str, ModulePlacement]:
    return {one.module.name: one for one in placed.modules}


def test_the_rules_of_the_talk() -> None:
    placed = place(TALK)
    dense = (LayerPlacement(device="cuda:0"),) * 3
    first = (LayerPlacement(device="cuda:0", prefill="device"),) * 27
    second = (LayerPlacement(device="cuda:1", prefill="device"),) * 31
    assert placed.placement == Placement(layers=dense + first + second)
    assert placed.placement.stages == (
        Stage(device="cuda:0", first=0, end=30),
        Stage(device="cuda:1", first=30, end=61),
    )
    assert placed.experts_format == "int8"
    assert placed.notes == ()
    found = modules(placed)
    for layer in range(61):
        home = Run(device="cuda:0" if layer < 30 else "cuda:1", operator="attention to pages")
        attention = found[f"model.layers.{layer}.self_attn"]
        assert (attention.prefill, attention.decode) == (home, home)
        assert attention.why == "with its layer"
        if layer >= 3:
            one = found[f"model.layers.{layer}.mlp.experts"]
            assert one.prefill == Run(device=home.device, operator="weights brought for each step")
            assert one.decode == Run(device="cpu", operator="CPU kernels in int8")
            assert one.why == ("rule 1 (line 2)" if layer < 30 else "rule 2 (line 14)")
    assert found["model.embed_tokens"].decode.device == "cpu"
    assert found["lm_head"].decode.device == found["model.norm"].prefill.device == "cuda:1"


def test_the_example_is_the_same() -> None:
    text = (ROOT / "examples/placement/two_gpus.yaml").read_text()
    assert place(text).placement == place(TALK).placement


def test_both_phases_on_the_cpu() -> None:
    placed = place(experts(both("cpu")))
    assert set(placed.placement.layers[3:]) == {LayerPlacement(device="cuda:0", prefill="host")}
    one = modules(placed)["model.layers.3.mlp.experts"]
    assert one.prefill == one.decode == Run(device="cpu", operator="CPU kernels")


def test_experts_on_a_device_are_all_resident() -> None:
    placed = place(experts(both("cuda:1"), layers="4", op="KTransformersExpertsV2"))
    four = placed.placement.layers[4]
    assert four == LayerPlacement(device="cuda:1", resident=256)
    assert modules(placed)["model.layers.4.mlp.experts"].decode.operator == "weights in its memory"
    # What no rule names is on the first device, experts too, as with KTransformers.
    assert placed.placement.layers[5] == LayerPlacement(device="cuda:0", resident=256)


def test_without_a_device_all_is_the_cpus() -> None:
    placed = place(experts(both("cpu")), devices=("cpu",))
    assert placed.placement.devices == ("cpu",)
    rest = place(rule("lm_head"), devices=("cpu",)).placement
    assert set(rest.layers) == {LayerPlacement()}


def test_experts_default_to_the_cpu_and_to_their_layers_device_for_prompts() -> None:
    placed = place(experts("") + rule(rf"{LAYERS}[3-6].\\.self_attn$", both("cuda:1")))
    assert placed.placement.layers[3] == LayerPlacement(device="cuda:0", prefill="device")
    assert placed.placement.layers[60] == LayerPlacement(device="cuda:1", prefill="device")


def test_no_operator_for_prompts_is_that_of_decode() -> None:
    placed = place(experts('prefill_device: "cuda", prefill_op: None, generate_device: "cpu"'))
    assert placed.placement.layers[3].prefill == "host"


def test_cuda_is_the_first_gpu_and_the_first_rule_wins() -> None:
    placed = place(
        rule(rf"{LAYERS}[0-9]\\.", both("cuda"), of="torch.nn.Linear")
        + rule(rf"{LAYERS}[0-9]\\.", both("cuda:0"))
        + rule(LAYERS, both("cuda:1"))
    )
    assert [stage.end for stage in placed.placement.stages] == [10, 61]
    found = modules(placed)
    assert found["model.layers.0.self_attn.o_proj"].why == "rule 1 (line 1)"
    assert found["model.layers.0.self_attn"].why == "rule 2 (line 4)"
    assert found["model.layers.10.self_attn.o_proj"].why == "rule 3 (line 7)"


def test_a_rule_that_is_not_recursive_has_all_below() -> None:
    placed = place(
        rule(rf"{LAYERS}[0-9]+\\.mlp$", both("cuda:1"), recursive=False)
        + rule(rf"{LAYERS}[0-9]+\\.self_attn", both("cuda:1"))
    )
    assert set(placed.placement.devices) == {"cuda:1"}
    assert placed.placement.layers[3].resident == 256
    found = modules(placed)["model.layers.3.mlp.experts"]
    assert found.why == "rule 1 (line 1), with mlp"


def test_transfer_map_sends_layers_that_no_rule_names() -> None:
    model = "ktransformers.operators.models.KDeepseekV2Model"
    text = rule("^model$", 'transfer_map: {10: "cuda:1", 20: "cpu"}', to=model)
    assert place(text).placement.stages == (
        Stage(device="cuda:0", first=0, end=10),
        Stage(device="cuda:1", first=10, end=20),
        Stage(device="cpu", first=20, end=61),
    )
    with pytest.raises(ConfigError, match=r"layer 12 is on cuda:0 \(self_attn by rule 2 \(line 4"):
        place(text + rule(rf"{LAYERS}12\\.self_attn$", both("cuda:0")))
    with pytest.raises(ConfigError, match=r"rule 1 \(line 1\): transfer_map has layer 61, .*0..60"):
        place(text.replace("20:", "61:"))


@pytest.mark.parametrize(("backend", "held"), BACKENDS.items())
def test_a_backend_is_a_weight_format(backend: str, held: str | None) -> None:
    placed = place(experts(f'generate_device: "cpu", backend: "{backend}"'), "qwen3-30b-a3b")
    assert placed.experts_format == held


def test_older_names_match_too() -> None:
    text = rule(r"block_sparse_moe\\.experts$", 'generate_device: "cpu"')
    assert set(place(text, "mixtral-8x7b").placement.layers) == {
        LayerPlacement(device="cuda:0", prefill="device")
    }


def test_what_has_no_effect_is_told_once() -> None:
    attention = "ktransformers.operators.attention.KDeepseekV2Attention"
    linear = "ktransformers.operators.linear.KTransformersLinear"
    marlin = 'generate_op: "KLinearMarlin", backend: "AMXInt8"'
    placed = place(
        rule(r"\\.self_attn$", "absorb_for_prefill: False", to=attention)
        + rule("q_a_proj", marlin, to=linear)
        + rule("q_b_proj", marlin, to=linear)
        + rule("lm_head", both("cpu"))
        + rule("embed_tokens", both("cuda:1"))
        + rule("^model$", "per_layer_prefill_intput_threshold: 64, device: cuda:0")
    )
    assert [note.partition(":")[0] for note in placed.notes] == [
        "rule 6", "rule 6", "rule 1", "rules 2, 3", "rules 2, 3",
        "rule 5 (line 13)", "rule 4 (line 10)",
    ]  # fmt: skip
    text = "\n".join(placed.notes)
    assert "absorb_for_prefill: False has no effect: attention is computed against" in text
    assert "KLinearMarlin has no effect on formats" in text
    assert "backend has no effect on a module that is linear" in text
    assert "per_layer_prefill_intput_threshold: 64 has no effect: prompts go" in text
    assert "lm_head is on cuda:0, with the last layer; cpu has no effect" in text
    assert "embed_tokens is on cpu, rows are looked up there; cuda:1 has no effect" in text


def test_a_rule_for_what_the_model_leaves_out() -> None:
    """KTransformers' own files have such rules for dense layers of Qwen3-MoE."""
    text = "- match: {class: transformers.models.qwen3_moe.Qwen3MoeMLP}\n  replace: {}\n"
    placed = place(text, "qwen3-30b-a3b")
    assert placed.notes == ("rule 1 (line 1): this model has no Qwen3MoeMLP",)


def test_a_layer_as_such_computes_nothing() -> None:
    placed = place(rule(r"layers.7$", both("cuda:1")))
    assert placed.placement.devices == ("cuda:0",)
    assert "rule 1 (line 1): it has layers and nothing below them" in placed.notes[0]
    whole = place(rule(r"layers.7$", both("cuda:1"), recursive=False))
    assert whole.placement.layers[7] == LayerPlacement(device="cuda:1", resident=256)
    assert whole.notes == ()


OFF = 'generate_device: "cpu", prefill_device: "cuda:0"'
EVERY = rule(LAYERS, both("cuda:0"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            rule("^model.layers.99.", both("cpu")),
            r"rule 1 \(line 1\): it matches no module of this model by its name; names are as "
            r"model.layers.3.mlp.experts$",
        ),
        (
            rule("mlp", of="a.DeepseekV3Moe"),
            "none is a DeepseekV3Moe; did you mean DeepseekV3MoE",
        ),
        (rule("self_attn", of="DeepseekV3MoE"), "matches no module of this model by its name and"),
        (
            EVERY + rule(r"\\.mlp\\.gate$", both("cuda:0")),
            r"rule 2 \(line 4\): all 58 modules that it matches \(model.layers.3.mlp.gate, ...\) "
            "belong to rule 1 before it: put it first, or leave it out",
        ),
        (
            rule(r"\\.mlp\\.gate$") + rule(r"\\.mlp$", both("cuda:0"), recursive=False),
            "are below model.layers.3.mlp, which rule 2 has whole",
        ),
        (
            rule("lm_head", both("cuda:2")),
            r"rule 1 \(line 1\): prefill_device is cuda:2, and this machine has cpu, cuda:0, cuda:",
        ),
        (rule("lm_head", both("xpu")), "prefill_device is xpu, and this machine has cpu"),
        (
            rule("lm_head", to="a.b.KTransformerLinear"),
            "Inlay knows no class KTransformerLinear; did you mean KTransformersLinear",
        ),
        (
            experts(both("cuda:0"), op="KTransformersLinear"),
            "is for linear or router or head, and model.layers.3.mlp.experts is experts: take "
            "KTransformersExperts, or default",
        ),
        (
            experts('generate_device: "cuda:0", generate_op: "KExpertsCPU"'),
            "computes on the CPU, and generate_device is cuda:0: take another device, or "
            "KExpertsTorch or KExpertsMarlin",
        ),
        (
            experts('generate_device: "cpu", generate_op: "KExpertsMarlin"'),
            "computes on a device, and generate_device is cpu: .* KExpertsTorch or KExpertsCPU",
        ),
        (
            rule("lm_head", 'generate_op: "KExpertsCPU"'),
            "generate_op KExpertsCPU is for experts, and lm_head is head",
        ),
        (
            experts('generate_device: "cuda:0", prefill_device: "cpu"'),
            "to prefill on the CPU and to decode on cuda:0: experts that are there compute both",
        ),
        (
            rule(r"layers.7.self_attn$", OFF),
            r"rule 1 .*self_attn is to prefill on cuda:0 and to decode on cpu; a layer runs where",
        ),
        (
            rule(r"layers.7.self_attn$", both("cuda:1")) + rule(r"layers.7.mlp.gate", both("cpu")),
            r"layer 7 is to be on 2 devices: on cuda:1 self_attn by rule 1 \(line 1\); on cpu "
            r"mlp.gate by rule 2 .*nearest is all of it on cuda:1",
        ),
        (
            rule(r"layers.7.self_attn$", both("cuda:0"))
            + experts('generate_device: "cpu", out_device: "cuda:1"', layers="7"),
            "on cuda:0 self_attn by rule 1 .*; on cuda:1 mlp.experts by rule 2",
        ),
        (
            experts('generate_device: "cpu", backend: "AMXInt8"', layers="3")
            + experts('generate_device: "cpu"', layers="4"),
            r"weight format: int8 \(rule 1\) and that of the files \(rule 2\); the experts of all",
        ),
    ],
)
def test_what_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        place(text)


FAMILIES = {  # a module of DeepSeek-V3 of each family that classes are for
    "linear": r"layers.3.self_attn.o_proj$",
    "experts": r"layers.3.mlp.experts$",
    "mixture": r"layers.3.mlp$",
    "router": r"layers.3.mlp.gate$",
    "attention": r"layers.3.self_attn$",
    "model": r"^model$",
    "rope": r"layers.3.self_attn.rotary_emb$",
    "norm": r"layers.3.input_layernorm$",
    "mlp": r"layers.3.mlp.shared_experts$",
}


@pytest.mark.parametrize("name", CLASSES)
def test_every_class_maps_or_is_refused_with_the_nearest(name: str) -> None:
    row = CLASSES[name]
    text = rule(FAMILIES[row.families[0]], to=f"ktransformers.operators.{name}")
    if not row.refused:
        assert place(text).placement
        return
    with pytest.raises(ConfigError, match=rf"rule 1 \(line 1\): {name} is not taken: \w+"):
        place(text)
    nearest = row.refused.rpartition("take ")[2]
    assert nearest in (*CLASSES, "class: default") or "Inlay has" in row.refused


@pytest.mark.parametrize("name", OPERATORS)
def test_every_operator_maps_or_is_refused_with_the_nearest(name: str) -> None:
    row = OPERATORS[name]
    device = "cpu" if row.on == "cpu" else "cuda:0"
    text = rule(FAMILIES[row.families[0]], f'{both(device)}, generate_op: "{name}"')
    if not row.refused:
        assert place(text).placement
        return
    with pytest.raises(ConfigError, match=f"generate_op {name} is not taken: it is for"):
        place(text)
    assert row.refused.rpartition("take ")[2].split()[0] in OPERATORS


def test_the_operator_table_of_the_talk() -> None:
    assert {
        "KTransformersLinear", "KTransformersExperts", "KDeepseekV2Attention",
        "KMistralSparseMoEBlock", "KQwen2MoeSparseMoeBlock", "KDeepseekV2MoE", "KQwen2MoeModel",
        "KDeepseekV2Model", "RotaryEmbedding", "YarnRotaryEmbedding",
    } <= {name for name, row in CLASSES.items() if not row.refused}  # fmt: skip
    assert {
        "KLinearMarlin", "KLinearTorch", "KLinearCPUInfer", "KLinearFP8", "KExpertsTorch",
        "KExpertsMarlin", "KExpertsCPU",
    } <= {name for name, row in OPERATORS.items() if not row.refused}  # fmt: skip


@given(
    rules=st.lists(
        st.tuples(
            st.sampled_from(
                [r"\\.self_attn$", r"\\.mlp$", r"\\.experts$", r"layers.[0-9]\\.", "lm_head"]
            ),
            st.sampled_from(["cpu", "cuda:0", "cuda:1"]),
            st.sampled_from(["cpu", "cuda:0", "cuda:1"]),
            st.booleans(),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_every_placement_is_one_that_the_table_tells(
    rules: list[tuple[str, str, str, bool]],
) -> None:
    """Where rules can be followed, layers and rows say the same, and each rule has a module."""
    text = "".join(
        rule(name, f"generate_device: {decode}, prefill_device: {prefill}", recursive=recursive)
        for name, decode, prefill, recursive in rules
    )
    try:
        placed = place(text, "deepseek-v2-lite")
    except ConfigError as error:
        assert "rule" in str(error)
        return
    assert {one.rule.number for one in placed.modules if one.rule} == {
        number for number, _ in enumerate(rules, start=1)
    }
    for one in placed.modules:
        if one.module.layer is None:
            continue
        layer = placed.placement.layers[one.module.layer]
        if one.module.family != "experts":
            assert one.prefill.device == one.decode.device == layer.device
        elif layer.resident:
            assert one.prefill.device == one.decode.device == layer.device != "cpu"
        else:
            assert one.decode.device == "cpu"
            assert (one.prefill.device != "cpu") == (layer.prefill == "device")
