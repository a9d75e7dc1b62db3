"""SGLang, and `kt run`, which starts it. Source: SGLang 0.5, and KTransformers' fork of it."""

from inlay.serve.migrate import shared
from inlay.serve.migrate.ktransformers import EXPERTS, IMPLIED
from inlay.serve.migrate.program import Program, listens
from inlay.serve.migrate.rows import Aside, Fate, elsewhere, needless, not_yet, to
from inlay.serve.migrate.values import (
    choice,
    device,
    gibibytes,
    kv_dtype,
    log_level,
    names,
    quantization,
    switch,
    text,
    weight_dtype,
    whole,
)

_WHOLE_PROMPTS = Aside(
    Fate.NEEDLESS, "prompts always come in chunks, so that other requests go on meanwhile"
)
_WRITES = {
    "write_through": "through",
    "write_through_selective": "second_hit",
    "write_back": "evict",
}
_DISAGGREGATED = "prefill and decode run in one instance"

_MODEL = (
    to("--model-path --model DIR", "MODEL", "a directory, or a name on the hub", text),
    to("--served-model-name NAME", "--served-model-name", "the names that clients use", names),
    to("--api-key KEY", "--api-key", "requests must carry it", text),
    not_yet("--admin-api-key KEY", "there is one key for all routes"),
    to(
        "--device NAME",
        "--device",
        "where the model runs",
        device,
    ),
    to(
        "--quantization NAME",
        "--weight-format",
        "quantised from float weights while they load: name the model's unquantised files",
        quantization,
    ),
    to("--dtype NAME", "--weight-format", "how weights are held", weight_dtype),
    to("--context-length N", "--context", shared.CONTEXT, whole(2)),
    not_yet("--tokenizer-path PATH", "the model's own tokenizer.json is read"),
    not_yet("--json-model-override-args JSON", shared.RULES),
    not_yet("--is-embedding", "models that generate text are served, no embeddings"),
    not_yet("--enable-multimodal", shared.IMAGES),
)
_SCHEDULER = (
    to("--max-running-requests N", "scheduler.max_running", shared.RUNNING, whole()),
    to("--max-queued-requests N", "scheduler.max_waiting", "requests in the queue", whole()),
    to(
        "--chunked-prefill-size N",
        ("scheduler.prefill_chunk", "scheduler.max_batch_tokens"),
        "prompt tokens of one step, of one request or of several",
        whole(below=_WHOLE_PROMPTS),
    ),
    needless("--max-prefill-tokens N", "scheduler.max_batch_tokens bounds every step"),
    needless(
        "--enable-mixed-chunk",
        "chunks of prompts and decodes always share a step, so decoding goes on during prefill",
    ),
    needless("--schedule-policy --schedule-conservativeness --stream-interval N", shared.ALWAYS),
    needless("--disable-overlap-schedule --enable-two-batch-overlap", "there is one schedule"),
    needless("--disable-chunked-prefix-cache", "chunks always read the pages before them"),
)
_MEMORY = (
    needless("--mem-fraction-static SHARE", shared.NO_FRACTION),
    to("--max-total-tokens N", "#pool_tokens", shared.POOL, whole()),
    to("--page-size N", "cache.page_tokens", shared.PAGE, whole(1, 1024)),
    to("--kv-cache-dtype NAME", "cache.dtype", "of keys and values", kv_dtype),
    to(
        "--disable-radix-cache",
        "cache.prefix",
        "equal beginnings of prompts are computed again each time",
        switch(on="false"),
    ),
    needless("--enable-hierarchical-cache", "`--set cache.host=SIZE` alone turns it on"),
    to("--hicache-size N", "cache.host", "memory behind the device's pages", gibibytes),
    not_yet(
        "--hicache-ratio N", "`--set cache.host=SIZE` says how much memory, in bytes, not a ratio"
    ),
    to(
        "--hicache-write-policy NAME",
        "cache.write",
        "when a block is copied behind the device",
        choice(_WRITES),
    ),
    needless("--hicache-io-backend --hicache-mem-layout NAME", "pages have one layout everywhere"),
    not_yet(
        "--hicache-storage-backend --hicache-storage-prefetch-policy "
        "--hicache-storage-backend-extra-config NAME",
        "`--set cache.disk=DIR:SIZE` and `--set cache.store=HOST:PORT` are Inlay's tiers behind "
        "memory",
    ),
    needless("--cpu-offload-gb N", shared.FILLED),
)
_REST = (
    needless("--enable-p2p-check", "GPUs pass on one row per token, by whichever way there is"),
    needless(
        "--disable-shared-experts-fusion",
        "shared experts are computed with the routed ones, in one call of the kernels, in any case",
    ),
    needless(
        "--attention-backend --prefill-attention-backend --decode-attention-backend "
        "--sampling-backend --moe-runner-backend --moe-a2a-backend --fp8-gemm-backend "
        "--mm-attention-backend NAME",
        shared.KERNELS,
    ),
    needless("--grammar-backend NAME", "structured output is built in"),
    needless(
        "--disable-cuda-graph --enable-torch-compile --disable-cuda-graph-padding", shared.GRAPHS
    ),
    needless("--cuda-graph-max-bs --torch-compile-max-bs N", shared.GRAPHS),
    needless("--cuda-graph-bs N...", shared.GRAPHS),
    needless("--skip-server-warmup --enable-nccl-nvls --enable-symm-mem", "there is no such step"),
    to("--random-seed N", "seed", "of the seeds that the engine chooses for requests", whole(0)),
    needless("--enable-metrics --enable-cache-report", "/metrics and usage always tell it"),
    to("--log-requests", "access_log", shared.LOGGING, switch(on="true")),
    to(
        "--log-level NAME",
        "env:INLAY_LOG",
        "the level of the log",
        log_level,
    ),
    needless("--log-level-http --log-requests-level --decode-log-interval NAME", "one log level"),
    needless(
        "--deepep-mode --deepep-config --ep-num-redundant-experts --eplb-* --ep-dispatch-algorithm "
        "--dist-timeout NAME",
        "no layer is split among GPUs",
    ),
    needless("--enable-dp-lm-head --enable-deepep-moe --enable-memory-saver", "one process"),
    needless("--nsa-* --mamba-* --triton-attention-* --flashinfer-* NAME", shared.KERNELS),
    needless("--model-loader-extra-config NAME", shared.FILES),
    needless("--tokenizer-worker-num N", "the server tokenizes beside the engine's process"),
    needless("--weight-loader-disable-mmap --delete-ckpt-after-loading", "files are only read"),
    needless(
        "--warmups --sampling-defaults --constrained-json-whitespace-pattern NAME", "built in"
    ),
    elsewhere("--preferred-sampling-params JSON", shared.IN_REQUESTS),
    needless("--allow-auto-truncate", "a request that does not fit is refused, with both numbers"),
    not_yet("--skip-tokenizer-init", "the server always has its tokenizer; requests may send ids"),
    not_yet("--fastapi-root-path --file-storage-path PATH", "a proxy can do that"),
    needless("--watchdog-timeout SECONDS", "the server notices by itself when its engine dies"),
    needless(
        "--node-rank --dist-init-addr --nccl-port --base-gpu-id N", "one engine is one process"
    ),
    not_yet(
        "--disaggregation-mode --disaggregation-transfer-backend --disaggregation-bootstrap-port "
        "--disaggregation-ib-device NAME",
        _DISAGGREGATED,
        unless={"null": "Inlay does both in one instance"},
    ),
    to(
        "SGLANG_USE_MODELSCOPE= BOOL",
        "#modelscope",
        "the model comes from ModelScope",
        switch(on="true"),
    ),
)

SGLANG = Program(
    name="SGLang",
    starts=(
        "-m sglang.launch_server",
        "-m sglang.srt.entrypoints.http_server",
        "sglang serve",
        "*sglang/launch_server.py",
    ),
    images=("lmsysorg/sglang*", "*/sglang:*"),
    implied=(*IMPLIED, listens(30000)),
    positional="MODEL",
    rows=(*EXPERTS, *_MODEL, *_SCHEDULER, *_MEMORY, *_REST, *shared.ENGINE, *shared.KEPT),
)

KT = Program(
    name="KTransformers",
    starts=("kt run",),
    implied=(listens(30000),),
    positional="MODEL",
    rows=(
        needless("--quantize", "experts are packed while the model loads"),
        elsewhere("--dry-run", "`inlay migrate` starts nothing"),
        *SGLANG.rows,
    ),
    note="kt's own short names of models are not known to Inlay: where MODEL is one of them, write "
    "a directory or a name on the hub instead.",
)
