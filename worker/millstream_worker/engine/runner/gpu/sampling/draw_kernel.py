"""The draws of `draw` in one kernel, without a sort and without a tensor of the size of the logits: a program
reads its row several times, and writes its token.

By id: once for the highest logit, once for the sums of blocks of weights, and one block more.

By rank: weights are whole numbers in float32, whose bits are in the order of the weights. A row's weights are
counted and summed in bins, 64 for each power of two; the bin in which a running sum reaches what is looked
for, unless its weights are equal, as they mostly are of logits in 16 bits, is counted again in 4096 bins, and
one of those, unless it holds a single token, in bins of one weight each. This finds the end of the top k,
then that of the nucleus, then the token, whose id takes a last look at the row. Tokens that can be none of
those are not counted: atomic additions are slow.
"""

# Triton's types are none of Python's:
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import triton
import triton.language as tl

BLOCK = tl.constexpr(4096)  # tokens read at a time
BINS = tl.constexpr(4096)
_COARSE = tl.constexpr(17)  # bits of a weight below its coarse bin: 2**52 has 52 * 64 of them
_FINE = tl.constexpr(5)  # below the fine bins of a coarse one
_COUNT = tl.constexpr(43)  # bits below the count of a bin: the sum of 2**19 mantissas of 24 bits
_ONE = tl.constexpr(2**43)
_BEYOND = tl.constexpr(0x7F800000)  # bits that no weight has
_LOG2_E = tl.constexpr(1.4426950216293335)  # the nearest float32, and what is missing
_LOG2_E_REST = tl.constexpr(1.925963033500012e-08)


@triton.jit
def weigh(logits, peak, temperature, BITS: tl.constexpr):
    """Computes `draw.weigh` as float32; exp as CUDA computes it, of which Triton's is a less exact one."""
    powers = tl.maximum(tl.div_rn(logits - peak, temperature), -87.0)
    whole = tl.floor(tl.fma(powers, _LOG2_E, 0.5))
    part = tl.fma(powers, _LOG2_E_REST, tl.fma(powers, _LOG2_E, -whole))
    scale = ((whole.to(tl.int32) + (127 + BITS)) << 23).to(tl.float32, bitcast=True)
    return tl.floor(tl.exp2(part) * scale)


@triton.jit
def load_weights(row, start, peak, temperature, VOCAB: tl.constexpr, BITS: tl.constexpr):
    """Returns the weights of a block of tokens; 0 beyond the vocabulary."""
    place = start + tl.arange(0, BLOCK)
    logits = tl.load(row + place, mask=place < VOCAB, other=float("-inf")).to(tl.float32)
    return weigh(logits, peak, temperature, BITS)


@triton.jit
def highest_logits(row, VOCAB: tl.constexpr):
    """Returns [BLOCK] the highest logit of every so many tokens; +inf for NaN."""
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    for start in tl.range(0, VOCAB, BLOCK, num_stages=3):
        place = start + tl.arange(0, BLOCK)
        logits = tl.load(row + place, mask=place < VOCAB, other=float("-inf")).to(tl.float32)
        best = tl.maximum(best, tl.where(logits == logits, logits, float("inf")))
    return best


