"""`inlay doctor`: what this machine is, what Inlay will use of it, and what holds it back.

Each probe (`cpu`, `memory`, `bandwidth`, `disk`, `gpu`, `software`) reads one thing and returns a
frozen dataclass; `advice` turns these facts into findings without looking at the machine again;
`report` prints both. Probes never raise: what cannot be read is None.
"""
