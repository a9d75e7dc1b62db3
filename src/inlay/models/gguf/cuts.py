"""How tokenizers of GPT-2's kind cut a text into words, by `tokenizer.ggml.pre`. Data.

Source: the tokenizers that the makers publish: tokenizer.json, and Kimi-K2's own code.
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Cut:
    """One way.

    Attributes:
        regexes: one after the other cuts out what it finds in the pieces that there are; without
            any, GPT-2's.
        whole_words: a word that is a token itself is not merged from pairs, as in tiktoken.
        composed: characters are composed first (NFC).
    """

    regexes: tuple[str, ...] = ()
    whole_words: bool = False
    composed: bool = False


def _letters(ranges: str) -> str:
    """The inside of a character class, from code points in hexadecimal."""
    parts = (part.partition("-") for part in ranges.split())
    return "".join(
        f"\\x{{{first}}}{dash}" + f"\\x{{{last}}}" * bool(last) for first, dash, last in parts
    )


_CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_WORDS = (
    _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}DIGITS| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _SPACES
)
_THREE_DIGITS = _WORDS.replace("DIGITS", "{1,3}")

# Capitals and what has no case, then small letters and what has none; or capitals alone.
_UPPER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}"
_LOWER = r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
_CASED = (
    rf"[^\r\n\p{{L}}\p{{N}}]?[UPPER]*[LOWER]+{_CONTRACTION}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?[UPPER]+[LOWER]*{_CONTRACTION}?|\p{{N}}{{1,3}}"
)
_O200K = _CASED.replace("UPPER", _UPPER).replace("LOWER", _LOWER)
_NOT_HAN = r"&&[^\p{Han}]"
_KIMI = _CASED.replace("UPPER", _UPPER + _NOT_HAN).replace("LOWER", _LOWER + _NOT_HAN)

# Letters with a case, of some Unicode version, as DeepSeek's first tokenizer lists them.
_DEEPSEEK_LETTERS = _letters(
    "0041-005A 0061-007A 00B5 00C0-00D6 00D8-00F6 00F8-01BA 01BC-01BF 01C4-0293 0295-02AF "
    "0370-0373 0376-0377 037B-037D 037F 0386 0388-038A 038C 038E-03A1 03A3-03F5 03F7-0481 "
    "048A-052F 0531-0556 10A0-10C5 13A0-13F5 13F8-13FD 1C90-1CBA 1CBD-1CBF 1D00-1D2B 1D6B-1D77 "
    "1D79-1D9A 1E00-1F15 1F18-1F1D 1F20-1F45 1F48-1F4D 1F50-1F57 1F59 1F5B 1F5D 1F5F-1F7D "
    "1F80-1FB4 1FB6-1FBC 1FBE 1FC2-1FC4 1FC6-1FCC 1FD0-1FD3 1FD6-1FDB 1FE0-1FEC 1FF2-1FF4 "
    "1FF6-1FFC 2102 2107 210A-2113 2115 2119-211D 2124 2126 2128 212A-212D 212F-2134 2139 "
    "213C-213F 2145-2149 214E 2183-2184 2C00-2C7B 2C7E-2CE4 2CEB-2CEE 2CF2-2CF3 A640-A66D "
    "A680-A69B A722-A76F A771-A787 A78B-A78E AB70-ABBF FB00-FB06 FB13-FB17 FF21-FF3A FF41-FF5A "
    "10400-1044F 104B0-104D3 104D8-104FB 10C80-10CB2 10CC0-10CF2 118A0-118DF 1E900-1E943"
)
_DEEPSEEK_MARKS = _letters("0021-002F 003A-007E FF01-FF0F FF1A-FF5E 2018-201F 3000-3002")
_DEEPSEEK_ASIAN = _letters("0800-9FA5 AC00-D7FF")
_DEEPSEEK = (
    r"[\r\n]",
    rf"\s?[{_DEEPSEEK_LETTERS}]+",
    rf"\s?[{_DEEPSEEK_MARKS}]+",
    r"\s+$",
    f"[{_DEEPSEEK_ASIAN}]+",
    r"\p{N}",
)
_DEEPSEEK_V3 = (
    r"\p{N}{1,3}",
    f"[{_letters('4E00-9FA5 3040-309F 30A0-30FF')}]+",
    r"[!-/:-@\[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"
    + _SPACES,
)

# Of files that don't know their kind, as llama.cpp takes it.
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_DEFAULT = Cut(regexes=(r"[\p{P}$+<=>^~|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"))
_QWEN2 = Cut(regexes=(_WORDS.replace("DIGITS", ""),), composed=True)
_LLAMA3 = Cut(regexes=(_THREE_DIGITS,), whole_words=True)

CUTS: dict[str, Cut] = {
    "default": _DEFAULT,
    "gpt-2": Cut(),
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "llama-bpe": _LLAMA3,
    "deepseek-llm": Cut(regexes=_DEEPSEEK),
    "deepseek-v3": Cut(regexes=_DEEPSEEK_V3),
    "kimi-k2": Cut(
        regexes=(rf"[\p{{Han}}]+|{_KIMI}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}",),
        whole_words=True,
    ),
    "chatglm-bpe": _LLAMA3,
    "glm4": _LLAMA3,
    "smollm": Cut(regexes=(r"\p{N}", _GPT2)),
    "gpt-4o": Cut(
        regexes=(rf"{_O200K}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}",), whole_words=True
    ),
}
