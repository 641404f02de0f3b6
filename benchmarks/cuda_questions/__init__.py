"""What to see first when a GPU is there: ``python -m benchmarks.cuda_questions``.

Six questions that decisions about the CUDA engine rest on, a minute or less each. Every question
is asked in a process of its own with a time limit: one that crashes, hangs or poisons its context
costs its own answers only, and what it had found by then is kept.

    __main__ ──a process a question──> device, costs, kernels, plans ──> rows
"""
