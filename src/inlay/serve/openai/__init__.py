"""The OpenAI protocol: request bodies, answers, errors and event streams."""
