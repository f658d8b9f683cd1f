"""Makes the generated pages; `make docs-generated` runs them all."""
