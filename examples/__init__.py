"""Programs that show how it is used."""
