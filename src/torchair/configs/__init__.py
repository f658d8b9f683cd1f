"""torchair.configs: the options of a compilation. `compiler_config.CompilerConfig` is the public name."""
