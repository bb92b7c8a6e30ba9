// What tests ask of a team of threads: which pieces were computed, by whom, and whether a thread that stands
// still holds up others.
#include "pieces.h"

#include <unistd.h>

#include <chrono>
#include <vector>

namespace {

double seconds() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

// How often each piece of each share was computed [shares, pieces], in each of so many works of one team. Answers
// how often a thread was told that a piece was its first, and each work must have had one.
extern "C" int64_t count_pieces(int threads, int works, int shares, int pieces, int64_t* counts) {
    Team team(threads);
    std::atomic<int64_t> firsts{0};
#pragma omp parallel num_threads(threads)
    if (omp_get_thread_num() > 0) {
        team.help(omp_get_thread_num());
    } else {
        leading = &team;
        for (int work = 0; work < works; ++work)
            in_pieces(shares, pieces, [&](int share, int piece, bool first) {
                __atomic_fetch_add(counts + int64_t(share) * pieces + piece, 1, __ATOMIC_RELAXED);
                firsts += first;
            });
        leading = nullptr;
        team.end();
    }
    return firsts;
}

// The same without a team.
extern "C" void count_numbers(int threads, int count, int64_t* spans, int64_t* singles) {
    in_spans(count, threads, [&](Span span) {
        for (int64_t n = span.first; n < span.end; ++n) __atomic_fetch_add(spans + n, 1, __ATOMIC_RELAXED);
    });
    one_by_one(count, threads, [&](int64_t n) { __atomic_fetch_add(singles + n, 1, __ATOMIC_RELAXED); });
}

// How long the leader takes for a work while the other thread comes late by `late_s`, before its first piece or
// in the middle of it.
extern "C" double seconds_beside_late(double late_s, bool in_piece) {
    Team team(2);
    double took = 0;
    std::atomic<bool> there{false};
#pragma omp parallel num_threads(2)
    if (omp_get_thread_num() > 0) {
        there = true;
        if (!in_piece) usleep(int(late_s * 1e6));
        team.help(1);
    } else {
        while (!there) sched_yield();
        const double begun = seconds();
        leading = &team;
        in_pieces(2, 8, [&](int, int, bool) {
            usleep(in_piece && omp_get_thread_num() > 0 ? int(late_s * 1e6) : 1000);
        });
        leading = nullptr;
        took = seconds() - begun;
        team.end();
    }
    return took;
}

// Threads that a parallel region within has: one where a team computes.
extern "C" int threads_within() {
    int within = 0;
#pragma omp parallel
#pragma omp master
    within = omp_get_num_threads();
    return within;
}
