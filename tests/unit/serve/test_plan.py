"""`inlay plan` as a user calls it, and its parts where a machine is made up."""

import io
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gguf import GGMLQuantizationType
from rich.console import Console

from inlay.core.errors import ConfigError, ResourceError, UnsupportedModelError
from inlay.core.hardware import Device, Machine, machine_named, read_machine, write_machine
from inlay.core.known_models import known_config
from inlay.core.roofline import parts_of
from inlay.core.settings import Settings
from inlay.kernels import isa
from inlay.serve import cli
from inlay.serve.plan.changes import find_changes
from inlay.serve.plan.machine import find_machine, machine_of
from inlay.serve.plan.make import Plan, make_plan
from inlay.serve.plan.model import choose_formats, find_model
from inlay.serve.plan.record import as_dict
from inlay.serve.plan.report import print_plan
from tests.support.gguf_files import TOKENIZER, write_gguf
from tests.support.tiny_models import make_tiny_model
from tests.unit.serve.doctor.machines import GPU, HEALTHY

NODE = Device(
    title="Example",
    memory_gb=64,
    bandwidth_gbs=50,
    tflops={"fp32": 1, "bf16": 2, "int8": 4},
    cores=8,
)
HOST = Machine(name="host", nodes=(NODE,), origin="measured")


def plan(name: str, machine: Machine | str = HOST, **options: Any) -> Plan:
    hardware = machine_named(machine) if isinstance(machine, str) else machine
    return make_plan(find_model(name), hardware, origin="for a test", **options)


