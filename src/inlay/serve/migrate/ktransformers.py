"""KTransformers: its flags in SGLang, and its older server.

Source: kt-kernel 0.7 with its fork of SGLang, and the archived KTransformers 0.4.
"""

import math
from dataclasses import replace

from inlay.serve.migrate import shared
from inlay.serve.migrate.program import Implied, Program, listens
from inlay.serve.migrate.rows import Aside, Fate, elsewhere, needless, not_yet, to
from inlay.serve.migrate.values import INT4, INT8, choice, text, threads, whole

_MOST_DEFERRED = 64  # as `ExpertsConfig` accepts it

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
    "more accurate); int4 has one per 32 weights, where AMXINT4 has one per row. All matrices "
    "have it: with +bfloat16 behind it only experts"
)
_MOVES = (
    "experts that tokens choose often come to the GPU while the model serves, whichever are there "
    "first; `--set experts.moves=SIZE` says how many bytes a second, 0 none"
)
_RULES = "where each module runs; `inlay plan --rules` tells it before"
_WHILE_SERVING = "which experts are used often is found out while the model serves"

KT = "#kt"  # wanted where experts are KTransformers', whatever else is said of them
IMPLIED = (
    Implied(
        target="--weight-format",
        value=INT4,
        reason="AMXINT4 is the method unless --kt-method says another",
        when=KT,
    ),
)


def _share(value: str) -> str | Aside:
    """A share of all experts, which is a number where it is nothing."""
    try:
        share = float(value)
    except ValueError:
        share = math.nan
    if not 0 <= share <= 1:
        raise ValueError("a share, 0 to 1")
    if share == 0:
        return "0"
    return Aside(
        Fate.NEEDLESS,
        "as many experts as its memory has room for are on the GPU; a share of those that a layer "
        "has is a number, which `--set placement.gpu_experts=N` takes",
    )


EXPERTS = (
    to(
        "--kt-method --kt-amx-method METHOD",
        "--weight-format",
        _METHOD_REASON,
        choice(_METHODS, otherwise=_UNREAD),
    ),
    needless(
        "--kt-weight-path --kt-amx-weight-path DIR",
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
    to("--kt-gpu-experts-ratio SHARE", shared.GPU_EXPERTS, shared.NO_EXPERTS, _share),
    to(
        "--kt-num-gpu-experts --gpu-experts N",
        shared.GPU_EXPERTS,
        "of each layer; without it as many as the GPU's memory has room for",
        whole(0),
    ),
    needless("--kt-expert-placement-strategy --init-expert-location NAME", _MOVES),
    needless("--kt-enable-dynamic-expert-update", _MOVES),
    to(
        "--kt-max-deferred-experts-per-token N",
        "experts.deferral",
        "while a token decodes, of the experts that the CPU computes: at least two of all that it "
        "chose are added in their own layer, and all of the last one. `auto` chooses a number, and "
        "watches what it changes",
        whole(0, _MOST_DEFERRED),
    ),
    to(
        "--kt-gpu-prefill-token-threshold --kt-gpu-prefill-threshold N",
        "experts.stream",
        "prompt tokens of a step from which the CPU's experts are brought to the GPU; without it "
        "as soon as that is quicker. It counts tokens of one step: those of a chunk",
        whole(0),
    ),
    needless("--record-kt-gpu-expert-distribution", _WHILE_SERVING),
    needless("--expert-distribution-recorder-mode MODE", _WHILE_SERVING),
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
    implied=(listens(10002),),
    rows=(
        to("--model-path --model-dir DIR", "MODEL", "the model's files", text),
        not_yet(
            "--gguf-path PATH",
            "Inlay takes the weights of --model_path, so its directory has to hold *.safetensors; "
            "or put the first *.gguf file of this one in its place, which needs nothing else",
        ),
        to("--model-name NAME", "--served-model-name", "the name that clients use"),
        to("--cpu-infer N", "--threads", shared.THREADS, threads),
        to("--optimize-config-path --optimize-rule-path FILE", "placement.rules", _RULES, text),
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
    implied=(),
    note="local_chat is for the terminal: `inlay chat` takes the same MODEL and options.",
)
