"""The programs that are known, and which of them a command starts."""

from collections.abc import Sequence
from fnmatch import fnmatchcase

from inlay.serve.migrate import ktransformers, llama_cpp, sglang, vllm
from inlay.serve.migrate.program import Program

PROGRAMS = (
    sglang.SGLANG,
    sglang.KT,
    ktransformers.OLD_SERVER,
    ktransformers.LOCAL_CHAT,
    llama_cpp.SERVER,
    llama_cpp.TERMINAL,
    vllm.VLLM,
)


def find_program(words: Sequence[str]) -> tuple[Program, list[str]] | None:
    """The program that a command's first words start, and the words behind those."""
    for program in PROGRAMS:
        for start in program.starts:
            parts = _parts(start)
            if len(words) >= len(parts) and _starts(words[0], parts[0]):
                if list(words[1 : len(parts)]) == parts[1:]:
                    return program, list(words[len(parts) :])
    return None


def program_of_image(image: str) -> Program | None:
    """The program that a container's image runs."""
    images = ((program, pattern) for program in PROGRAMS for pattern in program.images)
    return next((program for program, pattern in images if fnmatchcase(image, pattern)), None)


def known_starts() -> str:
    """How a command of each program begins, for people."""
    return ", ".join(f"{one.name} ({_shown(one.starts[0])})" for one in PROGRAMS)


def _parts(start: str) -> list[str]:
    """`-m MODULE` stays together."""
    words = start.split()
    return [" ".join(words[:2]), *words[2:]] if words[0] == "-m" else words


def _starts(word: str, pattern: str) -> bool:
    program = word.replace("\\", "/").rpartition("/")[2].removesuffix(".exe")
    return fnmatchcase(word, pattern) or fnmatchcase(program, pattern)


def _shown(start: str) -> str:
    return f"python {start}" if start.startswith("-m ") else start