@triton.jit
def lowest_of_groups(best, GROUPS: tl.constexpr):
    """Returns a logit that at least so many tokens reach."""
    return tl.min(tl.max(tl.reshape(best, [GROUPS, BLOCK // GROUPS]), 1), 0)


@triton.jit
def lowest_key(best, peak, temperature, top_k, top_p, VOCAB: tl.constexpr, BITS: tl.constexpr):
    """Lower bound of the kept weights, where the lowest coarse bin begins: at least top_k tokens lie above
    it, or all below it weigh less than top-p drops, of a total that is not below the heaviest token's weight.
    It leaves room for rounding."""
    reached = tl.where(top_k <= 64, lowest_of_groups(best, 64), lowest_of_groups(best, 1024))
    of_top_k = tl.where(top_k <= 1024, weigh(reached, peak, temperature, BITS) * 0.99, 0.0)
    of_top_p = (1 - top_p).to(tl.float32) * (0.5 * 2.0**BITS / VOCAB)
    weight = tl.maximum(tl.where(top_k < VOCAB, of_top_k, of_top_p), 1.0)
    return weight.to(tl.int32, bitcast=True) >> _COARSE << _COARSE


@triton.jit
def count_weights(
    row,
    peak,
    temperature,
    bins,
    lowest,  # bits of the least weight that is counted
    beyond,  # and of the least that is not any more
    shift,
    summed,
    least,
    VOCAB: tl.constexpr,
    BITS: tl.constexpr,
):
    """Fills the bins, of which the heaviest is the first. Returns the sum of the weights whose bits are not
    below `summed`, and of those that are not less than `least`."""
    tl.debug_barrier()  # until all have read what is in the bins
    tl.store(bins + tl.arange(0, BINS), tl.zeros([BINS], tl.int64))
    tl.debug_barrier()
    total = tl.zeros([BLOCK], tl.int64)
    not_less = tl.zeros([BLOCK], tl.int64)
    for start in tl.range(0, VOCAB, BLOCK, num_stages=3):
        weights = load_weights(row, start, peak, temperature, VOCAB, BITS)
        bits = weights.to(tl.int32, bitcast=True)
        place = BINS - 1 - ((bits - lowest) >> shift)
        mantissa = (bits & 0x7FFFFF) | 0x800000
        one = mantissa.to(tl.int64) + _ONE
        tl.atomic_add(bins + place, one, mask=(bits >= lowest) & (bits < beyond), sem="relaxed")
        amounts = weights.to(tl.int64)
        total += tl.where(bits >= summed, amounts, 0)
        not_less += tl.where(amounts >= least, amounts, 0)
    tl.debug_barrier()
    return tl.sum(total, 0), tl.sum(not_less, 0)


@triton.jit
def load_bins(bins, lowest, shift):
    """Returns how many tokens each bin holds, and the sum of their weights, [BINS] int64 each."""
    place = tl.arange(0, BINS)
    packed = tl.load(bins + place)
    exponent = ((lowest + ((BINS - 1 - place) << shift)) >> 23) - (127 + 23)  # of the last bit of a mantissa
    mantissas = packed & (_ONE - 1)
    weights = mantissas << tl.maximum(exponent, 0) >> tl.maximum(-exponent, 0)
    return packed >> _COUNT, weights


@triton.jit
def find_bin(bins, lowest, shift, wanted, of_counts):
    """Returns the first bin at which the running sum, of weights or of counts, reaches what is wanted: where
    it begins, its count and its weight; and the sums before it, of what is looked at, and of weights."""
    place = tl.arange(0, BINS)
    counts, weights = load_bins(bins, lowest, shift)
    measured = tl.where(of_counts, counts, weights)
    found = tl.sum((tl.cumsum(measured, 0) < wanted).to(tl.int32), 0)
    count = tl.sum(tl.where(place == found, counts, 0), 0)
    weight = tl.sum(tl.where(place == found, weights, 0), 0)
    before = tl.sum(tl.where(place < found, measured, 0), 0)
    weight_before = tl.sum(tl.where(place < found, weights, 0), 0)
    return lowest + ((BINS - 1 - found) << shift), count, weight, before, weight_before


@triton.jit
def extreme_weights(row, peak, temperature, first, beyond, VOCAB: tl.constexpr, BITS: tl.constexpr):
    """Returns the bits of the least and of the greatest weight in a bin."""
    least = tl.full([BLOCK], _BEYOND, tl.int32)
    most = tl.zeros([BLOCK], tl.int32)
    for start in tl.range(0, VOCAB, BLOCK, num_stages=3):
        bits = load_weights(row, start, peak, temperature, VOCAB, BITS).to(tl.int32, bitcast=True)
        inside = (bits >= first) & (bits < beyond)
        least = tl.minimum(least, tl.where(inside, bits, _BEYOND))
        most = tl.maximum(most, tl.where(inside, bits, 0))
    return tl.min(least, 0), tl.max(most, 0)


@triton.jit
def find(row, peak, temperature, bins, lowest, wanted, of_counts, VOCAB: tl.constexpr, BITS: tl.constexpr):
    """Finds the token at which the running sum, of weights or of counts, from the heaviest token down reaches
    what is wanted. Returns the bits of the least weight that it may have, and of the least that it has not;
    which one of the tokens with such weights it is, by id; and the sum of weights up to it. The coarse bins
    are filled."""
    shift = _COARSE + 0
    first, count, weight, before, weight_before = find_bin(bins, lowest, shift, wanted, of_counts)
    bins += BINS
    if count > 1:
        least, most = extreme_weights(row, peak, temperature, first, first + (1 << shift), VOCAB, BITS)
        if least == most:
            first, shift = least, 0
    while (count > 1) & (shift > 0):
        beyond = first + (1 << shift)
        shift = tl.where(shift == _COARSE, _FINE, 0)
        count_weights(row, peak, temperature, bins, first, beyond, shift, 0, 0, VOCAB, BITS)
        first, count, weight, more, more_weight = find_bin(bins, first, shift, wanted - before, of_counts)
        before += more
        weight_before += more_weight
    each = weight // count  # one token, or equal ones
    missing = wanted - before
    ordinal = tl.where(of_counts, missing, (missing + each - 1) // each)
    return first, first + (1 << shift), ordinal.to(tl.int32), weight_before + ordinal * each


@triton.jit
def locate(row, peak, temperature, first, beyond, ordinal, VOCAB: tl.constexpr, BITS: tl.constexpr):
    """Returns the id of a token: that of this ordinal, from 1, of those whose weights' bits lie in
    between."""
    token = 0
    start = 0
    while (ordinal > 0) & (start < VOCAB):
        bits = load_weights(row, start, peak, temperature, VOCAB, BITS).to(tl.int32, bitcast=True)
        running = tl.cumsum(((bits >= first) & (bits < beyond)).to(tl.int32), 0)
        token = start + tl.sum((running < ordinal).to(tl.int32), 0)
        ordinal -= tl.max(running, 0)
        start += BLOCK
    return token


@triton.jit
def draw_by_rank(
    row,
    best,
    peak,
    temperature,
    top_k,
    top_p,
    least,
    noise,
    bins,
    VOCAB: tl.constexpr,
    BITS: tl.constexpr,
):
    lowest = lowest_key(best, peak, temperature, top_k, top_p, VOCAB, BITS)
    summed = tl.where(top_k < VOCAB, lowest, 0)
    kept, not_less = count_weights(
        row, peak, temperature, bins, lowest, _BEYOND, _COARSE, summed, least, VOCAB, BITS
    )
    counts, _ = load_bins(bins, lowest, _COARSE)
    counted = tl.sum(counts, 0)
    first, beyond, ordinal = lowest, lowest, 0
    for stage in range(3):  # top-k, top-p, the draw
        if stage == 0:
            wanted = top_k
            left = counted > top_k  # else what is not counted weighs nothing
        elif stage == 1:
            wanted = tl.ceil(top_p * kept).to(tl.int64)
            left = top_p < 1
        else:
            kept = tl.minimum(kept, not_less)
            wanted = tl.minimum((noise * kept).to(tl.int64), kept - 1) + 1
            left = kept > 0
        if left:
            first, beyond, ordinal, kept = find(
                row, peak, temperature, bins, lowest, wanted, stage == 0, VOCAB, BITS
            )
    return locate(row, peak, temperature, first, beyond, ordinal, VOCAB, BITS)


@triton.jit
def draw_by_id(
    row,
    peak,
    temperature,
    least,
    noise,
    VOCAB: tl.constexpr,
    BITS: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    blocks = tl.arange(0, BLOCKS)
    sums = tl.zeros([BLOCKS], tl.int64)
    for block in tl.range(0, tl.cdiv(VOCAB, BLOCK), num_stages=3):
        weights = load_weights(row, block * BLOCK, peak, temperature, VOCAB, BITS).to(tl.int64)
        kept = tl.sum(tl.where(weights >= least, weights, 0), 0)
        sums = tl.where(blocks == block, kept, sums)
    total = tl.sum(sums, 0)
    target = tl.minimum((noise * total).to(tl.int64), total - 1)
    block = tl.sum((tl.cumsum(sums, 0) <= target).to(tl.int32), 0)
    target -= tl.sum(tl.where(blocks < block, sums, 0), 0)
    weights = load_weights(row, block * BLOCK, peak, temperature, VOCAB, BITS).to(tl.int64)
    running = tl.cumsum(tl.where(weights >= least, weights, 0), 0)
    return block * BLOCK + tl.sum((running <= target).to(tl.int32), 0)


@triton.jit
def draw_kernel(
    logits,  # [.., VOCAB]
    rows,  # [draws] int64: which of the logits
    settings,  # [4, draws] float64: temperature, top_p, min_p, noise
    top_ks,  # [draws] int64; VOCAB where it is off
    tokens,  # [draws] int64, written
    non_finite,  # [draws] bool, written: the row holds NaN or +inf, or nothing but -inf; its token is 0
    bins,  # [draws, 2, BINS] int64: coarse and fine ones, each sum of 2**_COUNT and the mantissa of a weight
    row_stride,
    VOCAB: tl.constexpr,
    BITS: tl.constexpr,  # of the heaviest weight
    BLOCKS: tl.constexpr,  # of the vocabulary, padded
):
    draw = tl.program_id(0)
    draws = tl.num_programs(0)
    row = logits + tl.load(rows + draw) * row_stride
    temperature = tl.load(settings + draw).to(tl.float32)
    top_p = tl.load(settings + draws + draw)
    least = (tl.load(settings + 2 * draws + draw) * 2.0**BITS).to(tl.int64)
    noise = tl.load(settings + 3 * draws + draw)
    top_k = tl.load(top_ks + draw)
    best = highest_logits(row, VOCAB)
    peak = tl.max(best, 0)
    sound = (peak > float("-inf")) & (peak < float("inf"))
    token = 0
    if sound:
        if (top_k < VOCAB) | (top_p < 1):
            own = bins + draw.to(tl.int64) * (2 * BINS)
            token = draw_by_rank(row, best, peak, temperature, top_k, top_p, least, noise, own, VOCAB, BITS)
        else:
            token = draw_by_id(row, peak, temperature, least, noise, VOCAB, BITS, BLOCKS)
    tl.store(tokens + draw, token)
    tl.store(non_finite + draw, sound == 0)
