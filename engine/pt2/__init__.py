"""``.pt2`` files (torch.export) as ONNX models: a JSON graph that is checked, and raw tensor bytes.

torch reads what passed the checks; ``torch.load``, ``torch.jit`` and code of the file stay out.
"""
