"""One model on several ranks: who holds what of it, and how they compute a step together."""

from engine.parallel.communicator import ALONE, Ranks
from engine.parallel.group import RankGroup
from engine.parallel.rendezvous import Rendezvous, RendezvousServer, join
from engine.spec.shard import Shard

__all__ = ["ALONE", "RankGroup", "Ranks", "Rendezvous", "RendezvousServer", "Shard", "join"]
