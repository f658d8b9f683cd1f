"""The captured form of a graph under upstream's name."""

from torchair._capture import Captured as AclConcreteGraph

__all__ = ["AclConcreteGraph"]
