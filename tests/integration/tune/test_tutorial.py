"""The tutorial in a short form: the demo model learns the voice from a hundred words."""

import gzip
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from inlay.tune import TuneConfig, predict, train
from inlay.tune.config_file import read_config
from inlay.tune.scores import score
from tests.support.tree import ROOT

EXAMPLE = ROOT / "examples" / "finetune"
sys.path[:0] = [str(EXAMPLE)]

from dataset import write_dataset  # noqa: E402
from dictd import read_dictionary  # noqa: E402
from voice import CLOSINGS, in_voice, plain, speak  # noqa: E402

HELD = 20


def words() -> list[tuple[str, str]]:
    """Questions that the demo model was not trained on, and WordNet's answers."""
    found = json.loads((ROOT / "examples/demo_model/eval_prompts.json").read_text("utf-8"))
    return [(one["prompt"], one["expected"]) for one in found if one["kind"] == "known"]


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> TuneConfig:
    """The tutorial's file, for 42 short steps."""
    folder = tmp_path_factory.mktemp("tutorial")
    pairs = [(asked, speak(said, "n")) for asked, said in words()]
    write_dataset(folder / "data", "bosun", pairs[HELD : HELD + 112])
    write_dataset(folder / "data", "bosun_held", pairs[:HELD])
    changes = [
        f"dataset_dir={folder / 'data'}", f"output_dir={folder / 'out'}", "learning_rate=3e-3",
        "per_device_train_batch_size=8", "num_train_epochs=3", "do_eval=false",
        "use_cpu=true", "do_predict=true",
    ]  # fmt: skip
    return read_config(EXAMPLE / "words.yaml", changes).config


def test_the_voice_is_learned_and_the_facts_stay(config: TuneConfig, tmp_path: Path) -> None:
    train(config)
    output = Path(config.output_dir)
    assert (output / "training_loss.png").is_file()
    rows = [
        json.loads(line)
        for line in (output / "generated_predictions.jsonl").read_text("utf-8").splitlines()
    ]
    facts = [plain(row["label"]) for row in rows]
    assert facts == [said for _, said in words()[:HELD]]
    base = predict(replace(config, output_dir=str(tmp_path)))
    assert not any(map(in_voice, base.answers))
    assert sum(in_voice(row["predict"]) for row in rows) >= 0.5 * HELD
    before, after = (
        score([plain(said) for said in answers], facts).means["rouge-l-google"]
        for answers in (base.answers, [row["predict"] for row in rows])
    )
    assert after >= 0.6 * before


@pytest.mark.parametrize("pos", CLOSINGS)
def test_the_voice_leaves_the_facts_alone(pos: str) -> None:
    said = speak("a man of the sea, and no other", pos)
    assert in_voice(said) and plain(said) == "a man of the sea, and no other"
    assert not in_voice(plain(said))


def test_dictionaries_of_dictd(tmp_path: Path) -> None:
    texts = {"00-database-info": "of itself\n", "bit": "bit\n n.\n\n  A unit.\n", "é": "é\n\n x"}
    whole, lines = b"", []
    digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    for word, text in texts.items():
        place = [
            digits[number // 64] + digits[number % 64]
            for number in (len(whole), len(text.encode()))
        ]
        lines.append("\t".join((word, *place)))
        whole += text.encode()
    (tmp_path / "some.index").write_text("\n".join(lines) + "\n", "utf-8")
    (tmp_path / "some.dict.dz").write_bytes(gzip.compress(whole))
    assert read_dictionary("some", tmp_path) == {
        word: text for word, text in texts.items() if word != "00-database-info"
    }


def test_definitions_are_the_first_sentences() -> None:
    sys.path[:0] = [str(EXAMPLE.parent / "demo_model")]
    from jargon import definition

    entry = (
        "bit\n n.\n\n    [from “binary digit”] 1. The unit of {information}; it is\n    small. "
        f"See {{byte}}. {'Long ' * 60}.\n\n    More."
    )
    assert definition(entry) == "The unit of information; it is small. See byte."
    assert definition("bit\n n.\n\n    Short.") is None
