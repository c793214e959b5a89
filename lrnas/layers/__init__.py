"""Mixed-shape convolutions: the layers, their initialisation, their equivalent forms, and GPU kernels."""
