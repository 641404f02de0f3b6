"""RPCs of shared memory that callers register; CUDA's is not offered."""

from dataclasses import dataclass
from typing import Any

from braid.core.errors import NotOffered
from braid.server.inference.shared_regions import SharedRegions
from braid.server.rpc.status import Context
from braid.server.security.tokens import Digest, owner_in
from braid.server.servicers.oip.wire import messages


@dataclass(frozen=True, slots=True)
class SharedMemoryMethods:
    """RPCs about the caller's own regions."""

    _regions: SharedRegions

    async def SystemSharedMemoryStatus(self, request: Any, context: Context) -> Any:
        response = messages.SystemSharedMemoryStatusResponse()
        for region in self._regions.listed(owner_of(context), request.name):
            response.regions[region.name].CopyFrom(
                messages.SystemSharedMemoryStatusResponse.RegionStatus(
                    name=region.name,
                    key=region.key,
                    offset=region.offset,
                    byte_size=region.size_bytes,
                )
            )
        return response

    async def SystemSharedMemoryRegister(self, request: Any, context: Context) -> Any:
        owner, size_bytes = owner_of(context), request.byte_size
        self._regions.register(owner, request.name, request.key, request.offset, size_bytes)
        return messages.SystemSharedMemoryRegisterResponse()

    async def SystemSharedMemoryUnregister(self, request: Any, context: Context) -> Any:
        self._regions.unregister(owner_of(context), request.name)
        return messages.SystemSharedMemoryUnregisterResponse()

    async def CudaSharedMemoryStatus(self, request: Any, context: Context) -> Any:
        raise NotOffered("CUDA shared memory is not offered; system shared memory may be")

    CudaSharedMemoryRegister = CudaSharedMemoryUnregister = CudaSharedMemoryStatus


def owner_of(context: Context) -> Digest:
    metadata = context.invocation_metadata() or ()
    return owner_in({key: value for key, value in metadata if isinstance(value, str)})
