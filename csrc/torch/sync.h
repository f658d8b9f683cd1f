// Synchronising calls and torch.npu.set_sync_debug_mode, which warns of them or forbids them.
#pragma once

namespace softnpu {

enum class SyncDebugMode { Default = 0, Warn = 1, Error = 2 };

void set_sync_debug_mode(int mode);
int sync_debug_mode();
void note_synchronisation(const char* what);  // a call that makes the host wait for the device

}  // namespace softnpu
