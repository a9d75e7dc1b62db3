"""An engine inside a script, no server: many prompts at once, seeds, several choices.

Run: `python examples/offline.py [MODEL]`

MODEL is a directory or a name on the hub; without it, the demo model answers.
"""

import sys

from inlay.core.messages import SamplingParams
from inlay.engine import Engine, EngineConfig


def main() -> None:
    engine = Engine(EngineConfig(model=sys.argv[1] if len(sys.argv) > 1 else None))
    words = ["lantern", "river", "courage", "orchestra"]
    prompts = [
        engine.text.encode_chat([{"role": "user", "content": f"What does {word} mean?"}])
        for word in words
    ]

    # All prompts run together; an answer does not depend on which others run beside it.
    greedy = SamplingParams(temperature=0, max_tokens=60)
    for word, answer in zip(words, engine.generate(prompts, greedy), strict=True):
        print(f"{word}: {answer.text.strip()}")

    # Two sampled answers to one prompt share its pages. The same seed gives the same texts again.
    sampled = SamplingParams(temperature=0.8, seed=7, n=2, max_tokens=30)
    (answer,) = engine.generate(prompts[:1], sampled)
    print(f"\n{answer.cached_tokens} of {answer.prompt_tokens} prompt tokens were in the cache")
    for choice in answer.choices:
        print(f"- {choice.text.strip()}")


if __name__ == "__main__":
    main()
