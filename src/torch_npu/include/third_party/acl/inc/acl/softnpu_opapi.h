// A function of libopapi.so, which torch_npu has loaded; null if it has not.
#pragma once

#include <dlfcn.h>

namespace softnpu_headers {

template <class Function>
Function* opapi_function(const char* name) {
  static void* library = dlopen("libopapi.so", RTLD_LAZY | RTLD_NOLOAD);
  return library == nullptr ? nullptr : reinterpret_cast<Function*>(dlsym(library, name));
}

}  // namespace softnpu_headers
