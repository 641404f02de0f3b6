"""Hostile messages as data: what is sent, the status that it must get, and words of the answer.

bad_requests    mistakes of requests to infer, each through every door that can express it (doors)
inference       calls of ``braid.v1.InferenceService`` that are no request
open_inference  every other RPC of the Open Inference Protocol; loads and regions over REST, too
admin           every RPC of ``braid.v1.AdminService``, uploads among them, health and reflection
parts           requests of millions of parts, and those for very large answers
rest, console   the HTTP port, byte by byte
names           names that would be code, markup, log lines or paths, through all of these

grpc_calls and http_requests say what a case is, and send it.
"""
