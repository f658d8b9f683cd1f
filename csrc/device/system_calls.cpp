// System calls on pinned memory whose pages the sanitizer has closed (sanitizer_pinned.cpp).
//
// The kernel does not fault on a closed page, it refuses the call with EFAULT: a program that reads a file into pinned
// memory would fail instead of being told. So the entries by which the loaded libraries call the system with a buffer
// are replaced by functions that open the pages first, and then tell what the call has used. They cost one test while
// no page is closed. Not seen are calls that libc makes by itself (other than fread and fwrite) and io_uring.
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string_view>

#include "device/sanitizer.h"
#include "device/sanitizer_runs.h"

namespace softnpu::sanitizer {

namespace {

#if defined(__aarch64__)
constexpr uint32_t kCallSlot = R_AARCH64_JUMP_SLOT, kAddressSlot = R_AARCH64_GLOB_DAT;
#else
constexpr uint32_t kCallSlot = R_X86_64_JUMP_SLOT, kAddressSlot = R_X86_64_GLOB_DAT;
#endif

// --- the functions in place of libc's ------------------------------------------------------------------------------

// `call` reads (or, if `writes`, writes) the first bytes of the buffers, as many as it returns, `unit` bytes each.
template <class Call>
auto around(const iovec* buffers, size_t count, bool writes, size_t unit, Call call) -> decltype(call()) {
  if (!any_closed.load(std::memory_order_relaxed)) return call();
  Sanitizer& all = Sanitizer::get();
  auto open = [&] {
    bool ours = false;
    for (size_t i = 0; i < count; ++i) {
      ours = all.open_for_system(reinterpret_cast<uintptr_t>(buffers[i].iov_base), buffers[i].iov_len) || ours;
    }
    return ours;
  };
  if (!open()) return call();
  auto done = call();
  for (int again = 0; done == static_cast<decltype(done)>(-1) && errno == EFAULT && again < 3; ++again) {
    open();  // another thread closed them meanwhile
    done = call();
  }
  if (done == static_cast<decltype(done)>(-1)) return done;
  const int kept = errno;
  size_t left = static_cast<size_t>(done) * unit;
  for (size_t i = 0; i < count && left > 0; ++i) {
    const size_t used = std::min(left, buffers[i].iov_len);
    all.system_touched(reinterpret_cast<uintptr_t>(buffers[i].iov_base), used, writes);
    left -= used;
  }
  errno = kept;
  return done;
}

template <class Call>
auto around(const void* buffer, size_t bytes, bool writes, Call call) -> decltype(call()) {
  const iovec one{const_cast<void*>(buffer), bytes};
  return around(&one, 1, writes, 1, call);
}

ssize_t read_(int fd, void* to, size_t n) {
  return around(to, n, true, [&] { return ::read(fd, to, n); });
}
ssize_t read_checked(int fd, void* to, size_t n, size_t) { return read_(fd, to, n); }
ssize_t write_(int fd, const void* from, size_t n) {
  return around(from, n, false, [&] { return ::write(fd, from, n); });
}
ssize_t pread_(int fd, void* to, size_t n, off64_t at) {
  return around(to, n, true, [&] { return ::pread64(fd, to, n, at); });
}
ssize_t pread_checked(int fd, void* to, size_t n, off64_t at, size_t) { return pread_(fd, to, n, at); }
ssize_t pwrite_(int fd, const void* from, size_t n, off64_t at) {
  return around(from, n, false, [&] { return ::pwrite64(fd, from, n, at); });
}
ssize_t readv_(int fd, const iovec* to, int n) {
  return around(to, static_cast<size_t>(n), true, 1, [&] { return ::readv(fd, to, n); });
}
ssize_t writev_(int fd, const iovec* from, int n) {
  return around(from, static_cast<size_t>(n), false, 1, [&] { return ::writev(fd, from, n); });
}
ssize_t preadv_(int fd, const iovec* to, int n, off64_t at) {
  return around(to, static_cast<size_t>(n), true, 1, [&] { return ::preadv64(fd, to, n, at); });
}
ssize_t pwritev_(int fd, const iovec* from, int n, off64_t at) {
  return around(from, static_cast<size_t>(n), false, 1, [&] { return ::pwritev64(fd, from, n, at); });
}
ssize_t preadv2_(int fd, const iovec* to, int n, off64_t at, int flags) {
  return around(to, static_cast<size_t>(n), true, 1, [&] { return ::preadv64v2(fd, to, n, at, flags); });
}
ssize_t pwritev2_(int fd, const iovec* from, int n, off64_t at, int flags) {
  return around(from, static_cast<size_t>(n), false, 1, [&] { return ::pwritev64v2(fd, from, n, at, flags); });
}
ssize_t recv_(int fd, void* to, size_t n, int flags) {
  return around(to, n, true, [&] { return ::recv(fd, to, n, flags); });
}
ssize_t recv_checked(int fd, void* to, size_t n, size_t, int flags) { return recv_(fd, to, n, flags); }
ssize_t send_(int fd, const void* from, size_t n, int flags) {
  return around(from, n, false, [&] { return ::send(fd, from, n, flags); });
}
ssize_t recvfrom_(int fd, void* to, size_t n, int flags, sockaddr* peer, socklen_t* length) {
  return around(to, n, true, [&] { return ::recvfrom(fd, to, n, flags, peer, length); });
}
ssize_t recvfrom_checked(int fd, void* to, size_t n, size_t, int flags, sockaddr* peer, socklen_t* length) {
  return recvfrom_(fd, to, n, flags, peer, length);
}
ssize_t sendto_(int fd, const void* from, size_t n, int flags, const sockaddr* peer, socklen_t length) {
  return around(from, n, false, [&] { return ::sendto(fd, from, n, flags, peer, length); });
}
ssize_t recvmsg_(int fd, msghdr* message, int flags) {
  return around(message->msg_iov, message->msg_iovlen, true, 1, [&] { return ::recvmsg(fd, message, flags); });
}
ssize_t sendmsg_(int fd, const msghdr* message, int flags) {
  return around(message->msg_iov, message->msg_iovlen, false, 1, [&] { return ::sendmsg(fd, message, flags); });
}
size_t fread_(void* to, size_t size, size_t n, FILE* file) {
  const iovec one{to, size * n};
  return around(&one, 1, true, size, [&] { return ::fread(to, size, n, file); });
}
size_t fread_checked(void* to, size_t, size_t size, size_t n, FILE* file) { return fread_(to, size, n, file); }
size_t fwrite_(const void* from, size_t size, size_t n, FILE* file) {
  const iovec one{const_cast<void*>(from), size * n};
  return around(&one, 1, false, size, [&] { return ::fwrite(from, size, n, file); });
}

struct Replaced {
  std::string_view name;
  void* by;
};

const auto& replaced() {
  static const std::array all{
      Replaced{"read", reinterpret_cast<void*>(&read_)},
      Replaced{"__read_chk", reinterpret_cast<void*>(&read_checked)},
      Replaced{"write", reinterpret_cast<void*>(&write_)},
      Replaced{"pread", reinterpret_cast<void*>(&pread_)},
      Replaced{"pread64", reinterpret_cast<void*>(&pread_)},
      Replaced{"__pread_chk", reinterpret_cast<void*>(&pread_checked)},
      Replaced{"__pread64_chk", reinterpret_cast<void*>(&pread_checked)},
      Replaced{"pwrite", reinterpret_cast<void*>(&pwrite_)},
      Replaced{"pwrite64", reinterpret_cast<void*>(&pwrite_)},
      Replaced{"readv", reinterpret_cast<void*>(&readv_)},
      Replaced{"writev", reinterpret_cast<void*>(&writev_)},
      Replaced{"preadv", reinterpret_cast<void*>(&preadv_)},
      Replaced{"preadv64", reinterpret_cast<void*>(&preadv_)},
      Replaced{"pwritev", reinterpret_cast<void*>(&pwritev_)},
      Replaced{"pwritev64", reinterpret_cast<void*>(&pwritev_)},
      Replaced{"preadv2", reinterpret_cast<void*>(&preadv2_)},
      Replaced{"preadv64v2", reinterpret_cast<void*>(&preadv2_)},
      Replaced{"pwritev2", reinterpret_cast<void*>(&pwritev2_)},
      Replaced{"pwritev64v2", reinterpret_cast<void*>(&pwritev2_)},
      Replaced{"recv", reinterpret_cast<void*>(&recv_)},
      Replaced{"__recv_chk", reinterpret_cast<void*>(&recv_checked)},
      Replaced{"send", reinterpret_cast<void*>(&send_)},
      Replaced{"recvfrom", reinterpret_cast<void*>(&recvfrom_)},
      Replaced{"__recvfrom_chk", reinterpret_cast<void*>(&recvfrom_checked)},
      Replaced{"sendto", reinterpret_cast<void*>(&sendto_)},
      Replaced{"recvmsg", reinterpret_cast<void*>(&recvmsg_)},
      Replaced{"sendmsg", reinterpret_cast<void*>(&sendmsg_)},
      Replaced{"fread", reinterpret_cast<void*>(&fread_)},
      Replaced{"__fread_chk", reinterpret_cast<void*>(&fread_checked)},
      Replaced{"fwrite", reinterpret_cast<void*>(&fwrite_)},
  };
  return all;
}

// --- the entries of the loaded libraries ---------------------------------------------------------------------------

struct Library {
  uintptr_t base = 0;
  const ElfW(Sym) * symbols = nullptr;
  const char* names = nullptr;
  uintptr_t fixed_begin = 0, fixed_end = 0;  // made read-only after it was loaded

