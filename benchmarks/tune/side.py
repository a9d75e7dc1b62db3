"""One side of tune/end_to_end: a process that trains, a step at each line on standard input.

    python -m benchmarks.tune.side ours|peft SPEC

SPEC is a `Spec` as JSON. A line of JSON says that it is ready, and what it is; each later one has a
step's rate, its loss and the highest resident memory of the process so far. Standard input closed
ends it. PEFT's side imports nothing of Inlay, so that its memory is its own.
"""

import json
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
EXPERTS = ("experts.gate_proj", "experts.up_proj", "experts.down_proj")
# What the two have in common of routed experts: PEFT has one A for gate and up.
TARGETS = {
    "attention": ATTENTION,
    "attention+experts": ATTENTION + EXPERTS,
    "attention+experts.down": (*ATTENTION, "experts.down_proj"),
}
PARAMETERS = {
    "attention": [],
    "attention+experts": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"],
    "attention+experts.down": ["mlp.experts.down_proj"],
}


@dataclass(frozen=True, kw_only=True)
class Spec:
    """A run: rows of random tokens, each with a loss, in order.

    Attributes:
        lora_target: a key of `TARGETS`.
        adapter: a folder with matrices to begin from; PEFT's side writes it, ours reads it. Empty:
            each draws its own.
        output: a folder for what a run writes.
    """

    model: str
    lora_target: str
    dtype: str
    batch: int
    length: int
    rows: int
    rank: int
    learning_rate: float
    vocabulary: int
    threads: int
    seed: int
    adapter: str
    output: str

    def token_ids_RN(self) -> np.ndarray:
        """All rows."""
        draw = np.random.default_rng(self.seed)
        return draw.integers(0, self.vocabulary, (self.rows, self.length), np.int32)


class Turns:
    """Says what each step was, and waits for the next line."""

    def __init__(self, tokens: int) -> None:
        self._tokens = tokens

    def begin(self, label: str) -> None:
        """After loading, before the first step."""
        self._say({"label": label})

    def after(self, loss: float) -> None:
        """After a step."""
        seconds = time.perf_counter() - self._begun
        self._say(
            {"tokens_per_s": self._tokens / seconds, "peak_rss_mib": peak_rss_mib(), "loss": loss}
        )

    def _say(self, found: Mapping[str, Any]) -> None:
        print(json.dumps(found), flush=True)
        if not sys.stdin.readline():
            os._exit(0)  # nothing of the run is wanted any more
        self._begun = time.perf_counter()


def peak_rss_mib() -> float:
    """Highest resident memory of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("the kernel tells no VmHWM")


def ours(spec: Spec) -> None:
    """A run of `inlay.tune`, whose watcher waits; all is kept for the backward pass, as in PEFT."""
    import torch

    from inlay import __version__, kernels
    from inlay.tune import Dataset, StepFigures, TuneConfig, TuneData, train

    kernels.set_num_threads(spec.threads)
    torch.set_num_threads(spec.threads)
    ids_RN = spec.token_ids_RN()
    starts = np.arange(spec.rows + 1, dtype=np.int64) * spec.length
    rows = Dataset(ids_RN.reshape(-1), ids_RN.reshape(-1), starts, starts[:-1])
    turns = Turns(spec.batch * spec.length)

    class Watcher:
        def on_step(self, figures: StepFigures) -> None:
            """Wait for the next line."""
            turns.after(figures.loss)

    config = TuneConfig(
        model_name_or_path=spec.model,
        adapter_name_or_path=(spec.adapter,) if spec.adapter else (),
        output_dir=spec.output,
        use_cpu=True,
        lora_rank=spec.rank,
        lora_target=TARGETS[spec.lora_target],
        per_device_train_batch_size=spec.batch,
        learning_rate=spec.learning_rate,
        lr_scheduler_type="constant",
        max_grad_norm=0.0,
        max_steps=1 << 20,
        save_strategy="no",
        bf16=spec.dtype == "bfloat16",
        disable_shuffling=True,
        disable_gradient_checkpointing=True,
        kt_cpu_activation="retain",
    )
    # Weights are loaded within the run: the first step, which is not counted, waits for them.
    turns.begin(f"inlay {__version__}")
    train(config, TuneData(rows, None, ()), watchers=(Watcher(),))


def peft(spec: Spec) -> None:
    """Steps as the documents of transformers and PEFT have them; nothing is computed again."""
    import peft
    import torch
    import transformers

    torch.set_num_threads(spec.threads)
    torch.manual_seed(spec.seed)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    base = transformers.AutoModelForCausalLM.from_pretrained(
        spec.model, dtype=getattr(torch, spec.dtype)
    )
    model = peft.get_peft_model(
        base,
        peft.LoraConfig(
            task_type="CAUSAL_LM",
            r=spec.rank,
            lora_alpha=2 * spec.rank,
            lora_dropout=0.0,
            target_modules=list(ATTENTION),
            target_parameters=PARAMETERS[spec.lora_target] or None,
        ),
    )
    if spec.adapter:
        model.save_pretrained(spec.adapter)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=spec.learning_rate, weight_decay=0.0)
    ids_RN = torch.from_numpy(spec.token_ids_RN()).long()
    model.train()
    turns = Turns(spec.batch * spec.length)
    turns.begin(f"transformers {transformers.__version__} + peft {peft.__version__}")
    first = 0
    while True:
        ids_BN = ids_RN[first : first + spec.batch]
        first = (first + spec.batch) % spec.rows
        loss = model(input_ids=ids_BN, labels=ids_BN).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        turns.after(loss.item())


if __name__ == "__main__":
    {"ours": ours, "peft": peft}[sys.argv[1]](Spec(**json.loads(sys.argv[2])))
