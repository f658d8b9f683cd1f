// Synchronizing calls and torch.npu.set_sync_debug_mode, which warns of them or forbids them.
#pragma once

#include "device/stream.h"

namespace softnpu {

enum class SyncDebugMode { Default = 0, Warn = 1, Error = 2 };

void set_sync_debug_mode(int mode);
int sync_debug_mode();
void note_synchronization(const char* what);  // a call that makes the host wait for the device

// The waits themselves: forbidden in a capture; an error instead of a wait that can never end.
void wait_for_stream(int device, int64_t stream, const char* what);
void wait_for_device(int device, const char* what);
void wait_for_event(const Event& event, const char* what);

}  // namespace softnpu
