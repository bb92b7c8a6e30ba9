// Calls that were made once, made again: of functions that take addresses and whole numbers, and answer nothing.
// A function may be passed more than it takes, and wider numbers than it reads: on Linux both lie in registers
// and slots of eight bytes, which it leaves alone.
#include <utility>

#include "pieces.h"

namespace {

constexpr int ARGUMENTS = 24;

struct Call {
    int64_t function, arguments[ARGUMENTS];
};

template <std::size_t>
using Argument = int64_t;

template <std::size_t... N>
void make(const Call& call, std::index_sequence<N...>) {
    reinterpret_cast<void (*)(Argument<N>...)>(call.function)(call.arguments[N]...);
}

bool make_all(const Call* calls, int64_t count) {
    try {
        for (int64_t n = 0; n < count; ++n) make(calls[n], std::make_index_sequence<ARGUMENTS>());
    } catch (...) {
        return false;
    }
    return true;
}

}  // namespace

// Whether all of them were made; false after the first that threw an exception, as compiled code does with an
// index that is out of bounds. All calls share one parallel region, and what compiled code has of its own are
// computed by this thread: to begin and end some hundred regions a step is to wait for all threads as often.
extern "C" bool replay(const Call* calls, int64_t count, int threads) {
    Team team(threads);
    bool complete = false;
    const int levels = omp_get_max_active_levels();
    omp_set_max_active_levels(threads > 1 ? 1 : 0);  // whatever the environment says
#pragma omp parallel num_threads(threads)
    if (const int member = omp_get_thread_num(); member > 0) {
        team.help(member);
    } else {
        leading = &team;
        complete = make_all(calls, count);
        leading = nullptr;
        team.end();
    }
    omp_set_max_active_levels(levels);
    return complete;
}

// Most arguments of a call; 0 where calls cannot be made so.
extern "C" int replayed_arguments() {
#if defined(__linux__) && (defined(__x86_64__) || defined(__aarch64__))
    return ARGUMENTS;
#else
    return 0;
#endif
}
