"""Traces drawn from stated distributions: `WORKLOADS` has them by name."""

from inlay.sim.generators.distributions import LogNormal
from inlay.sim.generators.sessions import Mixture, Sessions, SharedTexts
from inlay.sim.generators.workloads import WORKLOADS

__all__ = ["WORKLOADS", "LogNormal", "Mixture", "Sessions", "SharedTexts"]
