"""Structured output: grammars compiled by llguidance, and the token masks they give."""

import json
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from inlay.core.errors import StructureError
from inlay.core.messages import Structure
from inlay.engine.probabilities import Float32

_OBJECT_SCHEMA = '{"type": "object"}'
# Without a limit a model may put out white space for ever and still follow the grammar. One space,
# or a new line with its indent: a small model fills whatever it is given.
_WHITESPACE = r"(\x20|\x0A\x20{0,16})?"


class GrammarMask:
    """The state of one choice in its grammar.

    Args:
        matcher: an `llguidance.LLMatcher` that belongs to this choice alone.
        vocab_size: logits per row.
    """

    __slots__ = ("_bits", "_matcher", "_vocab_size")

    def __init__(self, matcher: Any, vocab_size: int) -> None:
        self._matcher = matcher
        self._vocab_size = vocab_size
        self._bits = np.zeros((vocab_size + 31) // 32, np.int32)

    def apply(self, logits_V: Float32) -> None:
        """Forbid what the grammar does not allow next. Cost: about 50 us and a pass over V."""
        self._matcher.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.nbytes)
        if self._matcher.is_error():
            # The library then allows the end, which would pass a broken output off as whole.
            logits_V.fill(-np.inf)
            return
        allowed = np.unpackbits(
            self._bits.view(np.uint8), count=self._vocab_size, bitorder="little"
        )
        np.putmask(logits_V, allowed == 0, -np.inf)

    def consume(self, token_id: int) -> None:
        """Advance by a token that the mask allowed."""
        self._matcher.consume_token(token_id)

    @property
    def complete(self) -> bool:
        """Whether the output may end here."""
        return bool(self._matcher.is_accepting())

    @property
    def stopped(self) -> bool:
        """Whether nothing may follow."""
        return bool(self._matcher.is_stopped())

    @property
    def error(self) -> str:
        """Why the grammar cannot go on; empty if it can."""
        return str(self._matcher.get_error()).strip() if self._matcher.is_error() else ""


class GrammarCompiler:
    """Compiles grammars in a thread of its own, and remembers the last ones.

    Args:
        load_tokenizer: gives the text of `tokenizer.json`; called once, in the thread.
        vocab_size: logits per row, not less than the tokenizer's tokens.
        end_ids: tokens that end an output.
        max_cached: compiled grammars to keep.
    """

    def __init__(
        self,
        load_tokenizer: Callable[[], str],
        vocab_size: int,
        end_ids: Iterable[int],
        max_cached: int = 64,
    ) -> None:
        self._load_tokenizer = load_tokenizer
        self._vocab_size = vocab_size
        self._end_ids = sorted(end_ids)
        self._max_cached = max_cached
        self._tokenizer: Any = None
        self._compiled: OrderedDict[Structure, Future[Any]] = OrderedDict()
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="inlay-grammar")

    def submit(self, structure: Structure) -> "Future[Any]":
        """Start to compile a grammar, or return the one that is there.

        The future gives a prototype for `mask`, or raises `StructureError`. It may be
        cancelled when nobody waits for it.
        """
        future = self._compiled.get(structure)
        if future is None or _failed(future):
            future = self._threads.submit(self._compile, structure)
            self._compiled[structure] = future
            if len(self._compiled) > self._max_cached:
                self._compiled.popitem(last=False)
        self._compiled.move_to_end(structure)
        return future

    def mask(self, prototype: Any) -> GrammarMask:
        """A mask in its first state, for one choice. Cost: a copy of the parser state."""
        return GrammarMask(prototype.deep_copy(), self._vocab_size)

    def close(self) -> None:
        """Let the thread end; grammars still waiting are dropped."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _compile(self, structure: Structure) -> Any:
        from llguidance import LLMatcher, LLParserLimits, LLTokenizer

        if not self._end_ids:
            raise StructureError(
                "this model names no token that ends an output, which structured output needs: set "
                "eos_token_id in its generation_config.json"
            )
        if self._tokenizer is None:
            self._tokenizer = LLTokenizer(
                self._load_tokenizer(), n_vocab=self._vocab_size, eos_token=self._end_ids
            )
        matcher = LLMatcher(
            self._tokenizer,
            grammar_of(structure),
            log_level=0,
            limits=LLParserLimits(verbose_errors=False),
        )
        if matcher.is_error():
            raise StructureError(
                f"the {structure.kind} cannot be compiled: {matcher.get_error().strip()}",
                param="response_format",
            )
        return matcher


def _failed(future: "Future[Any]") -> bool:
    return future.done() and (future.cancelled() or future.exception() is not None)


def grammar_of(structure: Structure) -> str:
    """Translate a structure to the library's grammar.

    Raises:
        StructureError: the value is not what its kind says.
    """
    from llguidance import LLMatcher

    kind, value = structure.kind, structure.value
    if kind == "json_object":
        kind, value = "json_schema", _OBJECT_SCHEMA
    try:
        if kind == "json_schema":
            schema = _json(value, dict | bool, "a JSON schema", "an object")
            # oneOf is treated as anyOf: that exactly one fits cannot be said in a grammar.
            overrides: Any = {"whitespace_pattern": _WHITESPACE, "coerce_one_of": True}
            schema = {} if schema is True else schema
            return str(LLMatcher.grammar_from_json_schema(schema, overrides=overrides))
        if kind == "regex":
            return str(LLMatcher.grammar_from_regex(value))
        if kind == "choice":
            choices = _json(value, list, "a list of choices", "a list of texts")
            if not choices or not all(isinstance(choice, str) for choice in choices):
                raise StructureError(
                    f"choice needs a list of at least one text, got {value[:200]}",
                    param="guided_choice",
                )
            lark = "start: " + " | ".join(json.dumps(choice) for choice in choices)
            return str(LLMatcher.grammar_from_lark(lark))
        if kind == "lark":
            return str(LLMatcher.grammar_from_lark(value))
    except (ValueError, TypeError) as error:
        raise StructureError(f"the {kind} cannot be compiled: {error}") from error
    raise StructureError(
        f"structure kind {kind!r} is not json_object, json_schema, regex, choice or lark"
    )


def _json(value: str, kind: Any, name: str, form: str) -> Any:
    try:
        parsed = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise StructureError(f"{name} must be JSON: {error}", param="response_format") from error
    if not isinstance(parsed, kind):
        raise StructureError(f"{name} must be {form}, got {value[:200]}", param="response_format")
    return parsed
