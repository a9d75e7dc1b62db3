"""The case experts/on_gpu, in one process, on models that were written beside the stages before."""

from benchmarks.experts.on_gpu import Way, measure_way, model_of, points_by_way, this_machine
from benchmarks.gpu_day.stage import Context
from benchmarks.gpu_day.write_model import CASE, SHAPE, model_folder, the_run

FIRST = "decode_tokens_per_s"


def run(context: Context) -> None:
    """Way after way; one that fails, or has no time, stops none that needs less."""
    context.machine("triton")
    of_case = the_run(context.rehearsal)
    machine = this_machine(context.device)
    for way, points in points_by_way(of_case).items():
        missing = [one for one in points if not context.is_measured(CASE, FIRST, one)]
        if way.shape != SHAPE or not missing:
            continue
        context.need(least_s(way, rehearsal=context.rehearsal), str(way))
        folder = model_folder(context.work, 12 if context.rehearsal else way.layers)
        shape = model_of(of_case, way.shape, way.layers).shape
        with context.checking(str(way)):
            for samples in measure_way(of_case, way, missing, shape, folder, machine):
                context.samples(CASE, samples)


def least_s(way: Way, *, rehearsal: bool) -> float:
    """To load the model and serve its first batch: 49 s were seen for 48 layers all on a GPU."""
    return 10.0 if rehearsal else 15.0 + way.layers * (0.5 + 0.5 * way.gpu_share)
