"""KTransformers: its flags in SGLang, and its older server.

Source: kt-kernel 0.7 with its fork of SGLang, and the archived KTransformers 0.4.
"""

from dataclasses import replace

from inlay.serve.migrate import shared
from inlay.serve.migrate.program import Implied, Program, listens
from inlay.serve.migrate.rows import Aside, Fate, elsewhere, needless, not_yet, to
from inlay.serve.migrate.values import INT4, INT8, choice, text, threads, whole

_UNREAD = Aside(
    Fate.NOT_YET,
    "experts in this format are not read: name the model's float files, and choose int4 or "
    "int8:g32 with --weight-format",
    "--weight-format",
    "auto",
)
_READ = Aside(
    Fate.NEEDLESS,
    "what the model's files hold is read, as their config.json says",
    "--weight-format",
    "auto",
)
# All others (LLAMAFILE, FP8_PERCHANNEL, ...) read files that Inlay does not.
_METHODS: dict[str, str | Aside] = {
    "FP8": _READ,
    "RAWINT4": _READ,
    "MXFP4": _READ,
    "AMXINT8": INT8,
    "MOE_INT8": INT8,
    "AMXINT4": INT4,
    "MOE_INT4": INT4,
    "BF16": "bfloat16",
}
_METHOD_REASON = (
    "as many bits, on any CPU, AMX or not. int8 has a scale per row, as AMXINT8 has (int8:g32 is "
    "more accurate); int4 has one per 32 weights, where AMXINT4 has one per row"
)
_ON_CPU = "the CPU computes all experts; that takes no GPU memory, and no placement to choose"
_RULES = "no rules for placement: all of the model runs on one device"

KT = "#kt"  # wanted where experts are KTransformers', whatever else is said of them
ON_CPU = replace(shared.SPLIT, when="")
IMPLIED = (
    Implied(
        target="--weight-format",
        value=INT4,
        reason="AMXINT4 is the method unless --kt-method says another",
        when=KT,
    ),
    replace(ON_CPU, when=KT),
)
EXPERTS = (
    to(
        "--kt-method METHOD", "--weight-format", _METHOD_REASON, choice(_METHODS, otherwise=_UNREAD)
    ),
    needless(
        "--kt-weight-path DIR",
        "nothing is converted beforehand: experts are packed from the model's own files while "
        "they load",
        target=KT,
    ),
    to("--kt-cpuinfer --cpu-threads N", "--threads", shared.THREADS, threads),
    needless(
        "--kt-threadpool-count --numa-nodes N",
        "Inlay finds the NUMA nodes; every matrix is spread over them, beside the threads that "
        "read it, and weights do not depend on their number",
    ),
    needless(
        "--kt-numa-nodes ID...",
        "Inlay uses all nodes; `numactl --cpunodebind` in front of the line leaves some out",
    ),
    not_yet(
        "--kt-num-gpu-experts --gpu-experts N", _ON_CPU, unless={"0": "the CPU computes them all"}
    ),
    not_yet("--kt-gpu-experts-ratio SHARE", _ON_CPU, unless={"0": "the CPU computes them all"}),
    not_yet("--kt-expert-placement-strategy --init-expert-location NAME", _ON_CPU),
    not_yet("--kt-enable-dynamic-expert-update", _ON_CPU),
    not_yet(
        "--kt-max-deferred-experts-per-token N",
        "each expert's output is added in its own layer, which is exact; deferral pays where a "
        "GPU works beside the CPU",
        unless={"0": "Inlay defers nothing"},
    ),
    not_yet(
        "--kt-gpu-prefill-token-threshold --kt-gpu-prefill-threshold N",
        "long prompts are computed by the CPU, too, in chunks",
    ),
    needless(
        "--record-kt-gpu-expert-distribution", "there are no experts on a GPU to choose by it"
    ),
    needless("--expert-distribution-recorder-mode MODE", "there is nothing to record it for"),
    not_yet("--kt-lora-path --kt-expert-lora-path DIR", shared.ADAPTERS),
    needless("SGLANG_KT_*= KT_*= CPUINFER_*= VALUE", "kernels are chosen by what the CPU can do"),
)

OLD_SERVER = Program(
    name="KTransformers 0.4",
    starts=(
        "-m ktransformers.server.main",
        "*ktransformers/server/main.py",
        "ktransformers",
    ),
    implied=(ON_CPU, listens(10002)),
    rows=(
        to("--model-path --model-dir DIR", "MODEL", "the model's files", text),
        not_yet(
            "--gguf-path PATH",
            "Inlay takes the weights of --model_path, so its directory has to hold *.safetensors; "
            "or put the first *.gguf file of this one in its place, which needs nothing else",
        ),
        to("--model-name NAME", "--served-model-name", "the name that clients use"),
        to("--cpu-infer N", "--threads", shared.THREADS, threads),
        not_yet("--optimize-config-path --optimize-rule-path FILE", _RULES),
        to("--cache-lens N", "#pool_tokens", shared.POOL, whole()),
        to("--max-batch-size N", "scheduler.max_running", shared.RUNNING, whole()),
        to(
            "--chunk-size N",
            ("scheduler.prefill_chunk", "scheduler.max_batch_tokens"),
            shared.CHUNK,
            whole(),
        ),
        to("--max-new-tokens N", "max_completion_tokens", "most tokens of an answer", whole()),
        shared.HOST,
        shared.PORT,
        to("--api-key KEY", "--api-key", "requests must carry it"),
        needless("--use-cuda-graph", shared.GRAPHS),
        needless("--backend-type NAME", "there is one engine"),
        needless("--web [BOOL]", "the chat page is always at /; `--set page=false` leaves it out"),
        elsewhere("--force-think", "requests say it: chat_template_kwargs"),
        elsewhere("--temperature --top-p --top-k --repetition-penalty N", shared.IN_REQUESTS),
        not_yet("--cache-q4", "keys and values keep the dtype of the model's files"),
        needless("--gpu-memory-size --cpu-memory-size-gb --page-size N", shared.NO_FRACTION),
        elsewhere("--prompt-file FILE", "`inlay chat` and `inlay generate` take prompts"),
        *shared.KEPT,
    ),
)
LOCAL_CHAT = replace(
    OLD_SERVER,
    name="KTransformers 0.4 (terminal)",
    starts=("-m ktransformers.local_chat", "*ktransformers/local_chat.py"),
    implied=(ON_CPU,),
    note="local_chat is for the terminal: `inlay chat` takes the same MODEL and options.",
)
