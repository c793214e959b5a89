"""Networks for use elsewhere: timm checkpoints, ONNX, torch.export."""
