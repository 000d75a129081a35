from rpc.baton.v1 import sampling_pb2 as _sampling_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Role(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROLE_UNSPECIFIED: _ClassVar[Role]
    ROLE_PREFILL: _ClassVar[Role]
    ROLE_DECODE: _ClassVar[Role]
    ROLE_ENCODE: _ClassVar[Role]

class FailureCode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FAILURE_CODE_UNSPECIFIED: _ClassVar[FailureCode]
    FAILURE_CODE_INVALID: _ClassVar[FailureCode]
    FAILURE_CODE_OVERLOADED: _ClassVar[FailureCode]
    FAILURE_CODE_DEADLINE: _ClassVar[FailureCode]
    FAILURE_CODE_HANDOFF: _ClassVar[FailureCode]
    FAILURE_CODE_INTERNAL: _ClassVar[FailureCode]
    FAILURE_CODE_SENDER: _ClassVar[FailureCode]
    FAILURE_CODE_ADAPTER: _ClassVar[FailureCode]
    FAILURE_CODE_WEIGHTS: _ClassVar[FailureCode]
    FAILURE_CODE_MEDIA: _ClassVar[FailureCode]
ROLE_UNSPECIFIED: Role
ROLE_PREFILL: Role
ROLE_DECODE: Role
ROLE_ENCODE: Role
FAILURE_CODE_UNSPECIFIED: FailureCode
FAILURE_CODE_INVALID: FailureCode
FAILURE_CODE_OVERLOADED: FailureCode
FAILURE_CODE_DEADLINE: FailureCode
FAILURE_CODE_HANDOFF: FailureCode
FAILURE_CODE_INTERNAL: FailureCode
FAILURE_CODE_SENDER: FailureCode
FAILURE_CODE_ADAPTER: FailureCode
FAILURE_CODE_WEIGHTS: FailureCode
FAILURE_CODE_MEDIA: FailureCode

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WorkerInfo(_message.Message):
    __slots__ = ("worker_id", "role", "epoch", "model", "layout_hash", "peer", "page_size", "num_pages", "max_model_len", "device", "dtype", "transport", "chunked_prefill_size", "max_running_requests", "pid", "metrics_address", "node", "step_target_s", "pause_target_s", "cuda_graph_max_bs", "cuda_graph_max_tokens", "settings", "build", "predecessor", "settings_digest", "shares_prefixes", "most_blocks", "windows", "page_bytes", "weights", "max_loras", "max_lora_rank", "max_cpu_loras", "served", "ranks", "rows_address", "certificate", "adapters_address", "adapters_key")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_HASH_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    NUM_PAGES_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    TRANSPORT_FIELD_NUMBER: _ClassVar[int]
    CHUNKED_PREFILL_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_RUNNING_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    METRICS_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    STEP_TARGET_S_FIELD_NUMBER: _ClassVar[int]
    PAUSE_TARGET_S_FIELD_NUMBER: _ClassVar[int]
    CUDA_GRAPH_MAX_BS_FIELD_NUMBER: _ClassVar[int]
    CUDA_GRAPH_MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    BUILD_FIELD_NUMBER: _ClassVar[int]
    PREDECESSOR_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_DIGEST_FIELD_NUMBER: _ClassVar[int]
    SHARES_PREFIXES_FIELD_NUMBER: _ClassVar[int]
    MOST_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    WINDOWS_FIELD_NUMBER: _ClassVar[int]
    PAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    MAX_LORAS_FIELD_NUMBER: _ClassVar[int]
    MAX_LORA_RANK_FIELD_NUMBER: _ClassVar[int]
    MAX_CPU_LORAS_FIELD_NUMBER: _ClassVar[int]
    SERVED_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    ROWS_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    ADAPTERS_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    ADAPTERS_KEY_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    role: Role
    epoch: int
    model: str
    layout_hash: str
    peer: Peer
    page_size: int
    num_pages: int
    max_model_len: int
    device: str
    dtype: str
    transport: str
    chunked_prefill_size: int
    max_running_requests: int
    pid: int
    metrics_address: str
    node: str
    step_target_s: float
    pause_target_s: float
    cuda_graph_max_bs: int
    cuda_graph_max_tokens: int
    settings: str
    build: str
    predecessor: str
    settings_digest: str
    shares_prefixes: bool
    most_blocks: _containers.RepeatedScalarFieldContainer[int]
    windows: _containers.RepeatedCompositeFieldContainer[Window]
    page_bytes: int
    weights: str
    max_loras: int
    max_lora_rank: int
    max_cpu_loras: int
    served: ServedWeights
    ranks: int
    rows_address: str
    certificate: bytes
    adapters_address: str
    adapters_key: bytes
    def __init__(self, worker_id: _Optional[str] = ..., role: _Optional[_Union[Role, str]] = ..., epoch: _Optional[int] = ..., model: _Optional[str] = ..., layout_hash: _Optional[str] = ..., peer: _Optional[_Union[Peer, _Mapping]] = ..., page_size: _Optional[int] = ..., num_pages: _Optional[int] = ..., max_model_len: _Optional[int] = ..., device: _Optional[str] = ..., dtype: _Optional[str] = ..., transport: _Optional[str] = ..., chunked_prefill_size: _Optional[int] = ..., max_running_requests: _Optional[int] = ..., pid: _Optional[int] = ..., metrics_address: _Optional[str] = ..., node: _Optional[str] = ..., step_target_s: _Optional[float] = ..., pause_target_s: _Optional[float] = ..., cuda_graph_max_bs: _Optional[int] = ..., cuda_graph_max_tokens: _Optional[int] = ..., settings: _Optional[str] = ..., build: _Optional[str] = ..., predecessor: _Optional[str] = ..., settings_digest: _Optional[str] = ..., shares_prefixes: _Optional[bool] = ..., most_blocks: _Optional[_Iterable[int]] = ..., windows: _Optional[_Iterable[_Union[Window, _Mapping]]] = ..., page_bytes: _Optional[int] = ..., weights: _Optional[str] = ..., max_loras: _Optional[int] = ..., max_lora_rank: _Optional[int] = ..., max_cpu_loras: _Optional[int] = ..., served: _Optional[_Union[ServedWeights, _Mapping]] = ..., ranks: _Optional[int] = ..., rows_address: _Optional[str] = ..., certificate: _Optional[bytes] = ..., adapters_address: _Optional[str] = ..., adapters_key: _Optional[bytes] = ...) -> None: ...

class ServedWeights(_message.Message):
    __slots__ = ("tag", "folder", "version", "digest")
    TAG_FIELD_NUMBER: _ClassVar[int]
    FOLDER_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    tag: str
    folder: str
    version: str
    digest: str
    def __init__(self, tag: _Optional[str] = ..., folder: _Optional[str] = ..., version: _Optional[str] = ..., digest: _Optional[str] = ...) -> None: ...

class Window(_message.Message):
    __slots__ = ("tokens", "share")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    tokens: int
    share: float
    def __init__(self, tokens: _Optional[int] = ..., share: _Optional[float] = ...) -> None: ...

class Peer(_message.Message):
    __slots__ = ("name", "epoch", "metadata", "base_address", "page_bytes", "num_pages", "device_index", "layout_hash")
    NAME_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    BASE_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    NUM_PAGES_FIELD_NUMBER: _ClassVar[int]
    DEVICE_INDEX_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_HASH_FIELD_NUMBER: _ClassVar[int]
    name: str
    epoch: int
    metadata: bytes
    base_address: int
    page_bytes: int
    num_pages: int
    device_index: int
    layout_hash: str
    def __init__(self, name: _Optional[str] = ..., epoch: _Optional[int] = ..., metadata: _Optional[bytes] = ..., base_address: _Optional[int] = ..., page_bytes: _Optional[int] = ..., num_pages: _Optional[int] = ..., device_index: _Optional[int] = ..., layout_hash: _Optional[str] = ...) -> None: ...

class Command(_message.Message):
    __slots__ = ("submit", "abort", "reserve", "attach", "fence", "migrate", "beat", "drain", "share", "release", "encode", "load")
    SUBMIT_FIELD_NUMBER: _ClassVar[int]
    ABORT_FIELD_NUMBER: _ClassVar[int]
    RESERVE_FIELD_NUMBER: _ClassVar[int]
    ATTACH_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    MIGRATE_FIELD_NUMBER: _ClassVar[int]
    BEAT_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    ENCODE_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    submit: Submit
    abort: Abort
    reserve: Reserve
    attach: Attach
    fence: Fence
    migrate: Migrate
    beat: Beat
    drain: Drain
    share: Share
    release: Release
    encode: Encode
    load: LoadAdapterRequest
    def __init__(self, submit: _Optional[_Union[Submit, _Mapping]] = ..., abort: _Optional[_Union[Abort, _Mapping]] = ..., reserve: _Optional[_Union[Reserve, _Mapping]] = ..., attach: _Optional[_Union[Attach, _Mapping]] = ..., fence: _Optional[_Union[Fence, _Mapping]] = ..., migrate: _Optional[_Union[Migrate, _Mapping]] = ..., beat: _Optional[_Union[Beat, _Mapping]] = ..., drain: _Optional[_Union[Drain, _Mapping]] = ..., share: _Optional[_Union[Share, _Mapping]] = ..., release: _Optional[_Union[Release, _Mapping]] = ..., encode: _Optional[_Union[Encode, _Mapping]] = ..., load: _Optional[_Union[LoadAdapterRequest, _Mapping]] = ...) -> None: ...

class Encode(_message.Message):
    __slots__ = ("request_id", "weights", "timeout_s", "items")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    weights: str
    timeout_s: float
    items: _containers.RepeatedCompositeFieldContainer[EncodeItem]
    def __init__(self, request_id: _Optional[int] = ..., weights: _Optional[str] = ..., timeout_s: _Optional[float] = ..., items: _Optional[_Iterable[_Union[EncodeItem, _Mapping]]] = ...) -> None: ...

class EncodeItem(_message.Message):
    __slots__ = ("item", "ticket")
    ITEM_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    item: MediaItem
    ticket: bytes
    def __init__(self, item: _Optional[_Union[MediaItem, _Mapping]] = ..., ticket: _Optional[bytes] = ...) -> None: ...

class RowsSource(_message.Message):
    __slots__ = ("address", "certificate", "ticket", "timeout_s", "weights")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    address: str
    certificate: bytes
    ticket: bytes
    timeout_s: float
    weights: str
    def __init__(self, address: _Optional[str] = ..., certificate: _Optional[bytes] = ..., ticket: _Optional[bytes] = ..., timeout_s: _Optional[float] = ..., weights: _Optional[str] = ...) -> None: ...

class FetchRows(_message.Message):
    __slots__ = ("ticket",)
    TICKET_FIELD_NUMBER: _ClassVar[int]
    ticket: bytes
    def __init__(self, ticket: _Optional[bytes] = ...) -> None: ...

class RowsPart(_message.Message):
    __slots__ = ("item", "rows", "width", "dtype", "weights", "digest", "data")
    ITEM_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    item: bytes
    rows: int
    width: int
    dtype: str
    weights: str
    digest: bytes
    data: bytes
    def __init__(self, item: _Optional[bytes] = ..., rows: _Optional[int] = ..., width: _Optional[int] = ..., dtype: _Optional[str] = ..., weights: _Optional[str] = ..., digest: _Optional[bytes] = ..., data: _Optional[bytes] = ...) -> None: ...

class AdapterSource(_message.Message):
    __slots__ = ("address", "certificate", "ticket")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    address: str
    certificate: bytes
    ticket: bytes
    def __init__(self, address: _Optional[str] = ..., certificate: _Optional[bytes] = ..., ticket: _Optional[bytes] = ...) -> None: ...

class FetchAdapter(_message.Message):
    __slots__ = ("digest", "ticket")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    digest: bytes
    ticket: bytes
    def __init__(self, digest: _Optional[bytes] = ..., ticket: _Optional[bytes] = ...) -> None: ...

class AdapterPart(_message.Message):
    __slots__ = ("config", "bytes", "data")
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    config: bytes
    bytes: int
    data: bytes
    def __init__(self, config: _Optional[bytes] = ..., bytes: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class Drain(_message.Message):
    __slots__ = ("seconds",)
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    seconds: float
    def __init__(self, seconds: _Optional[float] = ...) -> None: ...

class Release(_message.Message):
    __slots__ = ("tenant", "key")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    key: str
    def __init__(self, tenant: _Optional[str] = ..., key: _Optional[str] = ...) -> None: ...

class Beat(_message.Message):
    __slots__ = ("without_ray",)
    WITHOUT_RAY_FIELD_NUMBER: _ClassVar[int]
    without_ray: bool
    def __init__(self, without_ray: _Optional[bool] = ...) -> None: ...

class Work(_message.Message):
    __slots__ = ("request_id", "prompt", "output", "sampling", "priority", "timeout_s", "name", "traceparent", "tenant", "num_scored", "ttft_deadline_s", "retention", "namespace", "cache_salt", "adapter", "read", "adapter_digest", "adapter_start", "adapter_path", "adapter_sources", "weights", "routed_experts", "num_routed", "prompt_keys", "weight_versions", "media")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    NUM_SCORED_FIELD_NUMBER: _ClassVar[int]
    TTFT_DEADLINE_S_FIELD_NUMBER: _ClassVar[int]
    RETENTION_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    READ_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_DIGEST_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_START_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_PATH_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_SOURCES_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    ROUTED_EXPERTS_FIELD_NUMBER: _ClassVar[int]
    NUM_ROUTED_FIELD_NUMBER: _ClassVar[int]
    PROMPT_KEYS_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    MEDIA_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    prompt: _containers.RepeatedScalarFieldContainer[int]
    output: _containers.RepeatedScalarFieldContainer[int]
    sampling: _sampling_pb2.SamplingParams
    priority: int
    timeout_s: float
    name: str
    traceparent: str
    tenant: str
    num_scored: int
    ttft_deadline_s: float
    retention: Retention
    namespace: bytes
    cache_salt: str
    adapter: str
    read: Read
    adapter_digest: bytes
    adapter_start: int
    adapter_path: str
    adapter_sources: _containers.RepeatedCompositeFieldContainer[AdapterSource]
    weights: str
    routed_experts: bool
    num_routed: int
    prompt_keys: _containers.RepeatedScalarFieldContainer[int]
    weight_versions: bool
    media: _containers.RepeatedCompositeFieldContainer[MediaItem]
    def __init__(self, request_id: _Optional[int] = ..., prompt: _Optional[_Iterable[int]] = ..., output: _Optional[_Iterable[int]] = ..., sampling: _Optional[_Union[_sampling_pb2.SamplingParams, _Mapping]] = ..., priority: _Optional[int] = ..., timeout_s: _Optional[float] = ..., name: _Optional[str] = ..., traceparent: _Optional[str] = ..., tenant: _Optional[str] = ..., num_scored: _Optional[int] = ..., ttft_deadline_s: _Optional[float] = ..., retention: _Optional[_Union[Retention, _Mapping]] = ..., namespace: _Optional[bytes] = ..., cache_salt: _Optional[str] = ..., adapter: _Optional[str] = ..., read: _Optional[_Union[Read, _Mapping]] = ..., adapter_digest: _Optional[bytes] = ..., adapter_start: _Optional[int] = ..., adapter_path: _Optional[str] = ..., adapter_sources: _Optional[_Iterable[_Union[AdapterSource, _Mapping]]] = ..., weights: _Optional[str] = ..., routed_experts: _Optional[bool] = ..., num_routed: _Optional[int] = ..., prompt_keys: _Optional[_Iterable[int]] = ..., weight_versions: _Optional[bool] = ..., media: _Optional[_Iterable[_Union[MediaItem, _Mapping]]] = ...) -> None: ...

class MediaItem(_message.Message):
    __slots__ = ("digest", "offset", "length", "grid", "arrays", "rows")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    GRID_FIELD_NUMBER: _ClassVar[int]
    ARRAYS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    digest: bytes
    offset: int
    length: int
    grid: _containers.RepeatedScalarFieldContainer[int]
    arrays: _containers.RepeatedCompositeFieldContainer[MediaArray]
    rows: RowsSource
    def __init__(self, digest: _Optional[bytes] = ..., offset: _Optional[int] = ..., length: _Optional[int] = ..., grid: _Optional[_Iterable[int]] = ..., arrays: _Optional[_Iterable[_Union[MediaArray, _Mapping]]] = ..., rows: _Optional[_Union[RowsSource, _Mapping]] = ...) -> None: ...

class MediaArray(_message.Message):
    __slots__ = ("name", "dtype", "shape", "data")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    name: str
    dtype: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    data: bytes
    def __init__(self, name: _Optional[str] = ..., dtype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., data: _Optional[bytes] = ...) -> None: ...

class Read(_message.Message):
    __slots__ = ("label_ids", "pooling")
    LABEL_IDS_FIELD_NUMBER: _ClassVar[int]
    POOLING_FIELD_NUMBER: _ClassVar[int]
    label_ids: _containers.RepeatedScalarFieldContainer[int]
    pooling: str
    def __init__(self, label_ids: _Optional[_Iterable[int]] = ..., pooling: _Optional[str] = ...) -> None: ...

class Retention(_message.Message):
    __slots__ = ("key", "seconds", "prefixes")
    KEY_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    PREFIXES_FIELD_NUMBER: _ClassVar[int]
    key: str
    seconds: float
    prefixes: _containers.RepeatedCompositeFieldContainer[RetainedPrefix]
    def __init__(self, key: _Optional[str] = ..., seconds: _Optional[float] = ..., prefixes: _Optional[_Iterable[_Union[RetainedPrefix, _Mapping]]] = ...) -> None: ...

class RetainedPrefix(_message.Message):
    __slots__ = ("tokens", "seconds")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    tokens: int
    seconds: float
    def __init__(self, tokens: _Optional[int] = ..., seconds: _Optional[float] = ...) -> None: ...

class Submit(_message.Message):
    __slots__ = ("work", "handoff", "pull")
    WORK_FIELD_NUMBER: _ClassVar[int]
    HANDOFF_FIELD_NUMBER: _ClassVar[int]
    PULL_FIELD_NUMBER: _ClassVar[int]
    work: Work
    handoff: bool
    pull: Pull
    def __init__(self, work: _Optional[_Union[Work, _Mapping]] = ..., handoff: _Optional[bool] = ..., pull: _Optional[_Union[Pull, _Mapping]] = ...) -> None: ...

class Pull(_message.Message):
    __slots__ = ("handoff_id", "source", "num_tokens")
    HANDOFF_ID_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    handoff_id: int
    source: Peer
    num_tokens: int
    def __init__(self, handoff_id: _Optional[int] = ..., source: _Optional[_Union[Peer, _Mapping]] = ..., num_tokens: _Optional[int] = ...) -> None: ...

class Share(_message.Message):
    __slots__ = ("ticket", "tokens", "namespace", "keys")
    TICKET_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    ticket: Ticket
    tokens: _containers.RepeatedScalarFieldContainer[int]
    namespace: bytes
    keys: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ticket: _Optional[_Union[Ticket, _Mapping]] = ..., tokens: _Optional[_Iterable[int]] = ..., namespace: _Optional[bytes] = ..., keys: _Optional[_Iterable[int]] = ...) -> None: ...

class Abort(_message.Message):
    __slots__ = ("request_id",)
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    def __init__(self, request_id: _Optional[int] = ...) -> None: ...

class Reserve(_message.Message):
    __slots__ = ("work", "sender", "timeout_s", "room_tokens", "no_wait")
    WORK_FIELD_NUMBER: _ClassVar[int]
    SENDER_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    ROOM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NO_WAIT_FIELD_NUMBER: _ClassVar[int]
    work: Work
    sender: Peer
    timeout_s: float
    room_tokens: int
    no_wait: bool
    def __init__(self, work: _Optional[_Union[Work, _Mapping]] = ..., sender: _Optional[_Union[Peer, _Mapping]] = ..., timeout_s: _Optional[float] = ..., room_tokens: _Optional[int] = ..., no_wait: _Optional[bool] = ...) -> None: ...

class Attach(_message.Message):
    __slots__ = ("ticket",)
    TICKET_FIELD_NUMBER: _ClassVar[int]
    ticket: Ticket
    def __init__(self, ticket: _Optional[_Union[Ticket, _Mapping]] = ...) -> None: ...

class Migrate(_message.Message):
    __slots__ = ("request_id", "ticket")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    ticket: Ticket
    def __init__(self, request_id: _Optional[int] = ..., ticket: _Optional[_Union[Ticket, _Mapping]] = ...) -> None: ...

class Fence(_message.Message):
    __slots__ = ("worker_id", "epoch", "reason")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    epoch: int
    reason: str
    def __init__(self, worker_id: _Optional[str] = ..., epoch: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class Ticket(_message.Message):
    __slots__ = ("handoff_id", "receiver", "epoch", "layout_hash", "pages", "first_token", "num_tokens", "timeout_s", "secret", "sender", "state")
    HANDOFF_ID_FIELD_NUMBER: _ClassVar[int]
    RECEIVER_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_HASH_FIELD_NUMBER: _ClassVar[int]
    PAGES_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    SENDER_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    handoff_id: int
    receiver: Peer
    epoch: int
    layout_hash: str
    pages: _containers.RepeatedScalarFieldContainer[int]
    first_token: int
    num_tokens: int
    timeout_s: float
    secret: int
    sender: str
    state: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, handoff_id: _Optional[int] = ..., receiver: _Optional[_Union[Peer, _Mapping]] = ..., epoch: _Optional[int] = ..., layout_hash: _Optional[str] = ..., pages: _Optional[_Iterable[int]] = ..., first_token: _Optional[int] = ..., num_tokens: _Optional[int] = ..., timeout_s: _Optional[float] = ..., secret: _Optional[int] = ..., sender: _Optional[str] = ..., state: _Optional[_Iterable[int]] = ...) -> None: ...

class EventBatch(_message.Message):
    __slots__ = ("step", "outputs", "started", "reserved", "handed_off", "arrived", "failed", "load", "commands", "peer", "progress", "step_work", "cache", "preempted", "resumed", "wanted", "slow_step", "sent_s", "written_s", "served", "encoded")
    STEP_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    RESERVED_FIELD_NUMBER: _ClassVar[int]
    HANDED_OFF_FIELD_NUMBER: _ClassVar[int]
    ARRIVED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    COMMANDS_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    STEP_WORK_FIELD_NUMBER: _ClassVar[int]
    CACHE_FIELD_NUMBER: _ClassVar[int]
    PREEMPTED_FIELD_NUMBER: _ClassVar[int]
    RESUMED_FIELD_NUMBER: _ClassVar[int]
    WANTED_FIELD_NUMBER: _ClassVar[int]
    SLOW_STEP_FIELD_NUMBER: _ClassVar[int]
    SENT_S_FIELD_NUMBER: _ClassVar[int]
    WRITTEN_S_FIELD_NUMBER: _ClassVar[int]
    SERVED_FIELD_NUMBER: _ClassVar[int]
    ENCODED_FIELD_NUMBER: _ClassVar[int]
    step: int
    outputs: _containers.RepeatedCompositeFieldContainer[Output]
    started: _containers.RepeatedCompositeFieldContainer[Started]
    reserved: _containers.RepeatedCompositeFieldContainer[Reserved]
    handed_off: _containers.RepeatedCompositeFieldContainer[HandedOff]
    arrived: _containers.RepeatedCompositeFieldContainer[Arrived]
    failed: _containers.RepeatedCompositeFieldContainer[Failed]
    load: Load
    commands: int
    peer: Peer
    progress: _containers.RepeatedCompositeFieldContainer[Progress]
    step_work: StepWork
    cache: _containers.RepeatedCompositeFieldContainer[CacheChange]
    preempted: _containers.RepeatedCompositeFieldContainer[Preempted]
    resumed: _containers.RepeatedCompositeFieldContainer[Resumed]
    wanted: _containers.RepeatedCompositeFieldContainer[Wanted]
    slow_step: SlowStep
    sent_s: float
    written_s: float
    served: ServedWeights
    encoded: _containers.RepeatedCompositeFieldContainer[Encoded]
    def __init__(self, step: _Optional[int] = ..., outputs: _Optional[_Iterable[_Union[Output, _Mapping]]] = ..., started: _Optional[_Iterable[_Union[Started, _Mapping]]] = ..., reserved: _Optional[_Iterable[_Union[Reserved, _Mapping]]] = ..., handed_off: _Optional[_Iterable[_Union[HandedOff, _Mapping]]] = ..., arrived: _Optional[_Iterable[_Union[Arrived, _Mapping]]] = ..., failed: _Optional[_Iterable[_Union[Failed, _Mapping]]] = ..., load: _Optional[_Union[Load, _Mapping]] = ..., commands: _Optional[int] = ..., peer: _Optional[_Union[Peer, _Mapping]] = ..., progress: _Optional[_Iterable[_Union[Progress, _Mapping]]] = ..., step_work: _Optional[_Union[StepWork, _Mapping]] = ..., cache: _Optional[_Iterable[_Union[CacheChange, _Mapping]]] = ..., preempted: _Optional[_Iterable[_Union[Preempted, _Mapping]]] = ..., resumed: _Optional[_Iterable[_Union[Resumed, _Mapping]]] = ..., wanted: _Optional[_Iterable[_Union[Wanted, _Mapping]]] = ..., slow_step: _Optional[_Union[SlowStep, _Mapping]] = ..., sent_s: _Optional[float] = ..., written_s: _Optional[float] = ..., served: _Optional[_Union[ServedWeights, _Mapping]] = ..., encoded: _Optional[_Iterable[_Union[Encoded, _Mapping]]] = ...) -> None: ...

class Encoded(_message.Message):
    __slots__ = ("request_id", "items", "fetched")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    FETCHED_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    items: _containers.RepeatedCompositeFieldContainer[Span]
    fetched: _containers.RepeatedCompositeFieldContainer[Span]
    def __init__(self, request_id: _Optional[int] = ..., items: _Optional[_Iterable[_Union[Span, _Mapping]]] = ..., fetched: _Optional[_Iterable[_Union[Span, _Mapping]]] = ...) -> None: ...

class SlowStep(_message.Message):
    __slots__ = ("cause", "seconds", "expected_s", "parts")
    class PartsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_S_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    cause: str
    seconds: float
    expected_s: float
    parts: _containers.ScalarMap[str, float]
    def __init__(self, cause: _Optional[str] = ..., seconds: _Optional[float] = ..., expected_s: _Optional[float] = ..., parts: _Optional[_Mapping[str, float]] = ...) -> None: ...

class CacheChange(_message.Message):
    __slots__ = ("stored", "below", "blocks")
    STORED_FIELD_NUMBER: _ClassVar[int]
    BELOW_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    stored: bool
    below: bool
    blocks: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, stored: _Optional[bool] = ..., below: _Optional[bool] = ..., blocks: _Optional[_Iterable[int]] = ...) -> None: ...

