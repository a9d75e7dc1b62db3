"""The processors alone, on all cores: peaks, a layer of experts, and a whole model.

Some points of kernels/moe only: its record is made by `python -m benchmarks run kernels/moe`.
"""

from contextlib import closing
from dataclasses import replace
from statistics import median

from benchmarks.case import Run, load_case
from benchmarks.experts.on_gpu import Way, model_of, new_engine, serve
from benchmarks.gpu_day.stage import Context
from benchmarks.gpu_day.write_model import SHAPE, SMALL_LAYERS, model_folder, the_run
from benchmarks.kernels.moe import measure
from benchmarks.triples import measure_triples
from inlay import kernels

LAYERS = 12
MOE = "kernels/moe"
REPEATS = 6
# Of its first shape, Qwen3-30B-A3B's, that of the whole model.
TOKENS, FORMATS = [1, 16, 256, 1024], ["int4:g32", "int8", "bfloat16"]
SMALL_ROW = {"hidden": 128, "intermediate": 64, "experts": 8, "top_k": 2}
CELLS = ({"streams": 1, "prompt": 512}, {"streams": 16, "prompt": 512})
SMALL_CELLS = ({"streams": 1, "prompt": 40},)


def run(context: Context) -> None:
    """What is quick comes first."""
    context.machine()
    with context.checking("the processors' ceilings"):
        context.fact("threads", kernels.num_threads())
        context.fact("instruction set", kernels.selected_isa())
        context.fact("reads of memory, GB/s", kernels.measure_read_gbs())
        for kind in ("fp32", "bf16", "int8"):
            context.fact(f"products in {kind}, TOP/s", kernels.measure_peak(kind))
    with context.checking("a whole model on the processors"):
        whole_model(context)
    with context.checking(MOE):
        of_case = some_points(context.rehearsal)
        for comparison in measure(of_case):
            context.need(3, f"{MOE} {dict(comparison.params)}")
            for samples in measure_triples(comparison, of_case.repeats):
                context.samples(MOE, samples)


def whole_model(context: Context) -> None:
    """What the model does where the GPU has nothing to do with it."""
    of_case = the_run(context.rehearsal)
    layers = SMALL_LAYERS if context.rehearsal else LAYERS
    way = Way(SHAPE, layers, 0.0, "off", "0", 512)
    cells = SMALL_CELLS if context.rehearsal else CELLS
    shape = model_of(of_case, SHAPE, layers).shape
    folder = model_folder(context.work, LAYERS)
    with closing(new_engine(of_case, way, cells, shape, folder, "cpu")) as engine:
        for cell in cells:
            streams, prompt = cell["streams"], cell["prompt"]
            served = serve(engine, f"{streams}", streams, prompt, of_case.workload["output_tokens"])
            context.fact(
                f"{layers} layers on the processors, {streams} streams, prompts of {prompt}",
                {
                    "prefill_tokens_per_s": round(streams * prompt / served.prompt_s, 1),
                    "decode_tokens_per_s": round(streams / median(served.steps_s), 1),
                },
            )


def some_points(rehearsal: bool) -> Run:
    """kernels/moe with few points and repeats, and without peers."""
    case = load_case(MOE)
    declared = case.measurements[0]
    tokens = TOKENS[:2] if rehearsal else TOKENS
    few = replace(
        declared,
        rows=[SMALL_ROW] if rehearsal else declared.rows[:1],
        params={**declared.params, "tokens": tokens, "format": FORMATS},
        target={},
    )
    return Run(case=replace(case, measurements=(few,), repeats=REPEATS))
