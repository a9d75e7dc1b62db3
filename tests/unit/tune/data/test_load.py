from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from inlay.core.errors import ConfigError, DataError
from inlay.models.text import Text
from inlay.tune import TuneConfig
from inlay.tune.data.load import TuneData, load_data
from inlay.tune.data.preview import spans_of

Write: TypeAlias = Callable[..., Path]

ROWS = [{"instruction": f"Define lantern {n}.", "output": "A light. " * (n + 1)} for n in range(10)]
INFO = {"mine": {"file_name": "a.json"}}


def load(folder: Path, text: Text, **settings: Any) -> TuneData:
    config = TuneConfig(
        **{"model_name_or_path": "m", "dataset": ("mine",), "dataset_dir": str(folder), **settings}
    )
    return load_data(config, text)


def test_rows_packed_or_not_hold_the_same_tokens(data: Write, text: Text) -> None:
    folder = data(INFO, a_json=ROWS)
    plain = load(folder, text)
    packed = load(folder, text, packing=True, cutoff_len=128)
    assert (len(plain.train), plain.evaluation, plain.notes) == (10, None, ())
    assert len(packed.train) < packed.train.num_segments == 10
    assert packed.train.num_tokens == plain.train.num_tokens
    assert packed.train.num_loss_tokens == plain.train.num_loss_tokens


def test_evaluation_is_held_out_and_not_packed(data: Write, text: Text) -> None:
    found = load(data(INFO, a_json=ROWS), text, val_size=3, packing=True)
    assert found.evaluation is not None
    assert (len(found.evaluation), found.train.num_segments) == (3, 7)


def test_what_a_user_should_know(data: Write, text: Text) -> None:
    folder = data(INFO, a_json=ROWS)
    (cut,) = load(folder, text, cutoff_len=40).notes
    assert "training samples are longer than cutoff_len=40 tokens, the longest" in cut
    notes = load(folder, text, template="qwen").notes
    assert "template qwen writes" in notes[0] and "the model's own chat template" in notes[0]
    assert load(folder, text, template="qwen3_nothink").notes == ()  # writes the same


def test_nothing_to_learn(data: Write, text: Text) -> None:
    folder = data(INFO, a_json=ROWS)
    with pytest.raises(ConfigError, match="dataset is not set"):
        load(folder, text, dataset=())
    rows = [{"instruction": "Define lantern. " * 20, "output": "A light."}]
    folder = data(INFO, a_json=rows)
    with pytest.raises(DataError, match="no token of the 1 training samples has a loss"):
        load(folder, text, cutoff_len=2)


def test_spans_show_every_character_once(data: Write, text: Text) -> None:
    rows = [{"instruction": "Grüße 🙂?", "output": "你好 🚀!"}, {"instruction": "a", "output": "b"}]
    found = load(data(INFO, a_json=rows), text, packing=True, train_on_prompt=False).train
    spans = list(spans_of(found[0], text))
    whole = "".join(span.text for span in spans)
    assert whole == text.decode(found[0].input_ids_N.tolist(), skip_special_tokens=False)
    assert [span.has_loss for span in spans] == [False, True, False, True]
    assert [span.begins_segment for span in spans] == [True, False, True, False]
    assert spans[1].text == "你好 🚀!<|im_end|>\n"
    assert sum(span.num_tokens for span in spans if span.has_loss) == found.num_loss_tokens