class Wanted(_message.Message):
    __slots__ = ("request_id", "ticket")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    ticket: Ticket
    def __init__(self, request_id: _Optional[int] = ..., ticket: _Optional[_Union[Ticket, _Mapping]] = ...) -> None: ...

class Output(_message.Message):
    __slots__ = ("request_id", "tokens", "prompt_logprobs", "label_logprobs", "pooled", "routed_experts", "weights_begin")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    LABEL_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    POOLED_FIELD_NUMBER: _ClassVar[int]
    ROUTED_EXPERTS_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_BEGIN_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    tokens: Tokens
    prompt_logprobs: _sampling_pb2.PromptLogprobs
    label_logprobs: _sampling_pb2.LabelLogprobs
    pooled: _sampling_pb2.Pooled
    routed_experts: _sampling_pb2.RoutedExperts
    weights_begin: _sampling_pb2.WeightsBegin
    def __init__(self, request_id: _Optional[int] = ..., tokens: _Optional[_Union[Tokens, _Mapping]] = ..., prompt_logprobs: _Optional[_Union[_sampling_pb2.PromptLogprobs, _Mapping]] = ..., label_logprobs: _Optional[_Union[_sampling_pb2.LabelLogprobs, _Mapping]] = ..., pooled: _Optional[_Union[_sampling_pb2.Pooled, _Mapping]] = ..., routed_experts: _Optional[_Union[_sampling_pb2.RoutedExperts, _Mapping]] = ..., weights_begin: _Optional[_Union[_sampling_pb2.WeightsBegin, _Mapping]] = ...) -> None: ...

