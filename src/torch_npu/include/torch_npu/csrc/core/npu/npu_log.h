// Log lines of extensions. The card's log files do not exist here: the arguments are checked and nothing is written.
#pragma once

#include <cstdio>

#define SOFTNPU_NO_LOG(...)                    \
  do {                                         \
    if (false) (void)std::printf(__VA_ARGS__); \
  } while (false)

#define ASCEND_LOGD(...) SOFTNPU_NO_LOG(__VA_ARGS__)
#define ASCEND_LOGI(...) SOFTNPU_NO_LOG(__VA_ARGS__)
#define ASCEND_LOGW(...) SOFTNPU_NO_LOG(__VA_ARGS__)
#define ASCEND_LOGE(...) SOFTNPU_NO_LOG(__VA_ARGS__)
