"""gRPC servicers: convert, call, convert. Nothing is decided here.

inference   tensors in, tensors out: one service for both protocols, and braid.v1's messages
oip         the Open Inference Protocol: its messages and its other methods
admin       braid.v1's AdminService, with admin_messages and uploads
health      grpc.health.v1
"""
