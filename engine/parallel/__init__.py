"""One model on several ranks: who holds what of it, and how they compute a step together."""

from engine.models.shard import Shard
from engine.parallel.group import RankGroup
from engine.parallel.meeting import Meeting, OpenMeeting, attend
from engine.parallel.ranks import ALONE, Ranks

__all__ = ["ALONE", "Meeting", "OpenMeeting", "RankGroup", "Ranks", "Shard", "attend"]
