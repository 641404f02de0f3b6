"""Inference over gRPC: one tensor service, which both protocols share.

service       one request from its bytes to the bytes of its answer; refusals before reading
streams       many requests on one call
braid_v1      the messages of ``braid.v1.InferenceService``
              (those of the Open Inference Protocol: ``braid.server.servicers.oip.tensors``)
              (tensors in and out of serialised messages: ``braid_client.wire_fields``)
"""
