"""Convolutions: plain, transposed and deformable, two- and three-dimensional."""
