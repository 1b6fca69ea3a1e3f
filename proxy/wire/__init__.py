"""Wire formats: what a request is, what it may share a batch with, and what an error looks like.

One module per protocol, all with the interface of `proxy.wire.base.WireFormat`; `proxy.wire.registry` finds
the one that a request speaks.
"""
