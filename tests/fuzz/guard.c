// Device memory for the fuzzer: every allocation ends at a page that cannot be touched, and begins after one. At the end,
// device memory for `make sanitize`.
//
// A read or write past the end by more than the alignment, before the begin by more than a page's rest, or after the
// memory was freed is a segmentation fault. The bytes between the allocation and the pages hold a pattern, which is
// compared when the memory is freed.
#define _GNU_SOURCE
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>

enum { kPage = 4096, kAlign = 64, kPattern = 0xA5 };

static size_t most = (size_t)256 << 20;
static atomic_long damaged;

void guard_limit(size_t bytes) { most = bytes; }
long guard_damaged(void) { return atomic_exchange(&damaged, 0); }

static size_t pages(size_t bytes) { return (bytes + kAlign + kPage - 1) / kPage * kPage; }

void* guard_allocate(ssize_t bytes, int device, void* stream) {
  (void)device, (void)stream;
  if (bytes < 0 || (size_t)bytes > most) return NULL;
  const size_t inner = pages((size_t)bytes);
  char* base = mmap(NULL, inner + 2 * kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) return NULL;
  if (mprotect(base + kPage, inner, PROT_READ | PROT_WRITE) != 0) return munmap(base, inner + 2 * kPage), NULL;
  char* end = base + kPage + inner;
  char* at = (char*)((uintptr_t)(end - bytes) & ~(uintptr_t)(kAlign - 1));
  memset(base + kPage, kPattern, (size_t)(at - base - kPage));
  memset(at + bytes, kPattern, (size_t)(end - at - bytes));
  return at;
}

static int intact(const unsigned char* from, const unsigned char* to) {
  for (; from < to; ++from)
    if (*from != kPattern) return 0;
  return 1;
}

void guard_free(void* at, ssize_t bytes, int device, void* stream) {
  (void)device, (void)stream;
  if (at == NULL) return;
  const size_t inner = pages((size_t)bytes);
  unsigned char* end = (unsigned char*)(((uintptr_t)at + (size_t)bytes + kPage - 1) / kPage * kPage);
  unsigned char* begin = end - inner;
  if (!intact(begin, at) || !intact((unsigned char*)at + bytes, end)) atomic_fetch_add(&damaged, 1);
  munmap(begin - kPage, inner + 2 * kPage);
}

// Device memory from the heap, whose ends AddressSanitizer guards.
void* heap_allocate(ssize_t bytes, int device, void* stream) {
  (void)device, (void)stream;
  void* at = NULL;
  return bytes < 0 || (size_t)bytes > most || posix_memalign(&at, kAlign, (size_t)bytes) != 0 ? NULL : at;
}

void heap_free(void* at, ssize_t bytes, int device, void* stream) {
  (void)bytes, (void)device, (void)stream;
  free(at);
}
