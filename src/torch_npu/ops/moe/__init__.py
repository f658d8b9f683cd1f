"""Mixture of experts: gates, routing of tokens to experts and back."""
