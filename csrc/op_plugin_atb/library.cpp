// libop_plugin_atb.so: upstream's library of ATB's operators, which programs (dlinfer) load by its path to register
// them. Here they are registered when torch_npu is imported; the library is the file that those programs look for.

extern "C" __attribute__((visibility("default"))) const char* softnpu_op_plugin_atb() {
  return "the operators of torch.ops.atb are registered by torch_npu";
}
