"""The workloads that can be drawn, as numbers; `dataclasses.replace` makes others of them.

Those of `tool_and_agent` were set so that what is published of a real trace comes out. The others
are ours: plausible for their kind, fitted to no trace.
"""

from collections.abc import Callable

from inlay.sim.generators.distributions import LogNormal
from inlay.sim.generators.sessions import Mixture, Sessions, SharedTexts


def tool_and_agent(rate: float = 6.6) -> Mixture:
    """Single calls behind 40 hot prompts, and agents that come back after minutes.

    What is published of Mooncake's tool&agent trace, and comes out here within a few percent:
    23,608 requests in an hour, of 8,596 and 182 tokens on average; 0.59 of all blocks had been seen
    before, of which a pool of 3 M tokens finds three quarters. That trace is not used. What is
    assumed: that it is an hour, all other shapes, and that six in ten requests are tools.

    Source: Mooncake (FAST'25), section 5 and Fig. 9.
    """
    tools = Sessions(
        name="tool",
        rate=0.6 * rate,
        shared=(SharedTexts(count=40, tokens=LogNormal(4550, 0.1), exponent=1.2),),
        opening=LogNormal(2400, 1.0),
        output=LogNormal(60, 1.0),
    )
    agents = Sessions(
        name="agent",
        rate=0.4 * rate,
        shared=(SharedTexts(count=4, tokens=LogNormal(1000), exponent=1.0),),
        opening=LogNormal(6800, 1.0),
        turns=2.6,
        added=LogNormal(1800, 1.0),
        output=LogNormal(368, 0.9),
        pause_s=LogNormal(200, 1.4),
    )
    return Mixture((tools, agents))


def chat(rate: float = 1.0) -> Sessions:
    """Conversations of five turns behind one of five system prompts; people think for a while."""
    return Sessions(
        name="chat",
        rate=rate,
        shared=(SharedTexts(count=5, tokens=LogNormal(800, 0.5)),),
        opening=LogNormal(300, 1.2),
        turns=5,
        added=LogNormal(150, 1.0),
        output=LogNormal(300, 0.8),
        pause_s=LogNormal(45, 1.0),
    )


def agents(rate: float = 1.0) -> Sessions:
    """Agents that call a tool in each of twelve turns: short pauses, and long results at times."""
    return Sessions(
        name="agents",
        rate=rate,
        shared=(SharedTexts(count=6, tokens=LogNormal(6000, 0.3)),),
        opening=LogNormal(800, 1.0),
        turns=12,
        added=LogNormal(900, 1.2, most=20_000),
        output=LogNormal(150, 0.8),
        pause_s=LogNormal(4, 1.3),
    )


def rag(rate: float = 1.0) -> Sessions:
    """Questions about three of 5,000 documents, some of which are asked about often."""
    return Sessions(
        name="rag",
        rate=rate,
        shared=(
            SharedTexts(tokens=LogNormal(600)),
            SharedTexts(count=5000, tokens=LogNormal(1200, 0.4), exponent=0.9, chosen=3),
        ),
        opening=LogNormal(60, 0.6),
        turns=1.5,
        added=LogNormal(40, 0.6),
        output=LogNormal(250, 0.7),
        pause_s=LogNormal(30, 1.0),
    )


def long_documents(rate: float = 0.2) -> Sessions:
    """Four questions about a document of the user's own, of some 40,000 tokens."""
    return Sessions(
        name="long_documents",
        rate=rate,
        shared=(SharedTexts(tokens=LogNormal(600)),),
        opening=LogNormal(40_000, 0.6),
        turns=4,
        added=LogNormal(60, 0.7),
        output=LogNormal(400, 0.7),
        pause_s=LogNormal(60, 1.0),
    )


WORKLOADS: dict[str, Callable[..., Sessions | Mixture]] = {
    make.__name__: make for make in (tool_and_agent, chat, agents, rag, long_documents)
}
"""By name; each takes its requests per second."""
