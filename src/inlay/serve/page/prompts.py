"""The prompts to click: three short ones, and a document asked twice."""

from dataclasses import dataclass
from importlib.resources import files


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """A card of the start screen.

    Attributes:
        title: in a few words; of a short prompt, the question itself.
        caption: what there is to see.
        questions: asked one after the other, from the start again after the last.
        document: goes in front of each question.
    """

    title: str
    caption: str
    questions: tuple[str, ...]
    document: str | None = None


_REPEAT = (
    "The first question waits until the whole document is read. Then ask the second: "
    "the document comes from the cache, and the first token is there at once."
)


def document() -> str:
    """The long text about KV caches that comes with the page."""
    return files("inlay.serve.page").joinpath("document.md").read_text(encoding="utf-8").strip()


def _short(question: str, caption: str) -> Prompt:
    return Prompt(title=question, caption=caption, questions=(question,))


def _twice(*questions: str) -> Prompt:
    return Prompt(
        title="One long document, two questions",
        caption=_REPEAT,
        questions=questions,
        document=document(),
    )


def prompts(*, is_demo: bool) -> tuple[Prompt, ...]:
    """The cards for the demo model, which defines English words, or for any other model."""
    if is_demo:
        return (
            _short("Define lantern.", "A word's first sense in WordNet"),
            _short("What does curiosity mean?", "The same kind of question in other words"),
            _short("Use memory in a sentence.", "An example instead of a definition"),
            _twice("What does memory mean?", "What does page mean?"),
        )
    return (
        _short("Explain in three sentences why the sky is blue.", "A short answer"),
        _short(
            "Write a Python function that checks whether a text is a palindrome.",
            "Code, with highlighting",
        ),
        _short("Compare tea and coffee in a small table.", "Markdown as it streams in"),
        _twice(
            "Summarise the document in three sentences.",
            "According to the document, which pages does a server forget first, and why?",
        ),
    )
