"""The model's tokenizer: text and conversations to ids, and ids to streamed text."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

import tokenizers

from router.api.generation.output.formats import OutputFormats
from router.api.generation.text.breakpoints import tokens_within
from router.api.generation.text.chat_template import ChatTemplate, PromptEnd
from router.api.generation.text.detokenizer import ByteDetokenizer, Detokenizer, WindowDetokenizer
from router.api.generation.text.system_messages import Message
from router.api.generation.text.token_bound import TokenBound
from router.api.generation.text.vocabulary import byte_table
from router.api.generation.tools import Tool
from router.errors import InvalidRequest

_INLINE_CHARACTERS: Final = 8192
"""Longest text that is rendered and encoded inline, in at most 2 ms each; longer text in a thread."""

_MESSAGE_CHARACTERS: Final = 100
"""Rendering a message takes as long as encoding about this many characters."""


_TAIL_CHARACTERS: Final = 256
"""Characters at the end of a shared text that are encoded again with each text that follows."""
_MOST_AFTER: Final = 64

_OTHER_FILES: Final = ("tekken.json", "tiktoken.model", "tokenizer.model")
"""Files in which some models keep their tokenizer instead."""


class TokenizerError(Exception):
    """The model's folder has no usable tokenizer; the message names the file."""


def tokenizer_file(folder: Path) -> Path:
    """The model's tokenizer.json. Raises TokenizerError if there is none."""
    path = folder / "tokenizer.json"
    if not path.exists():
        others = [name for name in _OTHER_FILES if (folder / name).exists()]
        instead = f", but {' and '.join(others)}, which Baton does not read" if others else ""
        raise TokenizerError(
            f"{folder} has no tokenizer.json{instead}; take it from a checkpoint of the same model"
            " that has one"
        )
    return path


def check_text_files(folder: Path, template: str | None = None) -> None:
    """Raise TokenizerError for a model without a tokenizer, or with a chat template that is none."""
    tokenizer_file(folder)
    template_of(folder, template)


def template_of(folder: Path, chosen: str | None) -> ChatTemplate | None:
    """The chat template in the file `chosen`, or the model's; None if it has none. Raises TokenizerError."""
    source = f"{folder} has a chat template that" if chosen is None else f"--chat-template {chosen}"
    try:
        return ChatTemplate.load(folder, chosen)
    except (OSError, ValueError) as error:
        raise TokenizerError(f"{source} cannot be used: {error}") from error


@dataclass(frozen=True, slots=True)
class Truncation:
    tokens: int
    left: bool = False
    """Whether the beginning is left out, and not the end."""


@dataclass(frozen=True, slots=True)
class Framed:
    """A text in others that are not cut."""

    before: str
    text: str
    after: str
    rendered: bool = True
    """Whether the whole has all its special tokens already."""

    @property
    def whole(self) -> str:
        return self.before + self.text + self.after


