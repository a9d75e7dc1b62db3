"""vLLM. Source: the arguments of `vllm serve` 0.33, and of older api_servers."""

from inlay.serve.migrate import shared
from inlay.serve.migrate.program import Program
from inlay.serve.migrate.rows import elsewhere, needless, not_yet, to
from inlay.serve.migrate.values import (
    LEFT_TO_INLAY,
    device,
    first,
    gibibytes,
    kv_dtype,
    log_level,
    names,
    origins,
    quantization,
    size,
    switch,
    text,
    tokens,
    weight_dtype,
    whole,
)

_CONNECTORS = (
    "Inlay's tiers are `--set cache.host=SIZE`, `--set cache.disk=DIR:SIZE` and "
    "`--set cache.store=HOST:PORT`"
)

_MODEL = (
    to("--model NAME", "MODEL", "a directory, or a name on the hub", text),
    to("--served-model-name NAME...", "--served-model-name", "the names that clients use", names),
    to("--api-key VLLM_API_KEY= KEY...", "--api-key", "requests must carry it: one key", first),
    to(
        "--quantization -q NAME",
        "--weight-format",
        "quantised from float weights while they load: name the model's unquantised files",
        quantization,
    ),
    to("--dtype NAME", "--weight-format", "how weights are held", weight_dtype),
    to("--max-model-len N", "--context", shared.CONTEXT, tokens(2)),
    to(
        "--device VLLM_TARGET_DEVICE= NAME",
        "--device",
        "where the model runs",
        device,
    ),
    not_yet("--tokenizer PATH", "the model's own tokenizer.json is read"),
    not_yet("--hf-overrides --rope-scaling --rope-theta --hf-config-path JSON", shared.RULES),
    not_yet("--limit-mm-per-prompt --mm-processor-kwargs --media-io-kwargs JSON", shared.IMAGES),
    not_yet(
        "--task --runner --convert NAME",
        "models that generate text are served, no embeddings",
        unless=dict.fromkeys(("generate", "auto"), "that is what Inlay does"),
    ),
    to(
        "VLLM_USE_MODELSCOPE= BOOL",
        "#modelscope",
        "the model comes from ModelScope",
        switch(on="true"),
    ),
)
_SCHEDULER = (
    to("--max-num-seqs N", "scheduler.max_running", shared.RUNNING, whole()),
    to(
        "--max-num-batched-tokens N",
        ("scheduler.max_batch_tokens", "scheduler.prefill_chunk"),
        "tokens of one step; one prompt may take all of it",
        tokens(),
    ),
    needless("--enable-chunked-prefill --no-enable-chunked-prefill", "prompts come in chunks"),
    to(
        "--long-prefill-token-threshold N",
        "scheduler.prefill_chunk",
        shared.CHUNK,
        whole(),
    ),
    needless(
        "--max-num-partial-prefills --max-long-partial-prefills --num-scheduler-steps "
        "--scheduling-policy --preemption-mode --scheduler-delay-factor N",
        "there is one schedule: first come, first served, in chunks",
    ),
    needless("--async-scheduling --no-async-scheduling --use-v2-block-manager", shared.ALWAYS),
)
_MEMORY = (
    needless("--gpu-memory-utilization SHARE", shared.NO_FRACTION),
    to("--num-gpu-blocks-override N", "cache.pages", "pages for keys and values", whole()),
    to("--kv-cache-memory-bytes SIZE", "cache.memory", "memory for keys and values", size),
    to(
        "VLLM_CPU_KVCACHE_SPACE= GIB",
        "cache.memory",
        "memory for keys and values",
        gibibytes,
    ),
    to("--block-size N", "cache.page_tokens", shared.PAGE, whole(1, 1024)),
    to("--kv-cache-dtype NAME", "cache.dtype", "of keys and values", kv_dtype),
    needless("--calculate-kv-scales", "keys and values are floats"),
    to(
        "--enable-prefix-caching [BOOL]",
        "cache.prefix",
        "on unless it is turned off",
        switch(on=LEFT_TO_INLAY, off="false"),
    ),
    to(
        "--no-enable-prefix-caching",
        "cache.prefix",
        "equal beginnings of prompts are computed again each time",
        switch(on="false"),
    ),
    needless("--prefix-caching-hash-algo NAME", "names of blocks are always cryptographic"),
    to("--kv-offloading-size GIB", "cache.host", "memory behind the device's pages", gibibytes),
    not_yet("--kv-offloading-backend NAME", _CONNECTORS, unless={"native": shared.ALWAYS}),
    needless("--cpu-offload-gb N", shared.FILLED),
    needless(
        "--swap-space GIB",
        "what has to give way is computed again, or loaded from `--set cache.host=SIZE`",
    ),
    not_yet("--kv-transfer-config --kv-events-config JSON", _CONNECTORS),
)
_REST = (
    needless("--enforce-eager", shared.GRAPHS),
    needless("--max-seq-len-to-capture --compilation-config -O -O* N", shared.GRAPHS),
    needless("--attention-backend --attention-config --mamba-cache-dtype NAME", shared.KERNELS),
    needless("VLLM_ATTENTION_BACKEND= VLLM_USE_*= VALUE", shared.KERNELS),
    needless(
        "VLLM_WORKER_MULTIPROC_METHOD= VLLM_CPU_OMP_THREADS_BIND= VLLM_CPU_NUM_OF_RESERVED_CPU= "
        "VALUE",
        "the engine is one process; its threads know processors and NUMA nodes",
    ),
    needless("--distributed-executor-backend --data-parallel-* NAME", "one engine is one process"),
    needless("--enable-auto-tool-choice", "tools are always on for models whose template has them"),
    needless(
        "--guided-decoding-backend --structured-outputs-config --response-role NAME",
        "structured output and roles are built in",
    ),
    needless("--enable-reasoning --enable-prompt-tokens-details", shared.ALWAYS),
    needless("--generation-config NAME", "the model's generation_config.json is read"),
    elsewhere("--override-generation-config JSON", shared.IN_REQUESTS),
    to(
        "--max-logprobs N", "max_logprobs", "most alternatives that a request may ask for", whole(0)
    ),
    to("--seed N", "seed", "of the seeds that the engine chooses for requests", whole(0)),
    needless("--disable-log-requests --no-enable-log-requests --disable-log-stats", "quiet anyway"),
    to("--enable-log-requests", "access_log", shared.LOGGING, switch(on="true")),
    needless("--uvicorn-log-level NAME", "there is one level: INLAY_LOG"),
    to(
        "VLLM_LOGGING_LEVEL= NAME",
        "env:INLAY_LOG",
        "the level of the log",
        log_level,
    ),
    to(
        "--allowed-origins JSON",
        "cors_origins",
        "web origins whose pages may call the server",
        origins,
    ),
    not_yet("--allowed-methods --allowed-headers --root-path NAME", "a proxy can do that"),
    not_yet("--allow-credentials --enable-ssl-refresh --headless", "a proxy can do that"),
    not_yet(
        "--uds --middleware --h11-* --api-server-count -asc NAME", "one process listens on TCP"
    ),
    needless("--node-rank -r --master-addr --master-port -n NAME", "one engine is one process"),
    needless(
        "--decode-context-parallel-size -dcp --prefill-context-parallel-size -pcp "
        "--all2all-backend --max-parallel-loading-workers N",
        "no layer is split among GPUs",
    ),
    needless("--cudagraph-capture-sizes --cuda-graph-sizes N...", shared.GRAPHS),
    needless("--max-cudagraph-capture-size --optimization-level -cc N", shared.GRAPHS),
    needless("--moe-backend --linear-backend --performance-mode NAME", shared.KERNELS),
    needless("--disable-hybrid-kv-cache-manager --disable-cascade-attn", shared.KERNELS),
    not_yet("--disable-sliding-window", shared.RULES),
    not_yet("--enable-sleep-mode --enable-prompt-embeds --language-model-only", shared.TEXT),
    not_yet("--logits-processors NAME...", "requests have logit_bias, no code of their own"),
    needless("--logprobs-mode --stream-interval --max-log-len NAME", "one way, for every client"),
    needless(
        "--enable-log-outputs --enable-request-id-headers --enable-server-load-tracking "
        "--enable-force-include-usage --enable-tokenizer-info-endpoint --disable-fastapi-docs "
        "--disable-uvicorn-access-log --kv-cache-metrics",
        "/metrics tells what goes on, usage what a request was",
    ),
    not_yet("--otlp-traces-endpoint URL", "/metrics is for Prometheus; no traces are sent"),
    needless("--chat-template-content-format --tool-parser-plugin NAME", shared.TEMPLATE),
    needless("--return-tokens-as-token-ids", "requests say it"),
    needless(
        "--ignore-patterns --model-loader-extra-config --pt-load-map-location NAME", shared.FILES
    ),
    needless("--safetensors-load-strategy --code-revision NAME", shared.FILES),
    not_yet("--model-impl NAME", "Inlay has its own implementation of each architecture"),
)

VLLM = Program(
    name="vLLM",
    starts=(
        "vllm serve",
        "-m vllm.entrypoints.openai.api_server",
        "-m vllm.entrypoints.cli.main serve",
    ),
    images=("vllm/vllm-openai*", "*/vllm-openai*", "*vllm-cpu*"),
    positional="MODEL",
    rows=(*_MODEL, *_SCHEDULER, *_MEMORY, *_REST, *shared.ENGINE, *shared.KEPT),
    note="Unless told, vLLM listens on every network, Inlay only on this machine: --host 0.0.0.0 "
    "opens it, best with --api-key.",
)
