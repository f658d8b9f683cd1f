"""The overflow flag of the device as a tensor."""
