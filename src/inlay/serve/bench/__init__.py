"""`inlay bench serve`: load on an OpenAI endpoint, and what came of it.

`workload` makes prompts, `load` sends them at their times, `records` turns streams into times,
`statistics` turns records into figures, `report` prints them. Nothing here knows Inlay's engine:
any OpenAI-compatible server will do.
"""
