"""Open Inference Protocol v2 over gRPC, with Triton's extensions: what tritonclient speaks.

    wire            messages, and the table of methods, each in one of the modules below
    models          server and models: metadata, configuration, statistics
    repository      index, load, unload
    shared_memory   regions of the caller
    settings        logging, tracing
    tensors         ModelInfer: requests and replies, run by ``tensor_service``
    parameters      of requests, inputs and outputs
    contents        typed contents, classes

Messages come from the tritonclient package: a second copy of them in one process would
collide in protobuf's pool of descriptors. UNIMPLEMENTED: CUDA shared memory.
"""
