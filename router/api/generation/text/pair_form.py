"""How a query and a document are put to a model that scores such pairs.

Templates show messages of the roles query and document, as those of sentence-transformers and vLLM do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from engine.model_config.pooling_spec import TokenScore, token_score_of
from router.api.generation.text.chat_template import ChatTemplate, PromptEnd
from router.api.generation.text.tokenizer import Framed, Tokenizer, TokenizerError, template_of
from router.config.flags.text_settings import RerankerOverrides
from router.errors import InvalidRequest

_DOCUMENT: Final = "\ue000document\ue000"
"""Where a document is put into a rendered pair."""
_QWEN3: Final = """\
<|im_start|>system
Judge whether the Document meets the requirements based on the Query and the Instruct provided. \
Note that the answer can only be "yes" or "no".<|im_end|>
<|im_start|>user
<Instruct>: {{ messages | selectattr("role", "eq", "system") | map(attribute="content") | first \
| default("Given a web search query, retrieve relevant passages that answer the query") }}
<Query>: {{ messages | selectattr("role", "eq", "query") | map(attribute="content") | first }}
<Document>: {{ messages | selectattr("role", "eq", "document") | map(attribute="content") | first }}\
<|im_end|>
<|im_start|>assistant
<think>

</think>

{{ "" }}"""
"""Prompt of Qwen3-Reranker, whose folders had a template of conversations alone at first."""


@dataclass(frozen=True, slots=True)
class PairForm:
    tokens: TokenScore | None = None
    """Tokens by which a model of text scores pairs; None: it scores none."""
    template: ChatTemplate | None = None
    """None: the texts follow each other."""

    @classmethod
    def load(
        cls,
        folder: Path,
        tokenizer: Tokenizer,
        override: RerankerOverrides = RerankerOverrides(),  # noqa: B008 (frozen)
        chosen: str | None = None,
    ) -> PairForm:
        """`chosen`: the file of a template. A folder's own is used if it is declared for pairs.

        Raises TokenizerError and UnsupportedModel.
        """
        declared = token_score_of(folder)
        template = template_of(folder, chosen) if chosen or declared else None
        if template is not None and not _shows_pairs(template):
            if declared is not None:
                raise TokenizerError(f"the chat template of {folder} shows no query and document")
            template = None
        tokens = declared
        if override.tokens is not None:
            no, yes = map(tokenizer.token_id, override.tokens)
            tokens = TokenScore(yes, no) if tokens is None else replace(tokens, true_id=yes, false_id=no)
            if override.is_qwen3 and template is None:
                template = ChatTemplate(_QWEN3, {})
        return cls(tokens, template)

    def frame(self, query: str, instruction: str | None = None) -> Framed:
        """The prompt of a pair with an empty document. Raises InvalidRequest."""
        if instruction is None:
            instruction = "" if self.tokens is None else self.tokens.instruction
        if self.template is not None:
            rendered = _rendered(self.template, query, _DOCUMENT, instruction)
            before, mark, after = rendered.partition(_DOCUMENT)
            assert mark, "checked when it was loaded"
            return Framed(before, "", after)
        if instruction:
            raise InvalidRequest(
                "The model has no template that shows an instruction.",
                param="instruction",
                code="unsupported_parameter",
            )
        return Framed(query, "", "", rendered=False)


def _rendered(template: ChatTemplate, query: str, document: str, instruction: str) -> str:
    messages = [{"role": "query", "content": query}, {"role": "document", "content": document}]
    options: Mapping[str, Any] = {}
    if instruction and "instruction" in template.variables:
        options = {"instruction": instruction}
    elif instruction:
        messages = [{"role": "system", "content": instruction}, *messages]
    return template.render(messages, options, end=PromptEnd.ANSWER)


def _shows_pairs(template: ChatTemplate) -> bool:
    """Whether a query and a document reach the prompt, each once."""
    try:
        text = _rendered(template, query := "\ue000query\ue000", _DOCUMENT, "")
    except InvalidRequest:
        return False
    return text.count(query) == text.count(_DOCUMENT) == 1
