"""Tensors of the Open Inference Protocol, from and to messages."""
