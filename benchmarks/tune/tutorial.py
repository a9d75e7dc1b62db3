"""tune/tutorial: the tutorial's two runs, trained by their YAML files and scored beside the base.

Everything goes through `inlay tune`'s commands, in processes of their own, as a reader would do
it. Needs Debian's wordnet-base and dict-jargon.
"""

import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.case import Run
from benchmarks.triples import Samples
from inlay.tune.scores import Scores, bootstrap_interval, score

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "finetune"
sys.path.append(str(EXAMPLE))

from voice import in_voice, plain  # noqa: E402

BLEU, ROUGE = "bleu-char-4", "rouge-l-llamafactory"
FILES = {"bosun": "words.yaml", "jargon": "jargon.yaml"}
LIMIT_S = 3000


def measure(run: Run) -> Generator[Samples, None, None]:
    """Scores of both runs."""
    with tempfile.TemporaryDirectory() as folder:
        tutorial = Tutorial(run, Path(folder))
        tutorial.write_data()
        for adapter, samples in (("bosun", bosun_samples), ("jargon", jargon_samples)):
            began = time.monotonic()
            tutorial.train(adapter)
            yield from samples(tutorial)
            minutes = (time.monotonic() - began) / 60
            yield Samples(name="minutes", values=[minutes], params={"adapter": adapter})


@dataclass(frozen=True)
class Answers:
    """What was answered to the questions of a dataset, and what was hoped for."""

    said: list[str]
    labels: list[str]

    @property
    def scores(self) -> Scores:
        """Each answer's, and all answers'."""
        return score(self.said, self.labels)


class Tutorial:
    """The commands of the tutorial, in a folder of their own."""

    def __init__(self, run: Run, folder: Path) -> None:
        self._workload, self._folder = run.workload, folder
        self.seed = run.seeds[0]

    def write_data(self) -> None:
        """Run the two scripts."""
        sizes = {
            "words": (
                "--words",
                self._workload["words"],
                "--held-out",
                self._workload["held_words"],
            ),
            "jargon": ("--held-out", self._workload["held_terms"]),
        }
        for name, arguments in sizes.items():
            output = ("--output", self._folder / "data")
            execute([EXAMPLE / f"{name}.py", *arguments, *output])

    def train(self, adapter: str) -> None:
        """Train by its file."""
        changes = (f"seed={self.seed}", *self._workload["settings"][adapter])
        self._tune("train", adapter, f"output_dir={self._folder / adapter}", *changes)

    def answers(self, adapter: str, dataset: str, *, tuned: bool) -> Answers:
        """Answers to a dataset, with the adapter or without."""
        output = self._folder / f"{dataset}-{tuned}"
        changes = [f"eval_dataset={dataset}", f"output_dir={output}"]
        if tuned:
            changes.append(f"adapter_name_or_path={self._folder / adapter}")
        self._tune("predict", adapter, *changes)
        lines = (output / "generated_predictions.jsonl").read_text("utf-8").splitlines()
        rows = [json.loads(line) for line in lines]
        return Answers([row["predict"] for row in rows], [row["label"] for row in rows])

    def questions(self, dataset: str) -> list[str]:
        """The questions of a dataset."""
        lines = (self._folder / "data" / f"{dataset}.jsonl").read_text("utf-8").splitlines()
        return [json.loads(line)["instruction"] for line in lines]

    def _tune(self, command: str, adapter: str, *changes: str) -> None:
        data = f"dataset_dir={self._folder / 'data'}"
        entry = "from inlay.serve.cli import main; main()"
        execute(["-c", entry, "tune", command, EXAMPLE / FILES[adapter], data, *changes])


def execute(arguments: Sequence[object]) -> None:
    """Run a program of Python's.

    Raises:
        RuntimeError: it failed; with the end of what it said.
    """
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, cwd=ROOT)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[:4])} failed: {done.stderr[-800:]}")


def bosun_samples(tutorial: Tutorial) -> Iterator[Samples]:
    """Voice and facts on words that were held out."""
    params = {"adapter": "bosun"}
    base = tutorial.answers("bosun", "bosun_held", tuned=False)
    tuned = tutorial.answers("bosun", "bosun_held", tuned=True)
    yield from two_scores(params, tuned, base=base)
    facts = [
        Answers([plain(one) for one in side.said], [plain(one) for one in side.labels])
        for side in (base, tuned)
    ]
    before, after = (float(side.scores.each[ROUGE].mean()) for side in facts)
    yield Samples(name="facts_rouge_l", values=[after], params=params, peers={"base": [before]})
    share = 100 * sum(map(in_voice, tuned.said)) / len(tuned.said)
    yield Samples(name="in_voice", values=[share], params=params)


def jargon_samples(tutorial: Tutorial) -> Iterator[Samples]:
    """Scores on terms that were held out, what is gained at least, and the File's labels."""
    params = {"adapter": "jargon"}
    base = tutorial.answers("jargon", "jargon_held", tuned=False)
    tuned = tutorial.answers("jargon", "jargon_held", tuned=True)
    asked = [question.partition(": ")[2] for question in tutorial.questions("jargon_held")]
    yield from two_scores(params, tuned, base=base, question=Answers(asked, base.labels))
    before, after = base.scores.each, tuned.scores.each
    for short, kind in (("bleu4_char", BLEU), ("rouge_l", ROUGE)):
        low, _ = bootstrap_interval(after[kind] - before[kind], seed=tutorial.seed)
        yield Samples(name=f"{short}_gain_low", values=[low], params=params)
    for name, counted in (("labelled", is_labelled), ("references", has_references)):
        share = 100 * sum(map(counted, tuned.said, tuned.labels)) / len(tuned.said)
        yield Samples(name=name, values=[share], params=params)


def is_labelled(said: str, label: str) -> bool:
    """The answer begins with the term and its part of speech, as the entry does."""
    found = re.match(r".*? [a-z]+\. ", label)
    return found is not None and said.startswith(found[0])


def has_references(said: str, label: str) -> bool:
    """The answer has the same other entries in braces, or none where the entry has none."""
    names = r"\{[^}]*\}"
    return set(re.findall(names, said)) == set(re.findall(names, label))


def two_scores(params: dict[str, str], tuned: Answers, **peers: Answers) -> Iterator[Samples]:
    """BLEU-4 on characters and ROUGE-L, as LLaMA-Factory has them."""
    ours, others = tuned.scores.means, {name: side.scores.means for name, side in peers.items()}
    for name, kind in (("bleu4_char", BLEU), ("rouge_l", ROUGE)):
        beside = {peer: [means[kind]] for peer, means in others.items()}
        yield Samples(name=name, values=[ours[kind]], params=params, peers=beside)
