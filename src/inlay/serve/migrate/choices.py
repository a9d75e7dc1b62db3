"""What depends on several flags: the model's name, the device, sizes that must fit each other."""

from inlay.core.errors import ConfigError
from inlay.engine.config import EngineConfig
from inlay.serve.config import ServeConfig
from inlay.serve.migrate.model_name import (
    GGUF_FILE,
    MODEL,
    gguf_name,
    is_hub_name,
    unread_format,
    unread_quant,
)
from inlay.serve.migrate.plan import Plan
from inlay.serve.migrate.program import Program
from inlay.serve.migrate.rows import Fate
from inlay.serve.migrate.shared import ALL_NODES, TENSOR_PARALLEL
from inlay.serve.migrate.shell import Container

_DEFAULTS = EngineConfig()
_DEFAULT_PORT = ServeConfig().port
_OF_GPUS = ("placement.", "experts.")
_TIERS = ("cache.host", "cache.disk", "cache.store")


def choose_model(plan: Plan) -> None:
    """Give MODEL a name that `inlay serve` can resolve, or leave the placeholder."""
    named = "MODEL" in plan or "#gguf" in plan
    _choose_gguf(plan)
    name = plan.value("MODEL")
    if name is not None:
        _complete(plan, name)
    elif not named:
        plan.note(Fate.LINE, MODEL, "the command names no model: put its name here")
    for target in ("#revision", "#modelscope"):
        ask = plan.take(target)
        if ask is not None:
            plan.note(Fate.NEEDLESS, "", "only names on a hub have it", ask.flag)


def _complete(plan: Plan, name: str) -> None:
    """Add the revision and the hub to a name."""
    if name.startswith("-"):
        raise ConfigError(f"{name} is no name of a model: it begins with -")
    if is_hub_name(name):
        revision = plan.take("#revision")
        if revision is not None:
            plan.change("MODEL", f"{plan.value('MODEL')}@{revision.value}")
            plan.note(Fate.LINE, f"@{revision.value}", revision.reason, revision.flag)
        hub = plan.take("#modelscope")
        if hub is not None:
            plan.change("MODEL", f"modelscope:{plan.value('MODEL')}")
            plan.note(Fate.LINE, "modelscope:", hub.reason, hub.flag)
    if gguf := unread_quant(name):
        plan.note(Fate.NOT_YET, "", f"{gguf} is read by ik_llama.cpp alone: take another", name)
    held = unread_format(name)
    if held is not None and not name.lower().endswith(".gguf"):
        plan.note(
            Fate.NOT_YET,
            "",
            f"by its name the model's files hold {held} weights, which are not read: take the "
            "files in bfloat16, float16 or float32; --weight-format quantises them while they load",
            name,
        )


def _choose_gguf(plan: Plan) -> None:
    """Name a GGUF as Inlay does: by its path, or by a quantisation on the hub."""
    file, ask = plan.take(GGUF_FILE), plan.take("#gguf")
    if ask is None or "MODEL" in plan:
        return
    name = gguf_name(ask.value, None if file is None else file.value)
    if name is not None:
        plan.credit(ask, "MODEL", name)
        return
    plan.note(
        Fate.NOT_YET,
        "",
        f"neither a file nor a name that says its quantisation: put the path of the file in place "
        f"of {MODEL}, once it is here",
        ask.flag,
    )


def imply(plan: Plan, program: Program) -> None:
    """Add what the program does unless told."""
    for one in program.implied:
        if (not one.when or one.when in plan) and one.target not in plan:
            plan.follow(one.target, one.value, one.reason)
    for when in {one.when for one in program.implied} - {""}:
        plan.take(when)


def fit_device(plan: Plan) -> None:
    """What is said of a GPU beside the CPU says nothing where no GPU is used."""
    if plan.value("--device") != "cpu":
        return
    for target in plan.settings():
        if target.startswith(_OF_GPUS):
            ask = plan.take(target)
            if ask is not None:
                alone = "the CPU computes all of the model"
                reason = ALL_NODES if target == TENSOR_PARALLEL else alone
                plan.note(Fate.NEEDLESS, "", reason, ask.flag)


