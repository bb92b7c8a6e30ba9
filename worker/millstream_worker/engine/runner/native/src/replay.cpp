// Calls that were made once, made again: of functions that take addresses and whole numbers, and answer nothing.
// A function may be passed more than it takes, and wider numbers than it reads: on Linux both lie in registers
// and slots of eight bytes, which it leaves alone.
#include <cstdint>
#include <utility>

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

}  // namespace

// Whether all of them were made; false after the first that threw an exception, as compiled code does with an
// index that is out of bounds.
extern "C" bool replay(const Call* calls, int64_t count) {
    try {
        for (int64_t n = 0; n < count; ++n) make(calls[n], std::make_index_sequence<ARGUMENTS>());
    } catch (...) {
        return false;
    }
    return true;
}

// Most arguments of a call; 0 where calls cannot be made so.
extern "C" int replayed_arguments() {
#if defined(__linux__) && (defined(__x86_64__) || defined(__aarch64__))
    return ARGUMENTS;
#else
    return 0;
#endif
}
