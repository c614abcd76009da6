//! Random problems for any operation and any number of rows: of every kind of size, and small enough to be many.

use super::case::{Problem, Rng};
use super::case::{compress, convert_state, gather_rows, index_scores, select_keys, sparse_attention, top_k};
use super::suite::Depth;
use crate::dims::{coff, window};
use crate::{
    Compress, ConvertState, Emit, GatherRows, IndexScores, Method, Op, SelectKeys, SparseAttention, TopK,
};
use crate::{bf16, f16};

/// The operations by name.
pub(super) const OPS: [&str; 7] = [
    SparseAttention::NAME,
    IndexScores::NAME,
    TopK::NAME,
    SelectKeys::NAME,
    Compress::NAME,
    ConvertState::NAME,
    GatherRows::NAME,
];

/// Tokens of a compressor's row in a brief run, which a tool may all watch.
const BRIEF_TOKENS: usize = 9;
/// Ratios and features of compressors. A brief run has one of the first [`BRIEF_MODELS`], by the number of rows.
const MODELS: [(usize, usize); 16] = [
    (128, 32),
    (1, 32),
    (4, 128),
    (7, 96),
    (4, 32),
    (3, 160),
    (4, 512),
    (128, 512),
    (2, 64),
    (129, 64),
    (300, 32),
    (200, 64),
    (256, 96),
    (600, 32),
    (200, 1024),
    (600, 544),
];
const BRIEF_MODELS: usize = 11;

/// A random problem: which one, the operation, the rows and the seed decide.
#[derive(Debug, Clone, Copy)]
pub(super) struct Draw {
    pub(super) op: &'static str,
    pub(super) rows: usize,
    pub(super) seed: u64,
    /// About how much work the whole may be: multiplications, or elements.
    pub(super) work: usize,
    /// Kernels of `Fast` are made for the model's sizes: they are drawn more often, and more work of them.
    pub(super) method: Method,
    pub(super) depth: Depth,
}

impl Draw {
    /// The problem, and its shape in short.
    pub(super) fn make(mut self) -> (String, Box<dyn Problem>) {
        if self.fast() {
            self.work *= 8;
        }
        let kind = OPS.iter().position(|&op| op == self.op).expect("a name of an operation");
        let rng = &mut Rng::new(self.seed << 20 | (self.rows << 4 | kind) as u64);
        let (shape, mut problem) = match self.op {
            SparseAttention::NAME => self.sparse_attention(rng),
            IndexScores::NAME => self.index_scores(rng),
            TopK::NAME => self.top_k(rng),
            SelectKeys::NAME => self.select_keys(rng),
            Compress::NAME => self.compress(rng),
            ConvertState::NAME => self.convert_state(rng),
            _ => self.gather_rows(rng),
        };
        problem.scatter(rng);
        (format!("{} rows, {shape}", self.rows), problem)
    }

    fn fast(&self) -> bool {
        self.method == Method::Fast
    }

    fn brief(&self) -> bool {
        self.depth == Depth::Brief
    }

    /// The work, but `most` in a brief run.
    fn work(&self, most: usize) -> usize {
        if self.brief() { self.work.min(most) } else { self.work }
    }

    /// Of two lists, a pair whose product with the rows is at most `most`; the first of each if none is.
    fn pair(self, rng: &mut Rng, (a, b): (&[usize], &[usize]), most: usize) -> (usize, usize) {
        let pairs = (0..100).map(|_| (rng.pick(a), rng.pick(b)));
        pairs.into_iter().find(|(a, b)| self.rows.max(1) * a * b <= most).unwrap_or((a[0], b[0]))
    }

    /// A length up to `most`, often 0, 1 or `most` itself.
    fn length(rng: &mut Rng, most: usize) -> usize {
        match rng.below(8) {
            0 => 0,
            1 => 1.min(most),
            2 => most,
            _ => rng.below(most + 1),
        }
    }

