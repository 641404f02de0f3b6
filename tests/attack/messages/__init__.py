"""Hostile messages as data: what is sent, the status that it must get, and words of the answer.

tensors         mistakes about inputs, each sent through every protocol that takes tensors
inference       other mistakes of requests to ``braid.v1.InferenceService``
open_inference  every RPC of the Open Inference Protocol
admin           every RPC of ``braid.v1.AdminService``, uploads among them, health and reflection
parts           requests of millions of parts, and those for very large answers
rest, console   the HTTP port, byte by byte
names           names that would be code, markup, log lines or paths, through all of these

grpc_calls and http_requests say what a case is, and send it.
"""
