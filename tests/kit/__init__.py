"""The pytest plugin, the commands for CI and their files."""
