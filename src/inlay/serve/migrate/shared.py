"""Rows that several programs share: what HTTP servers and Hugging Face models have in common."""

from inlay.serve.migrate.rows import Aside, Fate, needless, not_yet, to
from inlay.serve.migrate.values import adapters, text, threads, whole

HOST = to("--host LLAMA_ARG_HOST= ADDRESS", "--host", "the address to listen on", text)
PORT = to("--port LLAMA_ARG_PORT= PORT", "--port", "the port to listen on", whole(0, 65535))

RUNNING = "requests that decode at the same time"
STEP = "tokens of one step, prefill and decode together"
CHUNK = "prompt tokens of one request in one step"
CONTEXT = "most tokens of prompt and answer together"
PAGE = "tokens of a page, which is the unit of reuse, too"
POOL = "tokens whose keys and values are held at the same time, in pages"
THREADS = "threads of the CPU kernels; without it Inlay takes the physical cores that it may use"
NO_FRACTION = (
    "Inlay goes by what is free, not by the whole: weights and a usual cache take nine tenths of "
    "it at most, and pages come from what weights leave; `--set placement.gpu_memory=SIZE` and "
    "`--set cache.memory=SIZE` say how much"
)
ALWAYS = "Inlay always does that"
ALL_NODES = "on CPUs the threads of all NUMA nodes share every layer, in one process"
TENSOR_PARALLEL = "placement.tensor_parallel"
IN_STAGES = "layers go to as many GPUs as it takes, neighbouring ones to each"
FILLED = (
    "Inlay fills a GPU by itself, with what does the most work per byte, and the CPU computes the "
    "other experts at the same time; `--set placement.gpu_experts=N`, `placement.gpu_memory=SIZE` "
    "and `placement.rules=FILE` say otherwise"
)
GPU_EXPERTS = "placement.gpu_experts"
ADAPTER = "--adapter"
NO_EXPERTS = "the CPU computes the routed experts, the GPU everything else"
GRAPHS = "there is nothing to capture or compile before serving"
KERNELS = "Inlay has one kernel of each kind for every CPU, and chooses it by itself"
IN_REQUESTS = "requests say it; what they leave out comes from the model's generation_config.json"
DRAFTS = "no draft model or head: every token is the model's own"
ADAPTERS = "adapters are served wherever one is named; each has its own rank and targets"
IMAGES = "requests are text: images, audio and video are refused"
ONE = {"1": "that is what Inlay does"}
INSTANCES = (
    "one process is one instance; instances share their KV through `inlay store master` and "
    "`--set cache.store=HOST:PORT`"
)
LOGGING = "a line per request in the log"
TEXT = "texts in, texts out, as long as the server runs"
TEMPLATE = "Inlay knows the notation from the model's chat template"
FILES = "what the files hold is seen from them"
RULES = "the model's config.json says it, and cannot be overridden"

# Variables that mean the same to Inlay, or to a library that it uses too.
KEPT = (
    to("CUDA_VISIBLE_DEVICES= IDS", "env", "PyTorch and Inlay see only these GPUs"),
    to(
        "HF_HOME= HF_HUB_CACHE= HUGGINGFACE_HUB_CACHE= HF_ENDPOINT= HF_HUB_OFFLINE= DIR",
        "env",
        "Inlay uses the hub's own cache and variables",
    ),
    to("HF_TOKEN= HUGGING_FACE_HUB_TOKEN= TOKEN", "env", "Inlay uses the hub's own variables"),
    to("MODELSCOPE_CACHE= DIR", "env", "Inlay uses ModelScope's own cache"),
    to(
        "HTTP_PROXY= HTTPS_PROXY= NO_PROXY= http_proxy= https_proxy= no_proxy= URL",
        "env",
        "downloads of models go through it",
    ),
    to("PYTORCH_CUDA_ALLOC_CONF= PYTORCH_ALLOC_CONF= TEXT", "env", "PyTorch reads it"),
    to("OMP_NUM_THREADS= N", "--threads", THREADS, threads),
    needless(
        "OMP_*= KMP_*= GOMP_*= MKL_*= VALUE",
        "Inlay's threads are its own, and know the NUMA nodes",
    ),
    needless(
        "NCCL_*= GLOO_*= TORCH_NCCL_*= TP_SOCKET_IFNAME= MASTER_ADDR= MASTER_PORT= VALUE",
        "one engine is one process",
    ),
    needless("PYTHONUNBUFFERED= PYTHONPATH= LD_PRELOAD= TOKENIZERS_PARALLELISM= VALUE", "not used"),
)

# Flags that mean the same to vLLM and SGLang.
ENGINE = (
    HOST,
    PORT,
    needless("--trust-remote-code", "Inlay never runs code from a model's directory"),
    to("--revision NAME", "#revision", "written after the model's name"),
    not_yet("--tokenizer-mode --tokenizer-revision NAME", "the model's own tokenizer.json is read"),
    needless("--load-format NAME", FILES),
    to("--chat-template FILE", "--chat-template", "written with instead of the model's own", text),
    to(
        "--tensor-parallel-size --tp-size --tp -tp N",
        TENSOR_PARALLEL,
        "processes, each with a GPU, that share each layer",
        whole(2, below=Aside(Fate.NEEDLESS, ONE["1"])),
    ),
    needless("--pipeline-parallel-size --pp-size --pp -pp N", IN_STAGES),
    not_yet(
        "--data-parallel-size --dp-size --dp -dp --expert-parallel-size --ep-size --ep "
        "--moe-dense-tp-size --nnodes N",
        INSTANCES,
        unless=ONE,
    ),
    to(
        "--lora-modules --lora-paths NAME=DIR...",
        ADAPTER,
        "LoRA adapters, which requests name as their model; each a directory, no name on a hub",
        adapters,
    ),
    needless("--enable-lora --fully-sharded-loras --enable-lora-overlap-loading", ADAPTERS),
    needless("--lora-target-modules NAME...", ADAPTERS),
    needless(
        "--max-loras --max-cpu-loras --max-lora-rank --max-loras-per-batch --max-loaded-loras "
        "--lora-dtype --lora-backend --lora-eviction-policy --lora-extra-vocab-size N",
        ADAPTERS,
    ),
    needless("VLLM_ALLOW_RUNTIME_LORA_UPDATING= BOOL", "adapters are loaded over HTTP, too"),
    needless("--reasoning-parser --tool-call-parser NAME", TEMPLATE),
    not_yet("--speculative-* NAME", DRAFTS),
    not_yet("--ssl-keyfile --ssl-certfile --ssl-ca-certs FILE", "HTTP only: put a proxy before it"),
    not_yet("--config FILE", "the file is not read: write what it says as flags and migrate those"),
    to("--download-dir DIR", "env:HF_HUB_CACHE", "the hub's own variable says it", text),
    needless(
        "--disable-custom-all-reduce --enable-expert-parallel --enable-eplb --enable-dp-attention",
        "no layer is split among GPUs",
    ),
)
