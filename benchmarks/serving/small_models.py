"""The models of serving/startup and serving/memory, as both servers take them.

Published files by their names in `tests.real.files`, the demo model, and random ones.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gguf import GGMLQuantizationType

from benchmarks import peers
from benchmarks.case import Run
from benchmarks.models.gguf_tokenizer import made_tokenizer, tokenizer_of
from benchmarks.models.random_model import RandomModel
from benchmarks.models.write_gguf import write_gguf
from benchmarks.serving.llama_cpp import ENVIRONMENT, READY, label, serve_llama_cpp
from benchmarks.serving.server import Server, serve, wait_until_ready
from inlay.models.source import resolve_model
from tests.real.files import FILES, fetch_real_model
from tests.support import gguf_files

DEMO = "demo"
START_TIMEOUT_S = 400.0
Start = Callable[[], AbstractContextManager[Server]]


@contextmanager
def starts(run: Run, model: str, load: str) -> Iterator[dict[str, Start]]:
    """How to start each server on a model, by label; ours has "".

    A server is ready when its block begins. Each has started once before: caches are warm, and what
    ours keeps of a GGUF file is there.

    Args:
        load: `engine.load` of ours.
    """
    context_tokens = run.workload["context_tokens"]
    environment = peers.environment(run.peers, ENVIRONMENT)
    with TemporaryDirectory() as name:
        folder = Path(name)
        file = folder / f"{model}.gguf"
        if model in FILES:
            file.symlink_to(fetch_real_model(model))
        elif model != DEMO:
            write_random(file, run.workload["models"][model], run.seeds[0])
        elif environment is not None:
            write_demo(file)
        arguments = [] if model == DEMO else [str(file)]
        variables = {"INLAY_CACHE_DIR": str(folder / "cache")}

        @contextmanager
        def ours() -> Iterator[Server]:
            context = ["--context", str(context_tokens)]
            with serve(*arguments, *context, load=load, environment=variables) as server:
                wait_until_ready(server, START_TIMEOUT_S)
                yield server

        @contextmanager
        def theirs() -> Iterator[Server]:
            assert environment is not None
            with serve_llama_cpp(environment, file, context_tokens=context_tokens) as server:
                wait_until_ready(server, START_TIMEOUT_S, READY)
                yield server

        servers: dict[str, Start] = {"": ours}
        if environment is not None:
            servers[label(environment)] = theirs
        for start in servers.values():
            with start():
                pass
        yield servers


def write_random(file: Path, about: Mapping[str, Any], seed: int) -> None:
    """A file in the shape of a published one, with random weights and a made tokenizer."""
    model = RandomModel(about["known"], seed, **about["changed"], rope_scaling=None)
    form = about["form"]
    tokenizer = made_tokenizer(model.shape.vocab)
    write_gguf(file, model, experts=form, rest=form, tokenizer=tokenizer)


def write_demo(file: Path) -> None:
    """The demo model as a GGUF file, in the type that its own file has."""
    directory = resolve_model(None).directory
    kind = GGMLQuantizationType.BF16
    gguf_files.write_gguf(directory, file, kind, metadata=tokenizer_of(directory))
