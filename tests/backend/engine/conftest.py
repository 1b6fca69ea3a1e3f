from __future__ import annotations

import torch

# Two OpenMP threads that share cores with anything else spend milliseconds at the barrier of every small operation.
torch.set_num_threads(1)
