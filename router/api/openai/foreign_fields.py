"""Fields of vLLM and SGLang that OpenAI's APIs do not have and this server does not implement.

Values that ask for the default behaviour are accepted, as clients send them. Other values are refused with
what to use instead.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeAlias

from router.api.fields import Refused
from router.api.generation.params.validation import RequestModel

_STOP: Final = "stop strings are not part of the text; append `stop_reason` of the choice"
_ID: Final = "send it as the header x-request-id, which `router explain` finds"
_NO_BEAMS: Final = "there is no beam search; use n, and rank the completions by their logprobs"
HANDOFF: Final = "the router moves KV between its own workers; see --mode disagg"
NO_HOOKS: Final = "there are no custom logits processors; use logit_bias or structured_outputs"

_Handoff: TypeAlias = Annotated[Any, Refused(HANDOFF)]
_Id: TypeAlias = Annotated[Any, Refused(_ID)]


class ForeignFields(RequestModel):
    """Foreign fields of completions and chat completions."""

    allowed_token_ids: Annotated[Any, Refused("use structured_outputs, or logit_bias of other tokens")] = None
    bad_words: Annotated[
        Any, Refused("use logit_bias: -100 for the ids that POST /tokenize returns", ([],))
    ] = None
    bootstrap_host: _Handoff = None
    bootstrap_port: _Handoff = None
    bootstrap_room: _Handoff = None
    custom_logit_processor: Annotated[Any, Refused(NO_HOOKS)] = None
    custom_params: Annotated[Any, Refused(NO_HOOKS, ({},))] = None
    data_parallel_rank: Annotated[Any, Refused("the router chooses the worker; see --routing")] = None
    early_stopping: Annotated[Any, Refused(_NO_BEAMS, (False,))] = None
    include_stop_str_in_output: Annotated[Any, Refused(_STOP, (False,))] = None
    kv_transfer_params: Annotated[Any, Refused(HANDOFF, ({},))] = None
    length_penalty: Annotated[Any, Refused(_NO_BEAMS, (1, 1.0))] = None
    logits_processors: Annotated[Any, Refused(NO_HOOKS, ([],))] = None
    no_stop_trim: Annotated[Any, Refused(_STOP, (False,))] = None
    request_id: _Id = None
    return_hidden_states: Annotated[Any, Refused("hidden states stay on the workers", (False,))] = None
    rid: _Id = None
    session_params: Annotated[Any, Refused("use prompt_cache_key to keep the KV of a session", ({},))] = None
    spaces_between_special_tokens: Annotated[
        Any, Refused("text is decoded as the tokenizer does; use return_token_ids", (True,))
    ] = None
    stop_regex: Annotated[Any, Refused("use stop, or `regex` for the whole output", ([], ""))] = None
    thinking_token_budget: Annotated[
        Any, Refused("the model decides how long it reasons; use reasoning_effort, or max_tokens")
    ] = None
    truncate_prompt_tokens: Annotated[
        Any, Refused("a prompt is never cut; cut the token ids that POST /tokenize returns")
    ] = None
    use_beam_search: Annotated[Any, Refused(_NO_BEAMS, (False,))] = None
    vllm_xargs: Annotated[Any, Refused(NO_HOOKS, ({},))] = None


class ForeignChatFields(RequestModel):
    add_special_tokens: Annotated[Any, Refused("special tokens are those of the chat template", (False,))] = (
        None
    )
    chat_template: Annotated[
        Any, Refused("the model's own is used; send prompts of another one to /v1/completions")
    ] = None
    documents: Annotated[Any, Refused("use chat_template_kwargs: its `documents`", ([],))] = None
    echo: Annotated[Any, Refused("use /v1/completions", (False,))] = None
    include_reasoning: Annotated[
        Any, Refused("reasoning is always in the answer, as reasoning_content", (True,))
    ] = None
    mm_processor_kwargs: Annotated[Any, Refused("use --mm-processor-kwargs, for all requests", ({},))] = None
    separate_reasoning: Annotated[Any, Refused("use --reasoning-parser none", (True,))] = None
    stream_reasoning: Annotated[Any, Refused("reasoning is streamed as it is computed", (True,))] = None


class ForeignCompletionFields(RequestModel):
    add_special_tokens: Annotated[
        Any, Refused("send the token ids that POST /tokenize returns, without those", (True,))
    ] = None
