"""Roles that calls need. A call that is not listed needs the highest one."""

from __future__ import annotations

import enum
from collections.abc import Mapping


class Role(enum.IntEnum):
    """Rights of a caller; each role includes those before it."""

    ANYONE = 0  # health: probes carry no token
    INFER = 1  # run models, and ask what they take and give
    ADMIN = 2  # register, load, unload and delete models, watch jobs, change settings


_OIP_INFER = (
    "ServerMetadata",
    "ModelReady",
    "ModelMetadata",
    "ModelConfig",
    "ModelStatistics",
    "ModelInfer",
    "ModelStreamInfer",
    # Off unless the operator offers it, and then it is for those who run models.
    "SystemSharedMemoryStatus",
    "SystemSharedMemoryRegister",
    "SystemSharedMemoryUnregister",
    "CudaSharedMemoryStatus",
    "CudaSharedMemoryRegister",
    "CudaSharedMemoryUnregister",
)

NEEDED: Mapping[str, Role] = {
    "/grpc.health.v1.Health/Check": Role.ANYONE,
    "/grpc.health.v1.Health/Watch": Role.ANYONE,
    "/grpc.health.v1.Health/List": Role.INFER,  # names the models
    "/inference.GRPCInferenceService/ServerLive": Role.ANYONE,
    "/inference.GRPCInferenceService/ServerReady": Role.ANYONE,
    **{f"/inference.GRPCInferenceService/{name}": Role.INFER for name in _OIP_INFER},
    "/braid.v1.InferenceService/Infer": Role.INFER,
    "/braid.v1.InferenceService/InferStream": Role.INFER,
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": Role.INFER,
}


def needed_role(method: str) -> Role:
    return NEEDED.get(method, Role.ADMIN)
