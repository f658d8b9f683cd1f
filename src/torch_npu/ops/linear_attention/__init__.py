"""Linear attention and state space models: gated delta rule, causal convolutions."""
