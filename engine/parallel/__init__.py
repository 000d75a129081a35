"""One model on several ranks: who holds what of it, and how they compute a step together."""

from engine.parallel.communicator import ALONE, Ranks
from engine.parallel.group import RankGroup
from engine.parallel.rendezvous import Meeting, OpenMeeting, attend
from engine.spec.shard import Shard

__all__ = ["ALONE", "Meeting", "OpenMeeting", "RankGroup", "Ranks", "Shard", "attend"]
