//! The numbers of the model and of the arithmetic: one source for Rust and for every kernel language.

/// Width of the attention's queries, keys and values in DeepSeek-V4 (features a head).
pub const HEAD_DIM: usize = 512;
/// Most heads one attention call takes.
pub const MAX_HEADS: usize = 128;
/// Width of the indexer's queries and keys (features a head).
pub const INDEX_DIM: usize = 128;
/// Most features of a head, of an indexer's key or of a compressor.
pub const MAX_FEATURES: usize = 1 << 20;
/// Largest `k` of a selection.
pub const MAX_K: usize = 2048;
/// The ratio whose blocks overlap: each entry pools its own block and the one before.
pub const OVERLAP_RATIO: usize = 4;
/// Partial sums of a reference dot product; every reduced length is a multiple of it.
pub const PARTIALS: usize = 32;
/// What a slot that could not be filled holds, and what an attention slot that is to be skipped holds.
pub const NO_INDEX: i32 = -1;

/// How many blocks' features one compressor state row carries side by side: 2 where blocks overlap, else 1.
pub const fn coff(ratio: usize) -> usize {
    if ratio == OVERLAP_RATIO { 2 } else { 1 }
}

/// Tokens that one compressed entry pools: the fewest rows of a ring state.
pub const fn window(ratio: usize) -> usize {
    coff(ratio) * ratio
}

/// How many compressed keys a query at `start_pos` may see; its cache must hold as many.
pub const fn causal_count(start_pos: u32, ratio: u32) -> usize {
    ((start_pos as u64 + 1) / ratio as u64) as usize
}

/// The bits of a status word. 0 means that nothing was wrong with the row's data.
pub mod status {
    /// An attention index is below -1 or not below the cache's length: the row is zero.
    pub const INVALID_INDEX: u32 = 1;
    /// A non-finite value in an attended cache row: the row is zero.
    pub const NONFINITE_KV: u32 = 1 << 1;
    /// A non-finite value in a head's query: the head is zero.
    pub const NONFINITE_QUERY: u32 = 1 << 2;
    /// A non-finite sink: the head is zero.
    pub const NONFINITE_SINK: u32 = 1 << 3;
    /// Finite inputs gave a logit or a result beyond f32: the head is zero.
    pub const OVERFLOW: u32 = 1 << 4;
    /// At least one key has a score that is not finite, or one with a non-finite term: never selected.
    pub const NONFINITE_SCORE: u32 = 1 << 5;
    /// A compressor window, norm, mean or result that is not finite: the emitted row is zero.
    pub const NONFINITE_STATE: u32 = 1 << 6;

    /// Every bit with its name.
    pub const ALL: [(u32, &str); 7] = [
        (INVALID_INDEX, "INVALID_INDEX"),
        (NONFINITE_KV, "NONFINITE_KV"),
        (NONFINITE_QUERY, "NONFINITE_QUERY"),
        (NONFINITE_SINK, "NONFINITE_SINK"),
        (OVERFLOW, "OVERFLOW"),
        (NONFINITE_SCORE, "NONFINITE_SCORE"),
        (NONFINITE_STATE, "NONFINITE_STATE"),
    ];

    /// The names of the bits set in `word`, joined by `|`; `OK` where none is.
    pub fn names(word: u32) -> String {
        let set: Vec<&str> = ALL.iter().filter(|(bit, _)| word & bit != 0).map(|(_, name)| *name).collect();
        if set.is_empty() { "OK".into() } else { set.join("|") }
    }
}

/// The exponential of every backend: `exp(x)` for `x <= 0`, at most 0.88 ulp off (over all f32), exact at 0, and 0 below
/// the normal range.
///
/// `t = fma(x, LOG2_E, ROUND)`, whose low bits are the exponent; `n = t - ROUND`; `r = fma(n, -LN2_HIGH, x)`, then
/// `r = fma(n, -LN2_LOW, r)`; Horner from `COEFFICIENTS[0]` down to the constant 1; then `t << 23` is added to the
/// bits. Coefficients: a minimax fit of our own on `|r| <= ln(2) / 2`.
pub mod exp {
    /// Smallest x whose exponential is a normal number (the f32 next above -126 ln 2); below it the result is 0.
    pub const LOWEST: f32 = f32::from_bits(0xc2ae_ac4f);
    /// log2(e).
    pub const LOG2_E: f32 = f32::from_bits(0x3fb8_aa3b);
    /// 1.5 * 2^23: adding it rounds to an integer, to nearest even.
    pub const ROUND: f32 = 12_582_912.0;
    /// ln(2), rounded to f32.
    pub const LN2_HIGH: f32 = f32::from_bits(0x3f31_7218);
    /// ln(2) - `LN2_HIGH`.
    pub const LN2_LOW: f32 = f32::from_bits(0xb102_e308);
    /// From the highest power down to the constant term.
    pub const COEFFICIENTS: [f32; 7] = [
        f32::from_bits(0x3ab5_dda7),
        f32::from_bits(0x3c09_3e6c),
        f32::from_bits(0x3d2a_ad25),
        f32::from_bits(0x3e2a_aa0d),
        f32::from_bits(0x3eff_fff9),
        1.0,
        1.0,
    ];
}
