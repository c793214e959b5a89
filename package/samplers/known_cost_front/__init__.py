from .front_sampler import FrontSampler

__all__ = ["FrontSampler"]
