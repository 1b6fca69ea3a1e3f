"""Who goes next.

Pure ordering and packing rules, shared by the proxy's queue and the bundled
worker's scheduler. This package imports nothing but the standard library.
"""

from policies.base import Job, Policy
from policies.heap import Handle, JobHeap
from policies.packing import Pack, pack
from policies.registry import PolicyError, create_policy, policy_names

__all__ = [
    "Handle",
    "Job",
    "JobHeap",
    "Pack",
    "Policy",
    "PolicyError",
    "__version__",
    "create_policy",
    "pack",
    "policy_names",
]

__version__ = "0.1.0"
