"""The stages, in the order of what they bring for their seconds, and the models that some need."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One stage; `stages/<name>.py` says what it does.

    Attributes:
        about: one line.
        limit_s: after which it is ended, whatever is left of the budget.
        rehearsal_s: the same in a rehearsal.
        least_s: with less it is not begun.
        needs: jobs of `JOBS` that must be over.
        interpreter: a rehearsal runs its kernels in Triton's interpreter.
        asked_for: it runs only where it is named, or what it needs was brought.
    """

    name: str
    about: str
    limit_s: float
    rehearsal_s: float
    least_s: float = 15.0
    needs: tuple[str, ...] = ()
    interpreter: bool = False
    asked_for: bool = False


STAGES = (
    Stage(
        name="facts",
        about="driver, processors, memory, versions; ceilings of copies, products and the link",
        limit_s=45,
        rehearsal_s=45,
    ),
    Stage(
        name="smoke",
        about="streams take turns with the host; the demo model's greedy text is the CPU's",
        limit_s=90,
        rehearsal_s=60,
    ),
    Stage(
        name="tests",
        about="all tests that need a GPU, and the size of each error",
        limit_s=280,
        rehearsal_s=150,
        least_s=40,
        interpreter=True,
    ),
    Stage(
        name="sanitizer",
        about="compute-sanitizer over one small shape of each kernel",
        limit_s=120,
        rehearsal_s=90,
        interpreter=True,
    ),
    Stage(
        name="kernels",
        about="each kernel by format and rows beside the libraries; hand-over and link",
        limit_s=200,
        rehearsal_s=90,
        interpreter=True,
    ),
    Stage(
        name="models",
        about="whole models in one process: shares of experts, graph, deferral, prompts, streams",
        limit_s=420,
        rehearsal_s=60,
        least_s=60,
        needs=("model-12", "model-48"),
    ),
    Stage(
        name="profile",
        about="three decode steps and a chunk of a prompt: traces, launches, idle share",
        limit_s=90,
        rehearsal_s=45,
        needs=("model-12",),
    ),
    Stage(
        name="cpu",
        about="the processors alone on all cores: peaks, kernels/moe, a whole model",
        limit_s=120,
        rehearsal_s=45,
        needs=("model-12",),
    ),
    Stage(
        name="stress",
        about="experts move while steps are recorded; no memory left; a peer killed; adapters",
        limit_s=150,
        rehearsal_s=60,
        least_s=40,
        needs=("model-12", "model-48"),
    ),
    Stage(
        name="llama_cpp",
        about="llama.cpp's CUDA build on the same file, where it was brought",
        limit_s=180,
        rehearsal_s=20,
        needs=("model-48",),
        asked_for=True,
    ),
)
BY_NAME = {stage.name: stage for stage in STAGES}

# Random models of so many layers, written beside the first stages: 48 take a core over a minute.
JOBS = {"model-12": 12, "model-48": 48}
