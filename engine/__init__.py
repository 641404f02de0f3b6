"""Everything that touches tensors: importers, passes, kernels, executors, timing, the worker.

The only package that imports torch, onnx, onnxruntime and openvino. The modules that the front end
uses (``braid.engine.link.supervisor``, ``braid.engine.importer.host.launch``,
``braid.engine.runtime.memory`` and what they import) load none of them.
"""
