"""Versions as the processes of a deployment offer them to each other, on whatever machines.

They form a swarm of their own beside that of the trainers: who holds the deployment's secret
belongs to it. A dispatcher offers what lies on its machine; instances on other machines pull it
from there and from each other, and one that comes late has it from whoever is left.
"""

import hashlib

from inlay.core.instance_setup import split_address
from inlay.store.address import join_address
from inlay.transfer import TransferConfig, TransferEngine

CHECKPOINT = "deployed"
_PERSON = b"inlay-weights"  # the secret has other uses, too


def label(version: str) -> str:
    """What a version is called there; its own name may have any characters."""
    return hashlib.blake2b(version.encode(), digest_size=16).hexdigest()


def open_engine(beside: str, secret: str) -> TransferEngine:
    """A transfer engine of the swarm.

    Args:
        beside: "host:port" of something else; the engine is at any free port of this host.
        secret: of the deployment; empty: this user's processes alone.

    Raises:
        ConfigError: that is no address.
    """
    host, _ = split_address(beside)
    token = hashlib.blake2b(secret.encode(), digest_size=32, person=_PERSON).digest()
    config = TransferConfig(traffic_class="background")
    return TransferEngine(join_address(host, 0), token=token if secret else None, config=config)
