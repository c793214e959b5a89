from .front_pruner import FrontPruner

__all__ = ["FrontPruner"]
