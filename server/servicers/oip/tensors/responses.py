"""An answer as ModelInferResponse: outputs raw, or in the caller's shared memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from braid.core.errors import InvalidRequest
from braid.server.inference.replica import ModelReplica
from braid.server.inference.slot_rows import OutputTensor
from braid.server.servicers.oip.tensors.classification import classify
from braid.server.servicers.oip.tensors.requests import Wishes
from braid.server.servicers.oip.tensors.transfer import Reply
from braid.server.servicers.oip.wire import messages


def reply_to(
    request: Any, model: ModelReplica, outputs: Mapping[str, OutputTensor], wishes: Wishes
) -> Reply:
    """The response to one request.

    ``raw_output_contents`` has one entry for each output, empty where it went to shared memory:
    clients find an output's bytes by its position.

    Raises:
        InvalidRequest: an output does not fit where it was to go.
    """
    raw_contents: list[bytes | memoryview] = []
    response = messages.ModelInferResponse(
        model_name=request.model_name, model_version=str(model.version), id=request.id
    )
    for name, tensor in outputs.items():
        if count := wishes.classes.get(name):
            tensor = classify(name, tensor, count, model.batched)
        output = response.outputs.add(name=name, datatype=tensor.dtype, shape=tensor.shape)
        destination = wishes.destinations.get(name)
        if destination is None:
            raw_contents.append(tensor.data)
            continue
        placement, size = destination.placement, len(tensor.data)
        if size > placement.size_bytes:
            raise InvalidRequest(
                f"output {name!r} takes {size} bytes, its place in shared memory region "
                f"{placement.region!r} has {placement.size_bytes}"
            )
        destination.region.write(placement.offset, tensor.data)
        raw_contents.append(b"")
        output.parameters["shared_memory_region"].string_param = placement.region
        output.parameters["shared_memory_byte_size"].int64_param = size
        if placement.offset:
            output.parameters["shared_memory_offset"].int64_param = placement.offset
    return Reply(response, raw_contents)
