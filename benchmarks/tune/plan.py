"""tune/plan: memory of fine-tuning from config.json alone, beside published figures. Simulated."""

from collections.abc import Generator

from benchmarks.case import Run
from benchmarks.triples import Samples
from inlay.core.hardware import machine_named
from inlay.core.known_models import known_config
from inlay.core.model_config import shape_of
from inlay.tune import TuneConfig
from inlay.tune.plan import RowCounts, plan_run

TALK = "the talk"


def measure(run: Run) -> Generator[Samples, None, None]:
    """One model after the other."""
    work = run.workload
    for params in run.params("host_gb"):
        config = TuneConfig(
            model_name_or_path=params["model"],
            weight_format="bfloat16",
            bf16=True,
            lora_rank=work["lora_rank"],
            cutoff_len=work["row_tokens"],
            per_device_train_batch_size=1,
            gradient_accumulation_steps=work["accumulation"],
        )
        need = plan_run(
            config,
            shape_of(known_config(params["model"]) or {}),
            machine_named(work["machine"]),
            RowCounts.longest(config, None),
            process=round(work["process_gb"] * 1e9),
        ).need
        held = {
            "host": need.host.total / 1e9,
            "device": sum(use.total for use in need.devices.values()) / 1e9,
        }
        for place, value in held.items():
            published = work["talk"][params["model"]][place]
            yield Samples(
                name=f"{place}_gb",
                params=params,
                values=[value],
                peers={TALK: [published]},
                simulated=True,
            )
            yield Samples(
                name=f"{place}_error",
                params=params,
                values=[abs(value / published - 1)],
                simulated=True,
            )
