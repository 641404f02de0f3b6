"""The protocol's messages and service, imported from tritonclient."""

from __future__ import annotations

from tritonclient.grpc import model_config_pb2 as config
from tritonclient.grpc import service_pb2 as messages

SERVICE = messages.DESCRIPTOR.services_by_name["GRPCInferenceService"]
SERVICE_NAME: str = SERVICE.full_name

__all__ = ["SERVICE", "SERVICE_NAME", "config", "messages"]
