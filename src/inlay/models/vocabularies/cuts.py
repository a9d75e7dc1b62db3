"""How byte-pair tokenizers cut a text into words, by `tokenizer.ggml.pre` of GGUF files. Data.

Source: the tokenizers that the makers publish: tokenizer.json, or their own code (Kimi-K2, Qwen).
The names are llama.cpp's.
"""

from dataclasses import dataclass, replace
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Cut:
    """One way.

    Attributes:
        regexes: one after the other cuts out what it finds in the pieces that there are; without
            any, GPT-2's.
        whole_words: a word that is a token itself is not merged from pairs, as in tiktoken.
        composed: characters are composed first (NFC).
        begins: whether a GGUF file that doesn't say so has texts begin with BOS; `always`: even if
            it says no.
        spaced: tokens are characters, as in SentencePiece, not bytes; nothing is cut.
    """

    regexes: tuple[str, ...] = ()
    whole_words: bool = False
    composed: bool = False
    begins: Literal["", "by default", "always"] = ""
    spaced: bool = False


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

# Punctuation, then words, then digits in threes: of GGUF files that don't know their kind, too.
_MARKS = r"[\p{P}$+<=>^~|MORE]+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_THREES = "[0-9][0-9][0-9]"

_SENTENCES = rf" ?[^(\s|.,!?{_letters('2026 3002 FF0C 3001 0964 06D4 060C')})]+"  # BLOOM's
_FROM_THE_RIGHT = r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))"
_AFMOE_ASIAN = _letters(
    "4E00-9FFF 3400-4DBF F900-FAFF 3040-309F 30A0-30FF FF65-FF9F 2F00-2FDF 0E40-0E7F 0E80-0EFF "
    "1780-17FF 1000-109F AA60-AA7F A9E0-A9FF AC00-D7AF 1100-11FF"
)
_YOUTU_ASIAN = "|".join(
    f"[{_letters(ranges)}]+"
    for ranges in (
        "AC00-D7A3 3131-318E",
        "FF01 2026 201C 201D 2018 2019 2014 FF1A FF1B FF0C 3001-303F FE30-FE4F",
        "3105-312F",
        "4E00-9FA5 3040-309F 30A0-30FF",
    )
)
_SPACE_RUNS = "|".join(rf"\s{{{count}}}(?!\S)" for count in (512, 256, 128, 64, 32, 16, 8, 4))

_DIGITS = Cut(regexes=(r"\p{N}", _GPT2))
_QWEN = Cut(regexes=(_WORDS.replace("DIGITS", ""),))
_LLAMA3 = Cut(regexes=(_THREE_DIGITS,), whole_words=True)
_GPT4O = Cut(regexes=(rf"{_O200K}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}",))

