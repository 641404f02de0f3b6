"""The RPCs that cross in shared memory: those that carry tensors. Known to both sides."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from server.grpc_ports import MESSAGE_OVERHEAD_BYTES
from server.servicers import tensors
from server.servicers.oip import transfer
from server.servicers.oip.wire import SERVICE_NAME as OIP
from server.settings import Settings


@dataclass(frozen=True, slots=True)
class InferenceCall:
    """How one RPC is read."""

    read: Callable[[bytes | memoryview], Any]  # one of its messages; may raise DecodeError
    is_stream: bool = False
    in_order: bool = False  # are a stream's answers


INFER = f"/{tensors.SERVICE_NAME}/Infer"
INFER_STREAM = f"/{tensors.SERVICE_NAME}/InferStream"
MODEL_INFER = f"/{OIP}/ModelInfer"
MODEL_STREAM_INFER = f"/{OIP}/ModelStreamInfer"

CALLS: Mapping[str, InferenceCall] = {
    INFER: InferenceCall(tensors.read_request),
    INFER_STREAM: InferenceCall(tensors.read_request, is_stream=True),
    MODEL_INFER: InferenceCall(transfer.read_request),
    MODEL_STREAM_INFER: InferenceCall(transfer.read_request, is_stream=True, in_order=True),
}
"""By full method name."""


def memory_bytes(settings: Settings) -> int:
    """Shared memory of one ingress, each way. The largest message fits beside what may wait."""
    return settings.shared_memory_bytes + settings.max_message_bytes + MESSAGE_OVERHEAD_BYTES
