"""C kernels for the CPU, compiled on this machine; everything works without them, only slower."""
