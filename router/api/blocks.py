"""An answer as blocks: texts, reasoning and tool calls, in the order in which the model wrote them."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, ClassVar, Final, Literal, TypeAlias

import orjson

from router.api.generation.audit.answer import Extras
from router.api.generation.completion import OutputChunk
from router.api.generation.output.parts import Arguments, Call, Content, ReasoningPart
from router.api.generation.run import Run
from rpc.baton.v1 import sampling_pb2

BlockStatus: TypeAlias = Literal["in_progress", "completed", "incomplete"]


class Kind(Enum):
    TEXT = auto()
    REASONING = auto()
    CALL = auto()


_KINDS: Final = {Content: Kind.TEXT, ReasoningPart: Kind.REASONING, Arguments: Kind.CALL}


@dataclass(slots=True)
class Block:
    index: int
    kind: Kind
    name: str
    """Name of the tool in a call; otherwise empty."""
    key: str = field(default_factory=lambda: secrets.token_hex(12))
    """Unique; APIs make their ids of it."""
    pieces: list[str] = field(default_factory=list)
    logprobs: list[Any] = field(default_factory=list)
    """Logprobs of its tokens, as the API reports them."""
    status: BlockStatus = "in_progress"

    @property
    def text(self) -> str:
        """Text so far; of a call, the JSON text of its arguments."""
        return "".join(self.pieces)


class BlockWriter(ABC):
    """Renders one run, whole or as events. A block stays open until a part of another kind follows."""

    never_empty: ClassVar[bool] = False
    """Whether an answer without parts has an empty text."""

    def __init__(self, run: Run) -> None:
        self._run: Final = run
        self._blocks: Final[list[Block]] = []
        self._last: OutputChunk | None = None

    def event(self, chunk: OutputChunk) -> bytes:
        """The events of a chunk; each call changes the answer too."""
        events: list[bytes] = []
        for part in chunk.all_parts:
            match part:
                case Content(""):
                    continue
                case Call(_, name):
                    events += self._open(Kind.CALL, name)
                case _:
                    kind = _KINDS[type(part)]
                    if not self._blocks or self._blocks[-1].kind is not kind:
                        events += self._open(kind)
                    self._blocks[-1].pieces.append(part.text)
                    events.append(self._grown(self._blocks[-1], part.text))
        if chunk.finish:
            if self.never_empty and not self._blocks:
                events += self._open(Kind.TEXT)
            complete = chunk.finish == sampling_pb2.FINISH_REASON_STOP and not chunk.cut_call
            events += self._close("completed" if complete else "incomplete")
            self._last = chunk
        return b"".join(events)

    def add(self, chunk: OutputChunk) -> None:
        self.event(chunk)

    def body(self) -> bytes:
        return orjson.dumps(self.answer())

    @abstractmethod
    def answer(self) -> Any:
        """The answer so far."""

    def _extras(self) -> Extras:
        """Further fields of a finished answer."""
        return {} if self._last is None or self._last.extras is None else self._last.extras

    def _open(self, kind: Kind, name: str = "") -> Iterator[bytes]:
        yield from self._close("completed")
        self._blocks.append(Block(len(self._blocks), kind, name))
        yield from self._opened(self._blocks[-1])

    def _close(self, status: BlockStatus) -> Iterator[bytes]:
        if self._blocks and self._blocks[-1].status == "in_progress":
            self._blocks[-1].status = status
            yield from self._closed(self._blocks[-1])

    @abstractmethod
    def _opened(self, block: Block) -> Iterator[bytes]: ...

    @abstractmethod
    def _grown(self, block: Block, text: str) -> bytes:
        """`text`: new, and already part of the block."""

    @abstractmethod
    def _closed(self, block: Block) -> Iterator[bytes]: ...


def named_event(kind: str, data: Any) -> bytes:
    """A server-sent event whose name is the `type` in its data."""
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps(data))
