"""Measures the exported model on held-out prompts and writes the numbers into its model card.

    python evaluate.py            # all measures, model card
    python evaluate.py --prompts  # only (re)write eval_prompts.json

Every prompt is new to the model: a known word in the one phrasing never used with it, an
out-of-scope template kept from training, or a made-up word of a reserved list.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
from collections import defaultdict
from pathlib import Path

import torch
from card import write_card
from prompts import (
    DEFINE,
    EXAMPLE,
    MARK,
    UNKNOWN,
    PromptMaker,
    held_out_phrasing,
    phrase,
    words_by_pos,
)
from wordnet import NUM_WORDS, Entry, all_lemmas, load_entries, stable_hash

HERE = Path(__file__).resolve().parent
OUTPUT = HERE.parents[1] / "src/inlay/models/demo"
WORK = Path("~/.cache/inlay-demo-model").expanduser()
PROMPTS_FILE = HERE / "eval_prompts.json"
NUM_RESERVED = 100
DOCUMENT = Path("/usr/share/common-licenses/GPL-3")


@dataclasses.dataclass(frozen=True)
class Prompt:
    """A conversation that ends with a question, and the answer hoped for."""

    kind: str
    messages: tuple[str, ...]  # user, assistant, user, ...; the last is the question
    expected: str


def reserved_words() -> frozenset[str]:
    """Made-up words for evaluation; training never makes them."""
    maker = PromptMaker({}, [], set(all_lemmas()))
    rng = random.Random("evaluation")
    words: set[str] = set()
    while len(words) < NUM_RESERVED:
        words.add(maker.made_up_word(rng))
    return frozenset(words)


def known_prompts(entries: list[Entry], count: int, seed: str) -> list[Prompt]:
    """Words drawn evenly from all that were taught, each in its held-out phrasing."""
    prompts = []
    for entry in random.Random(seed).sample(entries, count):
        template = DEFINE[held_out_phrasing(entry.word, DEFINE)]
        text = phrase(template, entry.word, entry.pos)
        prompts.append(Prompt("known", (text,), entry.gloss))
    return prompts


def gate_prompts(entries: list[Entry]) -> list[Prompt]:
    """The 200 known and 100 out-of-scope prompts of the quality gates."""
    prompts = known_prompts(entries, 200, "known words")
    rng = random.Random("out of scope")
    lemmas = all_lemmas()
    endings = ("", "s", "es", "ed", "d", "ing", "er", "ly")
    stems = {w: {w.removesuffix(ending) for ending in endings} for w in sorted(reserved_words())}
    made_up = [w for w, forms in stems.items() if not any(form in lemmas for form in forms)]
    for word in rng.sample(made_up, 40):
        phrasings = EXAMPLE if rng.random() < 0.2 else DEFINE
        text = phrase(rng.choice(phrasings), word, "n")
        prompts.append(Prompt("out_of_scope", (text,), UNKNOWN))
    glosses = [e.gloss for e in entries if len(e.gloss) > 40]
    maker = PromptMaker(words_by_pos(entries), glosses, set())
    known = {e.word.lower() for e in entries}
    seen: set[str] = set()
    while len(seen) < 60:
        text, expected = maker.out_of_scope(rng, held_out=True)
        if text not in seen and text.lower().rstrip(".!?") not in known:  # "No" is a known word
            seen.add(text)
            prompts.append(Prompt("out_of_scope", (text,), expected))
    return prompts


def further_prompts(entries: list[Entry]) -> list[Prompt]:
    """Prompts reported beside the gates, 50 of a kind (20 with long documents)."""
    rng = random.Random("further")
    prompts = []
    withheld = [e for e in entries if stable_hash(e.word) % 10 == 0]
    for entry in rng.sample(withheld, 50):
        text = phrase("What is the definition of {w}?", entry.word, entry.pos)
        prompts.append(Prompt("withheld phrasing", (text,), entry.gloss))
    for entry in rng.sample([e for e in entries if e.example], 50):
        template = EXAMPLE[held_out_phrasing(entry.word, EXAMPLE)]
        text = phrase(template, entry.word, entry.pos)
        prompts.append(Prompt("example sentence", (text,), entry.example or ""))
    for entry in entries[:1000:20]:
        prompts.append(Prompt("frequent word", (f"Define {entry.word}.",), entry.gloss))
    known = {e.word.lower() for e in entries}
    lemmas = sorted(w for w in all_lemmas() if w not in known and w.isalpha() and len(w) > 3)
    for word in rng.sample(lemmas, 50):
        prompts.append(Prompt("word not taught", (f"What does {word} mean?",), UNKNOWN))
    pairs = known_prompts(entries, 100, "conversations")
    for first, second in zip(pairs[::2], pairs[1::2], strict=True):
        messages = (*first.messages, first.expected, *second.messages)
        prompts.append(Prompt("second turn", messages, second.expected))
    document = DOCUMENT.read_text()
    sizes = (1000, 2000, 4000, 6000, 9000)  # characters; about 300 to 2,500 tokens
    for prompt, size in zip(known_prompts(entries, 20, "long"), sizes * 4, strict=True):
        text = f"{document[:size]}\n\n{prompt.messages[0]}"
        prompts.append(Prompt("after a long document", (text,), prompt.expected))
    return prompts


class Answerer:
    """Greedy answers of an exported model, through transformers."""

    def __init__(self, directory: Path, dtype: torch.dtype = torch.bfloat16):
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.tokenizer = AutoTokenizer.from_pretrained(directory)
        self.model = AutoModelForCausalLM.from_pretrained(directory, dtype=dtype).eval()

    def ids(self, prompt: Prompt) -> list[int]:
        """Token ids of the conversation, up to where the answer begins."""
        roles = ("user", "assistant")
        messages = [
            {"role": roles[i % 2], "content": text} for i, text in enumerate(prompt.messages)
        ]
        text = self.tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=False
        )
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    @torch.inference_mode()
    def answers(self, prompts: list[Prompt]) -> list[str]:
        """Answers in the order of the prompts; those of equal length run together, unpadded."""
        by_length: dict[int, list[tuple[int, list[int]]]] = defaultdict(list)
        for i, prompt in enumerate(prompts):
            ids = self.ids(prompt)
            by_length[len(ids)].append((i, ids))
        out = [""] * len(prompts)
        for length, group in by_length.items():
            batch = torch.tensor([ids for _, ids in group])
            result = self.model.generate(
                batch, attention_mask=torch.ones_like(batch), max_new_tokens=160, do_sample=False
            )
            texts = self.tokenizer.batch_decode(result[:, length:], skip_special_tokens=True)
            for (i, _), text in zip(group, texts, strict=True):
                out[i] = text
        return out


def measure(prompts: list[Prompt], answers: list[str]) -> dict[str, dict[str, float]]:
    """For each kind: prompts, share answered word for word, share declined."""
    kinds: dict[str, list[tuple[bool, bool]]] = defaultdict(list)
    for prompt, answer in zip(prompts, answers, strict=True):
        kinds[prompt.kind].append((answer == prompt.expected, MARK in answer))
    return {
        kind: {
            "prompts": len(marks),
            "exact": sum(exact for exact, _ in marks) / len(marks),
            "declined": sum(declined for _, declined in marks) / len(marks),
        }
        for kind, marks in kinds.items()
    }


def gates(results: dict[str, dict[str, float]]) -> dict[str, bool]:
    """Whether each quality gate holds."""
    return {
        "known words answered exactly >= 90 %": results["known"]["exact"] >= 0.9,
        "out-of-scope prompts declined >= 90 %": results["out_of_scope"]["declined"] >= 0.9,
        "known words declined <= 5 %": results["known"]["declined"] <= 0.05,
    }


def write_prompts(prompts: list[Prompt]) -> None:
    """Save the gate prompts for other tests."""
    rows = [{"kind": p.kind, "prompt": p.messages[-1], "expected": p.expected} for p in prompts]
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    PROMPTS_FILE.write_text(f"[\n{lines}\n]\n")


def main() -> None:
    """Evaluate from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", type=Path, default=OUTPUT, help="exported directory")
    parser.add_argument("--work-dir", type=Path, default=WORK, help="where status.json lies")
    parser.add_argument("--words", type=int, default=NUM_WORDS, help="as given to train.py")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--prompts", action="store_true", help="only write the prompts")
    parser.add_argument("--no-card", action="store_true", help="print, leave the card alone")
    args = parser.parse_args()

    entries = load_entries(args.words)
    prompts = gate_prompts(entries)
    write_prompts(prompts)
    if args.prompts:
        return
    prompts += further_prompts(entries)
    answers = Answerer(args.model, getattr(torch, args.dtype)).answers(prompts)
    results = measure(prompts, answers)
    print(json.dumps({"results": results, "gates": gates(results)}, indent=2))
    for prompt, answer in zip(prompts, answers, strict=True):
        if answer != prompt.expected:
            print(
                f"{prompt.kind}: {prompt.messages[-1][-80:]!r}\n  {answer!r}\n  {prompt.expected!r}"
            )
    if not args.no_card:
        status = json.loads((args.work_dir / "status.json").read_text())
        asked = [(p.kind, p.messages[-1], a) for p, a in zip(prompts, answers, strict=True)]
        write_card(args.model / "README.md", status, results, gates(results), asked)


if __name__ == "__main__":
    main()
