"""The `openai` package against a running `inlay serve`: streaming, usage, cached tokens.

Run: `python examples/chat_client.py [http://127.0.0.1:8000]`
"""

import sys

from openai import OpenAI


def main() -> None:
    url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"
    client = OpenAI(base_url=f"{url}/v1", api_key="-")
    model = client.models.list().data[0].id

    for question in ("What does lantern mean?", "Define river."):
        print(f"> {question}")
        stream = client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": question}],
            temperature=0,
            max_tokens=60,
            stream=True,
            stream_options={"include_usage": True},
        )
        for chunk in stream:
            if chunk.choices:
                print(chunk.choices[0].delta.content or "", end="", flush=True)
            if chunk.usage:
                print(f"\n  {chunk.usage.prompt_tokens} + {chunk.usage.completion_tokens} tokens\n")


if __name__ == "__main__":
    main()
