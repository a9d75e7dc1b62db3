"""The first things that must hold: streams and host take turns, and greedy text is the CPU's."""

import time
from contextlib import closing
from itertools import pairwise
from typing import Literal

import torch

from benchmarks.gpu_day.stage import Context
from inlay.core.messages import SamplingParams
from inlay.engine import Engine, EngineConfig
from inlay.models.stream_check import streams_take_turns

PROMPTS = ["Define lantern.", "Define harbour.", "Every morning the ferry " * 20]
TOKENS = 48


def run(context: Context) -> None:
    """In float32, in which the texts of all devices are the same."""
    if context.rehearsal:
        context.left_out("streams take turns with the host", "a CPU has no streams")
    else:
        turns = streams_take_turns(torch.device(context.device))
        context.check("streams take turns with the host", turns)
    wanted = texts_of(context, "cpu", "off")
    graphs: tuple[Literal["off"], Literal["auto"]] = ("off", "auto")
    for graph in graphs:
        with context.checking(f"greedy text of {context.device} with graph={graph}"):
            found = texts_of(context, context.device, graph)
            assert found == wanted, f"{found} instead of {wanted}"


def texts_of(context: Context, device: str, graph: Literal["auto", "off"]) -> list[str]:
    """Of the demo model, asked twice; says how long that took."""
    params = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)
    times = [time.monotonic()]
    config = EngineConfig(device=device, weight_format="float32", graph=graph, load="whole")
    with closing(Engine(config)) as engine:
        times.append(time.monotonic())
        texts = []
        for _ in range(2):
            texts.append([one.text for one in engine.generate(PROMPTS, params)])
            times.append(time.monotonic())
    load_s, first_s, again_s = (after - before for before, after in pairwise(times))
    context.fact(
        f"demo model on {device}, graph={graph}, s",
        {"load": round(load_s, 2), "first": round(first_s, 2), "again": round(again_s, 2)},
    )
    assert texts[0] == texts[1], f"asked again it says {texts[1]}, at first {texts[0]}"
    return texts[0]
