"""The CUDA engine under torch's CUDA build without a GPU, on a CUDA runtime in software.

    make gpu-dry ──> a CUDA build of torch, the runtime built and preloaded, pytest under it
    runtime/         libcudart, cuBLAS, cuDNN and libcuda in software (C++)
    device.py        what the runtime tells tests
    cudnn_engines.py asks cuDNN itself which engines it has for an H100

Captures, memory, events, streams and errors behave as CUDA's do. Kernels compute nothing and time
is simulated, so nothing here is about numbers, speed, or what is inside of cuDNN and cuBLAS. Where
a fault was found or is feared, a test puts it back, and the check must fail.
"""
