"""tune/plan: memory of fine-tuning from config.json alone, beside published figures. Simulated.

`existing_gb` is what the published figures of GPUs may sum: the same weights, adapters and CUDA
contexts, and instead of our activations all that layers keep, as where nothing is computed again
(`benchmarks.tune.existing_stack`). Its terms have measurements of their own.
`existing_row_tokens` are the tokens of a row with which that would be the published figure, all
else being the same: what layers keep grows with them, and with their square where scores are kept.
"""

from collections.abc import Generator
from typing import Any

from benchmarks.case import Run
from benchmarks.triples import Samples
from benchmarks.tune.existing_stack import kept_bytes
from inlay.core.hardware import machine_named
from inlay.core.known_models import known_config
from inlay.core.model_config import shape_of
from inlay.tune import TuneConfig
from inlay.tune.memory import MemoryNeed, MemoryUse
from inlay.tune.plan import RowCounts, plan_run

TALK = "the talk"


def measure(run: Run) -> Generator[Samples, None, None]:
    """One model after the other."""
    work = run.workload
    for params in run.params("host_gb"):
        model, published = params["model"], work["talk"][params["model"]]
        need = needed(model, work)
        device = sum(need.devices.values(), MemoryUse())
        for place, use in (("host", need.host), ("device", device)):
            yield from beside(f"{place}_gb", f"{place}_error", params, use, published[place])
        kept = round(kept_bytes(model, work["row_tokens"], work["lora_rank"]))
        existing = MemoryUse(device.process, device.weights, device.lora, kept)
        room = published["device"] * 1e9 - (existing.total - kept)
        yield Samples(
            name="existing_row_tokens",
            params=params,
            values=[row_tokens(model, work["row_tokens"], work["lora_rank"], room)],
            simulated=True,
        )
        yield from beside("existing_gb", "existing_error", params, existing, published["device"])
        for term in ("process", "weights", "lora", "activations"):
            yield Samples(
                name=f"existing_{term}_gb",
                params=params,
                values=[getattr(existing, term) / 1e9],
                simulated=True,
            )


def row_tokens(model: str, tokens: int, lora_rank: int, room: float) -> float:
    """Tokens of a row for which layers keep as many bytes as there are; 0: there is no room."""
    once, twice = (kept_bytes(model, rows, lora_rank) for rows in (tokens, 2 * tokens))
    square = (twice - 2 * once) / (2 * tokens**2)
    linear = once / tokens - square * tokens
    if room <= 0:
        return 0.0
    return float((-linear + (linear**2 + 4 * square * room) ** 0.5) / (2 * square))


def needed(model: str, work: dict[str, Any]) -> MemoryNeed:
    """What `inlay tune plan` says of a model."""
    config = TuneConfig(
        model_name_or_path=model,
        weight_format="bfloat16",
        bf16=True,
        lora_rank=work["lora_rank"],
        cutoff_len=work["row_tokens"],
        per_device_train_batch_size=1,
        gradient_accumulation_steps=work["accumulation"],
    )
    return plan_run(
        config,
        shape_of(known_config(model) or {}),
        machine_named(work["machine"]),
        RowCounts.longest(config, None),
        process=round(work["process_gb"] * 1e9),
    ).need


def beside(
    name: str, error: str, params: dict[str, Any], use: MemoryUse, published_gb: float
) -> Generator[Samples, None, None]:
    """GB beside the talk's, and how far they are apart."""
    value = use.total / 1e9
    yield Samples(
        name=name, params=params, values=[value], peers={TALK: [published_gb]}, simulated=True
    )
    yield Samples(name=error, params=params, values=[abs(value / published_gb - 1)], simulated=True)
