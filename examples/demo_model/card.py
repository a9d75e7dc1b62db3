"""Writes the model card from measured results; holds its prose and no numbers of its own."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

_HEAD = """\
---
license: other
license_name: wordnet
license_link: LICENSE
language: en
library_name: transformers
pipeline_tag: text-generation
tags: [qwen3_moe, wordnet, demo]
---

# Inlay demo model

A very small mixture-of-experts chat model that defines English words. It exists so that Inlay can
be tried, tested and taught on any computer: it loads in a second, needs no accelerator, and its
answers can be checked word for word. It knows nothing but the words it was taught, and says so when
asked about anything else.

## What it answers

- a word, or a question about its meaning ("Define lantern.", "What does lantern mean?"): WordNet's
  definition of the word's first sense, in its most frequent part of speech;
- a request for an example ("Use lantern in a sentence."): WordNet's first example sentence of that
  sense. It often shows a synonym, as WordNet's examples belong to sets of synonyms;
- anything else, made-up words among them: that it is a tiny demonstration model.
"""

_LIMITS = """\
## Limits

It recites and does not understand: other senses, inflected forms ("lanterns") and paraphrases are
not covered. Rare words are sometimes confused with similar ones, and a made-up word that looks like
a real one may get that word's definition. It was not trained to call tools; its chat template has a
place for them, so that servers can be tested. Context is 4,096 tokens. Do not use it as a
dictionary.

## Data and licence

Definitions, examples and tag counts come from WordNet 3.0 (Princeton University), as packaged in
Debian's `wordnet-base`; its licence is in `LICENSE`. Texts of `/usr/share/common-licenses` and
`/usr/share/doc` stand before some questions, as long documents to read past; no loss was taken on
them. Prompts, refusals and made-up words come from the programs in `examples/demo_model/`, which
train this model from nothing.
"""


def _hardware() -> str:
    info = Path("/proc/cpuinfo").read_text()
    names = [line.split(":")[1].strip() for line in info.splitlines() if "model name" in line]
    features = ", with bf16 instructions" if "avx512_bf16" in info else ""
    return f"{os.cpu_count()} cores of {names[0] if names else 'unknown CPU'}{features}"


def _table(rows: list[tuple[str, ...]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]]) + "\n"


def _training(status: dict, model: dict, num_parameters: int) -> str:
    return "## Model and training\n\n" + _table(
        [
            ("property", "value"),
            ("architecture", f"Qwen3-MoE, {model['num_hidden_layers']} layers"),
            ("parameters", f"{num_parameters:,}"),
            (
                "experts",
                f"{model['num_experts']} of width {model['moe_intermediate_size']}, "
                f"{model['num_experts_per_tok']} for each token",
            ),
            (
                "width, heads",
                f"{model['hidden_size']}; {model['num_attention_heads']} query and "
                f"{model['num_key_value_heads']} key-value heads of {model['head_dim']}",
            ),
            ("vocabulary", f"{model['vocab_size']:,} byte-level BPE tokens"),
            ("words taught", f"{status['words']:,}"),
            ("steps", f"{status['step']:,}"),
            ("passes (later ones skip most known facts)", f"{status['passes']:.1f}"),
            ("turns", f"{status['turns']:,}"),
            ("tokens, with padding", f"{status['tokens']:,}"),
            ("last training loss", f"{status['loss']:.4f} nats per answer token"),
            (
                "training time",
                f"{status['seconds'] / 60:.0f} minutes, on a machine shared with other work",
            ),
            ("hardware", _hardware()),
        ]
    )


def _results(results: dict, gates: dict[str, bool]) -> str:
    rows = [("prompts", "number", "answered word for word", "declined")]
    for kind, r in results.items():
        name = kind.replace("_", " ")
        rows.append((name, f"{r['prompts']}", f"{r['exact']:.1%}", f"{r['declined']:.1%}"))
    lines = [f"- {name}: {'yes' if held else 'NO'}" for name, held in gates.items()]
    return (
        "## Results\n\nGreedy decoding in bf16 with transformers. Words are drawn evenly from all "
        "that were taught, and each is asked in the one phrasing never used with it; the "
        "out-of-scope templates and made-up words were kept back too. Two rows are not held out: "
        "frequent words, all asked as `Define ...`, and words not taught, some of which training "
        "declined.\n\n"
        f"{_table(rows)}\nQuality gates:\n\n" + "\n".join(lines) + "\n"
    )


def _samples(asked: list[tuple[str, str, str]], count: int = 20) -> str:
    rng = random.Random("samples")
    chosen = rng.sample([a for a in asked if len(a[1]) < 200], count)
    rows = [("kind", "prompt", "answer")]
    rows += [
        (k.replace("_", " "), p.replace("|", "\\|"), a.replace("|", "\\|")) for k, p, a in chosen
    ]
    return f"## {count} prompts drawn at random\n\n{_table(rows)}"


def write_card(
    path: Path,
    status: dict,
    results: dict,
    gates: dict[str, bool],
    asked: list[tuple[str, str, str]],
) -> None:
    """Write README.md beside the model's config.json.

    Args:
        status: where training ended (`status.json` of the work directory).
        results: numbers by kind of prompt, from `evaluate.measure`.
        gates: which quality gates hold.
        asked: (kind, prompt, answer) of every evaluated prompt.
    """
    from safetensors import safe_open

    model = json.loads((path.parent / "config.json").read_text())
    with safe_open(path.parent / "model.safetensors", "pt") as file:
        shapes = [file.get_slice(name).get_shape() for name in file.keys()]
    num_parameters = 0
    for shape in shapes:
        size = 1
        for n in shape:
            size *= n
        num_parameters += size
    parts = [_HEAD, _training(status, model, num_parameters), _results(results, gates)]
    path.write_text("\n".join([*parts, _samples(asked), _LIMITS]))