class Tokens(_message.Message):
    __slots__ = ("ids", "logprobs", "finish", "cached_tokens", "chunks", "stop_token", "position", "drafted", "accepted", "predicted")
    IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    FINISH_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    DRAFTED_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _containers.RepeatedCompositeFieldContainer[_sampling_pb2.TokenLogprobs]
    finish: _sampling_pb2.FinishReason
    cached_tokens: int
    chunks: _containers.RepeatedCompositeFieldContainer[Span]
    stop_token: int
    position: int
    drafted: int
    accepted: int
    predicted: bool
    def __init__(self, ids: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Iterable[_Union[_sampling_pb2.TokenLogprobs, _Mapping]]] = ..., finish: _Optional[_Union[_sampling_pb2.FinishReason, str]] = ..., cached_tokens: _Optional[int] = ..., chunks: _Optional[_Iterable[_Union[Span, _Mapping]]] = ..., stop_token: _Optional[int] = ..., position: _Optional[int] = ..., drafted: _Optional[int] = ..., accepted: _Optional[int] = ..., predicted: _Optional[bool] = ...) -> None: ...

class Started(_message.Message):
    __slots__ = ("request_id", "cached_tokens", "queued_s", "waited", "promotion_s", "promoted", "adapter_load_s")
    class WaitedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class PromotedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    QUEUED_S_FIELD_NUMBER: _ClassVar[int]
    WAITED_FIELD_NUMBER: _ClassVar[int]
    PROMOTION_S_FIELD_NUMBER: _ClassVar[int]
    PROMOTED_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_LOAD_S_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    cached_tokens: int
    queued_s: float
    waited: _containers.ScalarMap[str, float]
    promotion_s: float
    promoted: _containers.ScalarMap[str, int]
    adapter_load_s: float
    def __init__(self, request_id: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., queued_s: _Optional[float] = ..., waited: _Optional[_Mapping[str, float]] = ..., promotion_s: _Optional[float] = ..., promoted: _Optional[_Mapping[str, int]] = ..., adapter_load_s: _Optional[float] = ...) -> None: ...

