"""The Open Inference Protocol v2 over gRPC, with Triton's extensions: what tritonclient speaks.

    servicer    every RPC: convert, call, convert
    requests    ModelInferRequest -> GivenRequest      parameters, contents: its parts
    responses   Answer -> ModelInferResponse           classification: class ids instead of tensors
    transfer    how both are read and written without needless copies of tensors
    describe    metadata, configuration, statistics    loading: RepositoryModelLoad's parameters

Messages come from the tritonclient package (``wire``): a second copy of them in one process would
collide in protobuf's pool of descriptors. UNIMPLEMENTED: CUDA shared memory.
"""
