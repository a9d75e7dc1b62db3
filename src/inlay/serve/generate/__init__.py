"""`inlay generate`: many prompts through one engine, results in the order they came.

`prompts` reads lines into jobs, `runner` keeps the engine full and writes results in order.
"""
