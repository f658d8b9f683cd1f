"""npugraph_ex.configs: the options."""
