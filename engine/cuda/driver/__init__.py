"""Interface between the CUDA engine and CUDA, over torch.cuda."""
