"""Export of networks for use without lrnas or without its searches: timm checkpoints, ONNX, torch.export."""
