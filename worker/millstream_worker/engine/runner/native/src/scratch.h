// Where kernels keep what they need only while they run.
#pragma once

#include <cstdlib>

constexpr int LINE = 64;  // bytes of cache

// Memory of one thread, kept for the next time.
class Scratch {
public:
    ~Scratch() { std::free(memory_); }

    void reserve(size_t bytes) {
        if (bytes > size_) {
            std::free(memory_);
            size_ = (bytes + 4095) / 4096 * 4096;
            memory_ = static_cast<char*>(std::aligned_alloc(LINE, size_));
            if (!memory_) std::abort();
        }
        used_ = 0;
    }

    template <class T>
    T* take(int count) {
        auto* taken = reinterpret_cast<T*>(memory_ + used_);
        used_ += bytes<T>(count);
        return taken;
    }

    template <class T>
    static size_t bytes(int count) {
        return (count * sizeof(T) + LINE - 1) / LINE * LINE;
    }

private:
    char* memory_ = nullptr;
    size_t size_ = 0, used_ = 0;
};
