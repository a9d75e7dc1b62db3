"""What the engine decides, in plain Python: the oracle of its tests, and what simulations run.

Nothing here moves a byte, keeps a clock or knows a socket: times and events are arguments.
"""
