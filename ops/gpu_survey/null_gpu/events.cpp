// Events, callbacks and waits. What is launched has ended at once: an event has the host's time, a callback
// is called at once, and a wait does nothing but break the capture that runs.
#include "null_gpu.h"
#include <chrono>

using Clock = std::chrono::steady_clock;

struct CUevent_st {
  Clock::time_point recorded;
};

cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t call, void *data, unsigned) {
  return call(stream, cudaSuccess, data), cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t, cudaHostFn_t call, void *data) {
  return call(data), cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *event) { return answer(event, new CUevent_st); }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned) { return cudaEventCreate(event); }
cudaError_t cudaEventDestroy(cudaEvent_t event) { return delete event, cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t) {
  return answer(&event->recorded, Clock::now());
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) {
  return cudaEventRecord(event, stream);
}
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t begin, cudaEvent_t end) {
  return answer(ms, std::chrono::duration<float, std::milli>(end->recorded - begin->recorded).count());
}

cudaError_t cudaDeviceSynchronize() { return not_in_capture(__func__); }
cudaError_t cudaStreamQuery(cudaStream_t) { return not_in_capture(__func__); }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return not_in_capture(__func__); }
cudaError_t cudaEventQuery(cudaEvent_t) { return not_in_capture(__func__); }
cudaError_t cudaEventSynchronize(cudaEvent_t) { return not_in_capture(__func__); }
