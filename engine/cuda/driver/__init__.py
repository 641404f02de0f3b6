"""The seam to the device: what the CUDA engine asks of CUDA, over torch.cuda."""
