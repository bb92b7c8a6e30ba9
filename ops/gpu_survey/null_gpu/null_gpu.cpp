// A CUDA runtime and driver without a device: memory is host memory that stays zero, kernels are counted,
// nothing computes.
#define __CUDA_API_VERSION_INTERNAL 1
struct CUlaunchConfig {
  unsigned g[3], b[3], shared;
  void *hStream;
  void *attrs;
  unsigned n;
};
#include <atomic>
#include <dlfcn.h>
#include <driver_types.h>
#include <map>
#include <mutex>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <string>
#include <sys/mman.h>
#include <time.h>
#include <unordered_map>
#include <vector>
#include <vector_types.h>
#define API extern "C" __attribute__((visibility("default")))
typedef cudaError_t R;
static std::recursive_mutex mu;
static size_t gib() {
  const char *t = getenv("NULL_GPU_GIB");
  return (size_t)(t ? atol(t) : 79) << 30;
}
static size_t TOTAL = gib(), used = 0, peak = 0;
static std::map<uintptr_t, size_t> dev, host;
static bool verbose() {
  static bool v = getenv("NULL_GPU_VERBOSE") != nullptr;
  return v;
}
static double now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1e3 + t.tv_nsec / 1e6;
}
static bool in(std::map<uintptr_t, size_t> &m, const void *p, uintptr_t *base = nullptr,
               size_t *size = nullptr) {
  std::lock_guard<std::recursive_mutex> g(mu);
  auto i = m.upper_bound((uintptr_t)p);
  if (i == m.begin()) return false;
  --i;
  if ((uintptr_t)p < i->first + i->second) {
    if (base) *base = i->first;
    if (size) *size = i->second;
    return true;
  }
  return false;
}
struct Graph {
  std::map<std::string, int> kernels;
  int nodes = 0;
};
struct Stream {
  int id;
  int status = 0;
  unsigned long long cap = 0;
  Graph *graph = nullptr;
  int mode = 0;
  unsigned long thread = 0;
};
struct Event {
  double t = 0;
  bool captured = false;
};
static std::atomic<long> launches{0}, replays{0}, captures{0}, violations{0}, stray{0};
static std::map<std::string, long> bykernel;
static Stream legacy{0};
static std::vector<Stream *> streams;
static thread_local R last = cudaSuccess;
static thread_local int tmode = 0; // capture mode of the thread: global 0
static R ret(R r) {
  if (r) last = r;
  return r;
}
static Stream *S(void *s) {
  return (s == nullptr || s == (void *)1 || s == (void *)2) ? &legacy : (Stream *)s;
}
static Stream *capturing() {
  std::lock_guard<std::recursive_mutex> g(mu);
  for (auto *s : streams)
    if (s->status == 1) return s;
  return nullptr;
}
static R unsafe(const char *what) {
  Stream *s = capturing();
  if (s && tmode != 2 && !(s->mode == 2)) {
    violations++;
    fprintf(stderr, "NULL GPU: %s is not permitted while a stream is captured\n", what);
    s->status = 2;
    return ret((R)900);
  }
  return cudaSuccess;
}
static void count(const char *name, void *stream) {
  Stream *s = S(stream);
  std::lock_guard<std::recursive_mutex> g(mu);
  if (s->status == 1) {
    s->graph->nodes++;
    s->graph->kernels[name]++;
  } else {
    launches++;
    bykernel[name]++;
    if (capturing() && s == &legacy) {
      stray++;
      if (verbose()) fprintf(stderr, "NULL GPU: %s goes to the legacy stream beside a capture\n", name);
    }
  }
}
static bool pageable(const void *p) { return !in(dev, p) && !in(host, p); }
static R copy(void *d, const void *s, size_t n, void *stream, bool sync) {
  Stream *st = S(stream);
  bool dd = in(dev, d), ds = in(dev, s);
  if (sync)
    if (R r = unsafe("a synchronous copy")) return r;
  if (st->status == 1 && ((!dd && pageable(d)) || (!ds && pageable(s)))) {
    violations++;
    fprintf(stderr, "NULL GPU: copy of pageable memory in a capture\n");
    st->status = 2;
    return ret((R)900);
  }
  count(dd ? (ds ? "memcpy DtoD" : "memcpy HtoD") : (ds ? "memcpy DtoH" : "memcpy HtoH"), stream);
  if (dd) return cudaSuccess; // the device's memory stays zero
  if (ds) memset(d, 0, n);
  else memmove(d, s, n);
  return cudaSuccess;
}
struct AtExit {
  ~AtExit() {
    const char *f = getenv("NULL_GPU_REPORT");
    if (!f) return;
    FILE *o = fopen(f, "a");
    fprintf(o, "launches %ld replays %ld captures %ld violations %ld stray %ld peak %.2f GiB\n",
            launches.load(), replays.load(), captures.load(), violations.load(), stray.load(),
            peak / 1073741824.0);
    fclose(o);
  }
} atexit_;
// --- memory
API R cudaMalloc(void **p, size_t n) {
  if (R r = unsafe("cudaMalloc")) return r;
  std::lock_guard<std::recursive_mutex> g(mu);
  n = (n + 511) / 512 * 512;
  if (used + n > TOTAL) {
    *p = nullptr;
    return ret(cudaErrorMemoryAllocation);
  }
  void *q =
      mmap(nullptr, n ? n : 512, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (q == MAP_FAILED) return ret(cudaErrorMemoryAllocation);
  dev[(uintptr_t)q] = n;
  used += n;
  if (used > peak) peak = used;
  *p = q;
  return cudaSuccess;
}
API R cudaMallocAsync(void **p, size_t n, void *) { return cudaMalloc(p, n); }
API R cudaFree(void *p) {
  if (!p) return cudaSuccess;
  if (R r = unsafe("cudaFree")) return r;
  std::lock_guard<std::recursive_mutex> g(mu);
  auto i = dev.find((uintptr_t)p);
  if (i == dev.end()) return ret(cudaErrorInvalidValue);
  munmap(p, i->second);
  used -= i->second;
  dev.erase(i);
  return cudaSuccess;
}
API R cudaFreeAsync(void *p, void *) { return cudaFree(p); }
API R cudaHostAlloc(void **p, size_t n, unsigned) {
  if (R r = unsafe("cudaHostAlloc")) return r;
  if (posix_memalign(p, 4096, n ? n : 1)) return ret(cudaErrorMemoryAllocation);
  memset(*p, 0, n);
  std::lock_guard<std::recursive_mutex> g(mu);
  host[(uintptr_t)*p] = n;
  return cudaSuccess;
}
API R cudaFreeHost(void *p) {
  std::lock_guard<std::recursive_mutex> g(mu);
  host.erase((uintptr_t)p);
  free(p);
  return cudaSuccess;
}
API R cudaHostRegister(void *p, size_t n, unsigned) {
  std::lock_guard<std::recursive_mutex> g(mu);
  host[(uintptr_t)p] = n;
  return cudaSuccess;
}
API R cudaHostUnregister(void *p) {
  std::lock_guard<std::recursive_mutex> g(mu);
  host.erase((uintptr_t)p);
  return cudaSuccess;
}
API R cudaMemGetInfo(size_t *f, size_t *t) {
  *t = TOTAL;
  *f = TOTAL - used;
  return cudaSuccess;
}
API R cudaMemcpy(void *d, const void *s, size_t n, int) { return copy(d, s, n, nullptr, true); }
API R cudaMemcpyAsync(void *d, const void *s, size_t n, int, void *st) { return copy(d, s, n, st, false); }
API R cudaMemcpyPeerAsync(void *d, int, const void *s, int, size_t n, void *st) {
  return copy(d, s, n, st, false);
}
API R cudaMemcpy2DAsync(void *, size_t, const void *, size_t, size_t, size_t, int, void *st) {
  count("memcpy2D", st);
  return cudaSuccess;
}
API R cudaMemcpyToSymbol(const void *, const void *, size_t, size_t, int) { return cudaSuccess; }
API R cudaMemset(void *p, int v, size_t n) {
  count("memset", nullptr);
  return cudaSuccess;
}
API R cudaMemsetAsync(void *p, int v, size_t n, void *st) {
  count("memset", st);
  return cudaSuccess;
}
API R cudaPointerGetAttributes(cudaPointerAttributes *a, const void *p) {
  memset(a, 0, sizeof *a);
  if (in(dev, p)) {
    a->type = cudaMemoryTypeDevice;
    a->devicePointer = (void *)p;
  } else if (in(host, p)) {
    a->type = cudaMemoryTypeHost;
    a->devicePointer = (void *)p;
    a->hostPointer = (void *)p;
  } else a->type = cudaMemoryTypeUnregistered;
  return cudaSuccess;
}
API R cudaGetSymbolAddress(void **p, const void *) {
  static void *q = nullptr;
  if (!q) cudaMalloc(&q, 4096);
  *p = q;
  return cudaSuccess;
}
// --- device
API R cudaGetDeviceCount(int *n) {
  *n = 1;
  return cudaSuccess;
}
API R cudaGetDevice(int *d) {
  *d = 0;
  return cudaSuccess;
}
API R cudaSetDevice(int) { return cudaSuccess; }
API R cudaDeviceSynchronize() { return unsafe("cudaDeviceSynchronize"); }
API R cudaDriverGetVersion(int *v) {
  *v = 13000;
  return cudaSuccess;
}
API R cudaRuntimeGetVersion(int *v) {
  *v = 13000;
  return cudaSuccess;
}
API R cudaDeviceGetStreamPriorityRange(int *l, int *h) {
  if (l) *l = 0;
  if (h) *h = -5;
  return cudaSuccess;
}
API R cudaDeviceCanAccessPeer(int *c, int, int) {
  *c = 0;
  return cudaSuccess;
}
API R cudaDeviceEnablePeerAccess(int, unsigned) { return cudaSuccess; }
API R cudaDeviceGetPCIBusId(char *s, int n, int) {
  snprintf(s, n, "0000:00:00.0");
  return cudaSuccess;
}
static int attribute(int a) {
  switch (a) {
  case 1:
    return 1024;
  case 2:
  case 3:
    return 1024;
  case 4:
    return 64;
  case 5:
    return 2147483647;
  case 6:
  case 7:
    return 65535;
  case 8:
    return 49152;
  case 10:
    return 32;
  case 12:
    return 65536;
  case 13:
    return 1980000;
  case 16:
    return 132;
  case 36:
    return 2619000;
  case 37:
    return 5120;
  case 38:
    return 52428800;
  case 39:
    return 2048;
  case 75:
    return 9;
  case 76:
    return 0;
  case 81:
    return 233472;
  case 82:
    return 65536;
  case 97:
    return 232448;
  case 95:
    return 1;
  case 106:
    return 32;
  case 111:
    return 1024;
  default:
    return 1;
  }
}
API R cudaDeviceGetAttribute(int *v, int a, int) {
  *v = attribute(a);
  return cudaSuccess;
}
API R cudaGetDeviceProperties(cudaDeviceProp *p, int) {
  memset(p, 0, sizeof *p);
  {
    const char *n = getenv("NULL_GPU_NAME");
    strncpy(p->name, n ? n : "NVIDIA H100 80GB HBM3", 255);
  }
  p->totalGlobalMem = TOTAL;
  p->sharedMemPerBlock = 49152;
  p->regsPerBlock = 65536;
  p->warpSize = 32;
  p->maxThreadsPerBlock = 1024;
  p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
  p->maxThreadsDim[2] = 64;
  p->maxGridSize[0] = 2147483647;
  p->maxGridSize[1] = p->maxGridSize[2] = 65535;
  p->major = 9;
  p->minor = 0;
  p->multiProcessorCount = 132;
  p->l2CacheSize = 52428800;
  p->maxThreadsPerMultiProcessor = 2048;
  p->sharedMemPerMultiprocessor = 233472;
  p->regsPerMultiprocessor = 65536;
  p->sharedMemPerBlockOptin = 232448;
  p->reservedSharedMemPerBlock = 1024;
  p->memoryBusWidth = 5120;
  p->unifiedAddressing = 1;
  p->concurrentKernels = 1;
  p->cooperativeLaunch = 1;
  p->asyncEngineCount = 3;
  p->maxBlocksPerMultiProcessor = 32;
  return cudaSuccess;
}
API R cudaDeviceGetDefaultMemPool(void **p, int) {
  *p = (void *)8;
  return cudaSuccess;
}
API R cudaMemPoolGetAttribute(void *, int, void *v) {
  *(uint64_t *)v = 0;
  return cudaSuccess;
}
API R cudaMemPoolSetAttribute(void *, int, void *) { return cudaSuccess; }
API R cudaMemPoolSetAccess(void *, const void *, size_t) { return cudaSuccess; }
API R cudaMemPoolTrimTo(void *, size_t) { return cudaSuccess; }
API R cudaGetLastError() {
  R r = last;
  last = cudaSuccess;
  return r;
}
API R cudaPeekAtLastError() { return last; }
API const char *cudaGetErrorString(R r) {
  return r == 900   ? "operation not permitted when stream is capturing"
         : r == 901 ? "operation failed due to a previous error during capture"
         : r == 2   ? "out of memory"
         : r == 0   ? "no error"
                    : "null gpu error";
}
API const char *cudaGetErrorName(R r) {
  return r == 0     ? "cudaSuccess"
         : r == 900 ? "cudaErrorStreamCaptureUnsupported"
         : r == 901 ? "cudaErrorStreamCaptureInvalidated"
                    : "cudaErrorNull";
}
API R cudaProfilerStart() { return cudaSuccess; }
API R cudaProfilerStop() { return cudaSuccess; }
API R cudaIpcGetMemHandle(void *, void *) { return (R)801; }
API R cudaIpcOpenMemHandle(void **, void *, unsigned) { return (R)801; }
API R cudaIpcCloseMemHandle(void *) { return (R)801; }
API R cudaIpcGetEventHandle(void *, void *) { return (R)801; }
API R cudaIpcOpenEventHandle(void **, void *) { return (R)801; }
// --- streams and events
API R cudaStreamCreateWithPriority(void **s, unsigned, int) {
  std::lock_guard<std::recursive_mutex> g(mu);
  static int n = 1;
  auto *x = new Stream{n++};
  streams.push_back(x);
  *s = x;
  return cudaSuccess;
}
API R cudaStreamCreate(void **s) { return cudaStreamCreateWithPriority(s, 0, 0); }
API R cudaStreamDestroy(void *) { return cudaSuccess; }
API R cudaStreamGetPriority(void *, int *p) {
  *p = 0;
  return cudaSuccess;
}
API R cudaStreamQuery(void *) { return unsafe("cudaStreamQuery"); }
API R cudaStreamSynchronize(void *s) { return unsafe("cudaStreamSynchronize"); }
API R cudaStreamWaitEvent(void *s, void *e, unsigned) { return cudaSuccess; }
API R cudaStreamAddCallback(void *s, void (*f)(void *, R, void *), void *d, unsigned) {
  f(s, cudaSuccess, d);
  return cudaSuccess;
}
API R cudaLaunchHostFunc(void *s, void (*f)(void *), void *d) {
  f(d);
  return cudaSuccess;
}
API R cudaEventCreateWithFlags(void **e, unsigned) {
  *e = new Event;
  return cudaSuccess;
}
API R cudaEventCreate(void **e) {
  *e = new Event;
  return cudaSuccess;
}
API R cudaEventDestroy(void *e) {
  delete (Event *)e;
  return cudaSuccess;
}
API R cudaEventRecord(void *e, void *s) {
  ((Event *)e)->t = now();
  ((Event *)e)->captured = S(s)->status == 1;
  return cudaSuccess;
}
API R cudaEventRecordWithFlags(void *e, void *s, unsigned) { return cudaEventRecord(e, s); }
API R cudaEventQuery(void *e) { return unsafe("cudaEventQuery"); }
API R cudaEventSynchronize(void *e) { return unsafe("cudaEventSynchronize"); }
API R cudaEventElapsedTime(float *ms, void *a, void *b) {
  *ms = ((Event *)b)->t - ((Event *)a)->t;
  return cudaSuccess;
}
// --- capture
API R cudaThreadExchangeStreamCaptureMode(int *m) {
  int o = tmode;
  tmode = *m;
  *m = o;
  return cudaSuccess;
}
API R cudaStreamBeginCapture(void *s, int mode) {
  Stream *x = S(s);
  if (x == &legacy) return ret((R)900);
  x->status = 1;
  x->mode = mode;
  static unsigned long long id = 1;
  x->cap = id++;
  x->graph = new Graph;
  captures++;
  return cudaSuccess;
}
API R cudaStreamEndCapture(void *s, void **g) {
  Stream *x = S(s);
  int st = x->status;
  x->status = 0;
  if (st != 1) {
    *g = nullptr;
    return ret((R)901);
  }
  *g = x->graph;
  if (getenv("NULL_GPU_GRAPHS")) {
    FILE *o = fopen(getenv("NULL_GPU_GRAPHS"), "a");
    fprintf(o, "graph %d nodes:", x->graph->nodes);
    std::multimap<int, std::string> by;
    for (auto &k : x->graph->kernels)
      by.insert({-k.second, k.first});
    for (auto &k : by)
      fprintf(o, " %d x %s;", -k.first, k.second.c_str());
    fprintf(o, "\n");
    fclose(o);
  }
  return cudaSuccess;
}
API R cudaStreamIsCapturing(void *s, int *st) {
  *st = S(s)->status;
  return cudaSuccess;
}
API R cudaStreamGetCaptureInfo(void *s, int *st, unsigned long long *id, void **g, const void ***deps,
                               const void **edges, size_t *n) {
  Stream *x = S(s);
  *st = x->status;
  if (id) *id = x->cap;
  if (g) *g = x->graph;
  if (n) *n = 0;
  if (deps) *deps = nullptr;
  if (edges) *edges = nullptr;
  return cudaSuccess;
}
API R cudaGraphInstantiateWithFlags(void **x, void *g, unsigned long long) {
  *x = g;
  return cudaSuccess;
}
API R cudaGraphLaunch(void *x, void *s) {
  replays++;
  count("graph", s);
  return cudaSuccess;
}
API R cudaGraphDestroy(void *) { return cudaSuccess; }
API R cudaGraphExecDestroy(void *) { return cudaSuccess; }
API R cudaGraphGetNodes(void *g, void *, size_t *n) {
  *n = ((Graph *)g)->nodes;
  return cudaSuccess;
}
API R cudaGraphNodeGetDependencies(void *, void *, void *, size_t *n) {
  *n = 0;
  return cudaSuccess;
}
API R cudaGraphDebugDotPrint(void *, const char *, unsigned) { return cudaSuccess; }
// --- kernels
static std::unordered_map<const void *, std::string> names;
API void **__cudaRegisterFatBinary(void *) {
  static void *h[4];
  return h;
}
API void __cudaRegisterFatBinaryEnd(void **) {}
API void __cudaUnregisterFatBinary(void **) {}
API char __cudaInitModule(void **) { return 1; }
API void __cudaRegisterFunction(void **, const char *f, char *, const char *name, int, void *, void *, void *,
                                void *, int *) {
  names[f] = name;
}
API void __cudaRegisterVar(void **, char *, char *, const char *, int, size_t, int, int) {}
static thread_local struct {
  dim3 g, b;
  size_t m;
  void *s;
} cfg;
API unsigned __cudaPushCallConfiguration(dim3 g, dim3 b, size_t m, void *s) {
  cfg = {g, b, m, s};
  return 0;
}
API R __cudaPopCallConfiguration(dim3 *g, dim3 *b, size_t *m, void *s) {
  *g = cfg.g;
  *b = cfg.b;
  *m = cfg.m;
  *(void **)s = cfg.s;
  return cudaSuccess;
}
API R __cudaGetKernel(void **k, const void *f) {
  *k = (void *)f;
  return cudaSuccess;
}
static void byhost(const void *f, void *s) {
  auto i = names.find(f);
  std::string n = i == names.end() ? "?" : i->second;
  size_t a;
  if ((a = n.find("at6native")) != std::string::npos) n = n.substr(a + 9);
  if (n.size() > 90) n.resize(90);
  count(n.c_str(), s);
}
API R __cudaLaunchKernel(void *k, dim3, dim3, void **, size_t, void *s) {
  byhost(k, s);
  return cudaSuccess;
}
API R cudaLaunchKernel(const void *k, dim3, dim3, void **, size_t, void *s) {
  byhost(k, s);
  return cudaSuccess;
}
API R cudaLaunchKernelExC(const cudaLaunchConfig_t *c, const void *f, void **) {
  byhost(f, c->stream);
  return cudaSuccess;
}
API R cudaFuncGetAttributes(cudaFuncAttributes *a, const void *) {
  memset(a, 0, sizeof *a);
  a->maxThreadsPerBlock = 1024;
  a->numRegs = 32;
  a->ptxVersion = 90;
  a->binaryVersion = 90;
  a->maxDynamicSharedSizeBytes = 232448;
  return cudaSuccess;
}
API R cudaFuncSetAttribute(const void *, int, int) { return cudaSuccess; }
API R cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *n, const void *, int, size_t, unsigned) {
  *n = 2;
  return cudaSuccess;
}
// --- the driver
extern "C" {
#define DRIVER __attribute__((visibility("default"))) int
struct Fn {
  std::string name;
};
DRIVER cuInit(unsigned) { return 0; }
DRIVER cuDeviceGet(int *d, int) {
  *d = 0;
  return 0;
}
DRIVER cuDeviceGetCount(int *n) {
  *n = 1;
  return 0;
}
DRIVER cuDeviceGetAttribute(int *v, int a, int) {
  *v = attribute(a);
  return 0;
}
DRIVER cuDevicePrimaryCtxRetain(void **c, int) {
  *c = (void *)16;
  return 0;
}
DRIVER cuDevicePrimaryCtxGetState(int, unsigned *f, int *a) {
  *f = 0;
  *a = 1;
  return 0;
}
DRIVER cuCtxGetCurrent(void **c) {
  *c = (void *)16;
  return 0;
}
DRIVER cuCtxSetCurrent(void *) { return 0; }
DRIVER cuCtxGetLimit(size_t *v, int) {
  *v = 1 << 20;
  return 0;
}
DRIVER cuCtxSetLimit(int, size_t) { return 0; }
DRIVER cuGetErrorString(int, const char **s) {
  *s = "null driver error";
  return 0;
}
DRIVER cuGetErrorName(int, const char **s) {
  *s = "CUDA_ERROR_NULL";
  return 0;
}
DRIVER cuModuleLoadData(void **m, const void *) {
  *m = (void *)32;
  return 0;
}
DRIVER cuModuleLoadDataEx(void **m, const void *, unsigned, void *, void *) {
  *m = (void *)32;
  return 0;
}
DRIVER cuModuleLoad(void **m, const char *) {
  *m = (void *)32;
  return 0;
}
DRIVER cuModuleUnload(void *) { return 0; }
DRIVER cuModuleGetFunction(void **f, void *, const char *n) {
  *f = new Fn{n};
  return 0;
}
DRIVER cuFuncGetAttribute(int *v, int a, void *) {
  *v = a == 0 ? 1024 : a == 4 ? 64 : a == 3 ? 0 : 0;
  return 0;
}
DRIVER cuFuncSetAttribute(void *, int, int) { return 0; }
DRIVER cuFuncSetCacheConfig(void *, int) { return 0; }
DRIVER cuOccupancyMaxActiveClusters(int *n, void *, void *) {
  *n = 1;
  return 0;
}
DRIVER cuOccupancyMaxActiveBlocksPerMultiprocessor(int *n, void *, int, size_t) {
  *n = 1;
  return 0;
}
DRIVER cuTensorMapEncodeTiled() { return 0; }
DRIVER cuPointerGetAttribute(void *v, int a, unsigned long long p) {
  if (!in(dev, (void *)p) && !in(host, (void *)p)) return 1;
  if (a == 3) *(unsigned long long *)v = p;
  else *(int *)v = 0;
  return 0;
}
DRIVER cuPointerGetAttributes(unsigned, void *, void **, unsigned long long) { return 1; }
DRIVER cuLaunchKernelEx(const CUlaunchConfig *c, void *f, void **, void **) {
  count(("triton " + ((Fn *)f)->name).c_str(), c->hStream);
  return 0;
}
DRIVER cuLaunchKernel(void *f, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *s,
                      void **, void **) {
  count(("driver " + ((Fn *)f)->name).c_str(), s);
  return 0;
}
DRIVER cuLaunchCooperativeKernel() { return 0; }
DRIVER cuLinkCreate_v2() { return 0; }
DRIVER cuLinkComplete() { return 0; }
DRIVER cuLinkAddData_v2() { return 0; }
DRIVER cuDeviceGetName(char *n, int l, int) {
  const char *e = getenv("NULL_GPU_NAME");
  snprintf(n, l, "%s", e ? e : "NVIDIA H100 80GB HBM3");
  return 0;
}
DRIVER cuCtxGetDevice(int *d) {
  *d = 0;
  return 0;
}
DRIVER cuCtxPushCurrent_v2(void *) { return 0; }
DRIVER cuCtxPopCurrent_v2(void **c) {
  if (c) *c = (void *)16;
  return 0;
}
DRIVER cuDevicePrimaryCtxRelease_v2(int) { return 0; }
DRIVER cuGetProcAddress_v2(const char *n, void **f, int, unsigned long long, int *st) {
  *f = dlsym(RTLD_DEFAULT, n);
  if (!*f) *f = dlsym(RTLD_DEFAULT, (std::string(n) + "_v2").c_str());
  if (st) *st = *f ? 0 : 1;
  return *f ? 0 : 500;
}
DRIVER cuDriverGetVersion(int *v) {
  *v = 13000;
  return 0;
}
DRIVER cuStreamGetCaptureInfo() { return 0; }
}
API R cudaGetDriverEntryPointByVersion(const char *n, void **f, unsigned, unsigned long long, int *st) {
  *f = dlsym(RTLD_DEFAULT, n);
  if (st) *st = *f ? 0 : 1;
  return *f ? cudaSuccess : (R)500;
}
API void null_gpu_count(const char *name, void *s) { count(name, s); }
API void null_gpu_report(char *out, size_t n) {
  std::lock_guard<std::recursive_mutex> g(mu);
  std::string s;
  char b[400];
  snprintf(b, 400, "launches %ld replays %ld captures %ld violations %ld stray %ld used %.2f peak %.2f GiB",
           launches.load(), replays.load(), captures.load(), violations.load(), stray.load(),
           used / 1073741824.0, peak / 1073741824.0);
  s = b;
  strncpy(out, s.c_str(), n - 1);
}
API void null_gpu_reset() {
  std::lock_guard<std::recursive_mutex> g(mu);
  launches = replays = 0;
  bykernel.clear();
}
API void null_gpu_kernels(char *out, size_t n) {
  std::lock_guard<std::recursive_mutex> g(mu);
  std::string s;
  std::multimap<long, std::string> by;
  for (auto &k : bykernel)
    by.insert({-k.second, k.first});
  for (auto &k : by)
    s += std::to_string(-k.first) + " x " + k.second + "\n";
  strncpy(out, s.c_str(), n - 1);
  out[n - 1] = 0;
}
API void null_gpu_total(size_t t) { TOTAL = t; }
#include "missing.inc"
