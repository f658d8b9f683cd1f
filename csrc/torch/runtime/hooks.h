// Registration of the accelerator hooks, and storage resizing on the device.
#pragma once

#include <c10/core/StorageImpl.h>

namespace softnpu {

void install_hooks();  // once
void resize_storage(c10::StorageImpl& storage, size_t bytes);

}  // namespace softnpu
