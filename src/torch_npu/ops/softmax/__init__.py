"""Softmax with scaling, masking and dropout."""
