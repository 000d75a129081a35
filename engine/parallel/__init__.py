"""Tensor parallelism: rendezvous of the ranks, collectives, and the channel for each step's inputs."""

from engine.model_config.shard import Shard
from engine.parallel.communicator import SINGLE_RANK, Communicator
from engine.parallel.rendezvous import Rendezvous, RendezvousServer, join
from engine.parallel.step_channel import StepChannel
from engine.parallel.torch_communicator import TorchCommunicator

__all__ = [
    "SINGLE_RANK",
    "Communicator",
    "Rendezvous",
    "RendezvousServer",
    "Shard",
    "StepChannel",
    "TorchCommunicator",
    "join",
]
