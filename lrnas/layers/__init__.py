"""Mixed-shape convolutions: the layers, their initialisation, their equal but cheaper forms, and GPU kernels."""
