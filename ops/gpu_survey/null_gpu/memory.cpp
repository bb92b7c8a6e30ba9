// Memory. The device's is memory of the host to which nothing is written: it stays zero and takes no room.
#include "null_gpu.h"
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <sys/mman.h>

static size_t size_of_card() {
  const char *gib = getenv("NULL_GPU_GIB");
  return (gib ? atol(gib) : 79ul) << 30;
}
const size_t total_bytes = size_of_card();
size_t peak_bytes;
static size_t used_bytes;
static std::map<const void *, size_t> device, pinned; // bytes by address
static std::mutex mutex;                              // of all of these

static bool within(const std::map<const void *, size_t> &allocated, const void *pointer) {
  std::lock_guard lock(mutex);
  auto next = allocated.upper_bound(pointer);
  if (next == allocated.begin()) return false;
  auto [begin, bytes] = *std::prev(next);
  return pointer < static_cast<const char *>(begin) + bytes;
}

static cudaError_t copy(void *to, const void *from, size_t bytes, cudaStream_t stream) {
  bool to_device = within(device, to), from_device = within(device, from);
  bool pageable = !(to_device || within(pinned, to)) || !(from_device || within(pinned, from));
  if (pageable && is_capturing(stream)) return break_capture(stream, "copy of pageable memory in a capture");
  count(std::string("memcpy ") + (from_device ? "D" : "H") + "to" + (to_device ? "D" : "H"), stream);
  if (!to_device && from_device) memset(to, 0, bytes);
  if (!to_device && !from_device) memmove(to, from, bytes);
  return cudaSuccess;
}

cudaError_t cudaMalloc(void **pointer, size_t bytes) {
  if (cudaError_t error = not_in_capture(__func__)) return error;
  std::lock_guard lock(mutex);
  const size_t unit = 512;
  bytes = (std::max(bytes, 1ul) + unit - 1) / unit * unit;
  *pointer = nullptr;
  if (used_bytes + bytes > total_bytes) return fail(cudaErrorMemoryAllocation);
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void *mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
  if (mapped == MAP_FAILED) return fail(cudaErrorMemoryAllocation);
  used_bytes += bytes;
  peak_bytes = std::max(peak_bytes, used_bytes);
  return answer(pointer, mapped, &device[mapped], bytes);
}
cudaError_t cudaMallocAsync(void **pointer, size_t bytes, cudaStream_t) { return cudaMalloc(pointer, bytes); }
cudaError_t cudaFree(void *pointer) {
  if (!pointer) return cudaSuccess;
  if (cudaError_t error = not_in_capture(__func__)) return error;
  std::lock_guard lock(mutex);
  auto freed = device.extract(pointer);
  if (!freed) return fail(cudaErrorInvalidValue);
  used_bytes -= freed.mapped();
  munmap(pointer, freed.mapped());
  return cudaSuccess;
}
cudaError_t cudaFreeAsync(void *pointer, cudaStream_t) { return cudaFree(pointer); }
cudaError_t cudaMemGetInfo(size_t *free, size_t *total) {
  return answer(free, total_bytes - used_bytes, total, total_bytes);
}
cudaError_t cudaGetSymbolAddress(void **address, const void *) { // one for all symbols
  static void *place = nullptr;
  if (!place) cudaMalloc(&place, 4096);
  return answer(address, place);
}

cudaError_t cudaHostRegister(void *pointer, size_t bytes, unsigned) {
  std::lock_guard lock(mutex);
  return answer(&pinned[pointer], bytes);
}
cudaError_t cudaHostUnregister(void *pointer) {
  std::lock_guard lock(mutex);
  pinned.erase(pointer);
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void **pointer, size_t bytes, unsigned flags) {
  if (cudaError_t error = not_in_capture(__func__)) return error;
  if (posix_memalign(pointer, 4096, std::max(bytes, 1ul))) return fail(cudaErrorMemoryAllocation);
  memset(*pointer, 0, bytes);
  return cudaHostRegister(*pointer, bytes, flags);
}
cudaError_t cudaFreeHost(void *pointer) {
  cudaHostUnregister(pointer);
  free(pointer);
  return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *attributes, const void *pointer) {
  *attributes = {};
  bool on_device = within(device, pointer);
  if (!on_device && !within(pinned, pointer)) return cudaSuccess; // cudaMemoryTypeUnregistered is zero
  attributes->type = on_device ? cudaMemoryTypeDevice : cudaMemoryTypeHost;
  attributes->devicePointer = const_cast<void *>(pointer);
  attributes->hostPointer = on_device ? nullptr : attributes->devicePointer;
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind) {
  cudaError_t error = not_in_capture("a synchronous copy");
  return error ? error : copy(to, from, bytes, cudaStreamLegacy);
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  return copy(to, from, bytes, stream);
}
cudaError_t cudaMemcpyPeerAsync(void *to, int, const void *from, int, size_t bytes, cudaStream_t stream) {
  return copy(to, from, bytes, stream);
}
cudaError_t cudaMemcpy2DAsync(void *, size_t, const void *, size_t, size_t, size_t, cudaMemcpyKind,
                              cudaStream_t stream) {
  return count("memcpy2D", stream);
}
cudaError_t cudaMemset(void *, int, size_t) { return count("memset", cudaStreamLegacy); }
cudaError_t cudaMemsetAsync(void *, int, size_t, cudaStream_t stream) { return count("memset", stream); }
