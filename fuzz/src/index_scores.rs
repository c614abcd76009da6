use crate::{Devices, Draw, HUGE, Words, assert_bits, went_through};
use abreast::{Device, IndexScores, IndexScoresRow, Method, View, ViewMut, bf16, dims};

const STALE: f32 = -77.0;

/// Queries and key caches that index scores and the combined selection draw alike.
pub(crate) struct Inputs {
    pub(crate) q: (Vec<bf16>, [usize; 3]),
    pub(crate) weights: (Vec<f32>, [usize; 2]),
    pub(crate) ratio: u32,
    pub(crate) keys: Vec<(Vec<bf16>, [usize; 2])>,
}

impl Inputs {
    pub(crate) fn draw(draw: &mut Draw<'_>, queries: usize) -> arbitrary::Result<Inputs> {
        let heads: usize = draw.pick(&[1, 2, 5, 32, 64, 0])?;
        let dim = draw.pick(&[32, 128, 64, 0, 33, HUGE])?;
        let row = heads.checked_mul(dim);
        let queries = draw.rows(queries, row)?;
        let weights = [draw.length(queries)?, draw.length(heads)?];
        let mut keys = Vec::new();
        for _ in 0..2 {
            let (len, width) = (draw.upto(80)?, draw.length(dim)?);
            let shape = [if width < 1 << 20 { len } else { 0 }, width];
            keys.push((draw.bf16s(shape[0] * shape[1]), shape));
        }
        Ok(Inputs {
            q: (draw.bf16s(queries * row.unwrap_or(0)), [queries, heads, dim]),
            weights: (draw.f32s(weights[0] * weights[1]), weights),
            ratio: draw.pick(&[4, 1, 3, 128, 0, u32::MAX])?,
            keys,
        })
    }

    pub(crate) fn q(&self) -> View<'_, bf16, 3> {
        View::new(&self.q.0, self.q.1).expect("queries of their shape")
    }

    pub(crate) fn weights(&self) -> View<'_, f32, 2> {
        View::new(&self.weights.0, self.weights.1).expect("weights of their shape")
    }

    /// A cache, and a position that mostly sees no more keys than it has.
    pub(crate) fn keys(&self, draw: &mut Draw<'_>) -> arbitrary::Result<(View<'_, bf16, 2>, u32)> {
        let (keys, shape) = &self.keys[draw.below(self.keys.len())?];
        let most = (shape[0] as u32).saturating_mul(self.ratio.min(1000));
        Ok((View::new(keys, *shape).expect("keys of their shape"), draw.position(most)?))
    }
}

pub(crate) fn check(draw: &mut Draw<'_>, devices: &Devices) -> arbitrary::Result<()> {
    let device = devices.joint(draw)?;
    let count = draw.upto(5)?;
    let inputs = Inputs::draw(draw, count)?;
    let mut rows = Vec::new();
    let mut next = 1;
    for e in 0..count {
        let (keys, start_pos) = inputs.keys(draw)?;
        rows.push(IndexScoresRow { query: draw.mostly(e)?, start_pos, keys, out: draw.mostly(next)? });
        next += dims::causal_count(start_pos, inputs.ratio.max(1)).min(keys.shape()[0]);
    }

    let mut words = Words::draw(draw, count)?;
    let call = |device: &Device, rows: &[IndexScoresRow<'_>], out: &mut [f32], status: &mut [u32]| {
        device.index_scores(IndexScores {
            q: inputs.q(),
            weights: inputs.weights(),
            ratio: inputs.ratio,
            method: Method::Fast,
            rows,
            out: ViewMut::from(out),
            status: Some(ViewMut::from(status)),
        })
    };
    let mut joint = vec![STALE; next + 1];
    let result = call(device, &rows, &mut joint, &mut words.joint);
    let mut want = vec![STALE; joint.len()];
    if went_through(result) {
        for (e, row) in rows.iter().enumerate() {
            words.alone(e, |word| call(&devices.solo, &[*row], &mut want, word));
        }
    }
    assert_bits("index_scores", &joint, &want);
    words.check();
    Ok(())
}
