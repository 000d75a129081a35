"""Why a step, or the gap before it, took longer than expected."""

from __future__ import annotations

from enum import Enum


class Cause(Enum):
    """Part of the time between the tokens of two steps, on the engine thread."""

    COMMANDS = "commands"
    """Commands of routers, answers to scrapes, and deadlines, between two steps."""
    PLAN = "plan"
    """The scheduler."""
    BATCH = "batch"
    """Inputs of the step: arrays, block tables, the plan of its attention."""
    ENCODE = "encode"
    """Inputs of a step with rows of images, which the vision model may have had to encode."""
    LAUNCH = "launch"
    """Enqueueing the step on the device."""
    DEVICE = "device"
    """Waiting for the device; on a CPU, computing."""
    RESULTS = "results"
    """Bookkeeping of the tokens that the step has sampled."""
    SEND = "send"
    """Building the events for the routers, and handing them to the event loop that sends them."""
    HANDOFF = "handoff"
    """KV to and from other workers."""
    COPIES = "copies"
    """KV to and from host memory and disk."""
    GC = "gc"
    """Python's cyclic garbage collector, on any thread."""
    COMPILE = "compile"
    """Compiling or loading a kernel at its first use."""
    ALLOCATION = "allocation"
    """The driver allocated or freed memory of the GPU, or pinned memory of the host."""
    LOCK = "lock"
    """Another thread of the process held the interpreter lock."""
    CPU = "cpu"
    """The thread was ready, and the kernel ran something else on its core."""
    STOPPED = "stopped"
    """The whole process did not run: stopped by a signal, throttled, or its machine was."""
    WORK = "work"
    """None of these: the step took as long as its tokens were expected to take."""