class Preempted(_message.Message):
    __slots__ = ("request_id", "reason")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    reason: str
    def __init__(self, request_id: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class Resumed(_message.Message):
    __slots__ = ("request_id", "waited_s")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    WAITED_S_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    waited_s: float
    def __init__(self, request_id: _Optional[int] = ..., waited_s: _Optional[float] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("request_id", "num_computed")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    NUM_COMPUTED_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    num_computed: int
    def __init__(self, request_id: _Optional[int] = ..., num_computed: _Optional[int] = ...) -> None: ...

class StepWork(_message.Message):
    __slots__ = ("prompt_tokens", "attention_pairs", "decodes", "context_tokens", "seconds", "answers", "tokens")
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ATTENTION_PAIRS_FIELD_NUMBER: _ClassVar[int]
    DECODES_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    prompt_tokens: int
    attention_pairs: float
    decodes: int
    context_tokens: int
    seconds: float
    answers: int
    tokens: int
    def __init__(self, prompt_tokens: _Optional[int] = ..., attention_pairs: _Optional[float] = ..., decodes: _Optional[int] = ..., context_tokens: _Optional[int] = ..., seconds: _Optional[float] = ..., answers: _Optional[int] = ..., tokens: _Optional[int] = ...) -> None: ...

class Reserved(_message.Message):
    __slots__ = ("request_id", "ticket", "waited_s")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    WAITED_S_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    ticket: Ticket
    waited_s: float
    def __init__(self, request_id: _Optional[int] = ..., ticket: _Optional[_Union[Ticket, _Mapping]] = ..., waited_s: _Optional[float] = ...) -> None: ...

class HandedOff(_message.Message):
    __slots__ = ("request_id", "bytes", "chunks", "pushes")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    PUSHES_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    bytes: int
    chunks: _containers.RepeatedCompositeFieldContainer[Span]
    pushes: _containers.RepeatedCompositeFieldContainer[Span]
    def __init__(self, request_id: _Optional[int] = ..., bytes: _Optional[int] = ..., chunks: _Optional[_Iterable[_Union[Span, _Mapping]]] = ..., pushes: _Optional[_Iterable[_Union[Span, _Mapping]]] = ...) -> None: ...

class Arrived(_message.Message):
    __slots__ = ("request_id", "transfer_s", "exposed_s", "position", "adapter_load_s")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_S_FIELD_NUMBER: _ClassVar[int]
    EXPOSED_S_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_LOAD_S_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    transfer_s: float
    exposed_s: float
    position: int
    adapter_load_s: float
    def __init__(self, request_id: _Optional[int] = ..., transfer_s: _Optional[float] = ..., exposed_s: _Optional[float] = ..., position: _Optional[int] = ..., adapter_load_s: _Optional[float] = ...) -> None: ...

class Span(_message.Message):
    __slots__ = ("begin_s", "end_s", "first_token", "num_tokens", "bytes")
    BEGIN_S_FIELD_NUMBER: _ClassVar[int]
    END_S_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    begin_s: float
    end_s: float
    first_token: int
    num_tokens: int
    bytes: int
    def __init__(self, begin_s: _Optional[float] = ..., end_s: _Optional[float] = ..., first_token: _Optional[int] = ..., num_tokens: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class Failed(_message.Message):
    __slots__ = ("request_id", "code", "message")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    code: FailureCode
    message: str
    def __init__(self, request_id: _Optional[int] = ..., code: _Optional[_Union[FailureCode, str]] = ..., message: _Optional[str] = ...) -> None: ...

class Load(_message.Message):
    __slots__ = ("waiting", "running", "waiting_tokens", "free_pages", "total_pages", "incoming", "queued_handoffs", "queued_pages", "starved", "quarantined_pages", "waits_for", "routers", "draining", "updating", "adapters", "encode_tokens")
    WAITING_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    WAITING_TOKENS_FIELD_NUMBER: _ClassVar[int]
    FREE_PAGES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_PAGES_FIELD_NUMBER: _ClassVar[int]
    INCOMING_FIELD_NUMBER: _ClassVar[int]
    QUEUED_HANDOFFS_FIELD_NUMBER: _ClassVar[int]
    QUEUED_PAGES_FIELD_NUMBER: _ClassVar[int]
    STARVED_FIELD_NUMBER: _ClassVar[int]
    QUARANTINED_PAGES_FIELD_NUMBER: _ClassVar[int]
    WAITS_FOR_FIELD_NUMBER: _ClassVar[int]
    ROUTERS_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    UPDATING_FIELD_NUMBER: _ClassVar[int]
    ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    ENCODE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    waiting: int
    running: int
    waiting_tokens: int
    free_pages: int
    total_pages: int
    incoming: int
    queued_handoffs: int
    queued_pages: int
    starved: int
    quarantined_pages: int
    waits_for: str
    routers: _containers.RepeatedCompositeFieldContainer[RouterLoad]
    draining: bool
    updating: bool
    adapters: _containers.RepeatedCompositeFieldContainer[AdapterUse]
    encode_tokens: int
    def __init__(self, waiting: _Optional[int] = ..., running: _Optional[int] = ..., waiting_tokens: _Optional[int] = ..., free_pages: _Optional[int] = ..., total_pages: _Optional[int] = ..., incoming: _Optional[int] = ..., queued_handoffs: _Optional[int] = ..., queued_pages: _Optional[int] = ..., starved: _Optional[int] = ..., quarantined_pages: _Optional[int] = ..., waits_for: _Optional[str] = ..., routers: _Optional[_Iterable[_Union[RouterLoad, _Mapping]]] = ..., draining: _Optional[bool] = ..., updating: _Optional[bool] = ..., adapters: _Optional[_Iterable[_Union[AdapterUse, _Mapping]]] = ..., encode_tokens: _Optional[int] = ...) -> None: ...

class RouterLoad(_message.Message):
    __slots__ = ("router", "requests", "tokens", "queued_tokens", "decodes", "context_tokens", "without_ray")
    ROUTER_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    QUEUED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DECODES_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    WITHOUT_RAY_FIELD_NUMBER: _ClassVar[int]
    router: str
    requests: int
    tokens: int
    queued_tokens: int
    decodes: int
    context_tokens: int
    without_ray: bool
    def __init__(self, router: _Optional[str] = ..., requests: _Optional[int] = ..., tokens: _Optional[int] = ..., queued_tokens: _Optional[int] = ..., decodes: _Optional[int] = ..., context_tokens: _Optional[int] = ..., without_ray: _Optional[bool] = ...) -> None: ...

class AdapterUse(_message.Message):
    __slots__ = ("digest", "name", "on_device", "running", "waiting", "rank", "host_bytes")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ON_DEVICE_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    HOST_BYTES_FIELD_NUMBER: _ClassVar[int]
    digest: bytes
    name: str
    on_device: bool
    running: int
    waiting: int
    rank: int
    host_bytes: int
    def __init__(self, digest: _Optional[bytes] = ..., name: _Optional[str] = ..., on_device: _Optional[bool] = ..., running: _Optional[int] = ..., waiting: _Optional[int] = ..., rank: _Optional[int] = ..., host_bytes: _Optional[int] = ...) -> None: ...

class LoadAdapterRequest(_message.Message):
    __slots__ = ("name", "path", "digest", "sources")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    name: str
    path: str
    digest: bytes
    sources: _containers.RepeatedCompositeFieldContainer[AdapterSource]
    def __init__(self, name: _Optional[str] = ..., path: _Optional[str] = ..., digest: _Optional[bytes] = ..., sources: _Optional[_Iterable[_Union[AdapterSource, _Mapping]]] = ...) -> None: ...

class UnloadAdapterRequest(_message.Message):
    __slots__ = ("digest",)
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    digest: bytes
    def __init__(self, digest: _Optional[bytes] = ...) -> None: ...

class AdapterInfo(_message.Message):
    __slots__ = ("name", "digest", "rank", "targets", "host_bytes", "error", "unloaded", "load_s", "invocation")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    TARGETS_FIELD_NUMBER: _ClassVar[int]
    HOST_BYTES_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    UNLOADED_FIELD_NUMBER: _ClassVar[int]
    LOAD_S_FIELD_NUMBER: _ClassVar[int]
    INVOCATION_FIELD_NUMBER: _ClassVar[int]
    name: str
    digest: bytes
    rank: int
    targets: _containers.RepeatedScalarFieldContainer[str]
    host_bytes: int
    error: str
    unloaded: _containers.RepeatedScalarFieldContainer[bytes]
    load_s: float
    invocation: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, name: _Optional[str] = ..., digest: _Optional[bytes] = ..., rank: _Optional[int] = ..., targets: _Optional[_Iterable[str]] = ..., host_bytes: _Optional[int] = ..., error: _Optional[str] = ..., unloaded: _Optional[_Iterable[bytes]] = ..., load_s: _Optional[float] = ..., invocation: _Optional[_Iterable[int]] = ...) -> None: ...

class UpdateWeightsRequest(_message.Message):
    __slots__ = ("weights", "timeout_s", "leave_s")
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    LEAVE_S_FIELD_NUMBER: _ClassVar[int]
    weights: ServedWeights
    timeout_s: float
    leave_s: float
    def __init__(self, weights: _Optional[_Union[ServedWeights, _Mapping]] = ..., timeout_s: _Optional[float] = ..., leave_s: _Optional[float] = ...) -> None: ...

class WeightsPart(_message.Message):
    __slots__ = ("folder", "base", "keep", "data")
    FOLDER_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    folder: str
    base: str
    keep: _containers.RepeatedScalarFieldContainer[str]
    data: bytes
    def __init__(self, folder: _Optional[str] = ..., base: _Optional[str] = ..., keep: _Optional[_Iterable[str]] = ..., data: _Optional[bytes] = ...) -> None: ...

class StagedWeights(_message.Message):
    __slots__ = ("error",)
    ERROR_FIELD_NUMBER: _ClassVar[int]
    error: str
    def __init__(self, error: _Optional[str] = ...) -> None: ...

class WeightsReport(_message.Message):
    __slots__ = ("weights", "refused", "incomplete")
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    INCOMPLETE_FIELD_NUMBER: _ClassVar[int]
    weights: ServedWeights
    refused: str
    incomplete: bool
    def __init__(self, weights: _Optional[_Union[ServedWeights, _Mapping]] = ..., refused: _Optional[str] = ..., incomplete: _Optional[bool] = ...) -> None: ...

class SleepRequest(_message.Message):
    __slots__ = ("release", "resume", "timeout_s")
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    release: _containers.RepeatedScalarFieldContainer[str]
    resume: _containers.RepeatedScalarFieldContainer[str]
    timeout_s: float
    def __init__(self, release: _Optional[_Iterable[str]] = ..., resume: _Optional[_Iterable[str]] = ..., timeout_s: _Optional[float] = ...) -> None: ...

class SleepReport(_message.Message):
    __slots__ = ("refused", "bytes")
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    refused: str
    bytes: int
    def __init__(self, refused: _Optional[str] = ..., bytes: _Optional[int] = ...) -> None: ...

class GetStatsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WorkerStats(_message.Message):
    __slots__ = ("load", "pages", "steps", "preemptions", "prompt_tokens", "generated_tokens", "cache_hit_tokens", "unexpected_messages", "tiers", "state_slots", "groups", "retained_blocks", "drafts", "drafted_tokens", "accepted_tokens", "accepted_at", "images_encoded", "image_cache_queries", "image_cache_hits")
    LOAD_FIELD_NUMBER: _ClassVar[int]
    PAGES_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    GENERATED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHE_HIT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    UNEXPECTED_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    TIERS_FIELD_NUMBER: _ClassVar[int]
    STATE_SLOTS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    RETAINED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    DRAFTS_FIELD_NUMBER: _ClassVar[int]
    DRAFTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_AT_FIELD_NUMBER: _ClassVar[int]
    IMAGES_ENCODED_FIELD_NUMBER: _ClassVar[int]
    IMAGE_CACHE_QUERIES_FIELD_NUMBER: _ClassVar[int]
    IMAGE_CACHE_HITS_FIELD_NUMBER: _ClassVar[int]
    load: Load
    pages: PageCounts
    steps: int
    preemptions: int
    prompt_tokens: int
    generated_tokens: int
    cache_hit_tokens: int
    unexpected_messages: int
    tiers: KVTiers
    state_slots: PageCounts
    groups: _containers.RepeatedCompositeFieldContainer[GroupPages]
    retained_blocks: int
    drafts: int
    drafted_tokens: int
    accepted_tokens: int
    accepted_at: _containers.RepeatedScalarFieldContainer[int]
    images_encoded: int
    image_cache_queries: int
    image_cache_hits: int
    def __init__(self, load: _Optional[_Union[Load, _Mapping]] = ..., pages: _Optional[_Union[PageCounts, _Mapping]] = ..., steps: _Optional[int] = ..., preemptions: _Optional[int] = ..., prompt_tokens: _Optional[int] = ..., generated_tokens: _Optional[int] = ..., cache_hit_tokens: _Optional[int] = ..., unexpected_messages: _Optional[int] = ..., tiers: _Optional[_Union[KVTiers, _Mapping]] = ..., state_slots: _Optional[_Union[PageCounts, _Mapping]] = ..., groups: _Optional[_Iterable[_Union[GroupPages, _Mapping]]] = ..., retained_blocks: _Optional[int] = ..., drafts: _Optional[int] = ..., drafted_tokens: _Optional[int] = ..., accepted_tokens: _Optional[int] = ..., accepted_at: _Optional[_Iterable[int]] = ..., images_encoded: _Optional[int] = ..., image_cache_queries: _Optional[int] = ..., image_cache_hits: _Optional[int] = ...) -> None: ...

class ManageCacheRequest(_message.Message):
    __slots__ = ("clear", "key")
    CLEAR_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    clear: _containers.RepeatedScalarFieldContainer[str]
    key: str
    def __init__(self, clear: _Optional[_Iterable[str]] = ..., key: _Optional[str] = ...) -> None: ...

class CacheReport(_message.Message):
    __slots__ = ("places", "page_tokens", "input_tokens", "retained")
    PLACES_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    INPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    RETAINED_FIELD_NUMBER: _ClassVar[int]
    places: _containers.RepeatedCompositeFieldContainer[CachePlace]
    page_tokens: int
    input_tokens: int
    retained: _containers.RepeatedCompositeFieldContainer[RetainedSession]
    def __init__(self, places: _Optional[_Iterable[_Union[CachePlace, _Mapping]]] = ..., page_tokens: _Optional[int] = ..., input_tokens: _Optional[int] = ..., retained: _Optional[_Iterable[_Union[RetainedSession, _Mapping]]] = ...) -> None: ...

class CachePlace(_message.Message):
    __slots__ = ("name", "pages", "capacity", "hit_tokens", "cleared")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PAGES_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    HIT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CLEARED_FIELD_NUMBER: _ClassVar[int]
    name: str
    pages: int
    capacity: int
    hit_tokens: int
    cleared: int
    def __init__(self, name: _Optional[str] = ..., pages: _Optional[int] = ..., capacity: _Optional[int] = ..., hit_tokens: _Optional[int] = ..., cleared: _Optional[int] = ...) -> None: ...

class RetainedSession(_message.Message):
    __slots__ = ("tenant", "key", "tokens", "seconds")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    key: str
    tokens: int
    seconds: float
    def __init__(self, tenant: _Optional[str] = ..., key: _Optional[str] = ..., tokens: _Optional[int] = ..., seconds: _Optional[float] = ...) -> None: ...

class KVTiers(_message.Message):
    __slots__ = ("tiers", "page_bytes", "dropped", "faults")
    class FaultsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    TIERS_FIELD_NUMBER: _ClassVar[int]
    PAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    FAULTS_FIELD_NUMBER: _ClassVar[int]
    tiers: _containers.RepeatedCompositeFieldContainer[KVTier]
    page_bytes: int
    dropped: int
    faults: _containers.ScalarMap[str, int]
    def __init__(self, tiers: _Optional[_Iterable[_Union[KVTier, _Mapping]]] = ..., page_bytes: _Optional[int] = ..., dropped: _Optional[int] = ..., faults: _Optional[_Mapping[str, int]] = ...) -> None: ...

class KVTier(_message.Message):
    __slots__ = ("name", "pages", "capacity", "demoted", "promoted")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PAGES_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    DEMOTED_FIELD_NUMBER: _ClassVar[int]
    PROMOTED_FIELD_NUMBER: _ClassVar[int]
    name: str
    pages: int
    capacity: int
    demoted: int
    promoted: int
    def __init__(self, name: _Optional[str] = ..., pages: _Optional[int] = ..., capacity: _Optional[int] = ..., demoted: _Optional[int] = ..., promoted: _Optional[int] = ...) -> None: ...

class GroupPages(_message.Message):
    __slots__ = ("kind", "held", "cached")
    KIND_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    CACHED_FIELD_NUMBER: _ClassVar[int]
    kind: str
    held: int
    cached: int
    def __init__(self, kind: _Optional[str] = ..., held: _Optional[int] = ..., cached: _Optional[int] = ...) -> None: ...

class PageCounts(_message.Message):
    __slots__ = ("free", "held", "cached", "in_flight", "quarantined", "total", "leaving")
    FREE_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    CACHED_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    QUARANTINED_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    free: int
    held: int
    cached: int
    in_flight: int
    quarantined: int
    total: int
    leaving: int
    def __init__(self, free: _Optional[int] = ..., held: _Optional[int] = ..., cached: _Optional[int] = ..., in_flight: _Optional[int] = ..., quarantined: _Optional[int] = ..., total: _Optional[int] = ..., leaving: _Optional[int] = ...) -> None: ...
