"""Runs that are killed at random moments, and whose newest checkpoint is damaged now and then.

python -m tests.integration.tune.soak RECORD.json [KILLS [SEED]]
"""

import json
import random
import secrets
import signal
import sys
import tempfile
import time
from pathlib import Path

from inlay.tune import TuneData, train
from tests.integration.tune.test_kill import OPTIONS, log_of, started
from tests.support.tiny_models import make_tiny_model
from tests.support.tuning import random_rows, settings

# Each checkpoint takes about as long as a step, so about half of all kills come while saving.
LONG = OPTIONS | {"num_train_epochs": 150.0, "save_steps": 1, "save_total_limit": 3}
LONGEST_S = 0.3
DAMAGED = 0.3  # of the kills, a file of the newest checkpoint


def damage(output: Path, draw: random.Random) -> str:
    """Change a byte of a file of the newest checkpoint; its name."""
    newest = max(output.glob("checkpoint-*"), key=lambda folder: int(folder.name.split("-")[1]))
    file = draw.choice(sorted(newest.iterdir()))
    content = bytearray(file.read_bytes())
    content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    file.write_bytes(content)
    return f"{newest.name}/{file.name}"


def killed(model: Path, output: Path, draw: random.Random) -> bool:
    """Start or go on, and kill at a random moment behind the first step; False: it had ended."""
    with started(model, output, LONG) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(draw.uniform(0, LONGEST_S))
        process.send_signal(signal.SIGKILL)
        process.stdout.read()
    return process.returncode == -signal.SIGKILL


def main() -> None:
    """Kill a run again and again, then let it end, and compare its losses with one of one go."""
    record = Path(sys.argv[1])
    kills = int(sys.argv[2]) if len(sys.argv) > 2 else 50
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else secrets.randbelow(1 << 30)
    draw, lines, damaged, done = random.Random(seed), [], [], 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = make_tiny_model(folder / "tiny", "qwen3_moe", num_hidden_layers=1)
        data = TuneData(random_rows(8), None, ())
        train(settings(model, folder / "whole", **LONG), data)
        for _ in range(kills):
            if not killed(model, folder / "killed", draw):
                break
            done += 1
            if draw.random() < DAMAGED and list((folder / "killed").glob("checkpoint-*")):
                damaged.append(damage(folder / "killed", draw))
        train(settings(model, folder / "killed", **LONG), data, say=lines.append)
        same = log_of(folder / "killed") == log_of(folder / "whole")
        left = [str(path.relative_to(folder)) for path in (folder / "killed").glob(".*")]
    outcome = {
        "seed": seed,
        "kills": done,
        "damaged": damaged,
        "same_losses": same,
        "left_behind": left,
        "passed": same and not left and done > 0,
    }
    record.write_text(json.dumps([outcome], indent=2))
    if not outcome["passed"]:
        sys.exit(f"failed: {outcome}")


if __name__ == "__main__":
    main()
