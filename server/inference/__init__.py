"""One inference request: checks, slot rows, replicas, memory, batching."""
