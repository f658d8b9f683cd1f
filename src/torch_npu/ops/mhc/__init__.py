"""Manifold-constrained hyper-connections (mHC): the maps between the residual streams."""