    fn sparse_attention(self, rng: &mut Rng) -> (String, Box<dyn Problem>) {
        let heads = [1, 2, 3, 5, 8, 16, 64, 128];
        let dims: &[usize] = if self.fast() { &[512, 512, 512, 64] } else { &[32, 64, 128, 512] };
        let (heads, dim) = self.pair(rng, (&heads, dims), self.work / 16);
        let most = (self.work(1 << 19) / (self.rows.max(1) * heads * dim)).clamp(1, 700);
        let row = |_| {
            let width = Self::length(rng, most);
            sparse_attention::RowShape { kv_len: Self::length(rng, 2 * most), width }
        };
        let rows = (0..self.rows).map(row).collect();
        let mut data = sparse_attention::Shape { heads, dim, rows }.generate(rng.bits());
        data.share(rng);
        data.skip_and_repeat(rng);
        if rng.one_in(6) {
            data.sinks = None;
        }
        (format!("h{heads}/d{dim}"), Box::new(data))
    }

    fn index_shape(self, rng: &mut Rng) -> index_scores::Shape {
        let (heads, dims): (&[usize], &[usize]) = match (self.fast(), self.rows % 3) {
            // The others are slow under a tool that watches shared memory.
            (true, 2) if self.brief() => (&[64, 5], &[128, 64]),
            (true, _) if self.brief() => (&[32, 5], &[128, 64]),
            (true, _) => (&[32, 64, 32, 64, 5], &[128, 128, 128, 64]),
            (false, _) => (&[1, 2, 3, 5, 8, 16, 32, 64], &[128, 32, 64, 512]),
        };
        let (heads, dim) = self.pair(rng, (heads, dims), self.work(1 << 14) / 16);
        let ratio = rng.pick(&[1, 2, 3, 4, 4, 4, 128]);
        let longest = if self.brief() { 300 } else { 3000 };
        let most = (self.work / (self.rows.max(1) * heads * dim)).clamp(1, longest);
        let row = |_| {
            let tokens = Self::length(rng, most) * ratio + rng.below(ratio);
            index_scores::RowShape { start_pos: tokens.saturating_sub(1) as u32, spare: rng.below(4) }
        };
        index_scores::Shape { heads, dim, ratio: ratio as u32, rows: (0..self.rows).map(row).collect() }
    }

    fn index_scores(self, rng: &mut Rng) -> (String, Box<dyn Problem>) {
        let shape = self.index_shape(rng);
        let mut data = shape.generate(rng.bits());
        data.share(rng);
        (format!("h{}/d{}/m{}", shape.heads, shape.dim, shape.ratio), Box::new(data))
    }

    fn slots(self, rng: &mut Rng) -> usize {
        let (k, _) = self.pair(rng, (&[1, 2, 3, 7, 31, 64, 512, 1024, 2048], &[1]), self.work(1 << 18) / 64);
        k
    }

    fn top_k(self, rng: &mut Rng) -> (String, Box<dyn Problem>) {
        let k = self.slots(rng);
        let most = (self.work(1 << 18) / (16 * self.rows.max(1))).clamp(1, 9000);
        let row = |_| match rng.below(6) {
            0 => k - 1,
            1 => k,
            2 => k + 1,
            _ => Self::length(rng, most),
        };
        let rows = (0..self.rows).map(row).collect();
        let mut data = top_k::Shape { k, rows }.generate(rng.bits());
        if rng.one_in(2) {
            data.tie(rng);
        }
        (format!("k{k}"), Box::new(data))
    }

    fn select_keys(self, rng: &mut Rng) -> (String, Box<dyn Problem>) {
        let (k, scores) = (self.slots(rng), self.index_shape(rng));
        let mut data = select_keys::Shape { scores, k }.generate(rng.bits());
        data.scores.share(rng);
        let index_scores::Data { heads, dim, ratio, .. } = data.scores;
        (format!("h{heads}/d{dim}/m{ratio}/k{k}"), Box::new(data))
    }

