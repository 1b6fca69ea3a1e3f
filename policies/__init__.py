"""Who goes next.

Pure ordering and packing rules, shared by the proxy's queue and the bundled
worker's scheduler. This package imports nothing but the standard library.
"""

from policies.base import Job, Policy
from policies.heap import Handle, JobHeap

__all__ = ["Handle", "Job", "JobHeap", "Policy", "__version__"]

__version__ = "0.1.0"
