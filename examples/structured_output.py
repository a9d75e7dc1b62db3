"""Answers that follow a JSON schema, whatever the model would rather say.

Run: `python examples/structured_output.py [http://127.0.0.1:8000]`
"""

import json
import sys

from openai import OpenAI

SCHEMA = {
    "type": "object",
    "properties": {
        "word": {"type": "string", "maxLength": 20},
        "kind": {"enum": ["noun", "verb", "adjective"]},
        "letters": {"type": "integer", "minimum": 1, "maximum": 20},
    },
    "required": ["word", "kind", "letters"],
    "additionalProperties": False,
}


def main() -> None:
    url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"
    client = OpenAI(base_url=f"{url}/v1", api_key="-")
    answer = client.chat.completions.create(
        model=client.models.list().data[0].id,
        messages=[{"role": "user", "content": "Describe the word lantern."}],
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "word", "schema": SCHEMA, "strict": True},
        },
        temperature=0,
        max_tokens=200,
    )
    entry = json.loads(answer.choices[0].message.content or "")
    print(json.dumps(entry, indent=2))


if __name__ == "__main__":
    main()
