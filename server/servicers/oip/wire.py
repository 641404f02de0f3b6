"""The messages and the service of the protocol, where they come from."""

from __future__ import annotations

from tritonclient.grpc import model_config_pb2 as config
from tritonclient.grpc import service_pb2 as messages
from tritonclient.grpc import service_pb2_grpc as service

SERVICE_NAME: str = messages.DESCRIPTOR.services_by_name["GRPCInferenceService"].full_name

__all__ = ["SERVICE_NAME", "config", "messages", "service"]
