"""A long document asked about twice: the second answer starts from the cached prefix.

Run: `python examples/shared_document.py [http://127.0.0.1:8000]`
"""

import sys
import time

from openai import OpenAI

DOCUMENT = "The lantern hung above the door and lit the path to the river. " * 60


def main() -> None:
    url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"
    client = OpenAI(base_url=f"{url}/v1", api_key="-")
    model = client.models.list().data[0].id

    for question in ("What does lantern mean?", "What does path mean?"):
        start = time.perf_counter()
        first_token_s = 0.0
        stream = client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": f"{DOCUMENT}\n\n{question}"}],
            max_tokens=20,
            stream=True,
            stream_options={"include_usage": True},
        )
        for chunk in stream:
            first_token_s = first_token_s or time.perf_counter() - start
            if chunk.usage and chunk.usage.prompt_tokens_details:
                cached = chunk.usage.prompt_tokens_details.cached_tokens
                print(
                    f"{question} first token after {1000 * first_token_s:.0f} ms, "
                    f"{cached} of {chunk.usage.prompt_tokens} prompt tokens cached"
                )


if __name__ == "__main__":
    main()