class Tokenizer:
    """For use from one event loop. The library releases the interpreter lock while it encodes."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        vocab_size: int,
        chat_template: ChatTemplate | None = None,
        words: int | None = None,
    ) -> None:
        """`vocab_size` is that of the model, which may exceed the tokenizer's because of padding.

        `words`: of a model with several kinds of tokens, the number of ids of each kind.
        """
        backend.no_truncation()
        backend.no_padding()
        self._backend: Final = backend
        self._chat_template: Final = chat_template
        self._words: Final = words
        written = backend.to_str()
        spec = json.loads(written)
        self.digest: Final = blake2b(written.encode(), digest_size=32).hexdigest()
        """Digest of the vocabulary and all rules of the tokenizer."""
        self._table: Final = byte_table(spec, max(vocab_size, backend.get_vocab_size(with_added_tokens=True)))
        self._bound: Final = TokenBound.of(spec)
        self._after: Final[dict[tuple[str, tuple[str, ...]], tuple[int | None, ...]]] = {}
        self._visible: Final[dict[tuple[str, ...], Sequence[bytes]]] = {}

    @property
    def template_digest(self) -> str:
        """Digest of the chat template; empty if there is none."""
        template = self._chat_template
        return "" if template is None else blake2b(template.source.encode(), digest_size=32).hexdigest()

    @classmethod
    def load(
        cls, folder: Path, *, vocab_size: int, template: str | None = None, words: int | None = None
    ) -> Tokenizer:
        """Read tokenizer.json and the chat template. Blocking; 0.1 to 1 s. Raises TokenizerError.

        `template`: the file of a chat template to use instead of the model's own.
        """
        path = tokenizer_file(folder)
        try:
            backend = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library has no error class
            raise TokenizerError(f"{path} cannot be read: {error}") from error
        chat_template = template_of(folder, template)
        return cls(backend, vocab_size=vocab_size, chat_template=chat_template, words=words)

    def fewest_tokens(self, text: str) -> int:
        """A lower bound of the tokens of `text`, without encoding it; 0 if the vocabulary has none."""
        return 0 if self._bound is None else self._bound.fewest(text)

    async def encode(self, text: str) -> list[int]:
        """Ids of a plain prompt, with the model's special tokens at its start."""
        return await self._encode(text, add_special_tokens=True)

    async def encode_rendered(self, text: str) -> list[int]:
        """Ids of a conversation from `render`, without adding special tokens."""
        return await self._encode(text, add_special_tokens=False)

    async def encode_to_ends(self, text: str, ends: Sequence[int]) -> tuple[list[int], list[int]]:
        """Like `encode_rendered`; and how many tokens lie before each of `ends`, in characters."""
        if len(text) <= _INLINE_CHARACTERS:
            return self._encode_to_ends(text, ends)
        return await asyncio.to_thread(self._encode_to_ends, text, ends)

    def encode_batch(self, texts: Sequence[str], *, add_special_tokens: bool = True) -> list[list[int]]:
        """Ids of several texts, computed on all cores. Blocks."""
        encodings = self._backend.encode_batch_fast(list(texts), add_special_tokens=add_special_tokens)
        return [encoding.ids for encoding in encodings]

    async def encode_with_shared(self, shared: str, rests: Sequence[str]) -> list[list[int]]:
        """Ids of `shared` and each rest as one text, from `render`; the shared text is encoded once."""
        if len(shared) + sum(map(len, rests)) <= _INLINE_CHARACTERS:
            return self.encode_after(shared, rests)
        return await asyncio.to_thread(self.encode_after, shared, rests)

    def encode_after(self, shared: str, rests: Sequence[str]) -> list[list[int]]:
        """Like `encode_with_shared`, on this thread.

        Cuts the shared text at a word, if encoding its parts for themselves changes no token there.
        """
        whole = partial(self.encode_batch, add_special_tokens=False)
        cut = shared.rfind("\n", 0, max(0, len(shared) - _TAIL_CHARACTERS))
        if len(rests) < 2 or cut <= 0:
            return whole([shared + rest for rest in rests])
        [encoding] = self._backend.encode_batch([shared + rests[0]], add_special_tokens=False)
        token = encoding.char_to_token(cut)
        place = None if token is None else encoding.token_to_chars(token)
        if place is None:
            return whole([shared + rest for rest in rests])
        tail, head = shared[place[0] :], encoding.ids[:token]
        ends = whole([tail + rest for rest in rests])
        if head + ends[0] != encoding.ids:
            return whole([shared + rest for rest in rests])
        return [head + end for end in ends]

    def tokens_after(self, text: str, words: tuple[str, ...]) -> tuple[int | None, ...]:
        """The token that each word is after `text`; None if it is several, or changes those before it.

        The latest results are kept: models ask for the same words after the same text.
        """
        known = self._after.get((text, words))
        if known is None:
            texts = [text, *(text + word for word in words)]
            before, *found = self.encode_batch(texts, add_special_tokens=False)
            known = tuple(ids[-1] if ids[:-1] == before else None for ids in found)
            if len(self._after) >= _MOST_AFTER:
                self._after.clear()
            self._after[text, words] = known
        return known

    def encode_inputs(
        self, inputs: Sequence[str | tuple[str, str]], cut: Truncation | None = None
    ) -> list[list[int]]:
        """Ids of texts, or of pairs of texts, with the model's special tokens; on all cores. Blocks.

        Token i of the second kind has the id i + words, as encoders take it. `cut`: of longer inputs, the
        ends are left out, and special tokens stay.
        """
        encodings = self._backend.encode_batch_fast(list(inputs), add_special_tokens=True)
        found = [self._kinds(encoding.ids, encoding.type_ids) for encoding in encodings]
        if cut is not None:
            for index, ids in enumerate(found):
                if len(ids) > cut.tokens:
                    found[index] = self._cut(inputs[index], cut)
        return found

    def encode_framed(self, inputs: Sequence[Framed], cut: Truncation | None = None) -> list[list[int]]:
        """Ids of framed texts, on all cores. Blocks. `cut`: longer ones lose an end of the text within."""
        if not inputs:
            return []
        special = not inputs[0].rendered
        found = self.encode_batch([each.whole for each in inputs], add_special_tokens=special)
        if cut is not None:
            for index, ids in enumerate(found):
                if len(ids) > cut.tokens:
                    found[index] = self._cut_within(inputs[index], cut)
        return found

    def _cut_within(self, framed: Framed, cut: Truncation) -> list[int]:
        [encoding] = self._backend.encode_batch([framed.whole], add_special_tokens=not framed.rendered)
        first = len(framed.before)
        end = first + len(framed.text)
        own = [at for at, (one, other) in enumerate(encoding.offsets) if first <= one < other <= end]
        return self._without(encoding, own, cut)

    def _cut(self, text: str | tuple[str, str], cut: Truncation) -> list[int]:
        [encoding] = self._backend.encode_batch([text], add_special_tokens=True)
        last = int(isinstance(text, tuple))
        own = [at for at, of in enumerate(encoding.sequence_ids) if of == last]
        return self._without(encoding, own, cut)

    def _without(self, encoding: tokenizers.Encoding, own: Sequence[int], cut: Truncation) -> list[int]:
        """Ids of the encoding without as many of `own` as are too many."""
        over = len(encoding.ids) - cut.tokens
        if over >= len(own):
            raise InvalidRequest(
                f"The input cannot be truncated to {cut.tokens} tokens: the rest of it has more.",
                code="context_length_exceeded",
            )
        gone = set(own[:over] if cut.left else own[-over:])
        ids = self._kinds(encoding.ids, encoding.type_ids)
        return [token for at, token in enumerate(ids) if at not in gone]

    def _kinds(self, ids: list[int], kinds: list[int]) -> list[int]:
        words = self._words
        if words is None or not any(kinds):
            return ids
        return [token + words * kind for token, kind in zip(ids, kinds, strict=True)]

    def token_id(self, token: str) -> int:
        """The id of an entry of the vocabulary. Raises TokenizerError if it has no such entry."""
        found = self._backend.token_to_id(token)
        if found is None:
            raise TokenizerError(f"the tokenizer has no token {token!r}")
        return found

    @property
    def output_formats(self) -> OutputFormats:
        """The formats of tool calls and reasoning that the chat template implies."""
        template = self._chat_template
        if template is None:
            return OutputFormats()
        return OutputFormats.of_template(template.source, takes_tools=template.takes_tools)

    @cached_property
    def special_ids(self) -> Mapping[str, int]:
        """Ids of the tokens that are not part of a text unless they are asked for."""
        added = self._backend.get_added_tokens_decoder().items()
        return {token.content: token_id for token_id, token in added if token.special}

    @cached_property
    def special_tokens(self) -> tuple[str, ...]:
        """The tokens of `special_ids`."""
        return tuple(self.special_ids)

    def show_images_as(self, placeholder: str) -> None:
        """Have conversations rendered with images, each as this text."""
        if self._chat_template is not None:
            self._chat_template.placeholder = placeholder

    def render(
        self,
        messages: Sequence[Message],
        options: Mapping[str, Any],
        tools: Sequence[Tool] = (),
        end: PromptEnd = PromptEnd.ANSWER,
    ) -> str:
        """Render a conversation up to `end`. Raises InvalidRequest."""
        if self._chat_template is None:
            raise InvalidRequest(
                "This model has no chat template; use /v1/completions.",
                param="messages",
                code="no_chat_template",
            )
        return self._chat_template.render(messages, options, tools, end)

    async def rendered(
        self,
        messages: Sequence[Message],
        options: Mapping[str, Any],
        tools: Sequence[Tool] = (),
        end: PromptEnd = PromptEnd.ANSWER,
    ) -> str:
        """Like `render`; does not block the event loop for a long conversation."""
        characters = _characters_in(messages) + len(messages) * _MESSAGE_CHARACTERS
        if characters <= _INLINE_CHARACTERS and not tools:  # of any size
            return self.render(messages, options, tools, end)
        return await asyncio.to_thread(self.render, messages, options, tools, end)

    def detokenizer(self, prompt: Sequence[int], visible: Sequence[str] = ()) -> Detokenizer:
        """A detokenizer of one output after `prompt`; omits special tokens other than those in `visible`."""
        if self._table is not None:
            return ByteDetokenizer(self._table_with(tuple(visible)) if visible else self._table)
        skips = visible != self.special_tokens
        return WindowDetokenizer(partial(self._backend.decode, skip_special_tokens=skips), prompt)

    def _table_with(self, visible: tuple[str, ...]) -> Sequence[bytes]:
        """Cached for each `visible`, of which a model has two: those of its parser, and all."""
        assert self._table is not None
        if visible not in self._visible:
            table = list(self._table)
            for token in visible:
                if (token_id := self._backend.token_to_id(token)) is not None:
                    table[token_id] = token.encode()
            self._visible[visible] = table
        return self._visible[visible]

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of a whole sequence."""
        if self._table is not None:
            detokenizer = ByteDetokenizer(self._table)
            return detokenizer.feed(token_ids) + detokenizer.flush()
        return self._backend.decode(token_ids)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of one token. Special tokens, which are not part of the text, are given by name."""
        if self._table is not None and (value := self._table[token_id]):
            return value
        token = self._backend.id_to_token(token_id)
        return b"" if token is None else token.encode()

    async def _encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        if len(text) <= _INLINE_CHARACTERS:
            return self._encode_now(text, add_special_tokens)
        return await asyncio.to_thread(self._encode_now, text, add_special_tokens)

    def _encode_now(self, text: str, add_special_tokens: bool) -> list[int]:
        # Not encode(), which holds the interpreter lock and also computes offsets.
        [encoding] = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        return encoding.ids

    def _encode_to_ends(self, text: str, ends: Sequence[int]) -> tuple[list[int], list[int]]:
        [encoding] = self._backend.encode_batch([text], add_special_tokens=False)
        ids = encoding.ids
        return ids, [tokens_within(encoding, end, len(text), len(ids)) for end in ends]


def _characters_in(messages: Sequence[Message]) -> int:
    return sum(len(content) for message in messages if isinstance(content := message.get("content"), str))
