"""``.pt2`` files (torch.export) into template graphs: a zip, a JSON graph, raw tensor bytes.

Nothing here calls torch.export, torch.load or torch.jit: those run code from the file.
"""
