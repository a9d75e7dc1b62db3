"""Settings that have no effect beside others, on a model, or without data; a line for each.

Keys that never have an effect are in `inlay.tune.other_keys`.
"""

from inlay.core.model_shape import ModelShape
from inlay.models.formats import halves
from inlay.tune.config import TuneConfig


def idle_settings(
    config: TuneConfig, shape: ModelShape, *, has_evaluation: bool, begins_anew: bool
) -> list[str]:
    """What is set in vain, and why.

    Args:
        shape: of the model.
        has_evaluation: whether there are evaluation data.
        begins_anew: whether the run goes on from no checkpoint.
    """
    looked_at = has_evaluation and config.evaluates
    dtype = "bfloat16" if config.bf16 or config.pure_bf16 else "float32"
    experts, rest = halves(config.base_format)
    asked_of_others = {rest} if shape.experts else {experts, rest}
    of_experts = "routed experts" if shape.experts else "routed experts, of which there are none"
    key = "quantization_bit" if config.quantization_bit else "weight_format"
    rules = (
        (
            config.base_format != "auto" and asked_of_others != {dtype},
            f"{key}={getattr(config, key)} is of {of_experts}; all else is held in {dtype}",
        ),
        (
            config.kt_cpu_activation == "retain" and not shape.experts,
            "kt_cpu_activation=retain is of routed experts, of which there are none",
        ),
        (
            config.evaluates and not has_evaluation,
            "nothing is evaluated, as there are no data for it: set val_size or eval_dataset",
        ),
        (
            has_evaluation and not config.evaluates,
            "evaluation data are not looked at: set do_eval=true, or eval_strategy",
        ),
        (config.compute_accuracy and not looked_at, "compute_accuracy: nothing is evaluated"),
        (
            config.eval_steps is not None and config.eval_strategy != "steps",
            f"eval_steps has no effect with eval_strategy={config.eval_strategy}",
        ),
        (
            bool(config.warmup_steps or config.warmup_ratio)
            and config.lr_scheduler_type == "constant",
            "lr_scheduler_type=constant has no warmup: constant_with_warmup has",
        ),
        (
            bool(config.warmup_steps and config.warmup_ratio),
            f"warmup_ratio has no effect with warmup_steps={config.warmup_steps:g}",
        ),
        (
            config.logging_dir is not None and config.report_to == "none",
            "logging_dir has no effect with report_to=none: logs go to output_dir",
        ),
        (
            begins_anew and (config.resume_from_checkpoint or "").lower() == "true",
            f"resume_from_checkpoint=true: {config.output_dir} has no good checkpoint to go on "
            "from: the run begins anew",
        ),
        (
            config.save_strategy == "no"
            and (config.save_total_limit is not None or config.save_only_model),
            "save_total_limit and save_only_model have no effect with save_strategy=no",
        ),
    )
    return [line for in_vain, line in rules if in_vain]
