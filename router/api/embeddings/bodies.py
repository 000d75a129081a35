"""Bodies of requests for vectors, in the shapes of OpenAI's, vLLM's, Cohere's, Jina's and TEI's servers."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from router.api.embeddings.pooled import Input, TextPair
from router.api.fields import WithoutEffect
from router.api.generation.generation_request import Chat
from router.api.generation.params.bounds import ModelName
from router.api.generation.params.validation import RequestModel
from router.api.generation.text.chat_template import PromptEnd
from router.api.openai.messages import MessageBody, for_template
from router.api.openai.requests import Bookkeeping, TextsOrIds, texts_or_ids
from router.api.scheduled_body import ScheduledFields

MAX_INPUTS: Final = 2048
"""OpenAI's."""
_Texts: TypeAlias = Annotated[list[str], Field(min_length=1, max_length=MAX_INPUTS)]
_Count: TypeAlias = Annotated[int, Field(ge=1)]
Instruction: TypeAlias = Annotated[
    str | None, Field(description="vLLM's. What relevance means, for models whose prompt says so.")
]
_OneOrMore: TypeAlias = Annotated[str | _Texts, Field(union_mode="left_to_right")]


class PooledFields(ScheduledFields):
    model: ModelName | None = None
    """Absent: the served model."""
    truncate_prompt_tokens: Annotated[int, Field(ge=-1)] | None = None
    """vLLM's. Longer inputs are cut to as many tokens; -1: to as many as the model takes."""
    truncation_side: Literal["left", "right"] | None = None
    """vLLM's. What is cut: the beginning, or by default the end."""
    user: Bookkeeping = None


class InputBody(PooledFields):
    """An input, several, or a conversation."""

    input: Annotated[Any, BeforeValidator(texts_or_ids, json_schema_input_type=TextsOrIds)] = None
    """Text, token ids, or a list of either."""
    messages: Annotated[list[MessageBody], Field(min_length=1)] | None = None
    """vLLM's. A conversation, in place of `input`."""
    encoding_format: Literal["float", "base64"] | None = None
    """base64: float32, little-endian."""
    add_special_tokens: Annotated[Any, WithoutEffect("texts are encoded as the tokenizer says")] = None

    @model_validator(mode="after")
    def _one_input(self) -> InputBody:
        if (self.input is None) == (self.messages is None):
            raise PydanticCustomError("input", "Either input or messages must be given")
        if self.input is not None and len(self.input) > MAX_INPUTS:
            raise PydanticCustomError("input", "There are more than {most} inputs", {"most": MAX_INPUTS})
        return self

    @property
    def inputs(self) -> list[Input]:
        if self.messages is not None:
            return [Chat(for_template(self.messages), end=PromptEnd.CONVERSATION)]
        return list(self.input)


class EmbeddingBody(InputBody):
    """POST /v1/embeddings."""

    dimensions: _Count | None = None
    """Length of the embeddings: their first numbers, for models that are trained so (Matryoshka)."""
    normalize: bool | None = None
    """vLLM's. Whether embeddings have length 1; by default as the model's folder says."""
    prompt_name: str | None = None
    """Name of a prompt of config_sentence_transformers.json that goes before each text."""


class ClassifyBody(InputBody):
    """POST /classify and /pooling."""

    use_activation: bool | None = None
    """vLLM's. False: scores as they are; by default probabilities, unless the model's folder says other."""


class PairScoreBody(PooledFields):
    """POST /score: one text against each of several, or pairs. All names for both are those of vLLM."""

    text_1: _OneOrMore | None = None
    text_2: _OneOrMore | None = None
    queries: _OneOrMore | None = None
    documents: _OneOrMore | None = None
    data_1: _OneOrMore | None = None
    data_2: _OneOrMore | None = None
    use_activation: bool | None = None
    """vLLM's. False: scores as they are."""
    instruction: Instruction = None

    @model_validator(mode="after")
    def _pairs_fit(self) -> PairScoreBody:
        given = [pair for pair in self._sides if pair != (None, None)]
        if len(given) != 1 or None in given[0]:
            raise PydanticCustomError(
                "pairs", "Give text_1 and text_2, queries and documents, or data_1 and data_2"
            )
        one, other = self._lists
        if len(one) not in (1, len(other)):
            raise PydanticCustomError("pairs", "The first side must have one text, or as many as the second")
        return self

    @property
    def _sides(self) -> tuple[tuple[Any, Any], ...]:
        return (self.text_1, self.text_2), (self.queries, self.documents), (self.data_1, self.data_2)

    @property
    def _lists(self) -> tuple[list[str], list[str]]:
        [(one, other)] = [pair for pair in self._sides if pair != (None, None)]
        return [one] if isinstance(one, str) else one, [other] if isinstance(other, str) else other

    @property
    def pairs(self) -> list[TextPair]:
        one, other = self._lists
        one = one * len(other) if len(one) == 1 else one
        return [TextPair(*texts) for texts in zip(one, other, strict=True)]


