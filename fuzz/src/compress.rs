use crate::{Devices, Draw, HUGE, Words, assert_bits, went_through};
use abreast::{Compress, CompressRow, Device, Emit, StateLayout, View, ViewMut, bf16, dims};

const STALE: bf16 = bf16::from_bits(0xabcd);

/// One request's tokens and state.
#[derive(Clone)]
struct Request {
    start_pos: u32,
    tokens: [usize; 2],
    kv: Vec<f32>,
    score: Vec<f32>,
    state: [usize; 2],
    kv_state: Vec<f32>,
    score_state: Vec<f32>,
    out: usize,
}

impl Request {
    fn row(&mut self) -> CompressRow<'_> {
        CompressRow {
            start_pos: self.start_pos,
            kv: View::new(&self.kv, self.tokens).expect("values of their shape"),
            score: View::new(&self.score, self.tokens).expect("scores of their shape"),
            kv_state: ViewMut::new(&mut self.kv_state, self.state).expect("a state of its shape"),
            score_state: ViewMut::new(&mut self.score_state, self.state).expect("a state of its shape"),
            out: self.out,
        }
    }
}

pub(crate) fn check(draw: &mut Draw<'_>, devices: &Devices) -> arbitrary::Result<()> {
    let device = devices.joint(draw)?;
    let ratio = draw.pick(&[4u32, 1, 2, 3, 8, 128, 0])?;
    let d = draw.pick(&[32, 64, 128, 0, 33, HUGE])?;
    let layout = draw.pick(&[StateLayout::Shifted, StateLayout::Ring])?;
    let emit = draw.pick(&[Emit::EveryToken, Emit::Blocks])?;
    let epsilon = draw.pick(&[1e-6, 1.0, f32::MAX, 0.0, -1.0, f32::NAN])?;
    let (features, window) = (dims::coff(ratio as usize).checked_mul(d), dims::window(ratio as usize));
    let rows = |draw: &mut Draw<'_>, right| -> arbitrary::Result<[usize; 2]> {
        Ok([draw.rows(right, features)?, draw.length(features.unwrap_or(0))?])
    };
    let ape = rows(draw, ratio as usize)?;
    let (ape, norm) = ((draw.f32s(ape[0] * ape[1]), ape), draw.rows(d, Some(d))?);
    let norm = draw.f32s(norm);

    let count = draw.upto(4)?;
    let mut before = Vec::new();
    let mut next = 1;
    for _ in 0..count {
        let tokens = draw.upto(11)?;
        let tokens = rows(draw, tokens)?;
        let spare = if layout == StateLayout::Ring { draw.upto(3)? } else { 0 };
        let state = rows(draw, window + spare)?;
        let (t, s) = (tokens[0] * tokens[1], state[0] * state[1]);
        let (kv, score) = (draw.f32s(t), draw.f32s(t));
        let fresh = draw.flag()?;
        let score_state = if fresh { vec![f32::NEG_INFINITY; s] } else { draw.f32s(s) };
        let kv_state = if fresh { vec![0.0; s] } else { draw.f32s(s) };
        let (start_pos, out) = (draw.position(300)?, draw.mostly(next)?);
        before.push(Request { start_pos, tokens, kv, score, state, kv_state, score_state, out });
        next += tokens[0];
    }

    let mut words = Words::draw(draw, count)?;
    let outputs = draw.rows(next + 1, Some(d))?;
    let call = |device: &Device, requests: &mut [Request], out: &mut [bf16], status: &mut [u32]| {
        device.compress(Compress {
            ratio,
            layout,
            ape: View::new(&ape.0, ape.1).expect("biases of their shape"),
            norm: View::from(&norm[..]),
            epsilon,
            rows: &mut requests.iter_mut().map(Request::row).collect::<Vec<_>>(),
            out: ViewMut::new(out, [outputs, d]).expect("an output of its shape"),
            emit,
            status: Some(ViewMut::from(status)),
        })
    };
    let mut joint = vec![STALE; outputs * d];
    let mut want = joint.clone();
    let (mut together, mut alone) = (before.clone(), before);
    if went_through(call(device, &mut together, &mut joint, &mut words.joint)) {
        for e in 0..count {
            words.alone(e, |word| call(&devices.solo, &mut alone[e..=e], &mut want, word));
        }
    }
    assert_bits("compress", &joint, &want);
    words.check();
    for (together, alone) in together.iter().zip(&alone) {
        assert_bits("kv_state", &together.kv_state, &alone.kv_state);
        assert_bits("score_state", &together.score_state, &alone.score_state);
    }
    Ok(())
}