def text_of(made: Plan) -> str:
    console = Console(file=io.StringIO(), width=200)
    print_plan(console, made, find_changes(made))
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def run(*arguments: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = cli.run(["plan", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


def test_a_large_model_on_a_machine_of_the_catalogue(capsys: pytest.CaptureFixture[str]) -> None:
    machine = ["--machine", "xeon-spr-2s+h800", "--weight-format", "int4", "--json"]
    code, out, _ = run("deepseek-v3", *machine, "--context", "131072", capsys=capsys)
    found = json.loads(out)
    assert code == 0
    assert found["simulated"] is True
    assert found["offload_order"] == ["experts", "linears", "attention"]
    assert found["kv_bytes"] == 131072 * 61 * 576 * 2
    host, gpu = found["memory"]
    assert gpu["total_bytes"] <= 80e9
    experts = 0.5625 * 653_908_770_816
    on_gpu = found["placement"]["gpu_experts"] / 256
    embedding = 129280 * 7168 * 2
    assert host["weights_bytes"] == pytest.approx(experts + embedding)
    (one, *_) = found["decode"]
    assert one["bound"]["device"] == "cpu" and one["bound"]["limit"] == "bandwidth"
    assert 0.94 <= one["tokens_per_s"] / one["roofline_tps"] < 1
    # Experts in DRAM: 8 of 256 in each of 58 layers, less the GPU's, at 94 % of 440 GB/s.
    least = (1 - on_gpu) * experts * 8 / 256 / (0.94 * 440e9)
    assert least < one["seconds"] < 1.5 * least


def test_a_directory_a_file_and_a_known_name_are_one_model(tmp_path: Path) -> None:
    config = known_config("gpt-oss-20b")
    (tmp_path / "config.json").write_text(json.dumps(config))
    shapes = [
        find_model(name).shape
        for name in (str(tmp_path), str(tmp_path / "config.json"), "openai/GPT-OSS-20b")
    ]
    assert shapes == [find_model("gpt-oss-20b").shape] * 3


def test_a_gguf_file_says_its_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INLAY_CACHE_DIR", str(tmp_path / "cache"))
    floats = make_tiny_model(tmp_path / "floats", tokenizer="none")
    write_gguf(floats, tmp_path / "tiny.gguf", GGMLQuantizationType.Q8_0, metadata=TOKENIZER)
    model = find_model(str(tmp_path / "tiny.gguf"))
    assert model.shape.parameters == find_model(str(floats)).shape.parameters
    assert choose_formats(model, "auto", HOST).experts == "q8_0"
    on_gpu = machine_named("xeon-spr+h100")
    assert choose_formats(model, "auto", on_gpu).experts == "int8:g32"


def test_a_name_of_modelscope(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in for its package."""

    class Fake:
        @staticmethod
        def snapshot_download(name: str, *, allow_patterns: list[str], **options: object) -> str:
            assert (name, options["revision"], allow_patterns) == (
                "org/name",
                "v1",
                ["config.json"],
            )
            return str(tmp_path)

    monkeypatch.setitem(sys.modules, "modelscope", Fake)
    (tmp_path / "config.json").write_text(json.dumps(known_config("qwen3-8b")))
    model = find_model("modelscope:org/name@v1")
    assert (model.name, model.origin) == ("modelscope:org/name@v1", "ModelScope")
    assert model.shape == find_model("qwen3-8b").shape
    monkeypatch.setitem(sys.modules, "modelscope", None)
    with pytest.raises(UnsupportedModelError, match=r"pip install 'inlay\[modelscope\]'"):
        find_model("modelscope:org/name")


def test_the_demo_is_planned_without_a_name() -> None:
    made = make_plan(find_model(None), HOST, origin="for a test")
    assert made.decode[0].tokens_per_s > 0
    assert made.context_tokens <= made.model.shape.max_context_tokens


def test_auto_is_what_the_makers_publish() -> None:
    for name, experts, attention in (
        ("deepseek-v3", "fp8:g128", "fp8:g128"),
        ("gpt-oss-120b", "mxfp4", "bfloat16"),
        ("qwen3-30b-a3b", "bfloat16", "bfloat16"),
    ):
        formats = choose_formats(find_model(name), "auto", HOST)
        assert (formats.experts, formats.attention) == (experts, attention)
    four = choose_formats(find_model("gpt-oss-120b"), "int4", HOST)
    assert (four.experts, four.attention, four.router) == ("int4:g32", "int8", "bfloat16")
    latent = choose_formats(find_model("deepseek-v3"), "auto", HOST).latent
    assert latent == "bfloat16"
    assert choose_formats(find_model("deepseek-v3"), "int4", HOST).latent == "int8"


def test_processors_hold_float16_but_keys_and_values() -> None:
    llama = find_model("llama-3.1-8b")
    half = replace(llama, shape=replace(llama.shape, dtype="float16"))
    held = choose_formats(half, "auto", HOST)
    assert (held.mlp, held.kv) == ("float16", "float32")
    held = choose_formats(half, "auto", machine_named("xeon-spr+h100"))
    assert (held.mlp, held.kv) == ("float16", "float16")


@pytest.mark.parametrize(
    ("name", "memory_gb", "options", "ways"),
    [
        ("qwen3-8b", 16, {}, "What fits: --weight-format int8:g32; or --weight-format int4:g32$"),
        ("qwen3-8b", 12, {}, r"What fits: --weight-format int8:g32 --context \d+; or"),
        ("qwen3-8b", 20, {"context": 40960}, r"What fits: --context 9\d\d\d; or"),
        ("qwen3-30b-a3b", 22, {}, "What fits: --weight-format int4:g32$"),
        ("deepseek-v3", 24, {}, "No format fits: with int4:g32 the weights alone take 384"),
    ],
)
def test_what_would_fit(name: str, memory_gb: float, options: dict[str, Any], ways: str) -> None:
    small = replace(HOST, nodes=(replace(NODE, memory_gb=memory_gb),))
    with pytest.raises(ResourceError, match=ways) as refusal:
        plan(name, small, **options)
    _, _, offer = str(refusal.value).partition("What fits: ")
    words = offer.split(";")[0].split()
    given = dict(zip(words[::2], words[1::2], strict=True))
    if given:  # what is offered first does fit
        context = given.get("--context") or options.get("context")
        weight_format = given.get("--weight-format", "auto")
        plan(name, small, weight_format=weight_format, context=context and int(context))


def test_changes_are_what_a_plan_with_them_says() -> None:
    made = plan("qwen3-30b-a3b", replace(HOST, nodes=(replace(NODE, memory_gb=80),)))
    changes = {change.what: change for change in find_changes(made)}
    four = plan("qwen3-30b-a3b", made.machine, weight_format="int4:g32")
    change = changes["--weight-format int4:g32"]
    assert change.decode_tps == pytest.approx(four.decode[0].tokens_per_s)
    assert change.decode_times == pytest.approx(
        four.decode[0].tokens_per_s / made.decode[0].tokens_per_s
    )
    channels = changes["half as many memory channels again (8 to 12)"]
    assert 1.02 < channels.decode_times <= 1.5 + 1e-9
    products = [change.decode_times * change.prefill_times for change in changes.values()]
    assert products == sorted(products, reverse=True)
    assert not any("--weight-format" in change.what for change in find_changes(four))


@pytest.mark.parametrize(
    ("name", "machine", "context"),
    [("qwen3-8b", HOST, 8192), ("deepseek-v3", "xeon-spr-2s+h800", 131072)],
)
def test_as_many_requests_as_have_room(name: str, machine: Machine | str, context: int) -> None:
    """With all their keys and values where those of one are."""
    made = plan(name, machine, weight_format="int4", context=context)
    use = max(made.placement.uses, key=lambda one: one.kv_bytes)
    movable = 0.0  # routed experts give way
    for part in parts_of(made.model.shape, made.formats):
        if part.name == "routed experts":
            movable = part.stored_bytes * made.placement.gpu_share[part.name]
    room = use.capacity_bytes - (use.total_bytes - use.kv_bytes - movable)
    assert made.most_requests == int(room / (context * made.kv_token_bytes))
    assert [speed.requests for speed in made.decode] == [
        count for count in (1, 4, 16) if count <= made.most_requests
    ]


def test_longer_steps_need_more_memory_for_themselves() -> None:
    made = plan("deepseek-v3", "xeon-spr-2s+4090", weight_format="int4")
    (longest,) = [one for one in find_changes(made) if one.what.startswith("steps of 8192 ")]
    assert longest.prefill_times > 1.5
    assert longest.decode_times < 1  # fewer experts stay on the GPU


@pytest.mark.parametrize(
    ("weight_format", "linears_gb"),
    [("auto", 18.9), ("int4:g32+fp8:g128", 17.1), ("int4", 14.8), ("int4:g32+int4:g32", 9.4)],
)
def test_all_layers_of_deepseek_v3_but_its_experts_fit_24_gb(
    weight_format: str, linears_gb: float
) -> None:
    """What every token passes, 16.2 B weights without the embedding, and 8k of context."""
    made = plan("deepseek-v3", "xeon-spr-2s+4090", weight_format=weight_format, context=8192)
    placement = made.placement
    assert placement.gpu_layers == made.model.shape.layers == 61
    experts = {size.operator: size for size in made.operators}["experts"].stored_bytes
    on_gpu = placement.gpu_experts / 256 * experts
    _, gpu = placement.uses
    assert gpu.weights_bytes - on_gpu == pytest.approx(linears_gb * 1e9, rel=0.01)
    assert gpu.kv_bytes == 8192 * 61 * 576 * 2
    assert gpu.total_bytes <= 24e9
    text = text_of(made)
    (row,) = [line for line in text.splitlines() if re.match(r" GPU +\d", line)]
    sizes = (gpu.weights_bytes, gpu.kv_bytes, gpu.working_bytes, gpu.total_bytes)
    assert row.split() == ["GPU", *(f"{size / 1e9:.2f}" for size in sizes), "24.0"]


def test_deferral_and_streaming_where_gpu_and_processors_work_together() -> None:
    made = plan("deepseek-v3", "xeon-spr-2s+4090", weight_format="int4")
    together = made.together
    assert together is not None
    assert 1 <= together.deferred <= 6
    assert 1.2 < together.deferral_times < 1.7
    assert 0.9 < together.host_busy <= 1
    text = text_of(made)
    assert f"{together.deferred} of a token's 8 experts: decode" in text
    assert f"experts come to the GPU from {together.stream_tokens} tokens of a step on" in text
    assert as_dict(made, [])["together"]["deferred"] == together.deferred


@pytest.mark.parametrize("machine", ["xeon-spr-2s", "xeon-spr-2s+h800"])
def test_nothing_to_defer_where_a_layer_is_on_one_device(machine: str) -> None:
    made = plan("qwen3-30b-a3b", machine)
    assert made.together is None
    assert "GPU and processors" not in text_of(made)
    assert as_dict(made, [])["together"] is None


def test_weights_are_spread_over_numa_nodes() -> None:
    made = plan("qwen3-30b-a3b", "xeon-spr-2s", weight_format="int4")
    half = made.placement.uses[0].weights_bytes / 2e9
    assert f"2: each has its part of every expert and matrix in its memory, {half:.1f}" in text_of(
        made
    )
    assert "NUMA nodes" not in text_of(plan("qwen3-30b-a3b", "xeon-spr", weight_format="int4"))


def test_a_report_says_what_is_simulated() -> None:
    simulated = text_of(plan("deepseek-v3", "xeon-spr-2s+h800", weight_format="int4"))
    for part in (
        "simulated: the machine's figures",
        "653.91 B",
        "of 256 on the GPU",
        "What would help most",
        "nobody has measured Inlay on a GPU yet",
        "KTransformers",
    ):
        assert part in simulated
    measured = text_of(plan("qwen3-8b"))
    assert "simulated" not in measured and "on a GPU yet" not in measured
    assert json.dumps(as_dict(plan("qwen3-8b"), []))


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["nosuch"], 1, "there is no model nosuch: give a directory"),
        (["/not/there"], 1, "or one of deepseek-r1, deepseek-v2"),
        (["qwen3-8b", "--machine", "h101"], 2, "no processor 'h101'"),
        (["qwen3-8b", "--machine", "xeon-spr+h101"], 2, "did you mean h100?"),
        (["qwen3-8b", "--context", "50000"], 2, "must be in 1..40960"),
        (["qwen3-8b", "--context", "0"], 2, "context"),
        (["qwen3-8b", "--weight-format", "int3"], 2, "--weight-format int3: must be one of auto"),
        (["kimi-k2", "--machine", "xeon-spr"], 1, "No format fits: with int4:g32"),
    ],
)
def test_what_cannot_be_planned(
    arguments: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if "--machine" not in arguments:
        arguments = [*arguments, "--machine", "xeon-spr"]
    found, out, err = run(*arguments, capsys=capsys)
    assert (found, out) == (code, "")
    assert message in err and err.count("inlay: error: ") == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is no JSON"),
        ("[]", "holds a list"),
        ('{"model_type": "gpt9"}', "'gpt9'"),
        (
            json.dumps(known_config("qwen3-8b")).replace(
                "{", '{"quantization_config": {"quant_method": "hqq"}, ', 1
            ),
            "quantised with 'hqq' are not supported",
        ),
    ],
)
def test_config_files_that_are_none(
    content: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(content)
    for name in (tmp_path, tmp_path / "config.json"):
        code, _, err = run(str(name), "--machine", "xeon-spr", capsys=capsys)
        assert code == 1 and message in err


def test_a_saved_measurement_is_taken(tmp_path: Path) -> None:
    settings = Settings(log="info", isa=None, cache_dir=tmp_path, native=True)
    write_machine(HOST, tmp_path / "machine.toml")
    machine, origin = find_machine(None, settings)
    assert (machine, origin.split(" (")[0]) == (HOST, "this machine, as measured before")
    other, origin = find_machine(str(tmp_path / "machine.toml"), settings)
    assert other == machine and str(tmp_path) in origin
    _, origin = find_machine("epyc-genoa", settings)
    assert "simulated" in origin


def test_a_machine_of_what_the_doctor_found(tmp_path: Path) -> None:
    if isa.native_problem() is not None:
        with pytest.raises(ConfigError, match="without the compiled kernels"):
            machine_of(HEALTHY.cpu, HEALTHY.memory, None, ())
        return
    gpus = (replace(GPU, name="Unheard-of 1"), replace(GPU, name="NVIDIA H200"))
    machine = machine_of(HEALTHY.cpu, HEALTHY.memory, HEALTHY.bandwidth, gpus)
    assert machine.host.bandwidth_gbs == pytest.approx(40)
    assert machine.host.memory_gb == pytest.approx(64 * 1.073741824)
    assert all(rate > 0 for rate in machine.host.tflops.values())
    unknown, gpu = machine.gpus
    assert unknown.title.startswith("Unheard-of 1 (not in the catalogue, rates of NVIDIA")
    assert unknown.memory_gb == gpu.memory_gb and 0 < unknown.bandwidth_gbs < gpu.bandwidth_gbs
    assert (gpu.title, gpu.bandwidth_gbs) == ("NVIDIA H200", 4800)
    assert gpu.memory_gb == pytest.approx(80 * 1.073741824)
    write_machine(machine, tmp_path / "m.toml")
    assert read_machine(tmp_path / "m.toml") == machine
