"""llama.cpp and its fork ik_llama.cpp. Source: the options of `llama-server` as of 2026."""

import re

from inlay.serve.migrate import shared
from inlay.serve.migrate.model_name import GGUF_FILE
from inlay.serve.migrate.program import Program, listens
from inlay.serve.migrate.rows import Aside, Fate, elsewhere, needless, not_yet, to
from inlay.serve.migrate.values import (
    LEFT_TO_INLAY,
    kv_dtype,
    names,
    switch,
    text,
    threads,
    whole,
)

_ALL_LAYERS = Aside(Fate.NEEDLESS, "a GPU takes all layers for which it has room")
_SOME = Aside(Fate.NEEDLESS, shared.FILLED)
_MORE_THAN_ALL = 99  # people write 99 or 999 for all layers; no model here has as many


def _layers(value: str) -> str | Aside:
    """`-ngl`: none, all, or some."""
    if value in ("all", "auto"):
        return _ALL_LAYERS
    if re.fullmatch(r"-?\d+", value) is None:
        raise ValueError("a whole number, all or auto")
    number = int(value)
    if number == 0:
        return "cpu"
    return _ALL_LAYERS if number < 0 or number >= _MORE_THAN_ALL else _SOME


def _layers_of_host(value: str) -> str | Aside:
    """`--n-cpu-moe`: in how many layers the CPU has the experts."""
    if re.fullmatch(r"\d+", value) is None:
        raise ValueError("a whole number")
    return "0" if int(value) >= _MORE_THAN_ALL else _SOME


def _overrides(value: str) -> str | Aside:
    """`--override-tensor`: patterns of tensors' names with a device each."""
    pairs = [pair.rpartition("=") for pair in value.split(",")]
    if not all(equals and pattern for pattern, equals, _ in pairs):
        raise ValueError("PATTERN=DEVICE")
    of_experts = all("exps" in pattern and device == "CPU" for pattern, _, device in pairs)
    # One that names layers names some of them.
    some = any(re.search(r"blk\W*\.[\[(]*\d", pattern) for pattern, _, _ in pairs)
    return "0" if of_experts and not some else _SOME


def _device(value: str) -> str | Aside:
    """`--device`: `none`, `CUDA0`, or a list."""
    if value.lower() == "none":
        return "cpu"
    if "," in value:
        return Aside(
            Fate.NEEDLESS, f"{shared.IN_STAGES}; CUDA_VISIBLE_DEVICES leaves some of them out"
        )
    found = re.fullmatch(r"cuda(\d*)", value.lower())
    if found is None:
        return Aside(Fate.NOT_YET, "Inlay runs on CPUs and CUDA")
    return f"cuda:{found[1]}" if found[1] else "cuda"


def _mebibytes(value: str) -> str | Aside:
    """`--cache-ram`: MiB, 0 for none, -1 for no limit."""
    if re.fullmatch(r"-?\d+", value) is None:
        raise ValueError("a number of MiB")
    return f"{value}MiB" if int(value) > 0 else LEFT_TO_INLAY