_FAMILIES = (
    (
        "gpt-2 phi-2 gigachat a.x-4.0 mellum jais trillion granite-docling exaone4 jina-es jina-de "
        "jina-v2-es jina-v2-de jina-v1-en jina-v2-code roberta-bpe",
        Cut(),
    ),
    ("mpt olmo modern-bert", Cut(composed=True)),
    ("starcoder refact smollm codeshell exaone minerva-7b mellum2", _DIGITS),
    ("command-r", replace(_DIGITS, composed=True)),
    ("default", Cut(regexes=(_MARKS.replace("MORE", ""), _GPT2, r"\p{N}+", _THREES))),
    ("falcon", Cut(regexes=(_MARKS.replace("MORE", "`"), _GPT2, _THREES))),
    ("qwen2 deepseek-r1-qwen f2llmv2 megrez", replace(_QWEN, composed=True)),
    ("kormo stablelm2 hunyuan solar-open grok-2", _QWEN),
    ("ufakzeka", Cut(regexes=(_WORDS.replace("DIGITS", "").removeprefix(_CONTRACTION + "|"),))),
    ("laguna", Cut(regexes=(r"\n+", *_QWEN.regexes))),
    (
        "qwen35",
        Cut(
            regexes=(
                rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
                rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}",
            ),
            composed=True,
        ),
    ),
    (
        "seed-coder",
        Cut(
            regexes=(
                rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}"
                rf"| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}",
            )
        ),
    ),
    (
        "exaone-moe",
        Cut(
            regexes=(
                rf"{_CONTRACTION}"
                r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}"
                r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
            ),
            composed=True,
        ),
    ),
    (
        "bailingmoe bailingmoe2 llada-moe",
        Cut(
            regexes=(
                r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}"
                r"| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
            )
        ),
    ),
    ("chatglm-bpe glm4 glm5", _LLAMA3),
    (
        "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
        replace(_LLAMA3, begins="by default"),
    ),
    ("dbrx smaug-bpe", replace(_LLAMA3, whole_words=False)),
    (
        "jais-2",
        Cut(
            regexes=(
                _THREE_DIGITS.replace(_SPACES, rf"\s*[\r\n]+|{_SPACE_RUNS}|\s{{1,2}}(?!\S)|\s"),
            )
        ),
    ),
    ("minicpm5", Cut(regexes=(r"\p{N}{1,3}", _WORDS.replace("DIGITS", "+")), whole_words=True)),
    ("deepseek-llm", Cut(regexes=_DEEPSEEK)),
    (
        "deepseek-coder",
        Cut(regexes=(r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", f"[{_DEEPSEEK_ASIAN}]+", r"\p{N}")),
    ),
    ("deepseek-v3 hunyuan-dense hy_v4 joyai-llm", Cut(regexes=_DEEPSEEK_V3)),
    (
        "spark2_5",
        Cut(
            regexes=(
                *_DEEPSEEK_V3[:2],
                _DEEPSEEK_V3[2].replace(r"+[\r\n]*|\s*[\r\n]+", r"+|[\r\n]"),
                r"\p{N}",
            )
        ),
    ),
    ("afmoe", Cut(regexes=(_FROM_THE_RIGHT, f"[{_AFMOE_ASIAN}]+", _DEEPSEEK_V3[2]))),
    ("superbpe", Cut(regexes=(r"\p{N}+", r"(?=(\d{3})+(?!\d))"))),
    (
        "kimi-k2",
        Cut(
            regexes=(rf"[\p{{Han}}]+|{_KIMI}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}",),
            whole_words=True,
        ),
    ),
    ("gpt-4o llama4", replace(_GPT4O, whole_words=True)),
    ("kanana2 talkie minimax-m2", _GPT4O),
    ("granite-embed-multi-97m", replace(_GPT4O, whole_words=True)),
    (
        "tiny_aya cohere2moe",
        Cut(regexes=(r"\d{1,3}(?=(?:\d{3})*\b)", *_GPT4O.regexes), composed=True),
    ),
    (
        "tekken",
        Cut(
            regexes=(_GPT4O.regexes[0].replace(_CONTRACTION + "?", "").replace("{1,3}", ""),),
            whole_words=True,
            begins="by default",
        ),
    ),
    (
        "youtu",
        Cut(
            regexes=(_YOUTU_ASIAN, _GPT4O.regexes[0].replace("{1,3}", "")),
            whole_words=True,
        ),
    ),
    ("bloom gpt3-finnish poro-chat", Cut(regexes=(_SENTENCES,))),
    ("viking", Cut(regexes=(_SENTENCES, r"\p{N}"))),
    (
        "chameleon",
        Cut(
            regexes=(
                "<sentinel:[0-9]+>",
                "IMGIMG[A-I]{1,4}Z",
                r"[\t\n]|    |  ",
                r"\p{N}",
                r"[\p{P}!-/:-@\[-`{-~]",
                _GPT2,
            ),
            begins="by default",
        ),
    ),
    ("gemma4 granite-embed-multi-311m", Cut(spaced=True, begins="always")),
    ("sarvam-moe", Cut(spaced=True)),
)
CUTS: dict[str, Cut] = {name: cut for names, cut in _FAMILIES for name in names.split()}
