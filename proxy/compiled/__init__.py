"""The request path as machine code, where somebody has compiled it.

`trimtab compile` turns the modules in `modules.py` into C by mypyc, from the same annotated source that runs without
it, and keeps the result in the environment under a name made of that source. A build is used by every `trimtab`
command that finds one made of exactly the source it runs from; edit a line, and the command runs from source again
until it is compiled anew.
"""

from proxy.compiled.finder import activate, is_active
from proxy.compiled.store import CompiledUnavailable

__all__ = ["CompiledUnavailable", "activate", "is_active"]
