"""Pre-processing of multi-head latent attention (MLA)."""