    fn compress(self, rng: &mut Rng) -> (String, Box<dyn Problem>) {
        let elements = |(ratio, dim): (usize, usize)| self.rows.max(1) * window(ratio) * coff(ratio) * dim;
        let most = self.work / 4;
        let mut tries = (0..100).map(|_| rng.pick(&MODELS));
        let (ratio, dim) = match self.depth {
            Depth::Brief => MODELS[self.rows % BRIEF_MODELS],
            _ => tries.find(|&model| elements(model) <= most).unwrap_or((4, 32)),
        };
        let ring = rng.one_in(2).then(|| window(ratio) + rng.pick(&[0, 0, 1, 3, ratio]));
        let emit = rng.pick(&[Emit::EveryToken, Emit::Blocks]);
        let longest = if self.brief() { BRIEF_TOKENS } else { 3 * ratio + 1 };
        let most = (most / elements((1, dim))).clamp(1, longest);
        let row = |_| {
            let tokens = Self::length(rng, most);
            let last = u32::MAX - 1 - tokens as u32;
            let start_pos = match rng.below(6) {
                // Few tokens seldom end a long block: these do.
                0..3 if self.brief() && tokens < ratio => {
                    (ratio * (1 + rng.below(9)) - 1 - rng.below(tokens.max(1))) as u32
                }
                0 => 0,
                1 => rng.below(3 * ratio) as u32,
                2 => last,
                3 => (1 << 31) - rng.below(ratio) as u32,
                _ => rng.below(1 << 20) as u32,
            };
            compress::RowShape { start_pos, tokens }
        };
        let rows = (0..self.rows).map(row).collect();
        let mut data = compress::Shape { ratio: ratio as u32, dim, ring, emit, rows }.generate(rng.bits());
        if rng.one_in(2) {
            data.outweigh(rng);
        }
        let layout = ring.map_or("shifted".into(), |rows| format!("ring{rows}"));
        (
            format!("m{ratio}/d{dim}/{layout}/{}", if emit == Emit::Blocks { "blocks" } else { "tokens" }),
            Box::new(data),
        )
    }

    fn convert_state(self, rng: &mut Rng) -> (String, Box<dyn Problem>) {
        let ratio = if self.rows > 16 { rng.pick(&[1, 3, 4]) } else { rng.pick(&[1, 3, 4, 4, 128]) };
        let dim = rng.pick(&[32, 64]);
        let mut layout = || rng.one_in(2).then(|| window(ratio) + rng.below(ratio + 3));
        let (from, to) = (layout(), layout());
        let row = |_| match rng.below(4) {
            0 => rng.below(3 * ratio) as u32,
            1 => u32::MAX - rng.below(9) as u32,
            _ => rng.below(1 << 20) as u32,
        };
        let rows = (0..self.rows).map(row).collect();
        let data = convert_state::Shape { ratio: ratio as u32, dim, from, to, rows }.generate(rng.bits());
        let name = |ring: Option<usize>| ring.map_or("shifted".into(), |rows| format!("ring{rows}"));
        (format!("m{ratio}/d{dim}/{}/{}", name(from), name(to)), Box::new(data))
    }

    fn gather_rows(self, rng: &mut Rng) -> (String, Box<dyn Problem>) {
        let most = (self.work / (64 * self.rows.max(1))).clamp(1, 4000);
        let shape = gather_rows::Shape { n: Self::length(rng, most), rows: self.rows };
        let seed = rng.bits();
        let (dtype, data): (_, Box<dyn Problem>) = match rng.below(8) {
            0 => ("u8", Box::new(shape.generate::<u8>(seed))),
            1 => ("bf16", Box::new(shape.generate::<bf16>(seed))),
            2 => ("f16", Box::new(shape.generate::<f16>(seed))),
            3 => ("f32", Box::new(shape.generate::<f32>(seed))),
            4 => ("f64", Box::new(shape.generate::<f64>(seed))),
            5 => ("i64", Box::new(shape.generate::<i64>(seed))),
            6 => ("i8", Box::new(shape.generate::<i8>(seed))),
            _ => ("i32", Box::new(shape.generate::<i32>(seed))),
        };
        (format!("n{}/{dtype}", shape.n), data)
    }
}
