from .mixer import Mixer

__all__ = ["Mixer"]