_ALL = Aside(Fate.NEEDLESS, "the model's context is the limit unless --context is set")
_MODEL = (
    to("-m --model LLAMA_ARG_MODEL= FILE", "#gguf", "the model", text),
    to(
        "-hf -hfr --hf-repo LLAMA_ARG_HF_REPO= NAME:QUANT",
        "#gguf",
        "the model",
        text,
    ),
    needless(
        "-hff --hf-file LLAMA_ARG_HF_FILE= FILE",
        "the file's name says the quantisation, whose files are fetched",
        target=GGUF_FILE,
    ),
    to("-mu --model-url LLAMA_ARG_MODEL_URL= URL", "#gguf", "the model", text),
    to("-a --alias LLAMA_ARG_ALIAS= NAME", "--served-model-name", "what clients call it", names),
    to("-hft --hf-token TOKEN", "env:HF_TOKEN", "the hub's own variable says it", text),
    not_yet("--mmproj -mm --mmproj-url FILE", shared.IMAGES),
    not_yet(
        "--lora --lora-scaled FILE",
        "adapters are read in PEFT's form, not as GGUF: write `--adapter NAME=DIRECTORY` with the "
        "one that it was made from",
    ),
    not_yet("--control-vector FILE", "adapters change a model, vectors do not"),
    not_yet("-md --model-draft -hfd --hf-repo-draft --spec-type FILE", shared.DRAFTS),
    not_yet("--draft-max --draft --draft-min --draft-p-min -ngld -cd -devd N", shared.DRAFTS),
    not_yet(
        "--rope-scaling --rope-scale --rope-freq-base --rope-freq-scale --yarn-* N", shared.RULES
    ),
    not_yet("--override-kv TEXT", shared.RULES),
)
_DEVICES = (
    to(
        "-ngl --gpu-layers --n-gpu-layers LLAMA_ARG_N_GPU_LAYERS= N",
        "--device",
        "no layer on a GPU",
        _layers,
    ),
    to("-dev --device LLAMA_ARG_DEVICE= NAME", "--device", "where the model runs", _device),
    to("-cmoe --cpu-moe", shared.GPU_EXPERTS, shared.NO_EXPERTS, switch(on="0")),
    to(
        "-ot --override-tensor LLAMA_ARG_OVERRIDE_TENSOR= PATTERN=DEVICE",
        shared.GPU_EXPERTS,
        shared.NO_EXPERTS,
        _overrides,
    ),
    to(
        "-ncmoe --n-cpu-moe LLAMA_ARG_N_CPU_MOE= N",
        shared.GPU_EXPERTS,
        shared.NO_EXPERTS,
        _layers_of_host,
    ),
    needless("-sm --split-mode -ts --tensor-split -mg --main-gpu MODE", shared.IN_STAGES),
    needless("-fit --fit [on|off]", shared.NO_FRACTION),
    needless("-fitt --fit-target -fitc --fit-ctx N", shared.NO_FRACTION),
    needless("-kvo --kv-offload -nkvo --no-kv-offload", "keys and values are where the model is"),
    needless(
        "--numa LLAMA_ARG_NUMA= MODE", "Inlay finds the NUMA nodes and spreads weights over them"
    ),
    to(
        "-t --threads LLAMA_ARG_THREADS= N",
        "--threads",
        shared.THREADS,
        threads,
    ),
    needless("-tb --threads-batch N", "one pool of threads computes prefill and decode"),
    needless(
        "-C --cpu-mask -Cr --cpu-range --cpu-strict --prio --poll --cpu-mask-batch MASK",
        "Inlay's threads stay on their NUMA nodes; `taskset` in front of the line limits them",
    ),
    needless(
        "--mlock",
        "weights that were quantised while loading are no file pages that the system could drop; "
        "against swapping there is no setting",
    ),
    needless("--no-mmap --mmap --direct-io -dio", "weights are packed into memory as they load"),
    needless("-rtr --run-time-repack --no-repack -nr", "weights are packed for the CPU's kernels"),
)
_CACHE = (
    to(
        "-c --ctx-size LLAMA_ARG_CTX_SIZE= N",
        "#shared_context",
        "llama.cpp divides it among the slots of -np; Inlay counts per request, and holds the "
        "keys and values of all slots in one pool",
        whole(1, below=_ALL),
    ),
    to(
        "-np --parallel LLAMA_ARG_N_PARALLEL= N",
        "scheduler.max_running",
        shared.RUNNING,
        whole(1, below=LEFT_TO_INLAY),
    ),
    to(
        "-kvu --kv-unified",
        "#undivided",
        "every request may use the whole context, as always in Inlay",
        switch(on="true"),
    ),
    to(
        "-b --batch-size LLAMA_ARG_BATCH= N",
        "scheduler.max_batch_tokens",
        shared.STEP,
        whole(),
    ),
    to("-ub --ubatch-size LLAMA_ARG_UBATCH= N", "scheduler.prefill_chunk", shared.CHUNK, whole()),
    to(
        "-ctk --cache-type-k LLAMA_ARG_CACHE_TYPE_K= TYPE",
        "cache.dtype",
        "of keys and values",
        kv_dtype,
    ),
    to(
        "-ctv --cache-type-v LLAMA_ARG_CACHE_TYPE_V= TYPE",
        "cache.dtype",
        "of keys and values",
        kv_dtype,
    ),
    needless("-fa --flash-attn LLAMA_ARG_FLASH_ATTN= [on|off|auto]", shared.KERNELS),
    needless("-cb --cont-batching -nocb --no-cont-batching", "requests always join and leave"),
    needless(
        "--cache-reuse --keep --slot-prompt-similarity -sps N",
        "equal beginnings of prompts are reused in blocks, whichever request had them",
    ),
    to("--no-cache-prompt", "cache.prefix", "nothing is reused", switch(on="false")),
    needless("--cache-prompt", shared.ALWAYS),
    to(
        "-cram --cache-ram MIB",
        "cache.host",
        "memory behind the device's pages",
        _mebibytes,
    ),
    needless("--swa-full", "pages hold all tokens"),
    needless("--ctx-checkpoints --swa-checkpoints N", "pages hold all tokens"),
    needless("--context-shift --no-context-shift", "a full context ends the answer"),
    not_yet("--slot-save-path DIR", "`--set cache.disk=DIR:SIZE` keeps blocks over a restart"),
    needless(
        "-mla --mla-use -amb --attention-max-batch -ser --smart-expert-reduction N",
        "every expert that the router chooses is computed, and attention by one kernel",
    ),
    needless(
        "-fmoe --fused-moe -no-fmoe -ger --grouped-expert-routing",
        "gate, up and down of experts are one call",
    ),
)
_SERVER = (
    shared.HOST,
    shared.PORT,
    to("--api-key LLAMA_API_KEY= KEY", "--api-key", "requests must carry it", text),
    not_yet("--api-key-file FILE", "the key itself is given: --api-key"),
    not_yet("--ssl-key-file --ssl-cert-file FILE", "HTTP only: put a proxy before it"),
    to("--no-webui", "page", "no chat page at /", switch(on="false")),
    needless(
        "--webui --metrics --props --slots --no-slots", "the page, /metrics and /v1 are there"
    ),
    needless("--path --api-prefix DIR", "Inlay brings its own page"),
    needless("--jinja --no-jinja", "the model's own chat template is used unless you name another"),
    to(
        "--chat-template-file FILE",
        "--chat-template",
        "written with instead of the model's own",
        text,
    ),
    not_yet("--chat-template NAME", "no templates are built in: name a file, --chat-template"),
    elsewhere("--chat-template-kwargs JSON", "requests say it: chat_template_kwargs"),
    needless("--reasoning-format NAME", "Inlay knows the notation from the model's chat template"),
    elsewhere("--reasoning-budget N", "requests say it: chat_template_kwargs"),
    not_yet("--embedding --embeddings --reranking --rerank", "only models that generate text"),
    not_yet("--pooling NAME", "only models that generate text"),
    to(
        "-n --predict --n-predict LLAMA_ARG_N_PREDICT= N",
        "max_completion_tokens",
        "most tokens of an answer",
        whole(1, below=LEFT_TO_INLAY),
    ),
    to(
        "-s --seed N",
        "seed",
        "of the seeds that the engine chooses for requests",
        whole(0, below=LEFT_TO_INLAY),
    ),
    elsewhere(
        "--temp --temperature --top-k --top-p --min-p --typical --top-n-sigma --repeat-penalty "
        "--repeat-last-n --presence-penalty --frequency-penalty --samplers --mirostat --dry-* "
        "--xtc-* --logit-bias -l --grammar --grammar-file -j --json-schema N",
        shared.IN_REQUESTS,
    ),
    needless("--ignore-eos", "requests say it: ignore_eos"),
    needless("-to --timeout --threads-http N", "connections stay open while their client is there"),
    needless(
        "--warmup --no-warmup --no-perf --perf", "there is no such run; requests are timed anyway"
    ),
    needless("--check-tensors", "values that are not finite are refused while loading"),
    to("--offline LLAMA_OFFLINE=", "offline", "no model is fetched", switch(on="true")),
    to("-v --verbose --log-verbose", "env:INLAY_LOG", "the level of the log", switch(on="debug")),
    needless("-lv --verbosity --log-verbosity --log-file N", "INLAY_LOG says the level; stderr"),
    needless("--log-disable --log-timestamps --log-prefix --log-colors", "one log, on stderr"),
    not_yet("--models-dir --models-preset --models-max FILE", "one server serves one model"),
    not_yet("--spec-* -td -tbd -ctkd -ctvd -otd -cmoed -ncmoed -lcs -lcd N", shared.DRAFTS),
    needless("--no-op-offload --no-host --no-extra-bufts --repack", "Inlay places by itself"),
    not_yet("--no-mmproj --mmproj-auto --no-mmproj-auto", shared.IMAGES),
    not_yet("--media-path --image-min-tokens --image-max-tokens NAME", shared.IMAGES),
    elsewhere("--prefill-assistant --no-prefill-assistant", "requests say it"),
    needless("--escape --no-escape", "the line holds no prompt"),
    needless("--ui", "the chat page is always at /"),
    to("--no-ui", "page", "no chat page at /", switch(on="false")),
    needless("-dt --defrag-thold N", "pages leave no holes"),
    needless("GGML_*= LLAMA_*= VALUE", shared.KERNELS),
)
_TALK = (
    elsewhere("-p --prompt -f --file -sys --system-prompt TEXT", "it is given to `inlay chat`"),
    needless(
        "-cnv --conversation -no-cnv -i --interactive -if --color -st --single-turn -mli -e "
        "--simple-io --special -co",
        "`inlay chat` and `inlay generate` are for the terminal",
    ),
    needless("-r --reverse-prompt --in-prefix --in-suffix TEXT", "the chat template says it"),
)
_ROWS = (*_MODEL, *_DEVICES, *_CACHE, *_SERVER)


SERVER = Program(
    name="llama.cpp",
    starts=("llama-server", "llama serve"),
    images=("*llama.cpp:server*",),
    implied=(listens(8080),),
    rows=(*_ROWS, *shared.KEPT),
)
TERMINAL = Program(
    name="llama.cpp (terminal)",
    starts=("llama-cli", "llama cli"),
    images=("*llama.cpp:light*",),
    rows=(*_TALK, *_ROWS, *shared.KEPT),
    note="llama-cli talks in the terminal: `inlay chat` does that with the same MODEL and options.",
)
