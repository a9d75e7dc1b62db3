"""Which tokens end the model's turn, beside those that a GGUF file names so.

Source: llama.cpp's list of such tokens; of GLM's, which end with what begins the next turn, the
makers' generation_config.json.
"""

from collections.abc import Callable, Sequence

_NORMAL, _CONTROL = 1, 3

_NAMED = ("eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep")
_ENDS = frozenset(
    "<|endoftext|> <|end_of_text|> <|im_end|> <|end|> <|eot_id|> <|eom_id|> <|return|> <|call|> "
    "<|flush|> <|calls|> <end_of_turn> <EOT> _<EOT> [EOT] [EOS] </s> <eos> <turn|> "
    "<|tool_response> <end_of_utterance> [e~[".split()
) | {"<\uff5cend\u2581of\u2581sentence\uff5c>"}
# Where a text to fill in would go on into what is beside it; of files that do not name them.
_FILLED = {
    "fim_pad": frozenset("<|fim_pad|> <fim-pad> <fim_pad> <PAD> [PAD]".split()),
    "fim_rep": frozenset("<|fim_repo|> <|repo_name|> <fim-repo> <REPO> <reponame>".split()),
    "fim_sep": frozenset(["<|file_sep|>"]),
}
_NEXT_TURN = frozenset(["<|user|>", "<|observation|>"])
# A token that ends no turn where all of some others are.
_NOT_BESIDE = (
    ("<|end|>", {"<|return|>", "<|call|>"}),
    ("<|end|>", {"<|flush|>", "<|calls|>"}),
    ("</s>", {"<|tool_response>"}),
)


def end_ids(
    tokens: Sequence[str], types: Sequence[int], number: Callable[[str], int | None]
) -> list[int]:
    """Ids of tokens that end the model's turn, in order.

    Args:
        tokens: by id.
        types: `tokenizer.ggml.token_type` of each.
        number: the id that the file gives for a name, such as `eot`.
    """
    named = {name: number(name) for name in _NAMED}
    ends = _ENDS.union(*(names for name, names in _FILLED.items() if named[name] is None))
    found = {
        token: at
        for at, (token, kind) in enumerate(zip(tokens, types, strict=True))
        if (token in ends and _is_special(token, kind))
        or (token in _NEXT_TURN and kind == _CONTROL)
    }
    for token, others in _NOT_BESIDE:
        if others <= found.keys():
            found.pop(token, None)
    return sorted({*found.values(), *(at for at in named.values() if at is not None)})


def _is_special(token: str, kind: int) -> bool:
    """Some files have such tokens among the words; what a text may hold as well is a word."""
    return kind != _NORMAL or token.startswith("<|")
