use crate::{Devices, Draw, HUGE, assert_bits, went_through};
use abreast::{ConvertState, ConvertStateRow, Device, StateLayout, View, ViewMut, dims};

const STALE: f32 = -77.0;

/// One request's state, before and after.
#[derive(Clone)]
struct Request {
    position: u32,
    kv_from: Vec<f32>,
    score_from: Vec<f32>,
    from: [usize; 2],
    kv_to: Vec<f32>,
    score_to: Vec<f32>,
    to: [usize; 2],
}

impl Request {
    fn row(&mut self) -> ConvertStateRow<'_> {
        ConvertStateRow {
            position: self.position,
            kv_from: View::new(&self.kv_from, self.from).expect("a state of its shape"),
            score_from: View::new(&self.score_from, self.from).expect("a state of its shape"),
            kv_to: ViewMut::new(&mut self.kv_to, self.to).expect("a state of its shape"),
            score_to: ViewMut::new(&mut self.score_to, self.to).expect("a state of its shape"),
        }
    }
}

pub(crate) fn check(draw: &mut Draw<'_>, devices: &Devices) -> arbitrary::Result<()> {
    let device = devices.joint(draw)?;
    let ratio = draw.pick(&[4u32, 1, 2, 3, 8, 128, 0, u32::MAX])?;
    let layouts = [StateLayout::Shifted, StateLayout::Ring];
    let (from, to) = (draw.pick(&layouts)?, draw.pick(&layouts)?);
    let features = draw.pick(&[64, 32, 128, 0, 33, HUGE])?;
    let window = dims::window(ratio as usize).min(256);
    let shape = |draw: &mut Draw<'_>, layout| -> arbitrary::Result<[usize; 2]> {
        let spare = if layout == StateLayout::Ring { draw.upto(5)? } else { 0 };
        Ok([draw.rows(window + spare, Some(features))?, draw.length(features)?])
    };
    let mut before = Vec::new();
    for _ in 0..draw.upto(4)? {
        let (from, to) = (shape(draw, from)?, shape(draw, to)?);
        let (position, len, new) = (draw.position(300)?, from[0] * from[1], vec![STALE; to[0] * to[1]]);
        before.push(Request {
            position,
            kv_from: draw.f32s(len),
            score_from: draw.f32s(len),
            from,
            kv_to: new.clone(),
            score_to: new,
            to,
        });
    }

    let call = |device: &Device, requests: &mut [Request]| {
        let mut rows: Vec<_> = requests.iter_mut().map(Request::row).collect();
        device.convert_state(ConvertState { ratio, from, to, rows: &mut rows })
    };
    let (mut together, mut alone) = (before.clone(), before);
    if went_through(call(device, &mut together)) {
        for request in &mut alone {
            call(&devices.solo, std::slice::from_mut(request)).expect("a row of a legal call is legal");
        }
    }
    for (together, alone) in together.iter().zip(&alone) {
        assert_bits("kv_to", &together.kv_to, &alone.kv_to);
        assert_bits("score_to", &together.score_to, &alone.score_to);
    }
    Ok(())
}
