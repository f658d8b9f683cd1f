"""Names under which programs know parts of torchair.ge; mirrors upstream's package of this name."""
