"""The protocol's messages under the name by which they are pickled: it has no package in it."""

from tritonclient.grpc.service_pb2 import *
