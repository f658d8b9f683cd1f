"""The operators of torch_npu, one file each, in folders by family."""
