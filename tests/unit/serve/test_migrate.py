"""Real launch commands to lines that today's command line accepts."""

import json
import re
import shlex
from io import StringIO

import pytest
from rich.console import Console

from inlay.core.errors import ConfigError
from inlay.serve.cli import run
from inlay.serve.migrate.report import print_report
from inlay.serve.migrate.rows import Fate
from inlay.serve.migrate.translate import translate
from tests.support.tree import ROOT
from tests.unit.serve.migrate_line import assert_accepted

TALK = """python -m sglang.launch_server --host 0.0.0.0 --port 8000 --model M \\
  --kt-weight-path W --kt-method AMXINT8 --kt-cpuinfer 64 --kt-threadpool-count 2 \\
  --kt-num-gpu-experts 1 --kt-max-deferred-experts-per-token 2 --mem-fraction-static 0.92 \\
  --chunked-prefill-size 2048 --served-model-name N --enable-mixed-chunk \\
  --max-running-requests 4 --max-total-tokens 512 --tensor-parallel-size 2 \\
  --enable-p2p-check --disable-shared-experts-fusion"""

COMMANDS = {
    TALK: (
        "M --host 0.0.0.0 --port 8000 --served-model-name N --weight-format int8 "
        "--threads 64 --set cache.pages=32 --set experts.deferral=2 "
        "--set placement.gpu_experts=1 --set placement.tensor_parallel=2 "
        "--set scheduler.max_batch_tokens=2048 --set scheduler.max_running=4 "
        "--set scheduler.prefill_chunk=2048"
    ),
    # The method that SGLang takes unless told, and its port.
    "python3 -m sglang.launch_server --model-path /m/DS --kt-weight-path /m/W --kt-cpuinfer 60": (
        "/m/DS --port 30000 --weight-format int4 --threads 60"
    ),
    "python -m sglang.launch_server --model /m/K2 --kt-weight-path /m/K2 --kt-method RAWINT4 "
    "--kt-cpuinfer 96 --kt-threadpool-count 2 --kt-num-gpu-experts 8 "
    "--kt-gpu-prefill-token-threshold 400 --kt-enable-dynamic-expert-update "
    "--kt-expert-placement-strategy uniform --max-total-tokens 50000 --tensor-parallel-size 4 "
    "--attention-backend flashinfer --fp8-gemm-backend cutlass --trust-remote-code": (
        "/m/K2 --port 30000 --threads 96 --set cache.pages=3125 --set experts.stream=400 "
        "--set placement.gpu_experts=8 --set placement.tensor_parallel=4"
    ),
    "sglang serve Qwen/Qwen3-8B --context-length 8192 --disable-radix-cache --random-seed 7 "
    "--trust-remote-code --attention-backend torch_native --disable-cuda-graph --tp 1": (
        "Qwen/Qwen3-8B --port 30000 --context 8192 --set cache.prefix=false --set seed=7"
    ),
    "python -m sglang.launch_server --model-path DIR --device cpu --mem-fraction-static 0.2 "
    "--host 127.0.0.1 --port 18201 --page-size 64 --max-total-tokens 4096 --context-length 8192 "
    "--enable-hierarchical-cache --hicache-size 30 --hicache-write-policy write_back": (
        "DIR --host 127.0.0.1 --port 18201 --device cpu --context 4096 --set cache.host=30GiB "
        "--set cache.page_tokens=64 --set cache.pages=64 --set cache.write=evict"
    ),
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING=True vllm serve M --enable-lora --max-loras 4 "
    "--max-lora-rank 64 --lora-modules sql=/a/sql "
    """'{"name": "chat", "path": "/a/b,c", "base_model_name": "M"}' --port 8001""": (
        "M --port 8001 --adapter sql=/a/sql --adapter chat=/a/b,c"
    ),
    "python -m sglang.launch_server --model-path M --max-loras-per-batch 2 --lora-paths "
    """/a/sql chat=/a/chat '{"lora_name": "it", "lora_path": "/a/it", "pinned": true}'""": (
        "M --port 30000 --adapter /a/sql=/a/sql --adapter chat=/a/chat --adapter it=/a/it"
    ),
    "kt run /models/K2 --gpu-experts 8 --cpu-threads 60 --numa-nodes 2 --kt-method RAWINT4 "
    "--kt-gpu-prefill-threshold 4096 --max-running-requests 4 --dry-run": (
        "/models/K2 --port 30000 --threads 60 --set experts.stream=4096 "
        "--set placement.gpu_experts=8 --set scheduler.max_running=4"
    ),
    "python ktransformers/server/main.py --model_path /m/V3 --gguf_path /m/gguf --cpu_infer 33 "
    "--cache_lens 32768 --chunk_size 256 --max_batch_size 4 --backend_type balance_serve "
    "--optimize_config_path rules.yaml --port 10002": (
        "/m/V3 --port 10002 --threads 33 --set cache.pages=2048 --set placement.rules=rules.yaml "
        "--set scheduler.max_batch_tokens=256 --set scheduler.max_running=4 "
        "--set scheduler.prefill_chunk=256"
    ),
    "python -m ktransformers.local_chat --model_path deepseek-ai/DeepSeek-V3 --gguf_path ./gguf "
    "--cpu_infer 33 --max_new_tokens 1000 --cache_lens 1500 --force_think true --use_cuda_graph": (
        "deepseek-ai/DeepSeek-V3 --threads 33 --set cache.pages=94 --set max_completion_tokens=1000"
    ),
    "CUDA_VISIBLE_DEVICES=0 numactl --interleave=all ./build/bin/llama-server "
    "-hf unsloth/Qwen3-30B-A3B-GGUF:Q4_K_M -c 32768 -np 4 -ngl 99 -ot '.ffn_.*_exps.=CPU' "
    "-fa on -t 16 -b 4096 -ub 512 -ctk q8_0 -ctv q8_0 --jinja --mlock --no-mmap --api-key k": (
        "unsloth/Qwen3-30B-A3B-GGUF:Q4_K_M --port 8080 --api-key k --context 8192 "
        "--threads 16 --set cache.pages=2048 --set placement.gpu_experts=0 "
        "--set scheduler.max_batch_tokens=4096 --set scheduler.max_running=4 "
        "--set scheduler.prefill_chunk=512"
    ),
    "./build/bin/llama-server --model /m/Kimi-K2-IQ4_KS.gguf --alias K2 --ctx-size 32768 -fmoe "
    "-mla 3 -ger --n-gpu-layers 99 --override-tensor exps=CPU --parallel 1 --threads 48 "
    "--threads-batch 64 --host 127.0.0.1 --port 8080 -amb 512 -rtr": (
        "/m/Kimi-K2-IQ4_KS.gguf --host 127.0.0.1 --port 8080 --served-model-name K2 "
        "--context 32768 --threads 48 --set cache.pages=2048 --set placement.gpu_experts=0 "
        "--set scheduler.max_running=1"
    ),
    "docker run -p 8080:8080 -v /path/to/models:/models --gpus all "
    "ghcr.io/ggml-org/llama.cpp:server-cuda -m /models/7B/ggml-model-q8_0.gguf --port 8000 "
    "--host 0.0.0.0 -n 512 --n-gpu-layers 99": (
        "/path/to/models/7B/ggml-model-q8_0.gguf --host 0.0.0.0 --port 8080 "
        "--set max_completion_tokens=512"
    ),
    "llama-server -m /m/gpt-oss-120b-F16.gguf --n-cpu-moe 36 -c 0 -fa --no-webui": (
        "/m/gpt-oss-120b-F16.gguf --port 8080 --set page=false"
    ),
    "llama-cli -m m/Qwen3-8B-Q8_0.gguf -p 'Hello' -n 64 -c 4096 -ngl 0 --temp 0.6": (
        "m/Qwen3-8B-Q8_0.gguf --device cpu --context 4096 --set max_completion_tokens=64"
    ),
    "vllm serve Qwen/Qwen3-8B --max-model-len 32k --max-num-seqs 2048 --tensor-parallel-size=2 "
    "--gpu-memory-utilization 0.9 --kv-cache-dtype fp8 --enable-prefix-caching "
    "--served-model-name a b --dtype bfloat16 --cpu-offload-gb 0 --api-key secret": (
        "Qwen/Qwen3-8B --served-model-name a,b --api-key secret --weight-format bfloat16 "
        "--context 32000 --set placement.tensor_parallel=2 "
        "--set scheduler.max_batch_tokens=2048 --set scheduler.max_running=2048"
    ),
    "V/bin/python -m vllm.entrypoints.openai.api_server --model DIR --host 127.0.0.1 --port 18101 "
    "--max-model-len 2048 --enforce-eager --dtype bfloat16 --served-model-name tiny "
    "--block-size 32 --enable-prompt-tokens-details --max-num-batched-tokens 4096 "
    "--no-enable-prefix-caching --kv-offloading-size 8 --revision main": (
        "DIR --host 127.0.0.1 --port 18101 --served-model-name tiny --weight-format bfloat16 "
        "--context 2048 --set cache.page_tokens=32 --set cache.prefix=false "
        "--set scheduler.max_batch_tokens=4096 --set scheduler.prefill_chunk=4096"
    ),
    "VLLM_USE_V1=1 VLLM_CPU_KVCACHE_SPACE=40 VLLM_CPU_OMP_THREADS_BIND=0-31 vllm serve org/name "
    "--dtype=bfloat16 -tp=2 --distributed-executor-backend mp --max_num_batched_tokens 2048": (
        "org/name --weight-format bfloat16 --set cache.memory=40GiB "
        "--set placement.tensor_parallel=2 --set scheduler.max_batch_tokens=2048 "
        "--set scheduler.prefill_chunk=2048"
    ),
    "docker run --gpus all --rm -it -v ~/.cache/huggingface:/hf "
    "-v /data/models:/models -e OMP_NUM_THREADS=8 -p 9000:8000 --ipc=host "
    "vllm/vllm-openai:latest --model /models/Qwen3-8B-AWQ -q awq": (
        "/data/models/Qwen3-8B-AWQ --host 0.0.0.0 --port 9000 --threads 8"
    ),
    "podman run -d -p 127.0.0.1:30000:30000 lmsysorg/sglang:latest "
    "python3 -m sglang.launch_server --model-path org/name --revision v2 --host 0.0.0.0": (
        "org/name@v2 --host 127.0.0.1 --port 30000"
    ),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_lines_of_real_commands(command: str) -> None:
    migration = translate([command])
    assert " ".join(migration.line.arguments) == f"serve {COMMANDS[command]}"
    assert_accepted(migration)
    unknown = [finding.flag for finding in migration.findings if finding.fate is Fate.UNKNOWN]
    assert not unknown
    assert all(finding.reason for finding in migration.findings)


def test_the_talk_says_what_happens_to_each_flag() -> None:
    fates: dict[Fate, set[str]] = {}
    for finding in translate([TALK]).findings:
        fates.setdefault(finding.fate, set()).add(finding.flag.partition(" ")[0])
    assert fates[Fate.NEEDLESS] == {
        "--kt-weight-path",
        "--kt-threadpool-count",
        "--mem-fraction-static",
        "--enable-mixed-chunk",
        "--enable-p2p-check",
        "--disable-shared-experts-fusion",
    }
    assert set(fates) == {Fate.LINE, Fate.NEEDLESS}
    written = {word for word in TALK.split() if word.startswith("--")}
    assert set.union(*fates.values()) - {""} == written


def test_the_config_means_what_the_talk_asked_for() -> None:
    config = assert_accepted(translate([TALK]))
    engine = config.engine
    assert (config.host, config.port, config.names) == ("0.0.0.0", 8000, ("N",))
    assert (engine.model, engine.device, engine.weight_format) == ("M", "auto", "int8")
    assert (engine.placement.gpu_experts, engine.experts.deferral) == (1, 2)
    assert engine.placement.tensor_parallel == 2
    assert engine.cache.pages is not None
    assert engine.cache.pages * engine.cache.page_tokens == 512
    assert (engine.scheduler.max_running, engine.scheduler.prefill_chunk) == (4, 2048)


def test_unknown_flags_are_named() -> None:
    migration = translate(["vllm serve M --new-thing 3 --other --port 1 UNKNOWN_X"])
    unknown = [finding.flag for finding in migration.findings if finding.fate is Fate.UNKNOWN]
    assert unknown == ["--new-thing 3", "--other", "UNKNOWN_X"]
    variables = translate(["FOO_BAR=1 vllm serve M"]).findings
    assert [f.flag for f in variables if f.fate is Fate.UNKNOWN] == ["FOO_BAR=1"]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("nginx -c nginx.conf", "'nginx -c nginx.conf' starts no program.*SGLang.*vLLM"),
        ("vllm bench serve", "starts no program"),
        ("", "the command' starts no program"),
        ("vllm serve 'M", "No closing quotation"),
        ("vllm serve M --port", "--port needs a value"),
        ("vllm serve M --port --dtype auto", "--port needs a value"),
        ("vllm serve M --port $PORT", "--port .PORT: must be a whole number.*variables are not"),
        ("vllm serve M --max-num-seqs 0", "--max-num-seqs 0: must be .* at least 1"),
        ("docker run -p 1:1", "names no image"),
        ("vllm serve -1", "-1 is no name of a model"),
    ],
)
def test_what_cannot_be_translated(command: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        translate([command])


def test_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["migrate", TALK]) == 0
    text = capsys.readouterr().out
    assert text.startswith("inlay serve M --host 0.0.0.0 --port 8000 ")
    assert "No longer needed" in text
    assert run(["migrate", "--json", "--", *shlex.split(TALK.replace("\\\n", " "))]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["line"] == translate([TALK]).line.text()
    assert found["program"] == "SGLang"
    methods = [flag for flag in found["flags"] if flag["flag"] == "--kt-method AMXINT8"]
    assert methods[0]["becomes"] == ["--weight-format int8"]
    assert run(["migrate", "nginx -g x"]) == 2
    assert "starts no program that inlay migrate knows" in capsys.readouterr().err


def test_the_guide_shows_what_is_printed() -> None:
    guide = (ROOT / "docs" / "guides" / "migrate.md").read_text()
    shown = re.search(r"```console\n\$ inlay migrate '(python.*?)'\n(.*?)```", guide, re.DOTALL)
    assert shown
    console = Console(file=StringIO(), width=120)
    print_report(console, translate([shown[1]]))
    printed = [line.rstrip() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]
    assert printed == shown[2].splitlines()
    assert shlex.split(shown[1].replace("\\\n", "")) == shlex.split(TALK.replace("\\\n", ""))


def test_what_a_shell_would_do_to_a_command() -> None:
    plain = translate(["vllm serve M --port 1 --max-num-seqs 8"]).line.arguments
    for text in (
        "$ vllm serve M \\ \n  --port 1 \\\n --max-num-seqs 8 > log.txt 2>&1 &",
        "cd /tmp && source venv/bin/activate\nnohup vllm serve M --port=1 --max_num_seqs=8 | tee x",
        "vllm serve M \\ --port 1 \\  --max-num-seqs 8 \\",
        "sudo env A=1 bash -c 'vllm serve M --port 1 --max-num-seqs 8'",
        "vllm serve \u201cM\u201d \u2013port 1 \u2014max-num-seqs 8",
        "uv run --with vllm vllm serve M --port 1 --max-num-seqs 8",
    ):
        assert translate([text]).line.arguments == plain, text
    others = [finding.flag for finding in translate(["cd /tmp && vllm serve M"]).findings]
    assert "cd /tmp" in others


def test_words_around_the_program_that_stay() -> None:
    line = translate(
        ["export HF_TOKEN=t; CUDA_VISIBLE_DEVICES=1 taskset -c 0-7 vllm serve '$HOME/a b'"]
    ).line
    assert line.text() == (
        'CUDA_VISIBLE_DEVICES=1 HF_TOKEN=t taskset -c 0-7 inlay serve "$HOME/a b"'
    )
    assert line.text(literal=True).endswith("inlay serve '$HOME/a b'")
    cores = translate(["llama-server -m x.gguf -t $(nproc) -c 4096"]).findings
    assert [one.fate for one in cores if one.flag == "-t $(nproc)"] == [Fate.NEEDLESS]
    numa = translate(["numactl --cpunodebind 0 -l llama-server -m x.gguf"]).line
    assert numa.before == ("numactl", "--cpunodebind", "0", "-l")


@pytest.mark.parametrize(
    ("flags", "model"),
    [
        ("-hf org/name-GGUF", "org/name-GGUF:Q4_K_M"),
        ("-hf org/name-GGUF:UD-Q4_K_XL", "org/name-GGUF:UD-Q4_K_XL"),
        ("-hf org/name-GGUF -hff sub/name-IQ3_XXS-00001-of-00002.gguf", "org/name-GGUF:IQ3_XXS"),
        ("-hf org/name-GGUF -hff name.gguf", "MODEL"),
        (
            "-mu https://huggingface.co/org/name/resolve/main/name-Q8_0.gguf?download=true",
            "org/name:Q8_0",
        ),
        ("-mu https://huggingface.co/org/name/resolve/v1/a-BF16.gguf", "org/name@v1:BF16"),
        ("-mu https://example.com/a-Q8_0.gguf", "MODEL"),
        ("-m ./a.gguf -hff x.gguf", "./a.gguf"),
    ],
)
def test_names_of_gguf(flags: str, model: str) -> None:
    found = translate([f"llama-server {flags}"])
    assert found.line.arguments[1] == model
    reasons = " ".join(one.reason for one in found.findings if one.fate == Fate.NOT_YET)
    assert ("once it is here" in reasons) == (model == "MODEL")


@pytest.mark.parametrize(
    ("command", "settings"),
    [
        ("llama-server -m x.gguf -ngl 99 --cpu-moe", "--set placement.gpu_experts=0"),
        ("llama-server -m x.gguf --n-cpu-moe 999", "--set placement.gpu_experts=0"),
        ("llama-server -m x.gguf -ngl 20 --n-cpu-moe 12", ""),
        (r"llama-server -m x.gguf -ot 'blk\.[0-9]\.ffn_.*_exps=CPU'", ""),
        (
            "llama-server -m x.gguf -ot 'ffn_up_exps=CPU,ffn_down_exps=CPU'",
            "placement.gpu_experts=0",
        ),
        ("llama-server -m x.gguf -ot 'attn=CPU'", ""),
        ("llama-server -m x.gguf -ngl 0 --cpu-moe", "--device cpu"),
        ("python -m sglang.launch_server --model M --kt-gpu-experts-ratio 0", "gpu_experts=0"),
        ("python -m sglang.launch_server --model M --kt-gpu-experts-ratio 0.25", ""),
        ("vllm serve M --cpu-offload-gb 20 -pp 2", ""),
    ],
)
def test_what_a_gpu_has_of_a_model(command: str, settings: str) -> None:
    migration = translate([command])
    line = migration.line.text()
    assert settings in line and settings.endswith("cpu") == ("--device" in line)
    assert ("gpu_experts" in line) == ("gpu_experts" in settings)
    assert not [one for one in migration.findings if one.fate is Fate.NOT_YET]
    assert_accepted(migration)


def test_gpus_that_share_each_layer() -> None:
    def reasons(command: str) -> dict[str, str]:
        migration = translate([command])
        assert_accepted(migration)
        return {one.flag: one.reason for one in migration.findings}

    on_cpus = translate(["python -m sglang.launch_server --model M --device cpu --tp 2"])
    assert "tensor_parallel" not in on_cpus.line.text()
    found = {one.flag: one.reason for one in on_cpus.findings}
    assert "all NUMA nodes share every layer" in found["--tp 2"]
    assert "that is what Inlay does" in reasons("vllm serve M -tp 1")["-tp 1"]
    tier = reasons("vllm serve M -tp 2 --kv-offloading-size 8")["--kv-offloading-size 8"]
    assert "has a part of them" in tier


def test_of_a_gguf_that_no_other_program_reads() -> None:
    foreign = translate(["llama-server -m a-IQ4_KS.gguf"]).findings
    assert any("IQ4_KS is read by ik_llama.cpp alone" in one.reason for one in foreign)


def test_two_flags_for_one_thing() -> None:
    found = {
        finding.flag: finding
        for finding in translate(
            ["OMP_NUM_THREADS=2 llama-server -m m.gguf -t 4 -t 8 -ctk bf16 -ctv bf16 -c 4096"]
        ).findings
    }
    assert found["-t 8"].becomes == ("--threads 8",)
    assert found["-t 4"].reason == "the last -t counts"
    assert found["OMP_NUM_THREADS=2"].reason == "gives way to -t 8"
    assert found["-ctv bf16"].reason == "says the same as -ctk bf16"
    without = translate(
        [
            "python -m sglang.launch_server --model-path M --device cpu --kt-num-gpu-experts 4 "
            "--kt-max-deferred-experts-per-token 2 --kt-method AMXINT8"
        ]
    )
    assert without.line.text().endswith("M --port 30000 --device cpu --weight-format int8")
    reasons = {finding.flag: finding.reason for finding in without.findings}
    assert reasons["--kt-num-gpu-experts 4"] == "the CPU computes all of the model"