class RerankDocument(RequestModel):
    text: str


class RerankBody(PooledFields):
    """POST /v1/rerank and /rerank (Jina, vLLM, TEI), /v2/rerank (Cohere)."""

    query: str
    documents: Annotated[list[str | RerankDocument], Field(min_length=1, max_length=MAX_INPUTS)] | None = None
    texts: _Texts | None = None
    """TEI's name of `documents`, to which it answers in its own shape."""
    top_n: _Count | None = None
    """Number of documents to report, the best ones; by default all."""
    return_documents: bool | None = None
    """Report the texts of documents."""
    instruction: Instruction = None
    return_text: bool | None = None
    """TEI's."""
    raw_scores: bool | None = None
    """TEI's. True: scores as they are."""
    truncate: bool | None = None
    """TEI's. Truncation long pairs to what the model takes."""
    max_tokens_per_doc: _Count | None = None
    """Cohere's. Truncation longer pairs to as many tokens more than the query has."""
    truncation_direction: Literal["Left", "Right"] | None = None
    """TEI's."""

    @model_validator(mode="after")
    def _one_list(self) -> RerankBody:
        if (self.documents is None) == (self.texts is None):
            raise PydanticCustomError("documents", "Either documents or texts must be given")
        return self

    @property
    def documents_as_texts(self) -> list[str]:
        given = self.texts if self.documents is None else self.documents
        return [item if isinstance(item, str) else item.text for item in given or ()]


class CohereContent(RequestModel):
    type: Literal["text"]
    text: str


class CohereInput(RequestModel):
    content: Annotated[list[CohereContent], Field(min_length=1)]


EmbeddingType: TypeAlias = Literal["float", "base64", "binary", "ubinary"]


class CohereEmbedBody(ScheduledFields):
    """POST /v2/embed."""

    model: ModelName | None = None
    texts: _Texts | None = None
    inputs: Annotated[list[CohereInput], Field(min_length=1, max_length=MAX_INPUTS)] | None = None
    input_type: str | None = None
    """search_query, search_document, classification, clustering: the model's prompt of this name, if it has
    one, goes before each text."""
    embedding_types: Annotated[list[EmbeddingType], Field(min_length=1)] | None = None
    """float by default. binary and ubinary: the signs of numbers, in bytes of eight."""
    output_dimension: _Count | None = None
    truncate: Literal["NONE", "START", "END"] | None = None
    """END by default: the end of longer texts is cut."""
    max_tokens: _Count | None = None
    """Truncation longer texts to as many tokens."""
    images: Annotated[Any, Field(max_length=0)] = None

    @model_validator(mode="after")
    def _one_input(self) -> CohereEmbedBody:
        if (self.texts is None) == (self.inputs is None):
            raise PydanticCustomError("texts", "Either texts or inputs must be given")
        return self

    @property
    def all_texts(self) -> list[str]:
        if self.texts is not None:
            return self.texts
        return ["".join(part.text for part in item.content) for item in self.inputs or ()]


class _TeiInputs(ScheduledFields):
    inputs: _OneOrMore
    truncate: bool | None = None
    truncation_direction: Literal["Left", "Right"] | None = None
    model: ModelName | None = None

    @property
    def texts(self) -> list[str]:
        return [self.inputs] if isinstance(self.inputs, str) else self.inputs


class TeiEmbedBody(_TeiInputs):
    """POST /embed."""

    normalize: bool = True
    prompt_name: str | None = None
    dimensions: _Count | None = None


class TeiPredictBody(_TeiInputs):
    """POST /predict."""

    raw_scores: bool = False
