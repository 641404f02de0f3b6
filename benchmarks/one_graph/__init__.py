"""Trial: the graph is the user's ONNX model, and no process of a CPU loads torch.

    model.onnx ──Stored──> graph.onnx + weights.bin ──specialised──> static ONNX graph
        ──rules──> nodes of the domain ``braid`` ──records──> kernels, and regions in ONNX Runtime

docs/decisions/0096-one-graph-trial.md has the figures and what came of them.
"""
