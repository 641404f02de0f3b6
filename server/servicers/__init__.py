"""gRPC servicers: convert, call, convert. Nothing is decided here.

tensor_service  one request of any protocol, from its bytes to the bytes of its answer
streams         many requests on one call
braid_v1        messages of braid.v1's InferenceService
oip             the Open Inference Protocol: its messages and its other methods
rest            the same protocol over HTTP
admin           braid.v1's AdminService, with admin_messages, uploads and samples
health          grpc.health.v1
"""
