"""Trains the demo model on two CPU cores; killed and started again, it goes on where it was.

    python train.py --minutes 75

The learning rate follows the larger of two shares, steps done and minutes spent, so a run on a
slower machine still ends with its decay. Neither limit is stored: a resumed run may change them.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import sys
import time
from pathlib import Path

import torch
from data import Batch, Batches, Corpus, DataConfig
from evaluate import reserved_words
from export import export
from model import DemoModel, ModelConfig
from optim import Optimizer
from tokenizer import train_tokenizer
from tokenizers import Tokenizer
from wordnet import NUM_WORDS

ROOT = Path(__file__).resolve().parents[2]
OUTPUT = ROOT / "src/inlay/models/demo"
WORK = Path("~/.cache/inlay-demo-model").expanduser()


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--work-dir", type=Path, default=WORK, help="checkpoints, log, pid")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="Hugging Face directory")
    parser.add_argument("--total-steps", type=int, default=12000)
    parser.add_argument("--minutes", type=float, help="training time over all runs; ends early")
    parser.add_argument("--words", type=int, default=NUM_WORDS, help="the most frequent")
    parser.add_argument("--lr", type=float, default=4e-3)
    parser.add_argument("--optimizer", choices=("muon", "adam"), default="muon")
    parser.add_argument("--batch-tokens", type=int, default=4096)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--checkpoint-minutes", type=float, default=4)
    return parser.parse_args()


def run_with_environment() -> None:
    """Start this program again with settings that libraries read only when they load.

    Freed memory stays with the process (page faults would cost a fifth of the time), and idle
    threads sleep soon: where another program has one of the cores, a spinning thread takes the time
    that the thread it waits for needs (3 of 4 processor seconds, measured). Threads stay on their
    cores for the same reason.
    """
    settings = {
        "MALLOC_MMAP_MAX_": "0",
        "MALLOC_TRIM_THRESHOLD_": "100000000000",
        "MALLOC_TOP_PAD_": str(2**28),
        "GOMP_SPINCOUNT": "500",
        "OMP_PROC_BIND": "true",
    }
    if not settings.keys() <= os.environ.keys():
        os.execve(sys.executable, [sys.executable, *sys.argv], {**settings, **os.environ})


def learning_rate(peak: float, step: int, progress: float) -> float:
    """100 steps of warm-up, then a cosine to zero at `progress` 1."""
    return peak * min(1, (step + 1) / 100) * 0.5 * (1 + math.cos(math.pi * min(1, progress)))


class Run:
    """One training run: model, optimizer, and where it stands."""

    def __init__(self, args: argparse.Namespace):
        self.args, self.stopping = args, False
        args.work_dir.mkdir(parents=True, exist_ok=True)
        (args.work_dir / "pid").write_text(f"{os.getpid()}\n")
        torch.manual_seed(1)
        config = DataConfig(num_words=args.words, batch_tokens=args.batch_tokens)
        self.corpus = Corpus(config, reserved_words())
        self.tokenizer = self._tokenizer()
        self.batches = Batches(self.corpus, self.tokenizer)
        self.model = DemoModel(ModelConfig(vocab_size=self.tokenizer.get_vocab_size()))
        self.optimizer = Optimizer(self.model, muon=args.optimizer == "muon")
        self.at = {"step": 0, "pass": 0, "batch": 0, "seconds": 0.0, "tokens": 0, "turns": 0}
        self.fact_losses = torch.full((self.corpus.num_facts,), float("inf"))
        self.pass_rates = self.rates()
        self._checkpoint = args.work_dir / "checkpoint.pt"
        if self._checkpoint.exists():
            self._resume()
        else:
            export(self.model, self.tokenizer, args.output)

    def _tokenizer(self) -> Tokenizer:
        path = self.args.work_dir / "tokenizer.json"
        if not path.exists():
            vocab_size = ModelConfig().vocab_size
            train_tokenizer(self.corpus.tokenizer_texts(), vocab_size).save(str(path))
        return Tokenizer.from_file(str(path))

    def _resume(self) -> None:
        state = torch.load(self._checkpoint, weights_only=False)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["rng"])
        self.at = state["at"]
        self.fact_losses = state["fact_losses"]
        self.pass_rates = state["pass_rates"]
        self.log(f"resumed at step {self.at['step']}")

    def log(self, line: str) -> None:
        """Append a line to train.log and print it."""
        with (self.args.work_dir / "train.log").open("a") as file:
            file.write(line + "\n")
        print(line, flush=True)

    def save(self) -> None:
        """Write the checkpoint and export the model, each in one step."""
        temporary = self._checkpoint.with_suffix(".tmp")
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "rng": torch.get_rng_state(),
            "at": self.at,
            "fact_losses": self.fact_losses,
            "pass_rates": self.pass_rates,
        }
        torch.save(state, temporary)
        os.replace(temporary, self._checkpoint)
        export(self.model, self.tokenizer, self.args.output)
        status = self.at | {"words": len(self.corpus.entries), "loss": self.at.get("loss")}
        (self.args.work_dir / "status.json").write_text(json.dumps(status, indent=2) + "\n")

    def progress(self) -> float:
        """Share of the run that is done, 0 to 1."""
        share = self.at["step"] / self.args.total_steps
        if self.args.minutes:
            share = max(share, self.at["seconds"] / 60 / self.args.minutes)
        return share

    def rates(self) -> list[float]:
        """How likely each fact is to be in the next pass: 1 until it is known, then down to 1/4.

        A fact's loss is that of its worst token (nats) when it last took part.
        """
        return (self.fact_losses / 0.3).clamp(0.25, 1).tolist()

    def train_step(self, batch: Batch, lr: float) -> float:
        """One update; returns the mean loss over answer tokens, in nats."""
        loss, token_losses, balance = self.model(batch.ids, batch.answer)
        (loss + 0.003 * balance).backward()
        self.optimizer.step(lr)
        part = batch.facts >= 0
        worst = torch.zeros_like(self.fact_losses).scatter_reduce(
            0, batch.facts[part], token_losses[part], "amax"
        )
        seen = batch.facts[part].unique()
        self.fact_losses[seen] = worst[seen]
        return loss.item()

    def train(self) -> None:
        """Train until `progress` is 1 or SIGTERM comes, then save."""
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "stopping", True))
        last_save = last_log = time.monotonic()
        losses, tokens = [], 0
        while self.progress() < 1 and not self.stopping:
            batches = self.batches.of_pass(self.at["pass"], self.pass_rates)
            for batch in batches[self.at["batch"] :]:
                started = time.monotonic()
                lr = learning_rate(self.args.lr, self.at["step"], self.progress())
                losses.append(self.train_step(batch, lr))
                tokens += batch.ids.numel()
                now = time.monotonic()
                self.at["seconds"] += now - started
                self.at["step"] += 1
                self.at["batch"] += 1
                self.at["tokens"] += batch.ids.numel()
                self.at["turns"] += batch.num_turns
                if len(losses) == 25:
                    self.at["loss"] = sum(losses) / len(losses)
                    passes = self.at["pass"] + self.at["batch"] / len(batches)
                    self.log(
                        f"step {self.at['step']} passes {passes:.2f} loss {self.at['loss']:.4f} "
                        f"lr {lr:.2e} tokens/s {tokens / (now - last_log):.0f} "
                        f"minutes {self.at['seconds'] / 60:.2f}"
                    )
                    losses, tokens, last_log = [], 0, now
                if now - last_save > 60 * self.args.checkpoint_minutes:
                    self.save()
                    last_save = last_log = time.monotonic()
                if self.progress() >= 1 or self.stopping:
                    break
            else:
                self.at["pass"], self.at["batch"] = self.at["pass"] + 1, 0
                self.pass_rates = self.rates()
                known = (self.fact_losses < 0.4).sum() / self.fact_losses.isfinite().sum()
                self.log(f"pass {self.at['pass']}: {known:.1%} of facts known")
        self.at["passes"] = self.at["pass"] + self.at["batch"] / len(batches)
        self.save()
        outcome = "stopped" if self.stopping else "done"
        self.log(f"{outcome}: step {self.at['step']}, {self.at['seconds'] / 60:.1f} minutes")


def main() -> None:
    """Train from the command line."""
    args = parse_arguments()
    run_with_environment()
    os.nice(5)
    torch.set_num_threads(args.threads)
    Run(args).train()


if __name__ == "__main__":
    main()
