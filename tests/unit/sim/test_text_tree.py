"""Names of the blocks of texts that go on from each other, against texts written out."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from inlay.sim.generators.text_tree import EMPTY, TextTree

Text = tuple[tuple[int, int], ...]


@st.composite
def trees(draw: st.DrawFn) -> tuple[TextTree, int, list[Text]]:
    """A tree, and each text of it written out: a token is its piece and its place there."""
    block_tokens = draw(st.integers(1, 6))
    tree, texts = TextTree(block_tokens), [()]
    for _ in range(draw(st.integers(1, 4))):
        many = draw(st.integers(1, 4))
        before = draw(st.lists(st.integers(EMPTY, len(texts) - 2), min_size=many, max_size=many))
        tokens = draw(st.lists(st.integers(1, 9), min_size=many, max_size=many))
        numbers = tree.add(np.array(before), np.array(tokens))
        assert numbers.tolist() == list(range(len(texts) - 1, len(texts) - 1 + many))
        texts += [
            texts[parent + 1] + tuple((number, place) for place in range(length))
            for number, parent, length in zip(numbers.tolist(), before, tokens, strict=True)
        ]
    return tree, block_tokens, texts[1:]


@given(trees(), st.data())
def test_blocks_have_one_name_where_texts_are_the_same(
    drawn: tuple[TextTree, int, list[Text]], data: st.DataObject
) -> None:
    tree, block_tokens, texts = drawn
    prompts = data.draw(st.lists(st.integers(0, len(texts) - 1), min_size=1, max_size=8))
    trace = tree.trace(
        np.array(prompts),
        arrival_s=np.zeros(len(prompts)),
        output_tokens=np.ones(len(prompts), np.int64),
        session=np.arange(len(prompts)),
        groups=("drawn",),
    )
    assert trace.input_tokens.tolist() == [len(texts[prompt]) for prompt in prompts]
    names: dict[int, Text] = {}
    for request, prompt in enumerate(prompts):
        for place, name in enumerate(trace.chain(request).tolist()):
            stands_for = texts[prompt][: (place + 1) * block_tokens]
            assert names.setdefault(name, stands_for) == stands_for
    assert len(names) == len(set(names.values())), "and two names never say the same"
