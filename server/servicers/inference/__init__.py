"""Inference over gRPC: ``braid.v1.InferenceService`` and what both protocols share."""
