// Work in small pieces, which threads take: each those of its own share, and then what is left of others'. Who
// has lost its core for a while holds up the piece that it has begun, and not a share.
#pragma once

#include <omp.h>
#include <sched.h>

#include <atomic>
#include <cstdint>
#include <memory>

constexpr int PIECES = 8;  // of a share

// Numbers from `first` to `end`.
struct Span {
    int64_t first, end;

    // The n-th of so many parts: they are equal, or differ by one.
    Span part(int64_t n, int64_t parts) const {
        const int64_t size = end - first;
        return {first + size * n / parts, first + size * (n + 1) / parts};
    }
};

// Computes one work after the other. A work is a function of a piece's number, and of whether that is the first
// piece of this work that its thread computes. Each member has as many pieces as the others, or one more.
class Team {
public:
    explicit Team(int members) : shares_(new Share[members]), members_(members) {}

    // By the one thread that leads, when what was begun before is done. `work` has to last until this one is.
    template <class Work>
    void begin(int64_t pieces, const Work& work) {
        call_.store(&call<Work>, std::memory_order_relaxed);
        work_.store(&work, std::memory_order_relaxed);
        pieces_ = pieces;
        done_.store(0, std::memory_order_relaxed);
        ++begun_;
        for (int member = 0; member < members_; ++member) {
            const Span own = Span{0, pieces}.part(member, members_);
            shares_[member].end.store(own.end, std::memory_order_relaxed);
            shares_[member].left.store(uint64_t(begun_) << 32 | uint64_t(own.end - own.first),
                                       std::memory_order_release);
        }
        newest_.store(begun_, std::memory_order_release);
    }

    // Computes pieces until none is left to take.
    void take_part(int member) {
        uint32_t latest = 0;
        take_part(member, latest);
    }

    // The same; `latest` is the number of the work of which the thread has computed a piece last.
    void take_part(int member, uint32_t& latest) {
        for (int n = 0; n < members_; ++n)
            while (take_piece(shares_[(member + n) % members_], latest)) {}
    }

    // By the thread that leads: until all is done. It waits for pieces that were begun, and for no thread.
    void finish() {
        take_part(0);
        wait([&] { return done_.load(std::memory_order_acquire) == pieces_; });
    }

    // By the others: takes part in each work until there will be no other.
    void help(int member) {
        for (uint32_t seen = 0, latest = 0; seen != OVER;) {
            wait([&] { return newest_.load(std::memory_order_acquire) != seen; });
            seen = newest_.load(std::memory_order_acquire);
            if (seen != OVER) take_part(member, latest);
        }
    }

    // Compiled once for each work, wherever it is called.
    template <class Work>
    [[gnu::noinline]] static void call(const void* work, int64_t piece, bool first) {
        (*static_cast<const Work*>(work))(piece, first);
    }

    void end() { newest_.store(OVER, std::memory_order_release); }

private:
    static constexpr uint32_t OVER = ~uint32_t{0};
    static constexpr int TURNS = 2000;  // of looking, some 50 us, after which others may have the core

    // Pieces of one member, that end before `end`. The number of the work, and how many pieces nobody has taken,
    // are one number: who is late takes none of another work's.
    struct alignas(64) Share {
        std::atomic<uint64_t> left{0};
        std::atomic<int64_t> end{0};
    };

    // Whether there was one. If it can be taken, then what was read before is of its work.
    bool take_piece(Share& share, uint32_t& latest) {
        for (uint64_t before = share.left.load(std::memory_order_acquire); uint32_t(before) > 0;) {
            const auto call = call_.load(std::memory_order_relaxed);
            const void* work = work_.load(std::memory_order_relaxed);
            const int64_t piece = share.end.load(std::memory_order_relaxed) - uint32_t(before);
            if (!share.left.compare_exchange_weak(before, before - 1, std::memory_order_acq_rel)) continue;
            const auto number = uint32_t(before >> 32);
            call(work, piece, number != latest);
            latest = number;
            done_.fetch_add(1, std::memory_order_release);
            return true;
        }
        return false;
    }

    template <class Ready>
    static void wait(Ready ready) {
        for (int turn = 0; !ready(); ++turn)
            if (turn < TURNS)
                pause();
            else
                sched_yield();
    }

    static void pause() {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        asm volatile("yield");
#endif
    }

    std::unique_ptr<Share[]> shares_;
    const int members_;
    uint32_t begun_ = 0;  // works
    int64_t pieces_ = 0;
    std::atomic<void (*)(const void*, int64_t, bool)> call_{nullptr};
    std::atomic<const void*> work_{nullptr};
    alignas(64) std::atomic<uint32_t> newest_{0};  // work that others may see
    alignas(64) std::atomic<int64_t> done_{0};     // pieces
};

inline thread_local Team* leading = nullptr;  // the team of the step that this thread computes

// Calls `work` with the number of each share, that of each of its pieces, and whether the piece is the first that
// its thread computes here. By the team of the step, or else by threads of OpenMP, one for each share.
template <class Work>
void in_pieces(int shares, int pieces, const Work& work) {
    const auto numbered = [&](int64_t piece, bool first) {
        work(int(piece / pieces), int(piece % pieces), first);
    };
    if (shares == 1) {
        for (int piece = 0; piece < pieces; ++piece)
            Team::call<decltype(numbered)>(&numbered, piece, piece == 0);
        return;
    }
    if (leading) {
        leading->begin(int64_t(shares) * pieces, numbered);
        leading->finish();
        return;
    }
    Team team(shares);
    team.begin(int64_t(shares) * pieces, numbered);
#pragma omp parallel num_threads(shares)
    team.take_part(omp_get_thread_num());
}

// The same for a function of numbers from 0 on, in spans: a share's lie side by side.
template <class Work>
void in_spans(int64_t count, int shares, const Work& work) {
    in_pieces(shares, PIECES, [&](int share, int piece, bool) {
        const Span span = Span{0, count}.part(share, shares).part(piece, PIECES);
        if (span.first < span.end) work(span);
    });
}

// The same for a function of one number from 0 on. The first ones are taken first, by all threads.
template <class Work>
void one_by_one(int64_t count, int shares, const Work& work) {
    in_pieces(shares, int((count + shares - 1) / shares), [&](int share, int piece, bool) {
        const int64_t number = int64_t(piece) * shares + share;
        if (number < count) work(number);
    });
}