  void replace(uintptr_t table, size_t bytes) const {
    const auto* entries = reinterpret_cast<const ElfW(Rela)*>(table);
    for (size_t i = 0; i < bytes / sizeof(*entries); ++i) {
      const auto type = static_cast<uint32_t>(ELF64_R_TYPE(entries[i].r_info));
      if (type != kCallSlot && type != kAddressSlot) continue;
      const std::string_view name = names + symbols[ELF64_R_SYM(entries[i].r_info)].st_name;
      const auto* found =
          std::find_if(replaced().begin(), replaced().end(), [&](auto& one) { return one.name == name; });
      if (found != replaced().end()) set(base + entries[i].r_offset, found->by);
    }
  }

  void set(uintptr_t slot, void* to) const {
    static const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    auto* place = reinterpret_cast<void**>(slot);
    if (*place == to) return;
    void* const from = reinterpret_cast<void*>(slot / page * page);
    if (mprotect(from, page, PROT_READ | PROT_WRITE) != 0) return;
    __atomic_store_n(place, to, __ATOMIC_RELEASE);
    if (fixed_begin <= slot && slot < fixed_end) mprotect(from, page, PROT_READ);
  }
};

void replace_entries_of(const dl_phdr_info& info) {
  Library library;
  library.base = info.dlpi_addr;
  const ElfW(Dyn)* dynamic = nullptr;
  const auto here = reinterpret_cast<uintptr_t>(&replace_entries_of);
  for (int i = 0; i < info.dlpi_phnum; ++i) {
    const auto& part = info.dlpi_phdr[i];
    const uintptr_t begin = info.dlpi_addr + part.p_vaddr;
    if (part.p_type == PT_LOAD && begin <= here && here < begin + part.p_memsz) return;  // our own
    if (part.p_type == PT_DYNAMIC) dynamic = reinterpret_cast<const ElfW(Dyn)*>(begin);
    if (part.p_type == PT_GNU_RELRO) library.fixed_begin = begin, library.fixed_end = begin + part.p_memsz;
  }
  if (dynamic == nullptr) return;
  uintptr_t calls = 0, addresses = 0;
  size_t call_bytes = 0, address_bytes = 0;
  for (; dynamic->d_tag != DT_NULL; ++dynamic) {
    uintptr_t at = dynamic->d_un.d_ptr;
    if (at < info.dlpi_addr) at += info.dlpi_addr;  // not every loader relocates them
    switch (dynamic->d_tag) {
      case DT_SYMTAB:
        library.symbols = reinterpret_cast<const ElfW(Sym)*>(at);
        break;
      case DT_STRTAB:
        library.names = reinterpret_cast<const char*>(at);
        break;
      case DT_JMPREL:
        calls = at;
        break;
      case DT_PLTRELSZ:
        call_bytes = dynamic->d_un.d_val;
        break;
      case DT_RELA:
        addresses = at;
        break;
      case DT_RELASZ:
        address_bytes = dynamic->d_un.d_val;
        break;
      case DT_PLTREL:
        if (dynamic->d_un.d_val != DT_RELA) return;
        break;
      default:
        break;
    }
  }
  if (library.symbols == nullptr || library.names == nullptr) return;
  if (calls != 0) library.replace(calls, call_bytes);
  if (addresses != 0) library.replace(addresses, address_bytes);
}

bool is_of_the_system(const char* path) {
  if (path == nullptr) return false;
  const std::string_view name(path);
  const std::string_view file = name.substr(name.rfind('/') + 1);
  return file.starts_with("libc.") || file.starts_with("ld-") || file.starts_with("linux-vdso") ||
         file.starts_with("libpthread.");
}

unsigned long long seen = 0;  // how many libraries were ever loaded, when we looked; guarded by the sanitizer's lock

int look_at(dl_phdr_info* info, size_t, void* first) {
  if (*static_cast<bool*>(first)) {
    *static_cast<bool*>(first) = false;
    if (info->dlpi_adds == seen) return 1;  // no new one
    seen = info->dlpi_adds;
  }
  if (!is_of_the_system(info->dlpi_name)) replace_entries_of(*info);
  return 0;
}

}  // namespace

void watch_system_calls() {
  bool first = true;
  dl_iterate_phdr(&look_at, &first);
}

}  // namespace softnpu::sanitizer
