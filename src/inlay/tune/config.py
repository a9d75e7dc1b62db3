"""Settings of a fine-tuning run: the keys of LLaMA-Factory's SFT files that are honoured here.

Each field is a key under its own name. Keys that are read and do nothing, or are refused, are in
`inlay.tune.other_keys`; files are read by `inlay.tune.config_file`. Knows no model and no data.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from inlay.core.errors import ConfigError
from inlay.models.formats import WEIGHT_FORMATS, is_weight_format
from inlay.tune.keys import Key, key, keys_of, required

_WEIGHTS_OF_BITS = {4: "int4:g32", 8: "int8"}


@dataclass(frozen=True, kw_only=True)
class TuneConfig:
    """A fine-tuning run. Fields are keys of LLaMA-Factory where it has them.

    `TUNE_KEYS` says of each what it does, its type, default and range. A number of steps below 1
    is a fraction of all steps.

    Raises:
        ConfigError: a value outside its range, or two that exclude each other.
    """

    # The model.
    model_name_or_path: str = required("model directory, *.gguf file or hub name")
    adapter_name_or_path: tuple[str, ...] = key(
        (), "adapters of the model: all but the last are merged, training goes on with the last"
    )
    cache_dir: str | None = key(None, "where models of the hub are kept")
    weight_format: str = key(
        "auto", "how frozen weights are held, as in inlay serve; auto: as published"
    )
    quantization_bit: Literal[4, 8] | None = key(
        None, "weights quantised at load: 8 is weight_format int8, 4 is int4:g32"
    )
    use_cpu: bool = key(False, "use no GPU, even if there is one")
    devices: tuple[str, ...] = key(
        (),
        "where layers are, without routed experts: cuda:0,cuda:1 has as many on each, "
        "cuda:0=20,cpu=7 so many; none: all GPUs, or the CPU",
    )
    kt_optimize_rule: str | None = key(
        None,
        "file of KTransformers' placement rules: where layers are, and by backend the format of "
        "routed experts, where devices and weight_format do not say it",
    )
    cpu_infer: int | None = key(
        None, "threads of the CPU kernels at most; never more than physical cores", low=1
    )

    # What is done.
    stage: Literal["sft"] = key("sft", "supervised fine-tuning", why_not="no other stage is here")
    do_eval: bool = key(
        False, "compute the loss of evaluation data at the end; so does eval_strategy"
    )

    # LoRA.
    finetuning_type: Literal["lora"] = key(
        "lora",
        "low-rank adapters; the model's own weights stay as they are",
        why_not="no other method is here",
    )
    lora_rank: int = key(8, "width of the adapters", low=1, high=1024)
    lora_alpha: float | None = key(
        None, "adapters count alpha / rank; none: twice the rank", above=0
    )
    lora_dropout: float = key(
        0.0, "share of an adapter's inputs left out in a step", low=0, below=1
    )
    lora_target: tuple[str, ...] = key(
        ("all",), "names of the matrices that get an adapter; all: every one but router and head"
    )
    use_rslora: bool = key(False, "adapters count alpha / sqrt(rank)")
    pure_bf16: bool = key(False, "adapters and optimizer states in bfloat16, not float32")

    # Data.
    template: str | None = key(
        None, "how a conversation is written; none: the tokenizer's own chat template"
    )
    dataset: tuple[str, ...] = key((), "names in dataset_info.json")
    eval_dataset: tuple[str, ...] = key((), "the same, for evaluation")
    dataset_dir: str = key("data", "folder of dataset_info.json")
    cutoff_len: int = key(
        2048, "tokens of a sample; longer ones lose the ends of prompt and response", low=2
    )
    train_on_prompt: bool = key(False, "prompts have a loss as well")
    mask_history: bool = key(False, "only the last response of a conversation has a loss")
    max_samples: int | None = key(None, "first samples of each dataset that are taken", low=1)
    skip_bad_records: bool = key(
        False, "leave bad records out, and say how many and which first, instead of ending there"
    )
    val_size: float = key(
        0.0, "samples held out for evaluation: a number, or a share below 1", low=0
    )
    packing: bool = key(False, "samples share rows of cutoff_len tokens and do not see each other")
    neat_packing: bool = key(False, "as packing")
    default_system: str | None = key(None, "system prompt of conversations that have none")
    enable_thinking: bool = key(
        True,
        "an empty chain of thought, where the template writes one, is part of the response "
        "(true) or of the prompt (false)",
    )
    preprocessing_batch_size: int = key(1000, "samples that are tokenized at a time", low=1)

    # Training.
    output_dir: str = key("saves/inlay", "where adapter, checkpoints and logs go")
    overwrite_output_dir: bool = key(False, "output_dir may hold another run")
    per_device_train_batch_size: int = key(8, "rows of a micro-batch", low=1)
    gradient_accumulation_steps: int = key(1, "micro-batches of a step", low=1)
    learning_rate: float = key(5e-5, "of AdamW, after warmup", above=0)
    weight_decay: float = key(0.0, "of AdamW", low=0)
    adam_beta1: float = key(0.9, "of AdamW", low=0, below=1)
    adam_beta2: float = key(0.999, "of AdamW", low=0, below=1)
    adam_epsilon: float = key(1e-8, "of AdamW", above=0)
    optim: Literal["adamw_torch", "adamw_torch_fused"] = key(
        "adamw_torch", "AdamW", why_not="both names are the same here"
    )
    max_grad_norm: float = key(1.0, "gradients are scaled down to this norm; 0: never", low=0)
    num_train_epochs: float = key(3.0, "passes over the data", above=0)
    max_steps: int = key(-1, "steps, whatever num_train_epochs says; -1: as that says", low=-1)
    lr_scheduler_type: Literal["linear", "cosine", "constant", "constant_with_warmup"] = key(
        "linear", "how the learning rate goes on after warmup"
    )
    warmup_ratio: float = key(
        0.0, "share of all steps in which the learning rate rises", low=0, high=1
    )
    warmup_steps: float = key(0, "the same as a number of steps", low=0)
    bf16: bool = key(False, "compute in bfloat16, not float32")
    seed: int = key(42, "of order, split, dropout and new adapters", low=0, high=2**32 - 1)
    disable_shuffling: bool = key(False, "samples in the order of the files")
    disable_gradient_checkpointing: bool = key(
        False, "keep what the backward pass needs of each layer instead of computing it again"
    )
    kt_cpu_activation: Literal["retain", "recompute"] = key(
        "recompute", "the same, for routed experts"
    )

    # Evaluation, logs and checkpoints.
    eval_strategy: Literal["no", "steps", "epoch"] = key("no", "when evaluation data have a loss")
    eval_steps: float | None = key(None, "steps between; none: logging_steps", above=0)
    per_device_eval_batch_size: int = key(8, "rows of a micro-batch, in evaluation", low=1)
    compute_accuracy: bool = key(
        False, "share of tokens with a loss that are the likeliest, in evaluation"
    )
    logging_steps: float = key(500, "steps between lines of the log", above=0)
    logging_first_step: bool = key(False, "the first step has a line as well")
    save_strategy: Literal["no", "steps", "epoch"] = key("steps", "when checkpoints are written")
    save_steps: float = key(500, "steps between checkpoints", above=0)
    save_total_limit: int | None = key(None, "newest checkpoints that are kept", low=1)
    save_only_model: bool = key(False, "checkpoints without optimizer states: no resuming")
    resume_from_checkpoint: str | None = key(
        None, "a checkpoint's folder, or true for the newest good one in output_dir"
    )
    plot_loss: bool = key(False, "draw training_loss.png")
    report_to: Literal["none", "tensorboard"] = key(
        "none",
        "tensorboard: the log as event files, too",
        why_not="others are not here: losses are in trainer_log.jsonl and trainer_state.json",
    )
    logging_dir: str | None = key(None, "where event files go; none: runs in output_dir")
    include_num_input_tokens_seen: bool = key(
        False, "log and results have the tokens that were read, and tokens/s"
    )
    include_effective_tokens_per_second: bool = key(
        False, "results have effective_tokens_per_sec, which counts no padding"
    )

    # Answers.
    do_predict: bool = key(
        False, "inlay tune train answers evaluation data at its end, as inlay tune predict does"
    )
    max_new_tokens: int | None = key(
        None,
        "tokens of an answer; none: 1024 where answers are scored, all there is room for in chat",
        low=1,
    )
    do_sample: bool | None = key(
        None, "draw tokens; none: where temperature, top_p or top_k is set, else take the likeliest"
    )
    temperature: float | None = key(None, "of drawn tokens; none: 0.95", low=0, high=100)
    top_p: float | None = key(
        None, "tokens are drawn of the likeliest with this probability; none: 0.7", above=0, high=1
    )
    top_k: int | None = key(
        None, "tokens are drawn of so many; 0: of all; none: 50", low=0, high=2**31 - 1
    )
    repetition_penalty: float = key(
        1.0, "logits of tokens that are there are divided by it", above=0, high=1000
    )
    skip_special_tokens: bool = key(True, "special tokens are no part of answers")

    # Export.
    export_dir: str | None = key(None, "where the merged model goes")
    export_size: int = key(5, "GB of a file at most", low=1)
    export_as: Literal["floats", "base"] = key(
        "floats", "of a quantised model: bfloat16, or base: quantised as it was published"
    )

    def __post_init__(self) -> None:
        for name, declared in TUNE_KEYS.items():
            declared.check(getattr(self, name))
        if not is_weight_format(self.weight_format):
            raise ConfigError(
                f"weight_format={self.weight_format}: must be one of {', '.join(WEIGHT_FORMATS)}, "
                "or two of them, EXPERTS+REST"
            )
        if self.quantization_bit is not None and self.weight_format != "auto":
            raise ConfigError(
                f"quantization_bit={self.quantization_bit} and weight_format={self.weight_format} "
                "say the same thing: give one"
            )
        if self.val_size and self.eval_dataset:
            raise ConfigError(
                f"val_size={self.val_size:g} and eval_dataset={','.join(self.eval_dataset)}: give "
                "one, samples held out or others"
            )
        if self.val_size > 1 and self.val_size != int(self.val_size):
            raise ConfigError(
                f"val_size={self.val_size:g}: must be a whole number, or a share below 1"
            )
        if self.max_steps == 0:
            raise ConfigError("max_steps=0: must be at least 1, or -1 for num_train_epochs")
        for name in ("logging_steps", "save_steps", "eval_steps", "warmup_steps"):
            steps = getattr(self, name)
            if steps is not None and steps > 1 and steps != int(steps):
                raise ConfigError(f"{name}={steps:g}: must be a whole number, or a share below 1")

    @property
    def cache_path(self) -> Path | None:
        """Where models of the hub are kept; None: where the hub's own programs keep them."""
        return None if self.cache_dir is None else Path(self.cache_dir).expanduser()

    @property
    def evaluates(self) -> bool:
        """Whether evaluation data have a loss."""
        return self.do_eval or self.eval_strategy != "no"

    @property
    def packs(self) -> bool:
        """Whether samples share rows."""
        return self.packing or self.neat_packing

    @property
    def lora_scale(self) -> float:
        """What the product of an adapter's two matrices is multiplied by."""
        alpha = self.lora_alpha if self.lora_alpha is not None else 2.0 * self.lora_rank
        return alpha / (math.sqrt(self.lora_rank) if self.use_rslora else self.lora_rank)

    @property
    def samples(self) -> bool:
        """Whether tokens of answers are drawn, or the likeliest are taken."""
        if self.do_sample is not None:
            return self.do_sample
        return any(one is not None for one in (self.temperature, self.top_p, self.top_k))

    @property
    def base_format(self) -> str:
        """How the frozen weights are held: a name of `inlay.models.formats`."""
        if self.quantization_bit is not None:
            return _WEIGHTS_OF_BITS[self.quantization_bit]
        return self.weight_format


TUNE_KEYS: dict[str, Key] = keys_of(TuneConfig)
"""Every key that is honoured, by name."""
