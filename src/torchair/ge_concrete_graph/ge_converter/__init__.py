"""Old place of converters that needed a patch of torch.distributed."""