def fit_ranks(plan: Plan) -> None:
    """GPUs that share each layer are all that there are from the first on, and keep no tiers."""
    if TENSOR_PARALLEL not in plan:
        return
    if (plan.value("--device") or "").startswith("cuda:"):
        plan.follow("--device", "cuda", "GPUs that share each layer are counted from the first")
    for tier in _TIERS:
        ask = plan.take(tier)
        if ask is not None:
            reason = "pages are kept whole, and each GPU that shares a layer has a part of them"
            plan.note(Fate.NOT_YET, "", reason, ask.flag)


def fit_sizes(plan: Plan) -> None:
    """Context, pool, steps and tiers as `EngineConfig` accepts them."""
    _divide_context(plan)
    _count_pages(plan)
    _widen_steps(plan)
    if plan.value("cache.prefix") == "false":
        for tier in _TIERS:
            ask = plan.take(tier)
            if ask is not None:
                reason = "blocks are kept for reuse, which is turned off"
                plan.note(Fate.NEEDLESS, "", reason, ask.flag)


def _divide_context(plan: Plan) -> None:
    """llama.cpp's context is that of all slots together."""
    undivided = plan.take("#undivided")
    ask = plan.take("#shared_context")
    if ask is None:
        return
    total = int(ask.value)
    slots = plan.number("scheduler.max_running", 1)
    each = total if undivided is not None else total // slots
    plan.credit(ask, "--context", str(max(2, each)))
    if "scheduler.max_running" in plan:
        plan.credit(ask, "#pool_tokens", str(total))


def _count_pages(plan: Plan) -> None:
    """Tokens of the pool to pages, and a context that they hold."""
    page_tokens = plan.number("cache.page_tokens", _DEFAULTS.cache.page_tokens)
    held = plan.value("#pool_tokens")
    ask = plan.take("#pool_tokens")
    if held is not None and ask is not None and "cache.pages" not in plan:
        plan.credit(ask, "cache.pages", str(-(-int(held) // page_tokens)))
    if "cache.pages" not in plan:
        return
    memory = plan.take("cache.memory")
    if memory is not None:
        reason = "the number of pages is set, which says how much memory they take"
        plan.note(Fate.NEEDLESS, "", reason, memory.flag)
    room = plan.number("cache.pages", 0) * page_tokens
    if plan.number("--context", 0) > room >= 2:
        plan.follow("--context", str(room), f"no more tokens fit into the pool of {room}")


def _widen_steps(plan: Plan) -> None:
    """A step has room for one token of every request that decodes, and for a chunk."""
    defaults = _DEFAULTS.scheduler
    running = plan.number("scheduler.max_running", defaults.max_running)
    step = plan.number("scheduler.max_batch_tokens", defaults.max_batch_tokens)
    if step < running:
        reason = f"each of {running} requests that decode needs one token of a step"
        plan.follow("scheduler.max_batch_tokens", str(running), reason)
    chunk = plan.number("scheduler.prefill_chunk", 0)
    if "scheduler.max_batch_tokens" not in plan and chunk > step:
        reason = "a chunk has to fit into a step"
        plan.follow("scheduler.max_batch_tokens", str(chunk), reason)


def leave_container(plan: Plan, container: Container) -> None:
    """Ports and paths as the machine outside the container has them."""
    port = plan.value("--port") or str(_DEFAULT_PORT)
    for address, outside, inside in container.ports:
        if outside.isdigit() and (inside == port or len(container.ports) == 1):
            plan.follow("--host", address or "0.0.0.0", "where the container's port is published")
            if outside != port:
                plan.follow("--port", outside, "the container's port as it is published")
            break
    model = plan.value("MODEL")
    for outside, inside in container.volumes:
        if model is not None and inside and (model + "/").startswith(inside.rstrip("/") + "/"):
            path = outside.rstrip("/") + model[len(inside.rstrip("/")) :]
            plan.change("MODEL", path)
            break
