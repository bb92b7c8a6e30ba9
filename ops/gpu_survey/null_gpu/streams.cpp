// Streams, their captures, graphs, and what is counted of them.
#include "null_gpu.h"
#include <atomic>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <vector>

struct CUgraph_st {
  int nodes = 0;
  std::map<std::string, int> nodes_of; // by kernel
};
struct CUstream_st {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  unsigned long long capture = 0; // number of the latest one
  CUgraph_st *graph = nullptr;    // of the latest one; graphs and streams are never freed
};

static std::mutex mutex; // of all streams and graphs
static std::vector<CUstream_st *> streams;
static CUstream_st legacy; // never captures
static thread_local cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;
static std::atomic<unsigned long long> launches, replays, captures;
static std::atomic<unsigned long long> violations; // operations that broke a capture
static std::atomic<unsigned long long> stray;      // launches into the legacy stream beside a capture

static CUstream_st &stream_of(cudaStream_t handle) {
  return !handle || handle == cudaStreamLegacy || handle == cudaStreamPerThread ? legacy : *handle;
}

bool is_capturing(cudaStream_t stream) { return stream_of(stream).status == cudaStreamCaptureStatusActive; }

static CUstream_st *capturing_stream() { // under the mutex
  for (CUstream_st *stream : streams)
    if (is_capturing(stream)) return stream;
  return nullptr;
}

cudaError_t break_capture(cudaStream_t stream, const std::string &why) {
  violations++;
  std::cerr << "NULL GPU: " + why + "\n";
  stream->status = cudaStreamCaptureStatusInvalidated;
  return fail(cudaErrorStreamCaptureUnsupported);
}

cudaError_t not_in_capture(const std::string &operation) {
  std::lock_guard lock(mutex);
  CUstream_st *stream = capturing_stream();
  const auto relaxed = cudaStreamCaptureModeRelaxed;
  if (!stream || stream->mode == relaxed || thread_mode == relaxed) return cudaSuccess;
  return break_capture(stream, operation + " is not permitted while a stream is captured");
}

Success count(const std::string &kernel, cudaStream_t handle) {
  static const bool verbose = getenv("NULL_GPU_VERBOSE");
  CUstream_st &stream = stream_of(handle);
  std::lock_guard lock(mutex);
  if (is_capturing(&stream)) {
    stream.graph->nodes++;
    stream.graph->nodes_of[kernel]++;
    return {};
  }
  launches++;
  if (&stream == &legacy && capturing_stream()) {
    stray++;
    if (verbose) std::cerr << "NULL GPU: " + kernel + " goes to the legacy stream beside a capture\n";
  }
  return {};
}

static void log(const CUgraph_st &graph) {
  const char *path = getenv("NULL_GPU_GRAPHS");
  if (!path) return;
  std::multimap<int, std::string, std::greater<>> by_nodes;
  for (auto &[kernel, nodes] : graph.nodes_of) by_nodes.emplace(nodes, kernel);
  std::ofstream file(path, std::ios::app);
  file << "graph " << graph.nodes << " nodes:";
  for (auto &[nodes, kernel] : by_nodes) file << " " << nodes << " x " << kernel << ";";
  file << "\n";
}

__attribute__((destructor)) static void report() { // when the process ends
  const char *path = getenv("NULL_GPU_REPORT");
  if (!path) return;
  std::ofstream file(path, std::ios::app);
  file << "launches " << launches << " replays " << replays << " captures " << captures << " violations "
       << violations << " stray " << stray;
  file << " peak " << std::fixed << std::setprecision(2) << peak_bytes / double(1 << 30) << " GiB\n";
}

extern "C" void null_gpu_count(const char *product, cudaStream_t stream) { count(product, stream); }

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode *mode) {
  return answer(mode, std::exchange(thread_mode, *mode));
}
cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
  CUstream_st &stream = stream_of(handle);
  if (&stream == &legacy) return fail(cudaErrorStreamCaptureUnsupported);
  stream = {cudaStreamCaptureStatusActive, mode, ++captures, new CUgraph_st};
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t *graph) {
  CUstream_st &stream = stream_of(handle);
  bool whole = std::exchange(stream.status, cudaStreamCaptureStatusNone) == cudaStreamCaptureStatusActive;
  answer(graph, whole ? stream.graph : nullptr);
  if (!whole) return fail(cudaErrorStreamCaptureInvalidated);
  log(*stream.graph);
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus *status) {
  return answer(status, stream_of(stream).status);
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t handle, cudaStreamCaptureStatus *status,
                                     unsigned long long *id, cudaGraph_t *graph,
                                     const cudaGraphNode_t **dependencies, const cudaGraphEdgeData **edges,
                                     size_t *dependency_count) {
  CUstream_st &stream = stream_of(handle);
  answer(dependencies, nullptr, edges, nullptr, dependency_count, 0);
  return answer(status, stream.status, id, stream.capture, graph, stream.graph);
}
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *executable, cudaGraph_t graph,
                                          unsigned long long) {
  return answer(executable, reinterpret_cast<cudaGraphExec_t>(graph));
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t, cudaStream_t stream) {
  replays++;
  return count("graph", stream);
}
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *, size_t *count) {
  return answer(count, graph->nodes);
}

cudaError_t cudaStreamCreate(cudaStream_t *stream) {
  std::lock_guard lock(mutex);
  return answer(stream, streams.emplace_back(new CUstream_st));
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned, int) {
  return cudaStreamCreate(stream);
}
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
  return answer(least, 0, greatest, -5);
}
