"""The configuration: what can be set, in which units and ranges, and how it is read."""

from proxy.config.model import Config, PoolConfig

__all__ = ["Config", "PoolConfig"]
